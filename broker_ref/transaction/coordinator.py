"""The transaction coordinator of a broker: what requests about transactional ids go to.

Purpose: find the shard of a transactional id, refuse where this broker does not coordinate it or
does not know it yet, let a decision be written, and have what follows done when it counts: markers,
then the end; abort what has timed out and forget what has expired; take partitions of
`__transaction_state` over and give them up as leadership moves. Invariants: a transactional id's
partition is Java's hash of it modulo the partition count; a shard exists as long as this broker
leads its partition in one leader epoch; markers are sent when every in-sync replica knows of the
decision. What it must not know: requests' bytes and versions, and who waits for a reply.
Source: Kafka's `TransactionCoordinator`, `TransactionStateManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import TRANSACTION_STATE_TOPIC, ClusterMetadata
from broker_ref.coordination.partitioning import partition_of
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.coordination.writes import Write
from broker_ref.outbox import Outbox
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import NO_EPOCH, Partition, PartitionKey
from broker_ref.replication.producer_ids import PRODUCER_IDS, WAIT_FOR_IDS_MS, ProducerIds
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.schedule import Schedule
from broker_ref.transaction import decisions
from broker_ref.transaction.decisions import ProducerIdAndEpoch, TransactionalId
from broker_ref.transaction.loading import Loading
from broker_ref.transaction.markers import RETRY_BACKOFF_MS, Ending, MarkerSender
from broker_ref.transaction.records import TRANSACTIONAL_ID_BYTES_MAX
from broker_ref.transaction.shard import Shard, ShardState
from broker_ref.transaction.states import PREPARED
from broker_ref.transaction.transitions import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    Transaction,
    completed,
    unused,
)

TOMBSTONES_TIMEOUT_MS: Final = 30_000
"""Kafka's default of `request.timeout.ms`."""

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerResult:
    """Who the producer is from now on, or why that is not told."""

    error_code: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialization:
    """A producer that starts with a transactional id, or goes on with it as `expected`."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    enables_two_phase_commit: bool = False
    keeps_prepared_transaction: bool = False


class _NoProducerIdError(ApiError):
    """The controller has yet to give this broker ids."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.coordinator_load_in_progress, "This broker waits for a block of producer ids."
        )


