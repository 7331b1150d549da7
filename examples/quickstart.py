"""Write a few rows to a topic and read them back.

python -m broker_ref --brokers 1 --port 9092      # in another terminal
python examples/quickstart.py 127.0.0.1:9092
"""

import sys

from pyspark.sql import SparkSession


def main(bootstrap_servers: str) -> None:
    spark = SparkSession.builder.appName("quickstart").getOrCreate()
    greetings = spark.createDataFrame(
        [("en", "hello"), ("fr", "bonjour")], "key string, value string"
    )

    (
        greetings.coalesce(1)  # one task, so that the rows keep their order
        .write.format("pyspark_kafka")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", "greetings")
        .save()
    )

    (
        spark.read.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", "greetings")
        .load()
        .selectExpr("string(key)", "string(value)", "partition", "offset")
        .orderBy("offset")
        .show()
    )
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
