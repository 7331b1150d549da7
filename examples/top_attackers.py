"""Read the `alerts` topic and print the addresses with the most failed logins.

python examples/top_attackers.py 127.0.0.1:9092
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, max_by


def newest_alerts(spark: SparkSession, bootstrap_servers: str) -> DataFrame:
    """Return the newest alert of each address, with the columns `address` and `failed_logins`."""
    return (
        spark.read.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", "alerts")
        .load()
        .groupBy("key")  # all records of a key are in one partition, so their offsets are ordered
        .agg(max_by("value", "offset").cast("string").alias("alert"))
        .select(from_json("alert", "address string, failed_logins long").alias("alert"))
        .select("alert.*")
    )


def main(bootstrap_servers: str) -> None:
    spark = SparkSession.builder.appName("top attackers").getOrCreate()
    newest_alerts(spark, bootstrap_servers).orderBy(
        col("failed_logins").desc(), col("address")
    ).show(10, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
