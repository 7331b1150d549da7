"""Count failed SSH logins per source address and write the counts as alerts.

    python examples/failed_logins.py 127.0.0.1:9092 /tmp/failed-logins-checkpoint

The streaming query reads the `ssh-log` topic and writes to the `alerts` topic, with the address as
the key. If it is started again with the same checkpoint, it continues where it was stopped or
killed. With `transactionalId` it writes every alert exactly once. With the `availableNow` trigger
it ends when it has read all available records.
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
    """Count failed logins per source address.

    A log line can represent several identical messages.
    """
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
        )  # every micro-batch writes all counts; use only the newest alert of an address
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
