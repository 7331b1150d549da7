"""Copy a topic to another topic with a streaming query.

Arguments: bootstrap servers, source topic, target topic, checkpoint, `forever` or `until-end`. With
`until-end` the query ends at the end of the source topic. Prints one line per micro-batch.
"""

import os
import sys

from pyspark.sql import SparkSession


def main(bootstrap: str, source: str, target: str, checkpoint: str, until: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # Before Spark 4.2, availableNow would otherwise only run the unfinished micro-batch.
        .config("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
        .getOrCreate()
    )
    engine = os.environ.get("PYSPARK_KAFKA_TESTS_ENGINE", "auto")
    records = (
        spark.readStream.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("engine", engine)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        records.select("key", "value")
        .writeStream.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("engine", engine)
        .option("checkpointLocation", checkpoint)
    )
    if until == "until-end":
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return
    query = writer.start()
    last_batch = -1
    while not query.awaitTermination(timeout=0.05):  # type: ignore[arg-type]
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != last_batch:
            last_batch = progress["batchId"]
            print(f"batch {last_batch}: {progress['numInputRows']} rows", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
