"""Warm up a session, write and read a topic, and print the Python daemons that these queries start.

Arguments: bootstrap servers, topic.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_kafka
from integration.benchmarks.processes import descendants


def daemons() -> dict[int, str]:
    """Return the process ids and modules of Spark's Python daemons, without their workers."""
    commands = {}
    for pid in descendants():
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "pyspark.daemon" in arguments:
            commands[pid] = arguments[arguments.index("pyspark.daemon") + 1]
    modules = set(commands.values())
    return {min(pid for pid in commands if commands[pid] == name): name for name in modules}


def main(bootstrap: str, topic: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    pyspark_kafka.warm_up(spark).join()
    before = daemons()
    options = {"kafka.bootstrap.servers": bootstrap}
    rows = spark.range(20).selectExpr("string(id) AS value")
    rows.write.format("pyspark_kafka").mode("append").options(topic=topic, **options).save()
    read = spark.read.format("pyspark_kafka").options(subscribe=topic, **options).load()
    count = read.count()
    started = [name for pid, name in daemons().items() if pid not in before]
    print(json.dumps({"count": count, "warm": sorted(before.values()), "started": started}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
