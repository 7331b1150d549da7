"""Helpers of the planning tests."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.parse import parse_source_options
from pyspark_kafka.options.values import SourceOptions
from pyspark_kafka.source.batch_planner import BatchTask
from pyspark_kafka.source.offset_reader import OffsetReader
from pyspark_kafka.source.ranges import PlannedRange
from tests.pyspark_kafka.source.fake_client import FakeClient


class FakeTime:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> float:
        return self.now * 1000


def source_options(*, streaming: bool, **options: str) -> SourceOptions:
    """Return options of a read; `group_id` is `kafka.group.id`, `isolation_level` likewise."""
    names = {"group_id": "kafka.group.id", "isolation_level": "kafka.isolation.level"}
    named = {names.get(name, name): value for name, value in options.items()}
    return parse_source_options(
        {"kafka.bootstrap.servers": "broker:9092", **named}, streaming=streaming
    )


def offset_reader(client: FakeClient, options: SourceOptions, time: FakeTime) -> OffsetReader:
    return OffsetReader(client, options, sleep=time.sleep, monotonic=time.monotonic)


def planned_ranges(tasks: Iterable[BatchTask]) -> list[PlannedRange]:
    return [part.planned for task in tasks for part in task if part.planned is not None]


def spans(plans: Iterable[PlannedRange]) -> list[tuple[str, int, int]]:
    """Return `("t-0", start, end)` of every range."""
    return [
        (
            str(plan.fetch_range.topic_partition),
            plan.fetch_range.start_offset,
            plan.fetch_range.end_offset,
        )
        for plan in plans
    ]


def tp(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)
