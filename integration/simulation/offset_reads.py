"""Read a group's offset, and check that the coordinator may return it.

With `require_stable`, a coordinator returns an offset only after all records in its log are
replicated, as in Kafka's `GroupCoordinatorService.fetchOffsets`, which schedules a write operation
without records. Therefore, the offset includes every commit that was acknowledged before the
request was sent.

There is one exception, as in Kafka. A coordinator that has been replaced but does not know its
successor returns the offset in its own log. This offset must include every commit that was
acknowledged before the successor was elected. Kafka does not reject such a request, because
OffsetFetch in the classic protocol contains neither a leader epoch nor a generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import OFFSETS_TOPIC
from broker_ref.coordination.partitioning import partition_of
from broker_ref.replication.partition import Partition
from integration.simulation.client import Step, TopicPartition
from integration.simulation.cluster import host_of
from integration.simulation.coordinators import Coordinator
from integration.simulation.invariants import InvariantChecker, InvariantViolationError
from integration.simulation.messages import Request, request


def offsets_partition(checker: InvariantChecker, group_id: str) -> TopicPartition:
    """Return the `__consumer_offsets` partition that contains a group's offsets and members."""
    return TopicPartition(OFFSETS_TOPIC, partition_of(group_id, checker.offsets_partitions))


def was_replaced(checker: InvariantChecker, group_id: str, broker_id: int) -> bool:
    """Return whether a broker has been replaced as the coordinator of a group."""
    partition = offsets_partition(checker, group_id)
    replica = checker.replica(host_of(broker_id), partition)
    return (
        replica is not None
        and checker.elections.replaced_in(partition, broker_id, replica.leader_epoch) is not None
    )


class AcknowledgedOffsets:
    """The commits of one partition, each with the simulation step in which it was acknowledged."""

    def __init__(self, checker: InvariantChecker) -> None:
        self._checker = checker
        self._commits: list[tuple[int, int]] = []

    def add(self, offset: int) -> None:
        """Record an acknowledgment that a client has just received."""
        self._commits.append((self._checker.step, offset))

    def highest_before(self, step: int) -> int:
        """Return the highest offset that was acknowledged before a step, or -1 if none was."""
        return max((offset for when, offset in self._commits if when < step), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRead:
    """The result of an OffsetFetch request: an offset or an error code.

    The offset includes all commits that were acknowledged before the simulation step `complete_to`.
    If `is_replaced` is true, the broker was no longer the coordinator when the request was sent.
    """

    error_code: ErrorCode
    offset: int = -1
    complete_to: int = 0
    is_replaced: bool = False


class _SentRead:
    """The coordinator's `__consumer_offsets` replica at the time of an OffsetFetch request."""

    def __init__(self, checker: InvariantChecker, group_id: str, broker_id: int) -> None:
        self._checker = checker
        self._partition = offsets_partition(checker, group_id)
        self._host = host_of(broker_id)
        self._replica = self._current
        self._leader_epoch = self._replica.leader_epoch if self._replica is not None else -1
        self._end_offset = self._replica.log.log_end_offset if self._replica is not None else 0
        self._replaced_in = checker.elections.replaced_in(
            self._partition, broker_id, self._leader_epoch
        )
        self._sent_in = checker.step

    def answered(self, offset: int) -> OffsetRead:
        """Return the result of a successful request. Check that the whole log was replicated."""
        replica = self._replica
        if (
            replica is not None
            and replica is self._current
            and replica.leader_epoch == self._leader_epoch
            and replica.high_watermark < self._end_offset
        ):
            raise InvariantViolationError(
                f"{self._partition}: {self._host} returned offset {offset} of a group, although "
                f"its log end offset was {self._end_offset} and its high watermark is still "
                f"{replica.high_watermark}"
            )
        return OffsetRead(
            error_code=ErrorCode.none,
            offset=offset,
            complete_to=self._sent_in + 1 if self._replaced_in is None else self._replaced_in,
            is_replaced=self._replaced_in is not None,
        )

    @property
    def _current(self) -> Partition | None:
        return self._checker.replica(self._host, self._partition)


def committed_offset(partition: TopicPartition, offset: int) -> dict[str, object]:
    """Return an offset in the form used in OffsetCommit requests."""
    committed = {
        "partition_index": partition.partition,
        "committed_offset": offset,
        "committed_metadata": None,
    }
    return {"name": partition.topic, "partitions": [committed]}


def fetch_offset(
    coordinator: Coordinator, checker: InvariantChecker, group_id: str, partition: TopicPartition
) -> Step:
    """Return the `OffsetRead` for a group's offset. Retry while the offset is unstable."""
    last: list[_SentRead] = []

    def sending(broker_id: int) -> None:
        last[:] = [_SentRead(checker, group_id, broker_id)]

    response, code = yield from coordinator.call(
        _offset_fetch(group_id, partition),
        lambda response: response.error_code or _partition(response).error_code,
        again_on=frozenset({ErrorCode.unstable_offset_commit}),
        on_send=sending,
    )
    if code is not ErrorCode.none:
        return OffsetRead(error_code=code)
    return last[0].answered(_partition(response).committed_offset)


def _offset_fetch(group_id: str, partition: TopicPartition) -> Request:
    """Return an OffsetFetch request with `require_stable` (KIP-447).

    While a transaction with an offset commit is pending, the coordinator returns a retriable error.
    """
    wanted = {"name": partition.topic, "partition_indexes": [partition.partition]}
    return request("offset_fetch", group_id=group_id, topics=[wanted], require_stable=True)


def _partition(response: Any) -> Any:
    return response.topics[0].partitions[0]
