"""Rate-limited queries on a model of Spark 4.0 and 4.1, which crash at random and restart.

The model makes the calls of `MicroBatchExecution` and `PythonMicroBatchStream` in these versions.
tests/spark runs the same restarts in Spark. Invariants: the micro-batches read every record once,
none exceeds the limit, and a replayed micro-batch reads the same records.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pyspark_kafka.errors import OptionError
from pyspark_kafka.kafka.offsets import PartitionOffsets
from pyspark_kafka.source.record_sizes import RecordSizes
from pyspark_kafka.source.stream_planner import StreamPlanner
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, topic
from tests.pyspark_kafka.source.planning import (
    FakeTime,
    offset_reader,
    source_options,
    spans,
    tp,
)

LIMIT, MINIMUM, PARTITIONS_MAX = 10, 5, 4
Ranges = list[tuple[str, int, int]]


class CrashError(Exception):
    """The driver process ends."""


@dataclass
class Spark:
    """A query and its checkpoint, which has the end offsets and the number of committed batches."""

    client: FakeClient
    options: dict[str, str]
    crash_at: str | None = None
    ends: list[PartitionOffsets] = field(default_factory=list)
    commits: int = 0
    read: dict[int, Ranges] = field(default_factory=dict)

    def start(self, *, available_now: bool = False) -> None:
        """Start a run. `available_now` uses Spark's AvailableNowMicroBatchStreamWrapper."""
        time = FakeTime()
        options = source_options(streaming=True, subscribe="t", **self.options)
        reader = offset_reader(self.client, options, time)
        sizes = RecordSizes(self.client, options)
        self.planner = StreamPlanner(reader, options, sizes, now_ms=time.now_ms)
        self.target = self._latest_offsets() if available_now else None
        if self.ends:
            self.planner.plan(self.ends[-1], self.ends[-1])
        if self.commits < len(self.ends):
            self._run_batch(is_pruned=False)

    def trigger(self, *, is_pruned: bool = False) -> bool:
        """Run a micro-batch, and return whether there were new offsets.

        If a filter is always false, the optimizer prunes the source, and Spark plans no read.
        """
        if self.target is not None:
            if not self.ends:
                self.planner.initial_offsets()
            self._latest_offsets()  # Spark reports these offsets in the progress of the query.
        end = self._latest_offsets() if self.target is None else self.target
        if self.ends and end == self.ends[-1]:
            return False
        self.ends.append(end)
        self._crash("planned")
        self._run_batch(is_pruned=is_pruned)
        return True

    def _latest_offsets(self) -> PartitionOffsets:
        return self.planner.latest_offsets(None, limited=True)

    def _run_batch(self, *, is_pruned: bool) -> None:
        batch_id, end = len(self.ends) - 1, self.ends[-1]
        start = self.ends[-2] if batch_id else self.planner.initial_offsets()
        if is_pruned:
            ranges = [(str(p), start.get(p, 0), o) for p, o in end.items() if o > start.get(p, 0)]
        else:
            ranges = spans(self.planner.plan(start, end))
        assert self.read.setdefault(batch_id, ranges) == ranges, "the replay differs"
        self._crash("read")
        self.commits += 1
        self._crash("committed")

    def _crash(self, where: str) -> None:
        if where == self.crash_at:
            self.crash_at = None
            raise CrashError


@pytest.mark.parametrize("seed", range(100))
def test_a_limited_query_reads_every_record_once(seed: int) -> None:
    rng = random.Random(seed)
    client = FakeClient({"t": topic(rng.randrange(5, 60), rng.randrange(5, 60))})
    partitions = client.topics["t"].partitions
    starting, positions = rng.choice(
        [
            ("earliest", {"t-0": 0, "t-1": 0}),
            ("latest", {f"t-{n}": log.end for n, log in partitions.items()}),
            ('{"t":{"0":5,"1":3}}', {"t-0": 5, "t-1": 3}),
        ]
    )
    minimum = rng.choice([1, MINIMUM])
    options = {
        "startingOffsets": starting,
        "maxOffsetsPerTrigger": str(LIMIT),
        "minOffsetsPerTrigger": str(minimum),
        "maxTriggerDelay": "1h",
    }
    query = Spark(client, options)
    query.start()
    for _ in range(30):
        query.crash_at = rng.choice(["planned", "read", "committed", None, None, None])
        is_pruned = query.crash_at is None and query.commits > 0 and rng.random() < 0.2
        try:
            query.trigger(is_pruned=is_pruned)
        except CrashError:
            query.start()
        if rng.random() < 0.5:
            partitions[rng.choice(list(partitions))].end += rng.randrange(30)
        if rng.random() < 0.1 and len(partitions) < PARTITIONS_MAX:
            partitions[len(partitions)] = FakeLog(end=rng.randrange(30))
    query.crash_at = None
    while query.trigger():
        pass
    for batch_id in range(len(query.ends)):
        ranges = query.read[batch_id]
        assert sum(end - start for _, start, end in ranges) <= LIMIT + PARTITIONS_MAX
        for name, start, end in ranges:
            assert start == positions.get(name, 0)
            positions[name] = end
    left = sum(log.end - positions.get(f"t-{n}", 0) for n, log in partitions.items())
    assert left < minimum


def run(query: Spark, *, available_now: bool = False) -> None:
    query.start(available_now=available_now)
    while query.trigger():
        pass


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"maxOffsetsPerTrigger": "10"}, "maxOffsetsPerTrigger"),
        ({"maxBytesPerTrigger": "100", "startingOffsets": "latest"}, "maxBytesPerTrigger"),
        ({"startingOffsets": '{"t":{"0":3,"1":-1}}'}, "startingOffsets"),
        (
            {"startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "latest"},
            "startingTimestamp",
        ),
    ],
)
def test_the_available_now_wrapper_does_not_apply_the_end_of_a_new_query_to_a_restarted_one(
    options: dict[str, str], option: str
) -> None:
    query = Spark(FakeClient({"t": topic(25, 25)}), {"startingOffsets": "earliest", **options})
    with pytest.raises(OptionError) as caught:
        run(query, available_now=True)
    assert caught.value.option == option
    assert query.ends == [], "the checkpoint is unchanged"
    run(query)
    ends = list(query.ends)
    query.client.topics["t"].partitions[0].end = 60
    with pytest.raises(OptionError) as caught:
        run(query, available_now=True)
    assert caught.value.option == option
    assert query.ends == ends
    run(query)
    assert sum(end - start for ranges in query.read.values() for _, start, end in ranges) >= 35


@pytest.mark.parametrize("options", [{"startingOffsets": "latest"}, {"minOffsetsPerTrigger": "5"}])
def test_the_available_now_wrapper_reads_everything_without_a_maximum(
    options: dict[str, str],
) -> None:
    query = Spark(FakeClient({"t": topic(25)}), {"startingOffsets": "earliest", **options})
    for available in (25, 40, 42):
        query.client.topics["t"].partitions[0].end = available
        run(query, available_now=True)
    assert [dict(end) for end in query.ends] == [{tp("t"): 25}, {tp("t"): 40}, {tp("t"): 42}]
