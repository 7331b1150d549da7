"""Run several streaming queries from one checkpoint, each to the end of the topic.

Arguments: bootstrap servers, topic, checkpoint, output directory, then the data source format of
each step. The rows of micro-batch N of step S are written to `OUTPUT/S/N` as JSON lines with
partition, offset and value. Before each step this process writes ten rows to the topic. A step
`format!` first removes the commit of the last micro-batch from the checkpoint, so that Spark
replays the micro-batch. A step `--...` contains arguments of the `offsets` command, which runs with
the checkpoint. It writes and reads no rows.
"""

import os
import sys
from pathlib import Path

import confluent_kafka
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka.__main__ import main as run_command

ROWS_PER_STEP = 10


def write_rows(bootstrap: str, topic: str, first: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for row in range(first, first + ROWS_PER_STEP):
        producer.produce(topic, value=str(row).encode(), partition=row % 2)
    assert producer.flush(30) == 0


def remove_last_commit(checkpoint: Path) -> None:
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def run_step(
    spark: SparkSession,
    format_name: str,
    *,
    bootstrap: str,
    topic: str,
    checkpoint: str,
    output: Path,
) -> None:
    def save(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("partition", "offset", "string(value) AS value")
        rows.coalesce(1).write.mode("overwrite").json(str(output / str(batch_id)))

    query = (
        spark.readStream.format(format_name)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("engine", os.environ.get("PYSPARK_KAFKA_TESTS_ENGINE", "auto"))
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
        .writeStream.foreachBatch(save)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(bootstrap: str, topic: str, checkpoint: str, output: str, *steps: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    for number, step in enumerate(steps):
        if step.startswith("--"):
            query = ["--checkpoint", checkpoint, "--bootstrap-servers", bootstrap]
            assert run_command(["offsets", *query, *step.split()]) == 0
            continue
        if step.endswith("!"):
            remove_last_commit(Path(checkpoint))
        write_rows(bootstrap, topic, number * ROWS_PER_STEP)
        run_step(
            spark,
            step.rstrip("!"),
            bootstrap=bootstrap,
            topic=topic,
            checkpoint=checkpoint,
            output=Path(output) / str(number),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
