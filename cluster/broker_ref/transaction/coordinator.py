"""The transaction coordinator of a broker.

The coordinator writes the state changes of each transactional id to its shard, which is a partition
of `__transaction_state`. Once the prepared state of a transaction is replicated, the coordinator
sends the transaction markers and completes the transaction. It also aborts transactions that time
out, removes expired transactional ids, and loads and unloads shards when leadership changes.
Requests are rejected if this broker is not the coordinator or is loading the shard.

Invariants: the partition of a transactional id is the Java hash code of the id modulo the number of
partitions. A shard exists only while this broker leads the partition, and is replaced if the leader
epoch changes. Markers are sent only after the prepared state is replicated. Source: Kafka's
`TransactionCoordinator` and `TransactionStateManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import TRANSACTION_STATE_TOPIC, ClusterMetadata
from broker_ref.coordination.partition_writer import PendingWrite
from broker_ref.coordination.partitioning import partition_of
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.frozen import dataclass
from broker_ref.outbox import Outbox
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import NO_EPOCH, Partition, PartitionKey
from broker_ref.replication.producer_id_manager import (
    PRODUCER_IDS,
    WAIT_FOR_IDS_MS,
    ProducerIdManager,
)
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.schedule import Schedule
from broker_ref.transaction import request_validation
from broker_ref.transaction.loading import Loading
from broker_ref.transaction.marker_channel_manager import (
    RETRY_BACKOFF_MS,
    PendingCompleteTxn,
    TransactionMarkerChannelManager,
)
from broker_ref.transaction.request_validation import ProducerIdAndEpoch, TransactionMetadata
from broker_ref.transaction.shard import Shard, ShardState
from broker_ref.transaction.states import PREPARED
from broker_ref.transaction.transitions import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    Transaction,
    new_transactional_id,
    prepare_complete,
)

TOMBSTONES_TIMEOUT_MS: Final = 30_000
"""Kafka's default for `request.timeout.ms`."""

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResult:
    """The producer id and epoch, or an error code (Kafka's `InitProducerIdResult`)."""

    error_code: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdArguments:
    """The arguments of InitProducerId. `expected` is the producer id and epoch in the request."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    enables_two_phase_commit: bool = False
    keeps_prepared_transaction: bool = False


class _NoProducerIdError(ApiError):
    """The broker is waiting for a block of producer ids."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.coordinator_load_in_progress,
            "This broker is waiting for a block of producer ids. Retry the request.",
        )


