"""Other programs use a cluster of `python -m broker_ref --secure` with the files that it writes.

confluent-kafka, kafka-python and Kafka's console producer write words, a Kafka Streams job counts
them exactly once, and all three read the counts. The data source's options are checked too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest

from integration.clusters.maven import KAFKA_STREAMS
from integration.java_programs import java_program
from integration.kafka_tools import KafkaTools
from pyspark_kafka.client.factory import open_client
from pyspark_kafka.options.parse import parse_source_options
from tests.conformance.eventually import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("java_programs"),
]

PROGRAM = Path(__file__).parent / "WordCount.java"
READY_TIMEOUT_S = 90.0
TIMEOUT_S = 60.0
INPUT, OUTPUT = "words", "counts"
LINES = {
    "confluent": ["one two", "three"],
    "python": ["two three"],
    "console": ["three", "four"],
}
COUNTS = {"one": "1", "two": "2", "three": "3", "four": "1"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a secured cluster of three processes, and return its data directory."""
    data = tmp_path_factory.mktemp("secured")
    command = [sys.executable, "-m", "broker_ref", "--secure", "--processes", "--brokers", "3"]
    configs = {"default.replication.factor": "3", "group.initial.rebalance.delay.ms": "0"}
    for name, value in configs.items():
        command += ["--config", f"{name}={value}"]
    with (
        (data / "stderr").open("wb") as log,
        running([*command, "--data", str(data), "--port", "0"], stderr=log) as process,
    ):
        assert process.stdout is not None
        timer = threading.Timer(READY_TIMEOUT_S, process.kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        assert line.count(b",") == 2, (data / "stderr").read_text()
        yield data


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until it is terminated."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            finally:
                process.kill()


@pytest.fixture(scope="module")
def tools(directory: Path) -> Iterator[KafkaTools]:
    settings = directory / "clients" / "java.properties"
    bootstrap = librdkafka(directory)["bootstrap.servers"]
    with KafkaTools(bootstrap, command_config=settings) as opened:
        yield opened


def librdkafka(directory: Path) -> dict[str, Any]:
    lines = (directory / "clients" / "librdkafka.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def kafka_python(directory: Path) -> dict[str, Any]:
    settings = librdkafka(directory)
    return {
        "bootstrap_servers": settings["bootstrap.servers"],
        "security_protocol": settings["security.protocol"],
        "ssl_cafile": settings["ssl.ca.location"],
        "sasl_mechanism": settings["sasl.mechanism"],
        "sasl_plain_username": settings["sasl.username"],
        "sasl_plain_password": settings["sasl.password"],
        "metrics_enabled": False,
    }


def write_words(directory: Path, tools: KafkaTools) -> None:
    confluent = confluent_kafka.Producer({**librdkafka(directory), "acks": "all"})
    for line in LINES["confluent"]:
        confluent.produce(INPUT, line)
    assert confluent.flush(TIMEOUT_S) == 0
    python = kafka.KafkaProducer(**kafka_python(directory), acks="all")
    for line in LINES["python"]:
        python.send(INPUT, line.encode()).get(TIMEOUT_S)
    python.close()
    tools.run("console-producer", "--topic", INPUT, stdin="\n".join(LINES["console"]) + "\n")


def counts_of_confluent(directory: Path) -> dict[str, str]:
    consumer = confluent_kafka.Consumer(
        {
            **librdkafka(directory),
            "group.id": "confluent",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    found: dict[str, str] = {}
    try:
        consumer.subscribe([OUTPUT])

        def reads_all() -> bool:
            for message in consumer.consume(100, 0.2):
                assert message.error() is None, message.error()
                found[bytes(message.key() or b"").decode()] = bytes(message.value() or b"").decode()
            return found == COUNTS

        eventually(reads_all, timeout_s=TIMEOUT_S)
    finally:
        consumer.close()
    return found


def topics_of_data_source(directory: Path, engine: str) -> set[str]:
    options = json.loads((directory / "clients" / "pyspark_kafka.json").read_text())
    read = parse_source_options({**options, "engine": engine, "subscribe": INPUT}, streaming=False)
    with open_client(read.client) as client:
        return set(client.list_topics())


def test_stock_clients_use_a_secured_cluster(directory: Path, tools: KafkaTools) -> None:
    for topic in (INPUT, OUTPUT):
        tools.run("topics", "--create", "--topic", topic, "--partitions", "2")
    described = tools.run("topics", "--describe", "--topic", INPUT).stdout
    assert "ReplicationFactor: 3" in described
    tools.run("configs", "--topic", INPUT, "--alter", "--add-config", "retention.ms=86400000")
    assert "retention.ms=86400000" in tools.run("configs", "--topic", INPUT, "--describe").stdout

    write_words(directory, tools)
    with java_program(
        "word count",
        PROGRAM,
        *(str(directory / "clients" / "java.properties"), INPUT, OUTPUT, str(tools.directory)),
        artifacts=(KAFKA_STREAMS,),
        directory=tools.directory,
    ):
        assert counts_of_confluent(directory) == COUNTS

    output = tools.run(
        "console-consumer",
        *("--topic", OUTPUT, "--from-beginning", "--max-messages", "7"),
        *("--isolation-level", "read_committed", "--formatter-property", "print.key=true"),
    )
    # Each word is counted once: a later count replaces an earlier one.
    counts = sorted((word, count) for word, count in (line.split("\t") for line in output.lines))
    assert [word for word, _ in counts].count("three") == 3
    assert dict(counts) == COUNTS
    consumer = kafka.KafkaConsumer(
        OUTPUT,
        **kafka_python(directory),
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=int(TIMEOUT_S * 1000),
    )
    try:
        read = [next(consumer) for _ in range(7)]
    finally:
        consumer.close()
    assert {each.key.decode(): each.value.decode() for each in read} == COUNTS
    for engine in ("native", "librdkafka"):
        assert topics_of_data_source(directory, engine) >= {INPUT, OUTPUT}
