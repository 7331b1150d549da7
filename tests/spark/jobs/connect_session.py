"""Write, read and stream a topic through Spark Connect, and print the rows and metrics as JSON.

Arguments: bootstrap servers, topic, scratch directory.
"""

import json
import logging
import os
import sys
import threading

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

import pyspark_kafka


class Listener(pyspark_kafka.KafkaMetricsListener):
    """A listener that records the end of a query.

    Until then, `spark.stop()` can wait forever, because Spark removes its listeners while it holds
    the lock that the thread of their events needs.
    """

    terminated = threading.Event()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        super().onQueryTerminated(event)
        self.terminated.set()


class Lines(logging.Handler):
    """A log handler that records the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(bootstrap: str, topic: str, directory: str) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    pyspark_kafka.register(spark)
    pyspark_kafka.warm_up(spark).join()
    engine = os.environ.get("PYSPARK_KAFKA_TESTS_ENGINE", "auto")
    options = {"kafka.bootstrap.servers": bootstrap, "engine": engine}
    rows = spark.range(20).selectExpr("string(id % 3) AS key", "string(id) AS value")
    rows.write.format("pyspark_kafka").mode("append").options(topic=topic, **options).save()

    source = {"subscribe": topic, "startingOffsets": "earliest", **options}
    read = spark.read.format("pyspark_kafka").options(**source).load()
    stream = spark.readStream.format("pyspark_kafka").options(**source).load()
    metrics, listener = Lines(), Listener(options=source)
    logging.getLogger("pyspark_kafka.metrics").setLevel(logging.INFO)
    logging.getLogger("pyspark_kafka.metrics").addHandler(metrics)
    spark.streams.addListener(listener)
    query = (
        pyspark_kafka.count_bytes(stream, "read")
        .selectExpr("string(value) AS value")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{directory}/streamed")
    )
    query.awaitTermination()
    assert listener.terminated.wait(60)
    streamed = spark.read.parquet(f"{directory}/streamed")
    print(
        json.dumps(
            {
                "session": type(spark).__module__,
                "read": [
                    row.value for row in read.selectExpr("int(string(value)) value").collect()
                ],
                "streamed": [int(row.value) for row in streamed.collect()],
                "metrics": [json.loads(line) for line in metrics.lines],
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
