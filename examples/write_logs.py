"""Write log files to Kafka topics, with one batch job per file and one record per line.

python examples/write_logs.py 127.0.0.1:9092
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import regexp_extract, when

DATA = Path(__file__).parent / "data"

# Topic: (file, pattern of the record key). Lines with the same key keep their order.
LOGS = {
    "ssh-log": ("OpenSSH_2k.log", r"sshd\[(\d+)\]"),  # the process id of the connection
    "hdfs-log": ("HDFS_2k.log", r"(blk_-?\d+)"),  # the block id
    "apache-log": ("Apache_2k.log", r"\[client ([^\]]+)\]"),  # the client, if the line contains one
}


def main(bootstrap_servers: str) -> None:
    spark = SparkSession.builder.appName("write logs").getOrCreate()
    for topic, (file_name, key_pattern) in LOGS.items():
        lines = spark.read.text(str(DATA / file_name))
        key = regexp_extract("value", key_pattern, 1)
        (
            lines.select(when(key != "", key).alias("key"), "value")
            .write.format("pyspark_kafka")
            .mode("append")
            .option("kafka.bootstrap.servers", bootstrap_servers)
            .option("topic", topic)
            .save()
        )
        print(f"{file_name}: {lines.count()} lines written to topic {topic}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
