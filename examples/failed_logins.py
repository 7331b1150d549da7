"""Count failed SSH logins per source address and write the counts as alerts, keyed by address.

    python examples/failed_logins.py 127.0.0.1:9092 /tmp/failed-logins-checkpoint

A streaming query from topic `ssh-log` to topic `alerts`. After a restart with the same checkpoint
it continues where it stopped or was killed, and with `transactionalId` it writes every alert
exactly once. With `availableNow` it ends when it has read all available records.
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
    """Prints one line for each micro-batch."""

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
    """Count failed logins per source address. The log combines repeated lines, with a count."""
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
        .option("maxOffsetsPerTrigger", "200")  # small micro-batches; needs Spark 4.2
        .load()
    )
    alerts = failed_logins(lines).select(
        F.col("address").alias("key"),
        F.to_json(F.struct("address", "failed_logins")).alias("value"),
    )
    query = (
        alerts.writeStream.format("pyspark_kafka")
        .outputMode(
            "complete"
        )  # all counts in every micro-batch; the newest of an address is valid
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
