"""Count failed SSH logins per source address and write the counts as alerts, keyed by address.

    python examples/failed_logins.py 127.0.0.1:9092 /tmp/failed-logins-checkpoint

A streaming query from topic `ssh-log` to topic `alerts`. Started again with the same checkpoint
it goes on where it stopped, however it was stopped, and with `transactionalId` it has written every
alert exactly once. It ends when it has read what is there; without `availableNow` it would run on.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

FAILED_LOGIN = r"Failed password for (?:invalid user )?.* from (\S+) port"
REPEATED = r"message repeated (\d+) times"


class PrintProgress(StreamingQueryListener):
    """One line a micro-batch."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        print(f"query {event.runId} started", flush=True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        print(f"batch {progress.batchId}: {progress.numInputRows} lines read", flush=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def failed_logins(lines: DataFrame) -> DataFrame:
    """Failed logins per source address; the log folds repeated lines into one with a count."""
    line = F.col("value").cast("string")
    return (
        lines.select(
            F.regexp_extract(line, FAILED_LOGIN, 1).alias("address"),
            F.coalesce(F.regexp_extract(line, REPEATED, 1).try_cast("int"), F.lit(1)).alias(
                "times"
            ),
        )
        .where("address != ''")
        .groupBy("address")
        .agg(F.sum("times").alias("failed_logins"))
    )


def main(bootstrap_servers: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.appName("failed logins")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.streams.addListener(PrintProgress())
    lines = (
        spark.readStream.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", "ssh-log")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "200")  # small steps, to be watched; needs Spark 4.2
        .load()
    )
    alerts = failed_logins(lines).select(
        F.col("address").alias("key"),
        F.to_json(F.struct("address", "failed_logins")).alias("value"),
    )
    query = (
        alerts.writeStream.format("pyspark_kafka")
        .outputMode("complete")  # every count, every time: the newest one of an address is true
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", "alerts")
        .option("transactionalId", "alerts")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
