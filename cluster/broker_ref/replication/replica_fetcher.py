"""The fetcher that replicates partitions from one leader.

The fetcher sends one fetch request after another, appends the records, and truncates logs that
diverge (KIP-101, KIP-279, KIP-595). Invariants: at most one fetch request is in flight. The
response for a partition is ignored if the leader epoch or the log end offset has changed since the
request, or if the partition was removed. If no partition of the fetch session has changed and the
follower quota is not exceeded, the next fetch request requires no per-partition work.

    error code of a partition                         action of the follower
    NONE                                              append, update the high watermark
    NONE with a diverging epoch                       truncate and fetch again
    OFFSET_OUT_OF_RANGE                               list the leader's end and start offsets
    FENCED_LEADER_EPOCH                               stop until the metadata changes
    other error codes                                 fetch again after replica.fetch.backoff.ms

Source: Kafka's `AbstractFetcherThread`, `ReplicaFetcherThread`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.events import Channel
from broker_ref.frozen import dataclass
from broker_ref.log.errors import LogError
from broker_ref.outbox import Outbox
from broker_ref.protocol.identifiers import Uuid
from broker_ref.replication.fetch_session_handler import (
    FetchLimits,
    FetchSessionHandler,
    SessionKey,
)
from broker_ref.replication.follower_messages import (
    EARLIEST_TIMESTAMP,
    FETCH,
    FETCH_VERSION,
    LATEST_TIMESTAMP,
    LIST_OFFSETS,
    LIST_OFFSETS_VERSION,
    NO_EPOCH,
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    ListedPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ReplicaState,
)
from broker_ref.replication.partition import DivergingEpoch, Partition
from broker_ref.replication.replication_quota_manager import ReplicationQuotaManager
from broker_ref.schedule import Schedule, Timer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherContext:
    """The parts of the broker that fetchers use. `clock` returns the time of the current event."""

    config: BrokerConfig
    quota: ReplicationQuotaManager
    outbox: Outbox
    schedule: Schedule
    broker_epoch: Callable[[], int]
    clock: Callable[[], int]


@dataclass(slots=True, kw_only=True, eq=False)
class _PartitionFetchState:
    """The fetch state of a partition in one leader epoch. `delay` is the backoff timer.

    `is_in_sync` is true if the lag was zero after the last response (`isReplicaInSync`).
    """

    partition: Partition
    leader_epoch: int
    is_in_sync: bool = False
    delay: Timer | None = None

    @property
    def session_key(self) -> SessionKey:
        metadata = self.partition.metadata
        return metadata.topic_id, metadata.partition


class ReplicaFetcher:
    """The fetcher for the leader at the other end of `channel`."""

    def __init__(self, *, context: FetcherContext, channel: Channel) -> None:
        self._config = context.config
        self._quota = context.quota
        self._outbox = context.outbox
        self._schedule = context.schedule
        self._broker_epoch = context.broker_epoch
        self._clock = context.clock
        self._channel = channel
        self._session = FetchSessionHandler()
        self._followed: dict[SessionKey, _PartitionFetchState] = {}
        self._not_in_sync: dict[SessionKey, _PartitionFetchState] = {}
        """The fetched partitions that are not in sync. They may be throttled."""
        self._is_in_flight = False
        self._backoff: Timer | None = None
        self._is_closed = False

    @property
    def channel(self) -> Channel:
        """Return the channel to the leader."""
        return self._channel

    @property
    def has_partitions(self) -> bool:
        """Return whether any partitions are being fetched."""
        return bool(self._followed)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions that are being fetched."""
        return tuple(followed.partition for followed in self._followed.values())

    def add_partition(self, partition: Partition) -> None:
        """Start fetching a partition in its current leader epoch."""
        followed = _PartitionFetchState(partition=partition, leader_epoch=partition.leader_epoch)
        self.remove_partition(partition)
        self._followed[followed.session_key] = followed
        try:
            self._truncate_without_epochs(partition)
        except Exception as error:  # Other partitions must still be added.
            self._handle_log_error(followed, error)
        else:
            self._add_to_session(followed)

    def remove_partition(self, partition: Partition) -> None:
        """Stop fetching a partition."""
        key = (partition.metadata.topic_id, partition.metadata.partition)
        followed = self._followed.pop(key, None)
        if followed is not None and followed.delay is not None:
            followed.delay.cancel()
        self._remove_from_session(key)

    def update_log_start_offset(self, partition: Partition) -> None:
        """Send the new log start offset of a partition with the next fetch request."""
        key = (partition.metadata.topic_id, partition.metadata.partition)
        followed = self._followed.get(key)
        if followed is not None and followed.partition is partition and followed.delay is None:
            self._add_to_session(followed)

    def maybe_fetch(self) -> None:
        """Send a fetch request, unless one is in flight or there are no partitions to fetch."""
        if self._is_in_flight or self._is_closed or self._backoff is not None:
            return
        self._delay_throttled()
        if self._session.is_empty:
            return
        config = self._config
        request = self._session.build_request(
            ReplicaState(replica_id=config.node_id, replica_epoch=self._broker_epoch()),
            FetchLimits(
                max_wait_ms=config.replica_fetch_wait_max_ms,
                min_bytes=config.replica_fetch_min_bytes,
                max_bytes=config.replica_fetch_response_max_bytes,
            ),
        )
        self._is_in_flight = True
        self._outbox.send(
            self._channel,
            api_key=FETCH,
            version=FETCH_VERSION,
            request=request,
            response=FetchResponse,
            on_response=self._handle_response,
            on_failure=self._handle_failure,
            timeout_ms=config.replica_socket_timeout_ms,
        )

    def close(self) -> None:
        """Remove all partitions and close the channel; later responses are ignored."""
        self._is_closed = True
        for partition in self.partitions:
            self.remove_partition(partition)
        if self._backoff is not None:
            self._backoff.cancel()
        self._outbox.close_channel(self._channel)

    # Responses

    def _handle_response(self, response: FetchResponse) -> None:
        self._is_in_flight = False
        if self._is_closed:
            return
        if self._session.handle_response(response):
            for topic in response.responses:
                for fetched in topic.partitions:
                    self._process_partition_data(topic.topic_id, fetched)
        elif response.error_code not in (
            ErrorCode.fetch_session_id_not_found,
            ErrorCode.invalid_fetch_session_epoch,
        ):
            self._back_off(response.error_code.name)
        self.maybe_fetch()

    def _handle_failure(self, reason: str) -> None:
        self._is_in_flight = False
        if self._is_closed:
            return
        self._session.handle_error()
        self._back_off(reason)

    def _back_off(self, reason: str) -> None:
        logger.info(
            "A fetch request to broker %d failed and will be retried in %d ms: %s",
            self._channel.node_id, self._config.replica_fetch_backoff_ms, reason,
        )  # fmt: skip
        self._backoff = self._after_backoff(self._resume)

    def _resume(self, now_ms: int) -> None:
        del now_ms
        self._backoff = None
        self.maybe_fetch()

    def _process_partition_data(self, topic_id: Uuid, fetched: FetchedPartition) -> None:
        """Process one partition of a Fetch response if its state is unchanged since the request."""
        key: SessionKey = (topic_id, fetched.partition_index)
        followed = self._followed.get(key)
        requested = self._session.session_partitions.get(key)
        if (
            followed is None
            or requested is None
            or followed.delay is not None
            or requested.current_leader_epoch != followed.leader_epoch
            or requested.fetch_offset != followed.partition.log.log_end_offset
        ):
            return
        if fetched.error_code is ErrorCode.none:
            try:
                self._append(followed, fetched)
                self._add_to_session(followed)
            except Exception as error:  # Other partitions must still be processed.
                self._handle_log_error(followed, error)
        elif fetched.error_code is ErrorCode.offset_out_of_range:
            self._remove_from_session(key)
            self._list_offset(followed, LATEST_TIMESTAMP, self._handle_end_offset)
        else:
            self._handle_error_code(followed, fetched.error_code)

    def _append(self, followed: _PartitionFetchState, fetched: FetchedPartition) -> None:
        partition = followed.partition
        diverging = fetched.diverging_epoch
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            partition.truncate_to_divergence(
                DivergingEpoch(epoch=diverging.epoch, end_offset=diverging.end_offset),
                now_ms=self._clock(),
            )
        else:
            partition.append_as_follower(
                fetched.records or b"",
                leader_high_watermark=fetched.high_watermark,
                leader_log_start_offset=fetched.log_start_offset,
                now_ms=self._clock(),
            )
            followed.is_in_sync = partition.log.log_end_offset >= fetched.high_watermark
            if self._quota.is_throttled(partition.key.topic, partition.key.partition):
                self._quota.record(len(fetched.records or b""))

    def _handle_error_code(self, followed: _PartitionFetchState, error_code: ErrorCode) -> None:
        name = _name(followed.partition)
        if error_code is ErrorCode.fenced_leader_epoch:
            logger.info(
                "%s: leader epoch %d is fenced. Fetching is paused until new metadata arrives",
                name, followed.leader_epoch,
            )  # fmt: skip
            self._remove_from_session(followed.session_key)
            return
        logger.info("%s: the fetch failed with %s and will be retried", name, error_code.name)
        self._delay(followed)

    def _handle_log_error(self, followed: _PartitionFetchState, error: Exception) -> None:
        """Stop fetching if the storage has failed; otherwise retry after the backoff.

        After an unexpected error, Kafka stops fetching until the next leader epoch.
        """
        if followed.partition.log.storage_error is not None:
            self.remove_partition(followed.partition)
            return
        logger.error(
            "The records fetched for %s were rejected: %s", _name(followed.partition), error,
            exc_info=None if isinstance(error, LogError) else error,
        )  # fmt: skip
        self._delay(followed)

    # Offsets out of range

    def _list_offset(
        self,
        followed: _PartitionFetchState,
        timestamp: int,
        on_offset: Callable[[_PartitionFetchState, int], None],
    ) -> None:
        """Request the log end offset or the log start offset of the leader."""
        metadata = followed.partition.metadata
        requested = ListOffsetsPartition(
            partition_index=metadata.partition,
            current_leader_epoch=followed.leader_epoch,
            timestamp=timestamp,
        )
        topic = ListOffsetsTopic(name=metadata.topic, partitions=(requested,))
        self._outbox.send(
            self._channel,
            api_key=LIST_OFFSETS,
            version=LIST_OFFSETS_VERSION,
            request=ListOffsetsRequest(replica_id=self._config.node_id, topics=(topic,)),
            response=ListOffsetsResponse,
            on_response=lambda response: self._handle_list_offsets_response(
                followed, response, on_offset
            ),
            on_failure=lambda _: self._delay(followed),
            timeout_ms=self._config.replica_socket_timeout_ms,
        )

    def _handle_list_offsets_response(
        self,
        followed: _PartitionFetchState,
        response: ListOffsetsResponse,
        on_offset: Callable[[_PartitionFetchState, int], None],
    ) -> None:
        if not self._is_current(followed):
            return
        listed = [partition for topic in response.topics for partition in topic.partitions]
        listed_partition = (
            listed[0]
            if listed
            else ListedPartition(
                partition_index=followed.partition.key.partition,
                error_code=ErrorCode.unknown_server_error,
            )
        )
        if listed_partition.error_code is not ErrorCode.none:
            self._handle_error_code(followed, listed_partition.error_code)
            return
        try:
            on_offset(followed, listed_partition.offset)
        except Exception as error:  # Other partitions must still be fetched.
            self._handle_log_error(followed, error)
        self.maybe_fetch()

    def _handle_end_offset(self, followed: _PartitionFetchState, leader_end_offset: int) -> None:
        """Truncate the log to the leader's log end offset if the log ends after this offset.

        Otherwise, request the leader's log start offset.
        """
        partition = followed.partition
        if leader_end_offset < partition.log.log_end_offset:
            partition.truncate_to(leader_end_offset, now_ms=self._clock())
            followed.is_in_sync = True
            self._add_to_session(followed)
        else:
            self._list_offset(followed, EARLIEST_TIMESTAMP, self._handle_start_offset)

    def _handle_start_offset(
        self, followed: _PartitionFetchState, leader_start_offset: int
    ) -> None:
        """Start with an empty log if the leader's log starts after the end of this log."""
        partition = followed.partition
        if leader_start_offset > partition.log.log_end_offset:
            partition.truncate_fully_and_start_at(leader_start_offset, now_ms=self._clock())
        followed.is_in_sync = False
        self._add_to_session(followed)

    # The fetch session

    def _add_to_session(self, followed: _PartitionFetchState) -> None:
        log = followed.partition.log
        latest = log.leader_epochs.latest
        self._session.add(
            followed.session_key,
            FetchPartition(
                partition=followed.partition.key.partition,
                fetch_offset=log.log_end_offset,
                partition_max_bytes=self._config.replica_fetch_max_bytes,
                current_leader_epoch=followed.leader_epoch,
                last_fetched_epoch=NO_EPOCH if latest is None else latest,
                log_start_offset=log.log_start_offset,
            ),
        )

        # The order ensures that throttled partitions are fetched in turn.
        self._not_in_sync.pop(followed.session_key, None)
        if not followed.is_in_sync:
            self._not_in_sync[followed.session_key] = followed

    def _remove_from_session(self, key: SessionKey) -> None:
        self._session.remove(key)
        self._not_in_sync.pop(key, None)

    def _delay_throttled(self) -> None:
        """Delay the throttled partitions that are not in sync if the follower quota is exceeded."""
        if self._quota.is_quota_exceeded():
            for followed in tuple(self._not_in_sync.values()):
                key = followed.partition.key
                if self._quota.is_throttled(key.topic, key.partition):
                    self._delay(followed)

    def _delay(self, followed: _PartitionFetchState) -> None:
        """Stop fetching a partition until the backoff has elapsed."""
        if not self._is_current(followed):
            return
        self._remove_from_session(followed.session_key)

        def fetch_again(now_ms: int) -> None:
            del now_ms
            followed.delay = None
            self._add_to_session(followed)
            self.maybe_fetch()

        if followed.delay is not None:
            followed.delay.cancel()
        followed.delay = self._after_backoff(fetch_again)

    def _truncate_without_epochs(self, partition: Partition) -> None:
        """Truncate a log without leader epochs to the high watermark."""
        log = partition.log
        if log.leader_epochs.latest is None and partition.high_watermark < log.log_end_offset:
            partition.truncate_to(partition.high_watermark, now_ms=self._clock())

    def _after_backoff(self, run: Callable[[int], None]) -> Timer:
        return self._schedule.at(self._clock() + self._config.replica_fetch_backoff_ms, run)

    def _is_current(self, followed: _PartitionFetchState) -> bool:
        return self._followed.get(followed.session_key) is followed


def _name(partition: Partition) -> str:
    return f"{partition.key.topic}-{partition.key.partition}"
