"""How the followers on this broker fetch from one leader.

Purpose: keep one fetch to the leader under way, append what comes, cut what the leader has not
(KIP-101, KIP-279, KIP-595). Invariants: one request is under way at most; an answer counts for a
partition only where it is still followed in the leader epoch asked in, and its log ends where it
did; an idle fetch does no work for any partition. What it must not know: who leads.

    the leader answers for a partition                what the follower does
    NONE                                              append, take the high watermark over
    NONE with a diverging epoch                       truncate, nothing else, and fetch again
    OFFSET_OUT_OF_RANGE                               ask where the leader's log ends and begins
    FENCED_LEADER_EPOCH                               stop until the metadata moves
    anything else                                     fetch again in `replica.fetch.backoff.ms`

Source: Kafka's `AbstractFetcherThread`, `ReplicaFetcherThread`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.events import Channel
from broker_ref.log.errors import LogError
from broker_ref.outbox import Outbox
from broker_ref.protocol.identifiers import Uuid
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
from broker_ref.replication.follower_session import FetchLimits, FollowerSession, SessionKey
from broker_ref.replication.partition import DivergingEpoch, Partition
from broker_ref.schedule import Schedule, Timer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSurroundings:
    """What fetchers need of the broker; `clock` gives the time of the present step."""

    config: BrokerConfig
    outbox: Outbox
    schedule: Schedule
    broker_epoch: Callable[[], int]
    clock: Callable[[], int]


@dataclass(slots=True, kw_only=True, eq=False)
class _Followed:
    """A partition as it is followed in one leader epoch; `delay` runs while it is not fetched."""

    partition: Partition
    leader_epoch: int
    delay: Timer | None = None

    @property
    def session_key(self) -> SessionKey:
        metadata = self.partition.metadata
        return metadata.topic_id, metadata.partition


class Fetcher:
    """The fetches to the leader behind `channel`."""

    def __init__(self, *, surroundings: FetcherSurroundings, channel: Channel) -> None:
        self._config = surroundings.config
        self._outbox = surroundings.outbox
        self._schedule = surroundings.schedule
        self._broker_epoch = surroundings.broker_epoch
        self._clock = surroundings.clock
        self._channel = channel
        self._session = FollowerSession()
        self._followed: dict[SessionKey, _Followed] = {}
        self._is_under_way = False
        self._backoff: Timer | None = None
        self._is_closed = False

    @property
    def channel(self) -> Channel:
        """Where the leader is asked."""
        return self._channel

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions followed."""
        return tuple(followed.partition for followed in self._followed.values())

    def follow(self, partition: Partition) -> None:
        """Fetch a partition in its present leader epoch, after `start`."""
        followed = _Followed(partition=partition, leader_epoch=partition.leader_epoch)
        self.leave(partition)
        self._followed[followed.session_key] = followed
        try:
            self._truncate_without_epochs(partition)
        except Exception as error:  # As in `_take`.
            self._failed(followed, error)
        else:
            self._want(followed)

    def leave(self, partition: Partition) -> None:
        """Fetch a partition no more."""
        key = (partition.metadata.topic_id, partition.metadata.partition)
        followed = self._followed.pop(key, None)
        if followed is not None and followed.delay is not None:
            followed.delay.cancel()
        self._session.drop(key)

    def log_start_moved(self, partition: Partition) -> None:
        """Let the leader hear of the log start offset with the next fetch."""
        key = (partition.metadata.topic_id, partition.metadata.partition)
        followed = self._followed.get(key)
        if followed is not None and followed.partition is partition and followed.delay is None:
            self._want(followed)

    def start(self) -> None:
        """Send a fetch, unless one is under way, or there is nothing to fetch now."""
        if self._is_under_way or self._is_closed or self._backoff is not None:
            return
        if self._session.is_empty:
            return
        config = self._config
        request = self._session.next_request(
            ReplicaState(replica_id=config.node_id, replica_epoch=self._broker_epoch()),
            FetchLimits(
                max_wait_ms=config.replica_fetch_wait_max_ms,
                min_bytes=config.replica_fetch_min_bytes,
                max_bytes=config.replica_fetch_response_max_bytes,
            ),
        )
        self._is_under_way = True
        self._outbox.send(
            self._channel,
            api_key=FETCH,
            version=FETCH_VERSION,
            request=request,
            response=FetchResponse,
            on_response=self._answered,
            on_failure=self._unanswered,
            timeout_ms=config.replica_socket_timeout_ms,
        )

    def close(self) -> None:
        """Ask nothing more, and take no notice of answers."""
        self._is_closed = True
        for partition in self.partitions:
            self.leave(partition)
        if self._backoff is not None:
            self._backoff.cancel()
        self._outbox.close_channel(self._channel)

    # Answers

    def _answered(self, response: FetchResponse) -> None:
        self._is_under_way = False
        if self._is_closed:
            return
        if self._session.answered(response):
            for topic in response.responses:
                for fetched in topic.partitions:
                    self._take(topic.topic_id, fetched)
        elif response.error_code not in (
            ErrorCode.fetch_session_id_not_found,
            ErrorCode.invalid_fetch_session_epoch,
        ):
            self._back_off(response.error_code.name)
        self.start()

    def _unanswered(self, reason: str) -> None:
        self._is_under_way = False
        if self._is_closed:
            return
        self._session.failed()
        self._back_off(reason)

    def _back_off(self, reason: str) -> None:
        logger.info(
            "A fetch from broker %d failed, and is tried again in %d ms: %s",
            self._channel.node_id, self._config.replica_fetch_backoff_ms, reason,
        )  # fmt: skip
        self._backoff = self._after_backoff(self._resume)

    def _resume(self, now_ms: int) -> None:
        del now_ms
        self._backoff = None
        self.start()

    def _take(self, topic_id: Uuid, fetched: FetchedPartition) -> None:
        """What one partition has got, where that is still what it asked for."""
        key: SessionKey = (topic_id, fetched.partition_index)
        followed = self._followed.get(key)
        asked = self._session.sent.get(key)
        if (
            followed is None
            or asked is None
            or followed.delay is not None
            or asked.current_leader_epoch != followed.leader_epoch
            or asked.fetch_offset != followed.partition.log.log_end_offset
        ):
            return
        if fetched.error_code is ErrorCode.none:
            try:
                self._take_data(followed.partition, fetched)
                self._want(followed)
            except Exception as error:  # Whatever it is, the others are to be fetched.
                self._failed(followed, error)
        elif fetched.error_code is ErrorCode.offset_out_of_range:
            self._session.drop(key)
            self._ask_offset(followed, LATEST_TIMESTAMP, self._take_end_offset)
        else:
            self._refused(followed, fetched.error_code)

    def _take_data(self, partition: Partition, fetched: FetchedPartition) -> None:
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

    def _refused(self, followed: _Followed, error_code: ErrorCode) -> None:
        name = _name(followed.partition)
        if error_code is ErrorCode.fenced_leader_epoch:
            logger.info(
                "%s is not fetched in leader epoch %d, which is over, until the metadata moves",
                name, followed.leader_epoch,
            )  # fmt: skip
            self._session.drop(followed.session_key)
            return
        logger.info("%s cannot be fetched now: %s", name, error_code.name)
        self._delay(followed)

    def _failed(self, followed: _Followed, error: Exception) -> None:
        """The log could not take what came: for good where its storage failed, else try again.

        Kafka waits for the next leader epoch where the error is one of ours.
        """
        if followed.partition.log.storage_error is not None:
            self.leave(followed.partition)
            return
        logger.error(
            "What was fetched of %s is refused: %s", _name(followed.partition), error,
            exc_info=None if isinstance(error, LogError) else error,
        )  # fmt: skip
        self._delay(followed)

    # Offsets out of range

    def _ask_offset(
        self,
        followed: _Followed,
        timestamp: int,
        on_offset: Callable[[_Followed, int], None],
    ) -> None:
        """Ask where the leader's log begins or ends."""
        metadata = followed.partition.metadata
        asked = ListOffsetsPartition(
            partition_index=metadata.partition,
            current_leader_epoch=followed.leader_epoch,
            timestamp=timestamp,
        )
        topic = ListOffsetsTopic(name=metadata.topic, partitions=(asked,))
        self._outbox.send(
            self._channel,
            api_key=LIST_OFFSETS,
            version=LIST_OFFSETS_VERSION,
            request=ListOffsetsRequest(replica_id=self._config.node_id, topics=(topic,)),
            response=ListOffsetsResponse,
            on_response=lambda response: self._listed(followed, response, on_offset),
            on_failure=lambda _: self._delay(followed),
            timeout_ms=self._config.replica_socket_timeout_ms,
        )

    def _listed(
        self,
        followed: _Followed,
        response: ListOffsetsResponse,
        on_offset: Callable[[_Followed, int], None],
    ) -> None:
        if not self._is_current(followed):
            return
        listed = [partition for topic in response.topics for partition in topic.partitions]
        answer = (
            listed[0]
            if listed
            else ListedPartition(
                partition_index=followed.partition.key.partition,
                error_code=ErrorCode.unknown_server_error,
            )
        )
        if answer.error_code is not ErrorCode.none:
            self._refused(followed, answer.error_code)
            return
        try:
            on_offset(followed, answer.offset)
        except Exception as error:  # As in `_take`.
            self._failed(followed, error)
        self.start()

    def _take_end_offset(self, followed: _Followed, leader_end_offset: int) -> None:
        """Where the leader's log ends before this one, cut this one; else look where it begins."""
        partition = followed.partition
        if leader_end_offset < partition.log.log_end_offset:
            partition.truncate_to(leader_end_offset, now_ms=self._clock())
            self._want(followed)
        else:
            self._ask_offset(followed, EARLIEST_TIMESTAMP, self._take_start_offset)

    def _take_start_offset(self, followed: _Followed, leader_start_offset: int) -> None:
        """Where the leader's log begins after the end of this one, nothing here is of use."""
        partition = followed.partition
        if leader_start_offset > partition.log.log_end_offset:
            partition.restart_at(leader_start_offset, now_ms=self._clock())
        self._want(followed)

    # The session

    def _want(self, followed: _Followed) -> None:
        log = followed.partition.log
        latest = log.leader_epochs.latest
        self._session.want(
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

    def _delay(self, followed: _Followed) -> None:
        """Leave a partition out for a while."""
        if not self._is_current(followed):
            return
        self._session.drop(followed.session_key)

        def fetch_again(now_ms: int) -> None:
            del now_ms
            followed.delay = None
            self._want(followed)
            self.start()

        followed.delay = self._after_backoff(fetch_again)

    def _truncate_without_epochs(self, partition: Partition) -> None:
        """A log that knows no epoch cannot be compared: what is not committed goes."""
        log = partition.log
        if log.leader_epochs.latest is None and partition.high_watermark < log.log_end_offset:
            partition.truncate_to(partition.high_watermark, now_ms=self._clock())

    def _after_backoff(self, run: Callable[[int], None]) -> Timer:
        return self._schedule.at(self._clock() + self._config.replica_fetch_backoff_ms, run)

    def _is_current(self, followed: _Followed) -> bool:
        return self._followed.get(followed.session_key) is followed


def _name(partition: Partition) -> str:
    return f"{partition.key.topic}-{partition.key.partition}"
