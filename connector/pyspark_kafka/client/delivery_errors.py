"""The errors of records that were not written, the same for both engines.

Invariant: every error names the topic, and the partition if it is known; no text contains a
setting's value that may be secret. What it must not know: how an engine sends records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kafka.errors import DeliveryError, ProducerFencedError, RowError
from pyspark_kafka.kafka.topics import LEGAL_TOPIC_NAMES, TopicPartition, is_topic_name

TIMEOUT_OPTION: Final = "kafka.delivery.timeout.ms"
TIMESTAMP_ADVICE: Final = (
    "Write timestamps within the topic's 'message.timestamp.before.max.ms' and "
    "'message.timestamp.after.max.ms', or change these."
)
PARTITION_ADVICE: Final = (
    "Correct the column 'partition', or leave it null for the partitioner to choose."
)
SIZE_ADVICE: Final = (
    "Raise the topic's 'max.message.bytes' (or the broker's 'message.max.bytes'), or write smaller "
    "records."
)
_ROWS_ABORTED: Final = (
    "Readers with read_committed will see no row of this attempt; another attempt of the task "
    "writes its rows under its own transactional id."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryErrors:
    """The errors of one producer. `record_bytes_max` is the largest record that it may send."""

    bootstrap_servers: str
    record_bytes_max: int

    def not_written(
        self, topic: str, partition: int | None, reason: str, *, advice: str | None = None
    ) -> DeliveryError:
        """`reason` is a clause: the broker's answer, or what happened."""
        return DeliveryError(
            f"A record for {format_place(topic, partition)} was not written: {reason}.",
            advice=advice,
            topic=topic,
            partition=partition,
        )

    def unconfirmed(
        self, topic: str, partition: int | None, last_failure: str | None
    ) -> DeliveryError:
        """For a record that was not acknowledged in time."""
        return self.not_written(
            topic,
            partition,
            f"{self.bootstrap_servers} did not acknowledge it within '{TIMEOUT_OPTION}' "
            f"({last_failure or 'no error was seen'})",
            advice="Check that the brokers run and can be reached, and that the partition has a "
            "leader and 'min.insync.replicas' in-sync replicas. To wait longer, raise "
            f"'{TIMEOUT_OPTION}'.",
        )

    def transaction_ended(
        self,
        what: str,
        transactional_id: str,
        *,
        partition: TopicPartition | None = None,
        group_id: str | None = None,
    ) -> DeliveryError:
        """For a request that is refused since the transaction cannot continue."""
        return DeliveryError(
            f"{what} The transaction of transactional id {transactional_id!r} has ended or must be "
            f"aborted, for example after its timeout. {_ROWS_ABORTED}",
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
        """For a request that is refused since another producer, or epoch, owns the id."""
        return ProducerFencedError(
            f"{what} Transactional id {transactional_id!r} is now owned by another producer, or "
            f"its transaction was aborted by a newer run or its timeout. {_ROWS_ABORTED}",
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
        """For a record that is larger than a request may be."""
        return RowError(
            f"A record for {format_place(topic, partition)} is too large: its value has "
            f"{value_bytes} bytes, its key {key_bytes} and its headers {header_bytes}, but "
            f"'kafka.max.request.size' is {self.record_bytes_max}.",
            advice="Raise 'kafka.max.request.size' and the topic's 'max.message.bytes', or write "
            "smaller records.",
            topic=topic,
            partition=partition,
        )

    def no_such_partition(self, topic: str, partition: int) -> RowError:
        """For a row whose partition the topic does not have."""
        return RowError(
            f"A record is for partition {partition} of topic {topic!r}, which has no such "
            "partition.",
            advice=PARTITION_ADVICE,
            column="partition",
            topic=topic,
            partition=partition,
        )


def missing_topic_advice(topic: str) -> str:
    """Return the advice for a topic that does not exist."""
    if not is_topic_name(topic):
        return f"Correct the topic's name: it is not {LEGAL_TOPIC_NAMES}."
    return "Create the topic, which the broker did not create automatically, or correct its name."


def format_place(topic: str, partition: int | None) -> str:
    """Return `t-0`, or `topic 't'` without a partition."""
    return f"topic {topic!r}" if partition is None else f"{topic}-{partition}"
