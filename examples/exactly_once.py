"""Copy the error lines of a web server's log to another topic, exactly once.

Run `write_logs.py` first, which writes the log to a topic:

    python examples/write_logs.py 127.0.0.1:9092
    python examples/exactly_once.py 127.0.0.1:9092 /tmp/exactly-once-checkpoint

The streaming query reads the `apache-log` topic and writes to the `apache-errors` topic. With
`transactionalId`, consumers with isolation.level=read_committed see every row exactly once, and see
the rows of a micro-batch only after all of them have been written. This also holds if the query is
killed and restarted from its checkpoint. With `commitOffsets`, the source offsets are committed for
the `apache-errors` group in the same transaction, for tools that monitor consumer lag. This script
prints the offsets with confluent-kafka. Kafka's own tool for this is:

    kafka-consumer-groups.sh --bootstrap-server 127.0.0.1:9092 --describe --group apache-errors
"""

import sys

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SOURCE, TARGET, GROUP = "apache-log", "apache-errors", "apache-errors"
LINE = r"^\[([^\]]+)\] \[(\w+)\] (?:\[client ([^\]]+)\] )?(.*)$"


def errors(lines: DataFrame) -> DataFrame:
    """Return the lines with level `error` as JSON with time, client and message.

    The key is the client.
    """
    line = F.col("value").cast("string")
    time, level, client, message = (F.regexp_extract(line, LINE, group) for group in range(1, 5))
    return lines.where(level == "error").select(
        F.when(client != "", client).alias("key"),
        F.to_json(
            F.struct(
                F.date_format(
                    F.to_timestamp(F.substring(time, 5, 20), "MMM dd HH:mm:ss yyyy"),
                    "yyyy-MM-dd HH:mm:ss",
                ).alias("time"),
                F.when(client != "", client).alias("client"),
                message.alias("message"),
            )
        ).alias("value"),
    )


def show_group(bootstrap_servers: str) -> None:
    """Print the group's committed offset and lag for each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": GROUP})
    partitions = consumer.list_topics(SOURCE, timeout=30).topics[SOURCE].partitions
    for committed in consumer.committed([TopicPartition(SOURCE, p) for p in partitions], 30):
        _, end = consumer.get_watermark_offsets(committed, timeout=30)
        print(
            f"group {GROUP}: {SOURCE}-{committed.partition} committed {committed.offset}, "
            f"lag {end - committed.offset}",
            flush=True,
        )
    consumer.close()


def main(bootstrap_servers: str, checkpoint: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    if SOURCE not in admin.list_topics(timeout=30).topics:
        sys.exit(f"Topic {SOURCE} does not exist. Run examples/write_logs.py first.")
    spark = SparkSession.builder.appName("exactly once").getOrCreate()
    lines = (
        spark.readStream.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        errors(lines)
        .writeStream.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", TARGET)
        .option("transactionalId", "apache-errors")
        .option("commitOffsets", "true")
        .option("kafka.group.id", GROUP)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    written = (
        spark.read.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", TARGET)
        .load()
    )
    print(f"{written.count()} errors in topic {TARGET}", flush=True)
    show_group(bootstrap_servers)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
