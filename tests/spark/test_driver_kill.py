"""A streaming query that tests kill repeatedly while it copies a topic."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from tests.conftest import TopicFactory

JOB = Path(__file__).parent / "jobs" / "copy_topic.py"
START_TIMEOUT_S = 120
ROWS_PER_SECOND = 500
KILLS = 2


class Writer(threading.Thread):
    """Thread that writes numbered rows until `stop`, which returns their number."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name="row writer")
        self.rows_confirmed = 0
        self._topic = topic
        self._stop_requested = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 2,
                "acks": "all",
                "enable.idempotence": True,
            }
        )

    def run(self) -> None:
        while not self._stop_requested.wait(timeout=0.1):  # Limit the rate of rows.
            for _ in range(ROWS_PER_SECOND // 10):
                row = str(self.rows_confirmed).encode()
                self._producer.produce(self._topic, key=row, value=row)
                self.rows_confirmed += 1
            assert self._producer.flush(30) == 0

    def stop(self) -> int:
        self._stop_requested.set()
        self.join(timeout=60)
        return self.rows_confirmed


@contextmanager
def copy_job(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the job in its own process group, so that driver and JVM can be killed together."""
    process = subprocess.Popen(
        [sys.executable, str(JOB), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={"PYSPARK_PYTHON": sys.executable, **os.environ},
    )
    watchdog = threading.Timer(START_TIMEOUT_S, kill, [process])
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        kill(process)
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # The job has ended.


def rows_of(bootstrap: str, topic: str) -> list[int]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING)
                for p in partitions
            ]
        )
        rows: list[int] = []
        at_end: set[int] = set()
        while len(at_end) < len(partitions):
            message = consumer.poll(30)
            assert message is not None, f"no row and no end of {topic} within 30 s"
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                rows.append(int(value))
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                at_end.add(message.partition() or 0)
        return rows
    finally:
        consumer.close()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_query_that_is_killed_at_random_loses_no_row(
    bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    delays = random.Random(seed)
    source, target = topic(partitions=2), topic(partitions=2)
    job = (bootstrap, source, target, str(tmp_path / "checkpoint"))
    writer = Writer(bootstrap, source)
    writer.start()
    try:
        for _ in range(KILLS):
            with copy_job(*job, "forever") as process:
                assert process.stdout is not None
                first_batch = process.stdout.readline()
                assert first_batch.startswith("batch "), "the query ended before its first batch"
                with pytest.raises(subprocess.TimeoutExpired):  # The query runs until the kill.
                    process.wait(timeout=delays.uniform(0, 3))
    finally:
        rows_written = writer.stop()
    with copy_job(*job, "until-end") as process:
        assert process.wait() == 0, "the query did not end by itself"

    copied = rows_of(bootstrap, target)
    assert rows_written > 0
    assert sorted(set(copied)) == list(range(rows_written))
    duplicates = len(copied) - rows_written
    print(f"{KILLS} kills: {rows_written} rows in the source, {duplicates} duplicates, none lost")
