"""Clients that consume records.

A client reads a partition from the start of its log, and regularly requests the end offset with
ListOffsets. Each Fetch request contains the offset and the leader epoch. Checked invariants:

- The client reads only committed records, and reads each offset once and in order.
- The leader never returns OFFSET_OUT_OF_RANGE for an offset that the client has reached.
- The end offset never decreases (KIP-207).
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.log.batch import BatchHeader, parse_checked_batches
from broker_ref.log.control import Marker, decode_marker
from integration.simulation.client import Call, Client, Script, Sleep, Step, TopicPartition
from integration.simulation.invariants import InvariantChecker, InvariantViolationError
from integration.simulation.messages import Request, records_of, request

LATEST: Final = -1

FETCH_WAIT_MS: Final = 400
FETCH_BYTES_MAX: Final = 1 << 16
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

MOVED: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.kafka_storage_error,
    }
)


def fetch_request(
    partition: TopicPartition, offset: int, *, leader_epoch: int, isolation: int
) -> Request:
    """Return a Fetch request for one partition, without a fetch session."""
    wanted = {
        "partition": partition.partition,
        "fetch_offset": offset,
        "partition_max_bytes": FETCH_BYTES_MAX,
        "current_leader_epoch": leader_epoch,
    }
    return request(
        "fetch",
        max_wait=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES_MAX,
        isolation_level=isolation,
        topics=[{"topic": partition.topic, "partitions": [wanted]}],
    )


def is_abort(batch: memoryview) -> bool:
    """Return whether a control batch contains an abort marker."""
    marker = decode_marker(bytes(batch))
    return marker is not None and marker.marker is Marker.ABORT


class PartitionConsumer:
    """Client that reads one partition with isolation level read_uncommitted or read_committed.

    With `reads_from_followers`, it fetches from random replicas (KIP-392). After an
    OFFSET_OUT_OF_RANGE error from a follower, whose log may be shorter, it fetches from the leader.
    """

    def __init__(
        self,
        client: Client,
        checker: InvariantChecker,
        partition: TopicPartition,
        *,
        isolation: int,
        reads_from_followers: bool = False,
    ) -> None:
        self._isolation = isolation
        self._reads_from_followers = reads_from_followers
        self._is_behind = False
        self._aborted: dict[int, None] = {}
        self._client = client
        self._checker = checker
        self._partition = partition
        self._offset = 0
        self._end_offset = 0
        client.spawn(self._main())

    @property
    def is_done(self) -> bool:
        """Whether the client has read all committed records."""
        return self._offset >= self._checker.of(self._partition).end_offset

    def _main(self) -> Script:
        rounds, refresh = 0, True
        while True:
            leader = yield from self._client.await_leader(self._partition, refresh=refresh)
            rounds += 1
            step = self._fetch_end_offset if rounds % 4 == 0 else self._fetch_from_replica
            refresh = not (yield from step(leader.broker_id, leader.epoch))

    def _fetch_from_replica(self, leader_id: int, leader_epoch: int) -> Step:
        reads_leader = self._is_behind or not self._reads_from_followers
        broker_id = leader_id if reads_leader else self._client.any_broker()
        self._is_behind = False
        return (yield from self._fetch(broker_id, leader_epoch, is_leader=broker_id == leader_id))

    def _fetch(self, broker_id: int, leader_epoch: int, *, is_leader: bool) -> Step:
        fetch = fetch_request(
            self._partition, self._offset, leader_epoch=leader_epoch, isolation=self._isolation
        )
        response = yield Call(broker_id=broker_id, request=fetch)
        if response is None:
            return False
        partition_response = response.responses[0].partitions[0]
        self._is_behind = partition_response.error_code is ErrorCode.offset_out_of_range
        if self._is_behind and not is_leader:
            return False
        self._check(partition_response.error_code, "fetch")
        if partition_response.error_code is ErrorCode.none:
            self._handle_response(partition_response)
        return partition_response.error_code is ErrorCode.none

    def _handle_response(self, partition_response: Any) -> None:
        """Read the records of a response, except records of aborted transactions."""
        self._aborted.clear()
        if partition_response.last_stable_offset > partition_response.high_watermark:
            raise InvariantViolationError(
                f"{self._partition}: {self._client.name} received last stable offset "
                f"{partition_response.last_stable_offset}, which is above the high watermark "
                f"{partition_response.high_watermark}"
            )
        aborted = sorted(
            partition_response.aborted_transactions or (),
            key=lambda one: one.first_offset,
            reverse=True,
        )
        for header, batch in parse_checked_batches(partition_response.records or b""):
            while aborted and aborted[-1].first_offset <= header.last_offset:
                self._aborted[aborted.pop().producer_id] = None
            if header.base_offset >= self._offset:
                self._handle_batch(header, batch)
            if header.is_control and is_abort(batch):
                self._aborted.pop(header.producer_id, None)

    def _handle_batch(self, header: BatchHeader, batch: memoryview) -> None:
        if header.base_offset != self._offset:
            raise InvariantViolationError(
                f"{self._partition}: {self._client.name} received offset {header.base_offset} "
                f"instead of {self._offset}"
            )
        committed, name = self._checker.of(self._partition), self._client.name
        is_seen = not (header.is_transactional and header.producer_id in self._aborted)
        for record in () if header.is_control else records_of(batch):
            committed.read(record.value or b"", record.offset, name)
            if self._isolation == READ_COMMITTED:
                committed.check_visible(record.offset, is_seen=is_seen, who=name)
        self._offset = header.next_offset

    def _fetch_end_offset(self, broker_id: int, leader_epoch: int) -> Step:
        partition = {
            "partition_index": self._partition.partition,
            "timestamp": LATEST,
            "current_leader_epoch": leader_epoch,
        }
        question = request(
            "list_offsets",
            replica_id=-1,
            isolation_level=self._isolation,
            topics=[{"name": self._partition.topic, "partitions": [partition]}],
        )
        response = yield Call(broker_id=broker_id, request=question)
        if response is None:
            return False
        partition_response = response.topics[0].partitions[0]
        self._check(partition_response.error_code, "list the end offset")
        if partition_response.error_code is not ErrorCode.none:
            return False
        if partition_response.offset < max(self._end_offset, self._offset):
            raise InvariantViolationError(
                f"{self._partition}: the end offset decreased from "
                f"{max(self._end_offset, self._offset)} to {partition_response.offset} for "
                f"{self._client.name}"
            )
        self._end_offset = partition_response.offset
        yield Sleep(ms=self._client.random.randint(1, 100))
        return True

    def _check(self, code: ErrorCode, what: str) -> None:
        if code is not ErrorCode.none and code not in MOVED:
            raise InvariantViolationError(
                f"{self._partition}: {self._client.name} has reached offset {self._offset}, but "
                f"could not {what}: {code.name}"
            )
