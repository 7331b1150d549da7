"""Errors for records that were not written, shared by the `native` and `librdkafka` engines.

Invariant: every error names the topic, and the partition if it is known. No error contains the
value of a secret setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kafka.errors import (
    BrokerUnreachableError,
    DeliveryError,
    KafkaError,
    ProducerFencedError,
    PysparkKafkaError,
    RowError,
    counted,
)
from pyspark_kafka.kafka.topics import LEGAL_TOPIC_NAMES, TopicPartition, is_topic_name

TIMEOUT_OPTION: Final = "kafka.delivery.timeout.ms"
TIMESTAMP_ADVICE: Final = (
    "Write timestamps within the topic's 'message.timestamp.before.max.ms' and "
    "'message.timestamp.after.max.ms', or change these topic settings."
)
PARTITION_ADVICE: Final = (
    "Correct the 'partition' column, or set it to null so that the partitioner chooses a partition."
)
SIZE_ADVICE: Final = (
    "Raise the topic's 'max.message.bytes' (or the broker's 'message.max.bytes'), or write smaller "
    "records."
)
_ROWS_ABORTED: Final = (
    "Consumers that use read_committed will not see the rows of this task attempt. If Spark "
    "retries the task, the new attempt will write the rows with its own transactional id."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryErrors:
    """Creates the errors for one producer. `record_bytes_max` is the maximum record size."""

    bootstrap_servers: str
    record_bytes_max: int

    def not_written(
        self, topic: str, partition: int | None, reason: str, *, advice: str | None = None
    ) -> DeliveryError:
        """Return the error for a record that was not written.

        `reason` is a clause that states the cause, for example the broker's error code.
        """
        return DeliveryError(
            f"A record for {format_place(topic, partition)} was not written: {reason}.",
            advice=advice,
            topic=topic,
            partition=partition,
        )

    def unreachable(self, topic: str, timeout_s: float, last: PysparkKafkaError) -> KafkaError:
        """Return the error for unreachable brokers. `last` is the error from the last attempt."""
        return BrokerUnreachableError(
            f"Writing to topic {topic!r} failed at {self.bootstrap_servers}: no attempt succeeded "
            f"within {timeout_s:g} s. {last.what}",
            advice=last.advice,
            option=last.option,
            topic=topic,
        )

    def unacknowledged(
        self, topic: str, partition: int | None, last_failure: str | None
    ) -> DeliveryError:
        """Return the error for a record that was not acknowledged in time."""
        return self.not_written(
            topic,
            partition,
            f"{self.bootstrap_servers} did not acknowledge it within '{TIMEOUT_OPTION}' "
            f"({last_failure or 'no error was reported'})",
            advice="Check that the brokers are running and can be reached, and that the partition "
            "has a leader and at least 'min.insync.replicas' in-sync replicas. To wait longer, "
            f"raise '{TIMEOUT_OPTION}'.",
        )

    def transaction_ended(
        self,
        what: str,
        transactional_id: str,
        *,
        partition: TopicPartition | None = None,
        group_id: str | None = None,
    ) -> DeliveryError:
        """Return the error for a rejected request after which the transaction cannot continue."""
        return DeliveryError(
            f"{what} The transaction with transactional id {transactional_id!r} has ended or must "
            f"be aborted, for example because it timed out. {_ROWS_ABORTED}",
            advice="If transactions time out, raise 'transactionTimeout'.",
            topic=None if partition is None else partition.topic,
            partition=None if partition is None else partition.partition,
            group_id=group_id,
            transactional_id=transactional_id,
        )

    def fenced(
        self,
        what: str,
        transactional_id: str,
        *,
        partition: TopicPartition | None = None,
        group_id: str | None = None,
    ) -> ProducerFencedError:
        """Return the error for a request that was rejected because the producer was fenced."""
        return ProducerFencedError(
            f"{what} Either another producer now owns transactional id {transactional_id!r}, or "
            "the transaction was aborted because it timed out or because a newer run of the "
            f"query started. {_ROWS_ABORTED}",
            topic=None if partition is None else partition.topic,
            partition=None if partition is None else partition.partition,
            group_id=group_id,
            transactional_id=transactional_id,
        )

    def record_too_large(
        self,
        topic: str,
        partition: int | None = None,
        *,
        value_bytes: int,
        key_bytes: int,
        header_bytes: int,
    ) -> RowError:
        """Return the error for a record that exceeds the maximum request size."""
        return RowError(
            f"A record for {format_place(topic, partition)} is too large. Its value has "
            f"{counted(value_bytes, 'byte')}, its key {counted(key_bytes, 'byte')} and its headers "
            f"{counted(header_bytes, 'byte')}, but 'kafka.max.request.size' is "
            f"{self.record_bytes_max} bytes.",
            advice="Raise 'kafka.max.request.size' and the topic's 'max.message.bytes', or write "
            "smaller records.",
            topic=topic,
            partition=partition,
        )

    def no_such_partition(self, topic: str, partition: int) -> RowError:
        """Return the error for a row whose partition does not exist."""
        return RowError(
            f"A row cannot be written to partition {partition} of topic {topic!r}, because the "
            "partition does not exist.",
            advice=PARTITION_ADVICE,
            column="partition",
            topic=topic,
            partition=partition,
        )


def missing_topic_advice(topic: str) -> str:
    """Return the advice for a topic that does not exist."""
    if not is_topic_name(topic):
        return f"Correct the name of the topic. Valid names consist of {LEGAL_TOPIC_NAMES}."
    return "Create the topic or correct its name. The brokers did not create it automatically."


def format_place(topic: str, partition: int | None) -> str:
    """Format a partition as `t-0`, or as `topic 't'` if `partition` is None."""
    return f"topic {topic!r}" if partition is None else f"{topic}-{partition}"
