"""One broker, without I/O: events in, effects out.

Purpose: put the parts together (metadata, logs, groups, handlers), read frames, let the handler of
their API key answer, and keep those who wait. Invariant: every frame is answered by exactly one
effect, now or later; no bytes make `handle` raise; time comes with each event. What it must not
know: sockets, clocks, files (it has a `Storage`), and what any request means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker_ref.api import APIS
from broker_ref.api.contract import Api, Broker, Call, Hangup, NoAnswer, Wait
from broker_ref.api.k18_api_versions import API as API_VERSIONS
from broker_ref.api.k18_api_versions import unsupported_version
from broker_ref.config import BrokerConfig
from broker_ref.controller.controller import Controller
from broker_ref.controller.journal import CorruptJournalError, Journal
from broker_ref.events import (
    CloseConnection,
    ConnectionClosed,
    ConnectionId,
    ConnectionOpened,
    Effect,
    Event,
    FrameReceived,
    NoResponse,
    SendFrame,
    TimePassed,
)
from broker_ref.group.coordinator import GroupCoordinator
from broker_ref.identity import claim_directory, known_cluster_id
from broker_ref.log.storage import Storage
from broker_ref.protocol.frames import (
    RequestHeader,
    finish_header,
    read_prefix,
    request_schema,
    response_frame,
)
from broker_ref.protocol.reader import Cursor, MalformedRequestError, read_message
from broker_ref.replication.producer_ids import ProducerIds
from broker_ref.replication.purgatory import Completion, Purgatory
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.schedule import Schedule

JOURNAL_FILE: Final = "cluster-metadata.journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A request that is being served: where its response goes, and in which form."""

    connection_id: ConnectionId
    header: RequestHeader