class TransactionCoordinator:
    """The transactional ids whose partition of the state topic this broker leads."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        schedule: Schedule,
        outbox: Outbox,
        producer_ids: ProducerIds,
        clock: Callable[[], int],
        wake: Wake | None = None,
    ) -> None:
        """Take over what this broker leads.

        `clock` gives the time of the present step; `wake` has those asked again who wait for a key.
        """
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._schedule = schedule
        self._producer_ids = producer_ids
        self._clock = clock
        self._wake = wake if wake is not None else replicas.mark_changed
        self._shards: dict[int, Shard] = {}
        self._prepared: dict[int, tuple[int, list[Ending]]] = {}
        self._without_ids: dict[Hashable, Callable[[int], None]] = {}
        self._markers = MarkerSender(
            outbox=outbox,
            metadata=metadata,
            schedule=schedule,
            clock=clock,
            on_marked=self._complete,
        )
        schedule.every(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            self.abort_timed_out,
        )
        schedule.every(
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
            self.forget_expired,
        )
        self.follow_metadata(clock())

    # Leadership

    def follow_metadata(self, now_ms: int) -> None:
        """Lead what the metadata says, and send markers to where leaders are now."""
        count = self._partition_count()
        for index in (*self._shards, *(i for i in range(count) if i not in self._shards)):
            self._follow_partition(index, now_ms)
        self._markers.route_again()

    def partitions_changed(self, keys: Iterable[Hashable], now_ms: int) -> None:
        """Finish the writes that replicas have now, and go on with who waited for producer ids."""
        for key in keys:
            if key == PRODUCER_IDS:
                waiting, self._without_ids = self._without_ids, {}
                for try_again in waiting.values():
                    try_again(now_ms)
            elif isinstance(key, PartitionKey) and key.topic == TRANSACTION_STATE_TOPIC:
                shard = self._shards.get(key.partition)
                if shard is not None:
                    shard.writes.replicated(now_ms)
                    self._end_prepared(key.partition)

    def _follow_partition(self, index: int, now_ms: int) -> None:
        shard = self._shards.get(index)
        try:
            partition = self._replicas.partition(TRANSACTION_STATE_TOPIC, index)
            partition.check_leader(NO_EPOCH)
        except ApiError:
            if shard is not None:
                self._resign(index, now_ms)
            return
        if shard is not None:
            same_epoch = shard.coordinator_epoch == partition.leader_epoch
            if shard.partition is partition and same_epoch:
                return
            self._resign(index, now_ms)
        self._lead(index, partition, now_ms)

    def _lead(self, index: int, partition: Partition, now_ms: int) -> None:
        shard = self._shards[index] = Shard(
            partition,
            schedule=self._schedule,
            write_timeout_ms=TOMBSTONES_TIMEOUT_MS,
            mark_changed=lambda: self._wake(partition.key),
        )
        self._load(index, shard, Loading(shard), now_ms)

    def _resign(self, index: int, now_ms: int) -> None:
        """Give a partition up: whoever waits finds the new coordinator, which sends the markers."""
        shard = self._shards.pop(index)
        self._prepared.pop(index, None)
        shard.state = ShardState.RESIGNED
        shard.writes.abandon(now_ms)

    def _load(self, index: int, shard: Shard, loading: Loading, now_ms: int) -> None:
        if self._shards.get(index) is not shard:
            return
        if not loading.step():
            self._schedule.at(now_ms, lambda time_ms: self._load(index, shard, loading, time_ms))
            return
        endings = []
        for entry in shard.ids.values():
            if entry.current.state in PREPARED:
                entry.pending = completed(entry.current, now_ms=now_ms)
                endings.append(Ending(shard=shard, entry=entry))
        if endings:
            self._prepared[index] = (loading.end_offset, endings)
            self._end_prepared(index)

    def _end_prepared(self, index: int) -> None:
        """Send the markers of decisions that were found, once they cannot be lost any more."""
        required_offset, endings = self._prepared.get(index, (0, []))
        if endings and self._shards[index].partition.high_watermark >= required_offset:
            del self._prepared[index]
            for ending in endings:
                self._markers.begin(ending)

    # Which coordinator

    def coordinator(self, transactional_id: str) -> int | None:
        """The broker that coordinates an id; None where the state topic is not there yet."""
        index = self.partition_for(transactional_id)
        found = self._metadata.partition(TRANSACTION_STATE_TOPIC, index)
        return found.leader if found is not None else None

    def partition_for(self, transactional_id: str) -> int:
        """The partition of the state topic that keeps a transactional id."""
        return partition_of(transactional_id, self._partition_count())

    def _partition_count(self) -> int:
        topic = self._metadata.topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return self._config.transaction_state_log_num_partitions
        return len(topic.partitions)

    def _shard(self, transactional_id: str) -> Shard:
        """The id's shard.

        INVALID_REQUEST for no id, NOT_COORDINATOR where it is not led here,
        COORDINATOR_LOAD_IN_PROGRESS while it is read.
        """
        if not transactional_id or len(transactional_id.encode()) > TRANSACTIONAL_ID_BYTES_MAX:
            raise ApiError(
                ErrorCode.invalid_request,
                f"A transactional id may have 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes, not "
                f"{len(transactional_id.encode())}.",
            )
        shard = self._shards.get(self.partition_for(transactional_id))
        if shard is None or shard.state is ShardState.FAILED:
            raise ApiError(
                ErrorCode.not_coordinator,
                f"This broker does not coordinate transactional id {transactional_id!r}.",
            )
        if shard.state is ShardState.LOADING:
            raise ApiError(
                ErrorCode.coordinator_load_in_progress,
                f"This broker still reads what it is to know of {transactional_id!r}.",
            )
        return shard

    def _find(self, transactional_id: str) -> tuple[Shard, TransactionalId]:
        """An id that a producer has been given; INVALID_PRODUCER_ID_MAPPING where it has not."""
        shard = self._shard(transactional_id)
        entry = shard.ids.get(transactional_id)
        if entry is None:
            raise ApiError(
                ErrorCode.invalid_producer_id_mapping,
                f"No producer has started with transactional id {transactional_id!r}.",
            )
        return shard, entry

    # InitProducerId

    def initialize(self, request: Initialization, now_ms: int) -> Reply[ProducerResult]:
        """A producer id with an epoch that fences who had the transactional id before.

        CONCURRENT_TRANSACTIONS while an open transaction is being aborted for that.
        """
        reply: Reply[ProducerResult] = Reply(self._wake)

        def attempt(time_ms: int) -> None:
            try:
                self._initialize(request, reply, time_ms)
            except _NoProducerIdError:
                self._without_ids[reply] = attempt
            except ApiError as error:
                reply.complete(ProducerResult(error_code=error.error_code))

        def give_up(time_ms: int) -> None:
            del time_ms
            if self._without_ids.pop(reply, None) is not None:
                error_code = ErrorCode.coordinator_load_in_progress
                reply.complete(ProducerResult(error_code=error_code))

        attempt(now_ms)
        if reply in self._without_ids:
            self._schedule.at(now_ms + WAIT_FOR_IDS_MS, give_up)
        return reply

    def _initialize(
        self, request: Initialization, reply: Reply[ProducerResult], now_ms: int
    ) -> None:
        name = request.transactional_id
        timeout_ms = self._checked_timeout_ms(request)
        shard = self._shard(name)
        entry = shard.ids.get(name)
        if entry is None:
            value = unused(self._draw_producer_id(), timeout_ms=timeout_ms, now_ms=now_ms)
            entry = shard.ids[name] = TransactionalId(name=name, current=value, unmarked=set())
        next_value = decisions.initialize(
            entry,
            timeout_ms=timeout_ms,
            expected=request.expected,
            draw_producer_id=self._draw_producer_id,
            now_ms=now_ms,
        )
        if next_value is None:
            write = self._abort(shard, entry, now_ms)
            result = ProducerResult(error_code=ErrorCode.concurrent_transactions)
        else:
            write = self._write(shard, entry, next_value, now_ms)
            result = ProducerResult(
                producer_id=next_value.producer_id, producer_epoch=next_value.producer_epoch
            )
        _tell(write, reply, result, now_ms)

    def _checked_timeout_ms(self, request: Initialization) -> int:
        """The transactions' timeout, or why there is none, in Kafka's order of checks."""
        if not request.transactional_id:
            raise ApiError(ErrorCode.invalid_request, "The transactional id must not be empty.")
        if (
            request.enables_two_phase_commit
            and not self._config.transaction_two_phase_commit_enable
        ):
            raise ApiError(
                ErrorCode.transactional_id_authorization_failed,
                "Two-phase commit is off: transaction.two.phase.commit.enable is false.",
            )
        if request.keeps_prepared_transaction:
            raise ApiError(
                ErrorCode.unsupported_version, "Prepared transactions cannot be kept yet."
            )
        if request.enables_two_phase_commit:
            return NO_TIMEOUT_MS
        if not 0 < request.timeout_ms <= self._config.transaction_max_timeout_ms:
            raise ApiError(
                ErrorCode.invalid_transaction_timeout,
                f"A transaction timeout of {request.timeout_ms} ms is not from 1 to "
                f"transaction.max.timeout.ms={self._config.transaction_max_timeout_ms}.",
            )
        return request.timeout_ms

    def _draw_producer_id(self) -> int:
        producer_id = self._producer_ids.next()
        if producer_id is None:
            raise _NoProducerIdError
        return producer_id

    # AddPartitionsToTxn, AddOffsetsToTxn

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[PartitionKey],
        *,
        client_transaction_version: int,
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Note that partitions are part of the transaction, which begins where there was none."""
        reply: Reply[ErrorCode] = Reply(self._wake)
        try:
            shard, entry = self._find(transactional_id)
            value = decisions.add_partitions(
                entry,
                producer,
                partitions,
                client_transaction_version=self._checked_version(client_transaction_version),
                now_ms=now_ms,
            )
            if value is None:
                reply.complete(ErrorCode.none)
            else:
                _tell_code(self._write(shard, entry, value, now_ms), reply, now_ms)
        except ApiError as error:
            reply.complete(error.error_code)
        return reply

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[PartitionKey],
    ) -> Mapping[PartitionKey, ErrorCode]:
        """Whether partitions are part of the transaction; a code for each (KIP-890)."""
        try:
            _, entry = self._find(transactional_id)
            return decisions.verify_partitions(entry, producer, partitions)
        except ApiError as error:
            return dict.fromkeys(partitions, error.error_code)

    # EndTxn

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        client_transaction_version: int,
        now_ms: int,
    ) -> Reply[ProducerResult]:
        """Commit or abort; the reply comes when that is decided for good, before the markers."""
        reply: Reply[ProducerResult] = Reply(self._wake)
        try:
            shard, entry = self._find(transactional_id)
            value = decisions.end(
                entry,
                producer,
                commit=commit,
                client_transaction_version=self._checked_version(client_transaction_version),
                draw_producer_id=self._draw_producer_id,
                now_ms=now_ms,
            )
            if value is None:
                reply.complete(_producer_of(entry.current))
            else:
                result = _producer_of(completed(value, now_ms=now_ms))
                _tell(self._write_decision(shard, entry, value, now_ms), reply, result, now_ms)
        except ApiError as error:
            reply.complete(ProducerResult(error_code=error.error_code))
        return reply

    def _abort(self, shard: Shard, entry: TransactionalId, now_ms: int) -> Write:
        """Abort an open transaction, whatever its producer does."""
        value = decisions.fence(
            entry,
            transaction_version=self._metadata.transaction_version,
            draw_producer_id=self._draw_producer_id,
            now_ms=now_ms,
        )
        return self._write_decision(shard, entry, value, now_ms)

    def _write_decision(
        self, shard: Shard, entry: TransactionalId, value: Transaction, now_ms: int
    ) -> Write:
        def replicated() -> None:
            entry.pending = completed(entry.current, now_ms=self._clock())
            if shard.is_active:
                self._markers.begin(Ending(shard=shard, entry=entry))

        return self._write(shard, entry, value, now_ms, on_replicated=replicated)

    def _complete(self, ending: Ending) -> None:
        """Every partition has its marker: that is to be known, too."""
        shard, entry = ending.shard, ending.entry
        now_ms = self._clock()
        if not shard.is_active or entry.pending is None:
            return
        value = completed(entry.current, now_ms=now_ms)
        try:
            self._write(shard, entry, value, now_ms)
        except ApiError as error:
            logger.info("The end of %.100r is not in the log yet: %s", entry.name, error)
            self._schedule.at(now_ms + RETRY_BACKOFF_MS, lambda _: self._complete(ending))

    def _write(
        self,
        shard: Shard,
        entry: TransactionalId,
        value: Transaction,
        now_ms: int,
        *,
        on_replicated: Callable[[], None] | None = None,
    ) -> Write:
        return shard.write(
            entry,
            value,
            now_ms,
            value_version=1 if self._metadata.transaction_version >= 1 else 0,
            on_replicated=on_replicated,
        )

    def _checked_version(self, client_transaction_version: int) -> int:
        """A client's version; UNSUPPORTED_VERSION where the log's records cannot have it."""
        if client_transaction_version > 0 and self._metadata.transaction_version == 0:
            raise ApiError(
                ErrorCode.unsupported_version,
                f"Transaction version {client_transaction_version} needs the feature "
                "transaction.version, which is 0.",
            )
        return client_transaction_version

    # From time to time

    def abort_timed_out(self, now_ms: int) -> None:
        """Abort the transactions that have been open for too long."""
        for shard in self._active_shards():
            # A write may be what shows that tombstones before it count, so that ids go meanwhile.
            due = [entry for entry in shard.ids.values() if decisions.has_timed_out(entry, now_ms)]
            for entry in due:
                try:
                    self._abort(shard, entry, now_ms)
                    logger.info("The transaction of %.100r has timed out", entry.name)
                except ApiError as error:
                    logger.warning("%.100r is not aborted yet: %s", entry.name, error)

    def forget_expired(self, now_ms: int) -> None:
        """Forget the transactional ids that have not been used for long enough."""
        expiration_ms = self._config.transactional_id_expiration_ms
        for shard in self._active_shards():
            due = [
                entry
                for entry in shard.ids.values()
                if decisions.has_expired(entry, expiration_ms=expiration_ms, now_ms=now_ms)
            ]
            try:
                shard.forget(due, now_ms)
            except ApiError as error:
                logger.warning(
                    "Transactional ids of partition %d do not expire: %s",
                    shard.partition.key.partition, error,
                )  # fmt: skip

    def _active_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.is_active]

    # Administration

    def describe(self, transactional_id: str) -> tuple[Transaction, frozenset[PartitionKey]]:
        """An id's value, and the partitions of its transaction that have no marker yet.

        TRANSACTIONAL_ID_NOT_FOUND where there is none.
        """
        entry = self._shard(transactional_id).ids.get(transactional_id)
        if entry is None:
            raise ApiError(
                ErrorCode.transactional_id_not_found,
                f"No producer has started with transactional id {transactional_id!r}.",
            )
        return entry.current, frozenset(entry.unmarked)

    def transactions(self) -> dict[str, Transaction]:
        """Every id coordinated here; COORDINATOR_LOAD_IN_PROGRESS where some are not known."""
        found = {}
        for shard in self._shards.values():
            if shard.state is ShardState.LOADING:
                raise ApiError(
                    ErrorCode.coordinator_load_in_progress,
                    f"This broker still reads partition {shard.partition.key.partition} of "
                    f"{TRANSACTION_STATE_TOPIC}.",
                )
            found.update({name: entry.current for name, entry in shard.ids.items()})
        return found


def _producer_of(value: Transaction) -> ProducerResult:
    return ProducerResult(producer_id=value.producer_id, producer_epoch=value.producer_epoch)


def _tell(write: Write, reply: Reply[ProducerResult], result: ProducerResult, now_ms: int) -> None:
    """Reply when a write is done, with the result where it counts."""

    def done(outcome: ErrorCode, time_ms: int) -> None:
        del time_ms
        failed = outcome is not ErrorCode.none
        reply.complete(ProducerResult(error_code=outcome) if failed else result)

    write.when_done(done, now_ms)


def _tell_code(write: Write, reply: Reply[ErrorCode], now_ms: int) -> None:
    write.when_done(lambda outcome, _: reply.complete(outcome), now_ms)
