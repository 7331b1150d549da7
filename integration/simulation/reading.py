"""Clients that read.

Purpose: read a partition from its beginning, by offset and leader epoch, and ask now and then where
it ends. Invariants that it checks: what it reads is committed, every offset once and in order; an
offset that was reached is never out of range; the end it is told never goes back (KIP-207). What
it must not know: who leads in truth.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.log.batch import decode_records, parse_sound_batches
from integration.simulation.client import Ask, Client, Pause, Script, Step, TopicPartition
from integration.simulation.invariants import Violation, Watch
from integration.simulation.messages import (
    FETCH,
    LIST_OFFSETS,
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

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
) -> FetchRequest:
    """A request for one partition, without a session."""
    wanted = FetchPartition(
        partition=partition.partition,
        fetch_offset=offset,
        partition_max_bytes=FETCH_BYTES_MAX,
        current_leader_epoch=leader_epoch,
    )
    return FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        max_bytes=FETCH_BYTES_MAX,
        isolation_level=isolation,
        topics=(FetchTopic(topic=partition.topic, partitions=(wanted,)),),
    )


class Reader:
    """Reads one partition, read_uncommitted."""

    def __init__(self, client: Client, watch: Watch, partition: TopicPartition) -> None:
        self._client = client
        self._watch = watch
        self._partition = partition
        self._offset = 0
        self._end_offset = 0
        client.spawn(self._main())

    @property
    def is_done(self) -> bool:
        """Whether it has read all that is committed."""
        return self._offset >= self._watch.of(self._partition).end_offset

    def _main(self) -> Script:
        rounds, refresh = 0, True
        while True:
            leader = yield from self._client.await_leader(self._partition, refresh=refresh)
            rounds += 1
            step = self._ask_end if rounds % 4 == 0 else self._fetch
            refresh = not (yield from step(leader.broker_id, leader.epoch))

    def _fetch(self, broker_id: int, leader_epoch: int) -> Step:
        request = fetch_request(
            self._partition, self._offset, leader_epoch=leader_epoch, isolation=READ_UNCOMMITTED
        )
        response = yield Ask(broker_id=broker_id, call=FETCH, message=request)
        if response is None:
            return False
        answer = response.responses[0].partitions[0]
        self._check(answer.error_code, "fetch")
        if answer.error_code is ErrorCode.none:
            self._take(answer)
        return answer.error_code is ErrorCode.none

    def _take(self, answer: FetchAnswer) -> None:
        committed = self._watch.of(self._partition)
        for header, batch in parse_sound_batches(answer.records or b""):
            if header.next_offset <= self._offset:
                continue
            if header.base_offset != self._offset:
                raise Violation(
                    f"{self._partition}: {self._client.name} wants offset {self._offset} and is "
                    f"given {header.base_offset}"
                )
            if not header.is_control:
                for record in decode_records(batch):
                    committed.read(record.value or b"", record.offset, self._client.name)
            self._offset = header.next_offset

    def _ask_end(self, broker_id: int, leader_epoch: int) -> Step:
        asked = ListOffsetsPartition(
            partition_index=self._partition.partition,
            timestamp=LATEST,
            current_leader_epoch=leader_epoch,
        )
        topic = ListOffsetsTopic(name=self._partition.topic, partitions=(asked,))
        response = yield Ask(
            broker_id=broker_id,
            call=LIST_OFFSETS,
            message=ListOffsetsRequest(topics=(topic,), isolation_level=READ_UNCOMMITTED),
        )
        if response is None:
            return False
        answer = response.topics[0].partitions[0]
        self._check(answer.error_code, "ask for the end")
        if answer.error_code is not ErrorCode.none:
            return False
        if answer.offset < max(self._end_offset, self._offset):
            raise Violation(
                f"{self._partition}: the end went back from "
                f"{max(self._end_offset, self._offset)} to {answer.offset} for {self._client.name}"
            )
        self._end_offset = answer.offset
        yield Pause(ms=self._client.random.randint(1, 100))
        return True

    def _check(self, code: ErrorCode, what: str) -> None:
        if code is not ErrorCode.none and code not in MOVED:
            raise Violation(
                f"{self._partition}: {self._client.name} cannot {what} at offset {self._offset}, "
                f"to which it has read: {code.name}"
            )
