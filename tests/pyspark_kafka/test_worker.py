"""Tests of Spark's Python workers: the garbage collector, and the modules that tasks import."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_kafka import worker
from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.parse import parse_sink_options, parse_source_options
from pyspark_kafka.sink.at_least_once.write import AtLeastOnceWrite
from pyspark_kafka.source import task_reader
from pyspark_kafka.source.ranges import PlannedRange
from pyspark_kafka.worker import freeze_garbage_collector
from tests.conftest import TopicFactory


class Garbage:
    """An object in a reference cycle."""

    itself: Garbage


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_is_frozen", False)
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.fixture
def _in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", object())


@pytest.mark.usefixtures("_in_a_task")
def test_garbage_is_collected_and_live_objects_are_frozen_once() -> None:
    garbage = Garbage()
    garbage.itself = garbage
    left = weakref.ref(garbage)
    del garbage
    freeze_garbage_collector()
    assert left() is None
    assert gc.get_freeze_count() > 10_000

    frozen = gc.get_freeze_count()
    later: list[list[int]] = [[] for _ in range(10_000)]
    freeze_garbage_collector()
    assert gc.get_freeze_count() < frozen + len(later)


def test_nothing_is_frozen_outside_of_a_task() -> None:
    freeze_garbage_collector()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("_in_a_task")
def test_a_write_task_freezes_the_garbage_collector() -> None:
    options = parse_sink_options({"kafka.bootstrap.servers": "h:1", "topic": "t"}, streaming=False)
    schema = StructType([StructField("value", BinaryType())])
    AtLeastOnceWrite(options=options, schema=schema).task([])
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("_in_a_task")
def test_a_read_task_freezes_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_reader, "_pool", lambda: SimpleNamespace(lend=nullcontext))
    monkeypatch.setattr(task_reader, "read_range", lambda *_: iter([]))
    given = {"kafka.bootstrap.servers": "h:1", "assign": '{"t": [0]}'}
    options = parse_source_options(given, streaming=False)
    wanted = FetchRange(topic_partition=TopicPartition("t", 0), start_offset=0, end_offset=1)
    planned = PlannedRange(fetch_range=wanted, topic_id=None)
    assert list(task_reader.read_task(lambda _client: [planned], (), options)) == []
    assert gc.get_freeze_count() > 0


@pytest.mark.slow
def test_tasks_do_not_import_slow_modules(bootstrap: str, topic: TopicFactory) -> None:
    """Importing pandas would delay the first task of each Python worker by 0.15 seconds."""
    done = subprocess.run(
        [sys.executable, "-c", TASKS, bootstrap, topic()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["3", "[]"], done.stderr


TASKS = """
import sys
from pyspark_kafka.datasource import KafkaDataSource
import pyarrow as pa

servers, topic = sys.argv[1:]
options = {"kafka.bootstrap.servers": servers, "engine": "native"}
source = KafkaDataSource({**options, "subscribe": topic, "includeHeaders": "true"})
sink = KafkaDataSource({**options, "topic": topic})

# `pa.array` would import pandas.
columns = pa.schema([("value", pa.binary()), ("partition", pa.int32())])
offsets, bytes_ = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in range(4))), b"abc"
value = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(bytes_)])
partition = pa.Array.from_buffers(pa.int32(), 3, [None, pa.py_buffer(bytes(12))])
rows = pa.RecordBatch.from_arrays([value, partition], schema=columns)

from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

fields = [StructField("value", BinaryType()), StructField("partition", IntegerType())]
writer = sink.writer(StructType(fields), overwrite=False)
writer.commit([writer.write(iter([rows]))])
reader = source.reader(source.schema())
(planned,) = reader.partitions()
print(sum(batch.num_rows for batch in reader.read(planned)))
print(sorted({"pandas", "pyarrow.dataset", "confluent_kafka", "asyncio"} & sys.modules.keys()))
"""