class Node:
    """A broker on a storage. `advertise` must be called before the first frame."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        storage: Storage,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """Open and recover what storage holds.

        LogError or StorageError says what is damaged, ApiError that metadata cannot be written.
        """
        cluster_id = known_cluster_id(config, storage=storage)
        if cluster_id is not None and not storage.exists(JOURNAL_FILE):
            raise CorruptJournalError(
                f"{JOURNAL_FILE}, which says what topics there are, is missing from this data "
                "directory. Restore it from a copy or start with an empty directory."
            )
        journal = Journal(storage, JOURNAL_FILE)
        if cluster_id is None:
            cluster_id = claim_directory(config, storage=storage, random_bytes=random_bytes)
        self._now_ms = now_ms
        self._config = config
        self._controller = Controller(
            journal=journal,
            random_bytes=random_bytes,
            num_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
        )
        self._controller.elect_leaders(config.node_id)
        metadata = self._controller.metadata
        self._replicas = ReplicaManager(
            config=config, storage=storage, metadata=metadata, now_ms=now_ms
        )
        self._controller.compact_journal(undeleted=self._replicas.undeleted_topics)
        self._schedule = Schedule(now_ms)
        self._groups = GroupCoordinator(
            config=config,
            metadata=metadata,
            replicas=self._replicas,
            schedule=self._schedule,
            random_bytes=random_bytes,
            now_ms=now_ms,
        )
        self._controller.on_change = self._follow_metadata
        self.broker = Broker(
            config=config,
            cluster_id=cluster_id,
            controller=self._controller,
            replicas=self._replicas,
            groups=self._groups,
            producer_ids=ProducerIds(
                lambda: self._controller.allocate_producer_ids(config.node_id)
            ),
            apis=lambda: tuple(APIS.values()),
        )
        self._purgatory: Purgatory[Pending] = Purgatory()
        self._hosts: dict[ConnectionId, str] = {}
        self._schedule.every(config.log_retention_check_interval_ms, self._replicas.run_retention)
        self._schedule.every(
            config.producer_id_expiration_check_interval_ms, self._replicas.expire_producers
        )
        self._schedule.every(
            config.log_flush_offset_checkpoint_interval_ms, self._replicas.flush_and_checkpoint
        )

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that the storage belongs to."""
        return self.broker.cluster_id

    def advertise(self, host: str, port: int) -> None:
        """Let clients be told this address."""
        self._controller.register_broker(
            broker_id=self._config.node_id, host=host, port=port, rack=self._config.rack
        )

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event in; what it leads to, for whichever connection, is to be carried out."""
        self._now_ms = max(self._now_ms, now_ms)
        effects: list[Effect] = []
        match event:
            case FrameReceived():
                effects += self._serve(event)
            case ConnectionOpened():
                self._hosts[event.connection_id] = event.peer.rpartition(":")[0]
            case ConnectionClosed():
                self._hosts.pop(event.connection_id, None)
                self._purgatory.forget_where(
                    lambda pending: pending.connection_id == event.connection_id
                )
            case TimePassed():
                self._schedule.run(self._now_ms)
                effects += self._complete(self._purgatory.expire(self._now_ms))
        while changed := self._replicas.take_changed():
            self._groups.partitions_changed(changed, self._now_ms)
            effects += self._complete(self._purgatory.check(changed, self._now_ms))
        return effects

    def next_deadline_ms(self) -> int | None:
        """When `TimePassed` is next to be sent."""
        deadlines = [self._schedule.next_deadline_ms(), self._purgatory.next_deadline_ms()]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def close(self, now_ms: int) -> None:
        """Stop cleanly: flush the logs, write the checkpoints and the marker of a clean stop.

        The first LogError or StorageError is raised when all that can be closed is closed.
        """
        self._now_ms = max(self._now_ms, now_ms)
        try:
            self._replicas.close()
        finally:
            self._controller.close()

    def _follow_metadata(self) -> None:
        self._replicas.follow_metadata(self._now_ms)
        self._groups.follow_metadata(self._now_ms)

    def _serve(self, event: FrameReceived) -> list[Effect]:
        connection_id = event.connection_id
        cursor = Cursor(event.frame)
        try:
            header = read_prefix(cursor)
            api = APIS.get(header.api_key)
            if api is None or header.api_version not in api.versions:
                return [_refuse_version(connection_id, api, header)]
            schema = request_schema(api.key, header.api_version)
            header = finish_header(cursor, header, flexible=schema.__flexible__)
            request = read_message(schema, api.request, cursor)
        except MalformedRequestError as error:
            return [CloseConnection(connection_id=connection_id, reason=str(error))]
        call = Call(
            version=header.api_version,
            client_id=header.client_id,
            now_ms=self._now_ms,
            client_host=self._hosts.get(connection_id, ""),
        )
        outcome = api.handle(self.broker, call, request)
        return self._answer(Pending(connection_id=connection_id, header=header), outcome)

    def _answer(self, pending: Pending, outcome: object) -> list[Effect]:
        match outcome:
            case Wait():
                self._purgatory.watch(
                    owner=pending,
                    operation=outcome.operation,
                    keys=outcome.keys,
                    deadline_ms=outcome.deadline_ms,
                )
                return []
            case NoAnswer():
                return [NoResponse(connection_id=pending.connection_id)]
            case Hangup():
                return [CloseConnection(connection_id=pending.connection_id, reason=outcome.reason)]
            case _:
                return [_send(pending, outcome)]

    def _complete(self, completions: list[Completion[Pending]]) -> list[Effect]:
        return [_send(completion.owner, completion.message) for completion in completions]


def _send(pending: Pending, message: object) -> SendFrame:
    header = pending.header
    frame = response_frame(
        api_key=header.api_key,
        version=header.api_version,
        correlation_id=header.correlation_id,
        message=message,
    )
    return SendFrame(connection_id=pending.connection_id, frame=frame)


def _refuse_version(connection_id: ConnectionId, api: Api | None, header: RequestHeader) -> Effect:
    """Kafka closes the connection of a client that did not ask for the versions first."""
    if api is API_VERSIONS:
        frame = response_frame(
            api_key=api.key,
            version=0,
            correlation_id=header.correlation_id,
            message=unsupported_version(),
        )
        return SendFrame(connection_id=connection_id, frame=frame)
    served = "no such API" if api is None else f"versions {api.versions[0]} to {api.versions[-1]}"
    return CloseConnection(
        connection_id=connection_id,
        reason=f"a request of API key {header.api_key} in version {header.api_version}, of which "
        f"this broker serves {served}",
    )
