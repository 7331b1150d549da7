"""Clients that read.

Purpose: read a partition from its start by offset and leader epoch, and list its end offset at
times. Checked invariants: it reads committed records, each offset once and in order; an offset that
it has reached is never out of range; the end offset never decreases (KIP-207). What it must not
know: the actual leader.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload

from broker_ref.log.batch import BatchHeader, decode_records, parse_sound_batches
from broker_ref.log.control import Marker, decode_marker
from integration.simulation.client import Ask, Client, Pause, Script, Step, TopicPartition
from integration.simulation.invariants import InvariantViolationError, Watch
from integration.simulation.messages import request

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
) -> RequestPayload:
    """Return a Fetch request for one partition, without a session."""
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
    """Whether a control batch ends an aborted transaction."""
    marker = decode_marker(bytes(batch))
    return marker is not None and marker.marker is Marker.ABORT


class Reader:
    """Reads one partition with read_uncommitted or read_committed."""

    def __init__(
        self, client: Client, watch: Watch, partition: TopicPartition, *, isolation: int
    ) -> None:
        self._isolation = isolation
        self._aborted: dict[int, None] = {}
        self._client = client
        self._watch = watch
        self._partition = partition
        self._offset = 0
        self._end_offset = 0
        client.spawn(self._main())

    @property
    def is_done(self) -> bool:
        """Whether it has read all committed records."""
        return self._offset >= self._watch.of(self._partition).end_offset

    def _main(self) -> Script:
        rounds, refresh = 0, True
        while True:
            leader = yield from self._client.await_leader(self._partition, refresh=refresh)
            rounds += 1
            step = self._ask_end if rounds % 4 == 0 else self._fetch
            refresh = not (yield from step(leader.broker_id, leader.epoch))

    def _fetch(self, broker_id: int, leader_epoch: int) -> Step:
        fetch = fetch_request(
            self._partition, self._offset, leader_epoch=leader_epoch, isolation=self._isolation
        )
        response = yield Ask(broker_id=broker_id, request=fetch)
        if response is None:
            return False
        answer = response.responses[0].partitions[0]
        self._check(answer.error_code, "fetch")
        if answer.error_code is ErrorCode.none:
            self._take(answer)
        return answer.error_code is ErrorCode.none

    def _take(self, answer: Any) -> None:
        """Skip the records of aborted transactions up to their markers, as clients do."""
        self._aborted.clear()
        if answer.last_stable_offset > answer.high_watermark:
            raise InvariantViolationError(
                f"{self._partition}: {self._client.name} received last stable offset "
                f"{answer.last_stable_offset}, above the high watermark {answer.high_watermark}"
            )
        aborted = sorted(
            answer.aborted_transactions or (), key=lambda one: one.first_offset, reverse=True
        )
        for header, batch in parse_sound_batches(answer.records or b""):
            while aborted and aborted[-1].first_offset <= header.last_offset:
                self._aborted[aborted.pop().producer_id] = None
            if header.base_offset >= self._offset:
                self._take_batch(header, batch)
            if header.is_control and is_abort(batch):
                self._aborted.pop(header.producer_id, None)

    def _take_batch(self, header: BatchHeader, batch: memoryview) -> None:
        if header.base_offset != self._offset:
            raise InvariantViolationError(
                f"{self._partition}: {self._client.name} received offset {header.base_offset} "
                "instead of "
                f"{self._offset}"
            )
        committed, name = self._watch.of(self._partition), self._client.name
        is_seen = not (header.is_transactional and header.producer_id in self._aborted)
        for record in () if header.is_control else decode_records(batch):
            committed.read(record.value or b"", record.offset, name)
            if self._isolation == READ_COMMITTED:
                committed.check_visible(record.offset, is_seen=is_seen, who=name)
        self._offset = header.next_offset

    def _ask_end(self, broker_id: int, leader_epoch: int) -> Step:
        asked = {
            "partition_index": self._partition.partition,
            "timestamp": LATEST,
            "current_leader_epoch": leader_epoch,
        }
        question = request(
            "list_offsets",
            replica_id=-1,
            isolation_level=self._isolation,
            topics=[{"name": self._partition.topic, "partitions": [asked]}],
        )
        response = yield Ask(broker_id=broker_id, request=question)
        if response is None:
            return False
        answer = response.topics[0].partitions[0]
        self._check(answer.error_code, "ask for the end")
        if answer.error_code is not ErrorCode.none:
            return False
        if answer.offset < max(self._end_offset, self._offset):
            raise InvariantViolationError(
                f"{self._partition}: the end offset decreased from "
                f"{max(self._end_offset, self._offset)} to {answer.offset} for {self._client.name}"
            )
        self._end_offset = answer.offset
        yield Pause(ms=self._client.random.randint(1, 100))
        return True

    def _check(self, code: ErrorCode, what: str) -> None:
        if code is not ErrorCode.none and code not in MOVED:
            raise InvariantViolationError(
                f"{self._partition}: {self._client.name} cannot {what} at offset {self._offset}, "
                f"which it has reached: {code.name}"
            )