class TransactionCoordinator:
    """The transactional ids that this broker coordinates."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        schedule: Schedule,
        outbox: Outbox,
        producer_ids: ProducerIdManager,
        clock: Callable[[], int],
        wake: Wake | None = None,
    ) -> None:
        """Load the partitions that this broker leads.

        `clock` returns the time of the current event. `wake` checks the delayed operations for a
        purgatory key.
        """
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._schedule = schedule
        self._producer_ids = producer_ids
        self._clock = clock
        self._wake = wake if wake is not None else replicas.mark_changed
        self._shards: dict[int, Shard] = {}
        self._loaded: dict[int, Loading] = {}
        self._without_ids: dict[Hashable, Callable[[int], None]] = {}
        self._markers = TransactionMarkerChannelManager(
            outbox=outbox,
            metadata=metadata,
            schedule=schedule,
            clock=clock,
            on_marked=self._complete,
        )
        schedule.every(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            self.abort_timed_out_transactions,
        )
        schedule.every(
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
            self.remove_expired_transactional_ids,
        )
        for index in range(self._partition_count()):
            self._update_leadership(index, clock())

    # Leadership

    def on_metadata_update(self) -> None:
        """Send markers to new leaders."""
        self._markers.retry_markers()

    def partitions_changed(self, keys: Iterable[Hashable], now_ms: int) -> None:
        """Load or unload partitions and complete replicated writes.

        Requests that waited for new producer ids are also retried.
        """
        for key in keys:
            if key == PRODUCER_IDS:
                waiting, self._without_ids = self._without_ids, {}
                for try_again in waiting.values():
                    try_again(now_ms)
            elif isinstance(key, PartitionKey) and key.topic == TRANSACTION_STATE_TOPIC:
                self._update_leadership(key.partition, now_ms)
                shard = self._shards.get(key.partition)
                if shard is not None:
                    shard.writes.replicated(now_ms)
                    self._activate_if_replicated(key.partition, now_ms)

    def _update_leadership(self, index: int, now_ms: int) -> None:
        shard = self._shards.get(index)
        try:
            partition = self._replicas.partition(TRANSACTION_STATE_TOPIC, index)
            partition.check_leader(NO_EPOCH)
        except ApiError:
            if shard is not None:
                self._on_resignation(index, now_ms)
            return
        if shard is not None:
            same_epoch = shard.coordinator_epoch == partition.leader_epoch
            if shard.partition is partition and same_epoch:
                return
            self._on_resignation(index, now_ms)
        self._on_election(index, partition, now_ms)

    def _on_election(self, index: int, partition: Partition, now_ms: int) -> None:
        shard = self._shards[index] = Shard(
            partition,
            schedule=self._schedule,
            write_timeout_ms=TOMBSTONES_TIMEOUT_MS,
            mark_changed=lambda: self._wake(partition.key),
        )
        self._load(index, shard, Loading(shard), now_ms)

    def _on_resignation(self, index: int, now_ms: int) -> None:
        """Unload a partition.

        Pending requests fail, and the new coordinator sends the remaining markers.
        """
        shard = self._shards.pop(index)
        self._loaded.pop(index, None)
        shard.state = ShardState.RESIGNED
        shard.writes.abandon(now_ms)

    def _load(self, index: int, shard: Shard, loading: Loading, now_ms: int) -> None:
        if self._shards.get(index) is not shard:
            return
        if not loading.step():
            self._schedule.at(now_ms, lambda time_ms: self._load(index, shard, loading, time_ms))
            return
        if shard.state is ShardState.LOADING:
            self._loaded[index] = loading
            self._activate_if_replicated(index, now_ms)

    def _activate_if_replicated(self, index: int, now_ms: int) -> None:
        """Activate a loaded shard once its records are replicated.

        A new leader could truncate records that are not replicated, so responses must not depend on
        such records. Kafka activates the shard immediately.
        """
        loading, shard = self._loaded.get(index), self._shards[index]
        if loading is None or shard.partition.high_watermark < loading.end_offset:
            return
        del self._loaded[index]
        shard.state = ShardState.ACTIVE
        self._send_markers_of_prepared(shard, now_ms)

    def _send_markers_of_prepared(self, shard: Shard, now_ms: int) -> None:
        """Send the markers that the previous coordinator may not have sent."""
        for entry in shard.ids.values():
            if entry.current.state in PREPARED:
                entry.pending = prepare_complete(entry.current, now_ms=now_ms)
                self._markers.add_txn_markers_to_send(PendingCompleteTxn(shard=shard, entry=entry))

    # Finding the coordinator

    def coordinator(self, transactional_id: str) -> int | None:
        """Return the coordinator of a transactional id.

        Return None if `__transaction_state` does not exist.
        """
        index = self.partition_for(transactional_id)
        found = self._metadata.partition(TRANSACTION_STATE_TOPIC, index)
        return found.leader if found is not None else None

    def partition_for(self, transactional_id: str) -> int:
        """Return the partition of `__transaction_state` that stores the transactional id."""
        return partition_of(transactional_id, self._partition_count())

    def _partition_count(self) -> int:
        topic = self._metadata.topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return self._config.transaction_state_log_num_partitions
        return len(topic.partitions)

    def _shard(self, transactional_id: str) -> Shard:
        """Return the shard of a transactional id.

        Raises: ApiError (INVALID_REQUEST if the id is empty, NOT_COORDINATOR if this broker does
        not lead the partition, COORDINATOR_LOAD_IN_PROGRESS while the partition is being loaded).
        """
        if not transactional_id:
            raise ApiError(ErrorCode.invalid_request, "The transactional id is empty.")
        shard = self._shards.get(self.partition_for(transactional_id))
        if shard is None or shard.state is ShardState.FAILED:
            raise ApiError(
                ErrorCode.not_coordinator,
                f"This broker is not the coordinator of transactional id {transactional_id!r}.",
            )
        if shard.state is ShardState.LOADING:
            raise ApiError(
                ErrorCode.coordinator_load_in_progress,
                "This broker is still loading the partition of __transaction_state that stores "
                f"transactional id {transactional_id!r}. Retry later.",
            )
        return shard

    def _existing_id(self, transactional_id: str) -> tuple[Shard, TransactionMetadata]:
        """Return a transactional id and its shard.

        Raises: ApiError (INVALID_PRODUCER_ID_MAPPING if the transactional id does not exist).
        """
        shard = self._shard(transactional_id)
        entry = shard.ids.get(transactional_id)
        if entry is None:
            raise ApiError(
                ErrorCode.invalid_producer_id_mapping,
                f"Transactional id {transactional_id!r} has no producer id. Send "
                "InitProducerId first.",
            )
        return shard, entry

    # InitProducerId

    def handle_init_producer_id(
        self, request: InitProducerIdArguments, now_ms: int
    ) -> Reply[InitProducerIdResult]:
        """Return a producer id and an epoch that fences earlier producers of the transactional id.

        If a transaction is open, it is aborted and the error code is CONCURRENT_TRANSACTIONS.
        Source: `TransactionCoordinator.handleInitProducerId`.
        """
        reply: Reply[InitProducerIdResult] = Reply(self._wake)

        def attempt(time_ms: int) -> None:
            try:
                self._initialize(request, reply, time_ms)
            except _NoProducerIdError:
                self._without_ids[reply] = attempt
            except ApiError as error:
                reply.complete(InitProducerIdResult(error_code=error.error_code))

        def give_up(time_ms: int) -> None:
            del time_ms
            if self._without_ids.pop(reply, None) is not None:
                error_code = ErrorCode.coordinator_load_in_progress
                reply.complete(InitProducerIdResult(error_code=error_code))

        attempt(now_ms)
        if reply in self._without_ids:
            self._schedule.at(now_ms + WAIT_FOR_IDS_MS, give_up)
        return reply

    def _initialize(
        self, request: InitProducerIdArguments, reply: Reply[InitProducerIdResult], now_ms: int
    ) -> None:
        name = request.transactional_id
        timeout_ms = self._checked_timeout_ms(request)
        shard = self._shard(name)
        entry = shard.ids.get(name)
        if entry is None:
            value = new_transactional_id(
                self._generate_producer_id(), timeout_ms=timeout_ms, now_ms=now_ms
            )
            entry = shard.ids[name] = TransactionMetadata(name=name, current=value, unmarked=set())
        next_value = request_validation.initialize(
            entry,
            timeout_ms=timeout_ms,
            expected=request.expected,
            generate_producer_id=self._generate_producer_id,
            now_ms=now_ms,
        )
        if next_value is None:
            write = self._abort(shard, entry, now_ms)
            result = InitProducerIdResult(error_code=ErrorCode.concurrent_transactions)
        else:
            write = self._write(shard, entry, next_value, now_ms)
            result = InitProducerIdResult(
                producer_id=next_value.producer_id, producer_epoch=next_value.producer_epoch
            )
        _complete_reply(write, reply, result, now_ms)

    def _checked_timeout_ms(self, request: InitProducerIdArguments) -> int:
        """Validate a request and return its timeout. The checks run in Kafka's order."""
        if not request.transactional_id:
            raise ApiError(ErrorCode.invalid_request, "The transactional id must not be empty.")
        if (
            request.enables_two_phase_commit
            and not self._config.transaction_two_phase_commit_enable
        ):
            raise ApiError(
                ErrorCode.transactional_id_authorization_failed,
                "Two-phase commit is disabled, because transaction.two.phase.commit.enable is "
                "false.",
            )
        if request.keeps_prepared_transaction:
            raise ApiError(
                ErrorCode.unsupported_version,
                "Keeping prepared transactions (KeepPreparedTxn) is not supported.",
            )
        if request.enables_two_phase_commit:
            return NO_TIMEOUT_MS
        if not 0 < request.timeout_ms <= self._config.transaction_max_timeout_ms:
            raise ApiError(
                ErrorCode.invalid_transaction_timeout,
                f"The transaction timeout of {request.timeout_ms} ms is not between 1 and "
                f"transaction.max.timeout.ms={self._config.transaction_max_timeout_ms}.",
            )
        return request.timeout_ms

    def _generate_producer_id(self) -> int:
        producer_id = self._producer_ids.generate_producer_id()
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
        """Add partitions to the transaction. If no transaction is open, begin one."""
        reply: Reply[ErrorCode] = Reply(self._wake)
        try:
            shard, entry = self._existing_id(transactional_id)
            value = request_validation.add_partitions(
                entry,
                producer,
                partitions,
                client_transaction_version=self._checked_version(client_transaction_version),
                now_ms=now_ms,
            )
            if value is None:
                reply.complete(ErrorCode.none)
            else:
                _complete_reply_with_code(self._write(shard, entry, value, now_ms), reply, now_ms)
        except ApiError as error:
            reply.complete(error.error_code)
        return reply

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[PartitionKey],
    ) -> Mapping[PartitionKey, ErrorCode]:
        """Return an error code for each partition.

        The error code is NONE if the transaction contains the partition.
        """
        try:
            _, entry = self._existing_id(transactional_id)
            return request_validation.verify_partitions(entry, producer, partitions)
        except ApiError as error:
            return dict.fromkeys(partitions, error.error_code)

    # EndTxn

    def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        client_transaction_version: int,
        now_ms: int,
    ) -> Reply[InitProducerIdResult]:
        """Commit or abort a transaction.

        The result is available when the prepared state is replicated. The transaction markers are
        sent afterwards. Source: `TransactionCoordinator.endTransaction`.
        """
        reply: Reply[InitProducerIdResult] = Reply(self._wake)
        try:
            shard, entry = self._existing_id(transactional_id)
            value = request_validation.end(
                entry,
                producer,
                commit=commit,
                client_transaction_version=self._checked_version(client_transaction_version),
                generate_producer_id=self._generate_producer_id,
                now_ms=now_ms,
            )
            if value is None:
                reply.complete(_producer_of(entry.current))
            else:
                result = _producer_of(prepare_complete(value, now_ms=now_ms))
                _complete_reply(
                    self._write_prepared(shard, entry, value, now_ms), reply, result, now_ms
                )
        except ApiError as error:
            reply.complete(InitProducerIdResult(error_code=error.error_code))
        return reply

    def _abort(self, shard: Shard, entry: TransactionMetadata, now_ms: int) -> PendingWrite:
        """Abort an open transaction on behalf of the coordinator."""
        value = request_validation.fence(
            entry,
            transaction_version=self._metadata.transaction_version,
            generate_producer_id=self._generate_producer_id,
            now_ms=now_ms,
        )
        return self._write_prepared(shard, entry, value, now_ms)

    def _write_prepared(
        self, shard: Shard, entry: TransactionMetadata, value: Transaction, now_ms: int
    ) -> PendingWrite:
        def replicated() -> None:
            entry.pending = prepare_complete(entry.current, now_ms=self._clock())
            if shard.is_active:
                self._markers.add_txn_markers_to_send(PendingCompleteTxn(shard=shard, entry=entry))

        return self._write(shard, entry, value, now_ms, on_replicated=replicated)

    def _complete(self, pending_txn: PendingCompleteTxn) -> None:
        """Write the completed state after every partition has received its marker."""
        shard, entry = pending_txn.shard, pending_txn.entry
        now_ms = self._clock()
        if not shard.is_active or entry.pending is None:
            return
        value = prepare_complete(entry.current, now_ms=now_ms)
        try:
            self._write(shard, entry, value, now_ms)
        except ApiError as error:
            logger.info(
                "Failed to complete the transaction of transactional id %.100r and will retry: %s",
                entry.name,
                error,
            )
            self._schedule.at(now_ms + RETRY_BACKOFF_MS, lambda _: self._complete(pending_txn))

    def _write(
        self,
        shard: Shard,
        entry: TransactionMetadata,
        value: Transaction,
        now_ms: int,
        *,
        on_replicated: Callable[[], None] | None = None,
    ) -> PendingWrite:
        return shard.write(
            entry,
            value,
            now_ms,
            value_version=1 if self._metadata.transaction_version >= 1 else 0,
            on_replicated=on_replicated,
        )

    def _checked_version(self, client_transaction_version: int) -> int:
        """Return the transaction version that a client uses.

        Raises: ApiError (UNSUPPORTED_VERSION) if the cluster does not support the version.
        """
        if client_transaction_version > 0 and self._metadata.transaction_version == 0:
            raise ApiError(
                ErrorCode.unsupported_version,
                f"Transaction version {client_transaction_version} is not supported, because the "
                "feature transaction.version is 0 in this cluster.",
            )
        return client_transaction_version

    # Periodic tasks

    def abort_timed_out_transactions(self, now_ms: int) -> None:
        """Abort the transactions that have exceeded their timeout."""
        for shard in self._active_shards():
            # A write can complete earlier tombstones and thereby remove ids during the loop.
            due = [
                entry
                for entry in shard.ids.values()
                if request_validation.has_timed_out(entry, now_ms)
            ]
            for entry in due:
                try:
                    self._abort(shard, entry, now_ms)
                    logger.info(
                        "Aborting the transaction of transactional id %.100r, because it timed out",
                        entry.name,
                    )
                except ApiError as error:
                    logger.warning(
                        "Failed to abort the transaction of transactional id %.100r: %s",
                        entry.name,
                        error,
                    )

    def remove_expired_transactional_ids(self, now_ms: int) -> None:
        """Remove transactional ids that have not been used for `transactional.id.expiration.ms`."""
        expiration_ms = self._config.transactional_id_expiration_ms
        for shard in self._active_shards():
            due = [
                entry
                for entry in shard.ids.values()
                if request_validation.has_expired(entry, expiration_ms=expiration_ms, now_ms=now_ms)
            ]
            try:
                shard.write_tombstones(due, now_ms)
            except ApiError as error:
                logger.warning(
                    "Failed to remove expired transactional ids from partition %d of "
                    "__transaction_state: %s",
                    shard.partition.key.partition, error,
                )  # fmt: skip

    def _active_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.is_active]

    # Administration

    def describe(self, transactional_id: str) -> tuple[Transaction, frozenset[PartitionKey]]:
        """Return the state of a transactional id, and the partitions that await a marker.

        Raises: ApiError (TRANSACTIONAL_ID_NOT_FOUND).
        """
        entry = self._shard(transactional_id).ids.get(transactional_id)
        if entry is None:
            raise ApiError(
                ErrorCode.transactional_id_not_found,
                f"Transactional id {transactional_id!r} does not exist.",
            )
        return entry.current, frozenset(entry.unmarked)

    def transactions(self) -> dict[str, Transaction]:
        """Return all transactional ids that this broker coordinates.

        Raises: ApiError (COORDINATOR_LOAD_IN_PROGRESS) while a partition is being loaded.
        """
        found = {}
        for shard in self._shards.values():
            if shard.state is ShardState.LOADING:
                raise ApiError(
                    ErrorCode.coordinator_load_in_progress,
                    f"This broker is loading partition {shard.partition.key.partition} of "
                    f"{TRANSACTION_STATE_TOPIC}. Retry later.",
                )
            found.update({name: entry.current for name, entry in shard.ids.items()})
        return found


def _producer_of(value: Transaction) -> InitProducerIdResult:
    return InitProducerIdResult(producer_id=value.producer_id, producer_epoch=value.producer_epoch)


def _complete_reply(
    write: PendingWrite,
    reply: Reply[InitProducerIdResult],
    result: InitProducerIdResult,
    now_ms: int,
) -> None:
    """Complete the reply when the write is done.

    The reply contains `result` if the write succeeded, or the error code if it failed.
    """

    def done(outcome: ErrorCode, time_ms: int) -> None:
        del time_ms
        failed = outcome is not ErrorCode.none
        reply.complete(InitProducerIdResult(error_code=outcome) if failed else result)

    write.when_done(done, now_ms)


def _complete_reply_with_code(write: PendingWrite, reply: Reply[ErrorCode], now_ms: int) -> None:
    write.when_done(lambda outcome, _: reply.complete(outcome), now_ms)
