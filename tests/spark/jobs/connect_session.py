"""Write, read and stream a topic through Spark Connect, and print the rows as JSON.

Arguments: bootstrap servers, topic, scratch directory.
"""

import json
import os
import sys

from pyspark.sql import SparkSession

import pyspark_kafka


def main(bootstrap: str, topic: str, directory: str) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    pyspark_kafka.register(spark)
    engine = os.environ.get("PYSPARK_KAFKA_TESTS_ENGINE", "auto")
    options = {"kafka.bootstrap.servers": bootstrap, "engine": engine}
    rows = spark.range(20).selectExpr("string(id % 3) AS key", "string(id) AS value")
    rows.write.format("pyspark_kafka").mode("append").options(topic=topic, **options).save()

    source = {"subscribe": topic, "startingOffsets": "earliest", **options}
    read = spark.read.format("pyspark_kafka").options(**source).load()
    stream = spark.readStream.format("pyspark_kafka").options(**source).load()
    query = (
        stream.selectExpr("string(value) AS value")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{directory}/streamed")
    )
    query.awaitTermination()
    streamed = spark.read.parquet(f"{directory}/streamed")
    print(
        json.dumps(
            {
                "session": type(spark).__module__,
                "read": [
                    row.value for row in read.selectExpr("int(string(value)) value").collect()
                ],
                "streamed": [int(row.value) for row in streamed.collect()],
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
