"""Transactional producers that send single requests, as old and new clients do.

A test chooses the fields of a request. A method `..._once` sends one request and returns any
response. The other methods retry retriable errors, as clients do, and must succeed. Batches have
the producer id, epoch and sequence that follow from earlier responses and batches, unless the test
overrides them.

Sources: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import ConnectionClosedByBrokerError, RawConnection
from tests.conformance.batches import TRANSACTIONAL, Record, batch
from tests.conformance.eventually import eventually
from tests.conformance.groups import find_coordinator
from tests.conformance.transaction_states import Description, describe_transaction
from tests.conformance.wire import describe_topics, only, produce

TRANSACTION = 1
"""The key type of transactional ids in FindCoordinator."""
TIMEOUT_MS = 60_000
NOBODY = -1
_MOVING = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    }
)
BUSY = _MOVING | {ErrorCode.concurrent_transactions}
"""The error codes that clients retry."""
_PRODUCE_AGAIN = BUSY | {
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.network_exception,
    ErrorCode.request_timed_out,
}
_ATTEMPT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    init_producer_id: int
    add_partitions_to_txn: int
    produce: int
    add_offsets_to_txn: int
    txn_offset_commit: int
    end_txn: int

    @property
    def adds_implicitly(self) -> bool:
        """Whether Produce and TxnOffsetCommit add their partition to the transaction (KIP-890)."""
        return self.produce >= 12

    @property
    def bumps_epoch(self) -> bool:
        """Whether every EndTxn bumps the epoch (KIP-890)."""
        return self.end_txn >= 5


VERSION_1 = Generation(
    init_producer_id=4,
    add_partitions_to_txn=3,
    produce=11,
    add_offsets_to_txn=3,
    txn_offset_commit=4,
    end_txn=4,
)
VERSION_2 = Generation(
    init_producer_id=5,
    add_partitions_to_txn=3,
    produce=12,
    add_offsets_to_txn=4,
    txn_offset_commit=5,
    end_txn=5,
)


class Brokers(Protocol):
    """Connections to brokers, for example `tests.conformance.nodes.Nodes`."""

    def to(self, broker_id: int) -> RawConnection:
        """Return the connection to a broker."""

    def any(self) -> RawConnection:
        """Return the connection to any running broker."""


class Connections:
    """Connections to the brokers of a cluster that does not stop, as a context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[int, RawConnection] = {}
        self._closing = ExitStack()

    def to(self, broker_id: int) -> RawConnection:
        if broker_id not in self._open:
            made = RawConnection(self._cluster.address(broker_id))
            self._open[broker_id] = self._closing.enter_context(made)
        return self._open[broker_id]

    def any(self) -> RawConnection:
        return self.to(self._cluster.broker_ids[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.close()


def coordinator_id(raw: RawConnection, transactional_id: str) -> int:
    """Send FindCoordinator and return the broker id; -1 if there is none."""
    found = find_coordinator(raw, transactional_id, key_type=TRANSACTION).coordinators
    return int(only(found).node_id)


def retried(
    attempt: Callable[[], Any],
    again: frozenset[ErrorCode] = BUSY,
    *,
    timeout_s: float = _ATTEMPT_TIMEOUT_S,
) -> Any:
    """Retry while `error_code` is in `again` or the connection breaks; return the response.

    The response may also be a plain `ErrorCode`.
    """
    responses: list[Any] = []

    def answered() -> bool:
        with suppress(OSError, ConnectionClosedByBrokerError):
            responses[:] = [attempt()]
            return code_of(responses[0]) not in again
        return False

    try:
        eventually(answered, timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last responses are {responses}") from None
    return responses[0]


def code_of(response: Any) -> ErrorCode:
    code = response if isinstance(response, ErrorCode) else response.error_code
    assert isinstance(code, ErrorCode)
    return code


class TransactionalProducer:
    """A producer of a transactional id; several producers may have the same id."""

    def __init__(
        self,
        brokers: Brokers,
        transactional_id: str,
        generation: Generation,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self.brokers = brokers
        self.transactional_id = transactional_id
        self.generation = generation
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int] | str] = set()

    # Connections.

    def coordinator(self) -> RawConnection:
        """Look up the coordinator and return the connection to it.

        Raises `OSError` if there is no coordinator.
        """
        return self._to(coordinator_id(self.brokers.any(), self.transactional_id))

    def leader(self, topic: str, partition: int = 0) -> RawConnection:
        """Look up the leader of a partition and return the connection to it.

        Raises `OSError` if there is no leader.
        """
        found = only(describe_topics(self.brokers.any(), topic).topics)
        by_index = {p.partition_index: p.leader_id for p in found.partitions}
        return self._to(by_index.get(partition, NOBODY))

    def _to(self, broker_id: int) -> RawConnection:
        if broker_id == NOBODY:
            raise OSError("there is no leader at this moment")
        return self.brokers.to(broker_id)

    # InitProducerId.

    def init_once(self, *, version: int | None = None, **fields: Any) -> Any:
        """Send one InitProducerId; `fields` overrides fields of the request."""
        requested: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": self.timeout_ms,
        }
        used = self.generation.init_producer_id if version is None else version
        return self.coordinator().call("init_producer_id", used, **(requested | fields))

    def init(self, *, version: int | None = None, **fields: Any) -> Self:
        """Send InitProducerId until it succeeds, and use the producer id and epoch."""
        response = retried(lambda: self.init_once(version=version, **fields))
        assert response.error_code == ErrorCode.none, response
        self.update_identity(response)
        return self

    def update_identity(self, response: Any) -> None:
        """Use the producer id and epoch of a response."""
        self.set_identity(int(response.producer_id), int(response.producer_epoch))

    def set_identity(self, producer_id: int, epoch: int) -> None:
        """Use this producer id and epoch; sequences restart at 0 if either changes."""
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences = {}
        self.producer_id, self.epoch = producer_id, epoch
        self._added = set()

    # AddPartitionsToTxn.

    def add_once(
        self,
        topic: str,
        *partitions: int,
        version: int | None = None,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> list[ErrorCode]:
        """Send one AddPartitionsToTxn and return the error codes of the partitions (default: 0)."""
        used = self.generation.add_partitions_to_txn if version is None else version
        fields: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id if producer_id is None else producer_id,
            "producer_epoch": self.epoch if epoch is None else epoch,
            "topics": [{"name": topic, "partitions": list(partitions or (0,))}],
        }
        connection = self.coordinator()
        if used >= 4:
            response = connection.call("add_partitions_to_txn", used, transactions=[fields])
            topics = only(response.results_by_transaction).topic_results
        else:
            old = {f"v3_and_below_{name}": value for name, value in fields.items()}
            response = connection.call("add_partitions_to_txn", used, **old)
            topics = response.results_by_topic_v3_and_below
        found = {
            p.partition_index: p.partition_error_code for p in only(topics).results_by_partition
        }
        return [found[partition] for partition in partitions or (0,)]

    def add(self, topic: str, *partitions: int) -> None:
        code = retried(lambda: _worst(self.add_once(topic, *partitions)))
        assert code == ErrorCode.none, code
        self._added |= {(topic, partition) for partition in partitions or (0,)}

    # Produce.

    def batch(
        self,
        *texts: str,
        sequence: int,
        epoch: int | None = None,
        is_transactional: bool = True,
        key: str = "key",
    ) -> bytes:
        """Return a batch with the current time, because a partition expires old producers."""
        now_ms = int(time.time() * 1000)
        return batch(
            [Record(key=key.encode(), value=t.encode(), timestamp_ms=now_ms) for t in texts],
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL if is_transactional else 0,
        )

    def produce_once(
        self,
        topic: str,
        *texts: str,
        partition: int = 0,
        sequence: int | None = None,
        epoch: int | None = None,
        version: int | None = None,
        is_transactional: bool = True,
        key: str = "key",
    ) -> Any:
        """Send one Produce with one batch, without AddPartitionsToTxn.

        If the batch is accepted, the sequence advances.
        """
        at = (topic, partition)
        first = self.sequences.get(at, 0) if sequence is None else sequence
        data = self.batch(
            *texts, sequence=first, epoch=epoch, is_transactional=is_transactional, key=key
        )
        response = self.send_once(topic, data, partition=partition, version=version)
        if response.error_code == ErrorCode.none:
            self.sequences[at] = first + len(texts)
        return response

    def send_once(
        self, topic: str, records: bytes, *, partition: int = 0, version: int | None = None
    ) -> Any:
        """Send one Produce with arbitrary bytes and this transactional id."""
        return produce(
            self.leader(topic, partition),
            topic,
            records,
            partition=partition,
            version=self.generation.produce if version is None else version,
            transactional_id=self.transactional_id,
        )

    def write(self, topic: str, *texts: str, partition: int = 0, key: str = "key") -> int:
        """Produce in the transaction, as clients of this generation do; return the base offset."""
        if not self.generation.adds_implicitly and (topic, partition) not in self._added:
            self.add(topic, partition)
        response = retried(
            lambda: self.produce_once(topic, *texts, partition=partition, key=key), _PRODUCE_AGAIN
        )
        assert response.error_code == ErrorCode.none, response
        return int(response.base_offset)

    # AddOffsetsToTxn and TxnOffsetCommit.

    def add_offsets_once(
        self,
        group: str,
        *,
        version: int | None = None,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> ErrorCode:
        return code_of(
            self.coordinator().call(
                "add_offsets_to_txn",
                self.generation.add_offsets_to_txn if version is None else version,
                transactional_id=self.transactional_id,
                producer_id=self.producer_id if producer_id is None else producer_id,
                producer_epoch=self.epoch if epoch is None else epoch,
                group_id=group,
            )
        )

    def add_offsets(self, group: str) -> None:
        code = retried(lambda: self.add_offsets_once(group))
        assert code == ErrorCode.none, code
        self._added.add(group)

    def commit_offsets_once(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        version: int | None = None,
        producer_id: int | None = None,
        epoch: int | None = None,
        metadata: str | None = "",
        **member: Any,
    ) -> list[ErrorCode]:
        """Send one TxnOffsetCommit for a topic, without AddOffsetsToTxn; return the error codes.

        `member` sets generation_id, member_id and group_instance_id, which exist from version 3 on.
        """
        found = only(find_coordinator(self.brokers.any(), group).coordinators).node_id
        response = self.brokers.to(found).call(
            "txn_offset_commit",
            self.generation.txn_offset_commit if version is None else version,
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": p,
                            "committed_offset": o,
                            "committed_metadata": metadata,
                        }
                        for p, o in offsets.items()
                    ],
                }
            ],
            **member,
        )
        by_index = {p.partition_index: p.error_code for p in only(response.topics).partitions}
        return [by_index[partition] for partition in offsets]

    def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], **member: Any
    ) -> None:
        """Commit offsets in the transaction, as clients of this generation do."""
        if not self.generation.adds_implicitly and group not in self._added:
            self.add_offsets(group)
        code = retried(
            lambda: _worst(self.commit_offsets_once(group, topic, offsets, **member)),
            _PRODUCE_AGAIN,
        )
        assert code == ErrorCode.none, code

    # EndTxn.

    def end_once(
        self,
        *,
        commit: bool,
        version: int | None = None,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> Any:
        return self.coordinator().call(
            "end_txn",
            self.generation.end_txn if version is None else version,
            transactional_id=self.transactional_id,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=commit,
        )

    def end(self, *, commit: bool) -> None:
        """Send EndTxn until it succeeds, and use the producer epoch of the response."""
        response = retried(lambda: self.end_once(commit=commit))
        assert response.error_code == ErrorCode.none, response
        self._added = set()
        if self.generation.bumps_epoch:
            self.update_identity(response)

    def commit(self) -> None:
        """Commit the transaction. The records become visible when the markers are written."""
        self.end(commit=True)

    def abort(self) -> None:
        self.end(commit=False)

    # State in the coordinator.

    def describe(self) -> Description:
        return describe_transaction(self.coordinator(), self.transactional_id)

    def await_state(self, *states: str) -> Description:
        """Wait until the transaction is in one of these states, and return its description."""
        found: list[Description] = []

        def holds() -> bool:
            found[:] = [retried(self.describe)]
            return found[0].state in states

        try:
            eventually(holds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.transactional_id} is in {found}") from None
        return found[0]

    def await_complete(self) -> None:
        """Wait until every partition has its marker and the completed state is written."""
        self.await_state("CompleteCommit", "CompleteAbort")


def _worst(codes: list[ErrorCode]) -> ErrorCode:
    return next((code for code in codes if code != ErrorCode.none), ErrorCode.none)
