"""Queries that succeed and fail with secrets in their options, and everything that they print.

    python planted_secrets.py SERVERS DIRECTORY

A user has the name of the way in which the options contain its password: `plain`, `env` or `file`.
DIRECTORY contains `secrets.properties`, `client.properties` and `wrong.properties`. The event log
and the checkpoints are written to it.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka import __main__ as command
from pyspark_kafka.options.java_properties import parse_java_properties

SERVERS, DIRECTORY = sys.argv[1], Path(sys.argv[2])
SECRETS = DIRECTORY / "secrets.properties"
FORMAT = "pyspark_kafka"


def text_of(way: str, name: str) -> str:
    """Return the text that refers to a password, or the password itself."""
    if way == "plain":
        return parse_java_properties(SECRETS.read_text())[name]
    return f"${{env:{name}}}" if way == "env" else f"${{file:{SECRETS}:{name}}}"


def options(way: str, password: str) -> dict[str, str]:
    """Return the options with the right or wrong password, which is in two of them."""
    text = text_of(way, f"{way}_{password}")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "kafka.bootstrap.servers": SERVERS,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": way,
        "kafka.sasl.password": text,
        "kafka.sasl.jaas.config": f'{module} required username="{way}" password="{text}";',
    }


@contextmanager
def failing(what: str) -> Iterator[None]:
    try:
        yield
    except PySparkException:
        print(f"{what} failed: {traceback.format_exc()}")
    else:
        raise AssertionError(f"{what} did not fail")


def write(spark: SparkSession, given: dict[str, str]) -> None:
    rows = spark.range(3).selectExpr("string(id) AS value")
    rows.write.format(FORMAT).mode("append").options(**given, topic="planted").save()


def read(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    return spark.read.format(FORMAT).options(**given, subscribe="planted").load()


def stream(spark: SparkSession, source: dict[str, str], sink: dict[str, str]) -> None:
    """Copy rows exactly once, and print the plan and the progress."""
    name = f"checkpoint-{len(list(DIRECTORY.glob('checkpoint-*')))}"
    rows = spark.readStream.format(FORMAT).options(**source)
    rows = rows.option("startingOffsets", "earliest").option("subscribe", "planted")
    written = rows.load().select("value").writeStream.format(FORMAT).options(**sink)
    query = (
        written.option("topic", "copied")
        .option("transactionalId", name)
        .option("checkpointLocation", str(DIRECTORY / name))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(60)
    finally:
        query.explain(True)
        print(query.lastProgress, query.recentProgress, query.status, query.exception())


def main(spark: SparkSession) -> None:
    write(spark, options("plain", "right"))
    for way in ("plain", "env", "file"):
        rows = read(spark, options(way, "right"))
        rows.explain(True)
        assert rows.count() == 3
    with failing("a task that writes"):
        write(spark, options("plain", "wrong"))
    with failing("a read"):
        read(spark, options("file", "wrong")).collect()
    stream(spark, options("plain", "right"), options("env", "right"))
    with failing("a streaming write"):
        stream(spark, options("file", "right"), options("plain", "wrong"))
    with failing("an invalid option"):
        write(spark, {**options("env", "right"), "kafka.linger.ms": text_of("env", "env_right")})
    for config in ("client.properties", "wrong.properties"):
        arguments = ["--id", "checkpoint-0", "--bootstrap-servers", SERVERS]
        arguments += ["--command-config", str(DIRECTORY / config)]
        print("exit code", command.main(["transactions", *arguments]))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    logging.getLogger(FORMAT).setLevel(logging.DEBUG)
    (DIRECTORY / "events").mkdir()
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", str(DIRECTORY / "events"))
        .config("spark.sql.warehouse.dir", str(DIRECTORY / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("INFO")
    main(session)
    session.stop()
    print("all queries ran")
