"""What is said of a record that was not written, whichever engine wrote.

Purpose: the one place with the words for a failed delivery: which record, where to, who said what,
and what to do. Invariant: every error names the topic, and none a setting's value that may be
secret. What it must not know: how an engine sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kafka.errors import DeliveryError, ProducerFencedError, RowError
from pyspark_kafka.kafka.topics import LEGAL_TOPIC_NAMES, is_topic_name

TIMEOUT_OPTION: Final = "kafka.delivery.timeout.ms"
BAD_TIMESTAMP: Final = (
    "the column 'timestamp' is outside of the topic's 'message.timestamp.before.max.ms' and "
    "'message.timestamp.after.max.ms'"
)
NO_SUCH_PARTITION: Final = (
    "the topic has no such partition: correct the column 'partition', or leave it null for the "
    "partitioner to choose"
)
NOT_WRITTEN: Final = "the rows of this task count as not written; see the broker's log"
_NEVER_SEEN: Final = (
    "nothing that this attempt wrote will be seen by readers with read_committed; another attempt "
    "of the task writes its rows anew, under an id of its own"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryErrors:
    """The errors of one producer. `record_bytes_max` is the largest record that it may send."""

    bootstrap_servers: str
    record_bytes_max: int

    def not_written(self, where: str, said: str, remedy: str) -> DeliveryError:
        """`where` is a topic or a partition, `said` what the broker answered, or what went on."""
        return DeliveryError(f"a record for {where} was not written: {said}; {remedy}")

    def not_in_transaction(self, failed: str, said: str, transactional_id: str) -> DeliveryError:
        """For what is refused since the transaction of this id cannot go on."""
        return DeliveryError(
            f"{failed}: {said} to transactional id "
            f"{transactional_id!r}, whose transaction is over or has to be aborted, as after its "
            f"timeout; {_NEVER_SEEN}, and if transactions time out, raise 'transactionTimeout'"
        )

    def fenced(self, failed: str, said: str, transactional_id: str) -> ProducerFencedError:
        """For what is refused since this id has another owner, or another epoch."""
        return ProducerFencedError(
            f"{failed}: {said} to transactional id "
            f"{transactional_id!r}, which another producer has by now, or whose transaction was "
            f"aborted by a newer run or by its timeout; {_NEVER_SEEN}: see that no other query "
            "runs with this 'transactionalId', and if transactions time out, raise "
            "'transactionTimeout'"
        )

    def unconfirmed_remedy(self, reason: str | None) -> str:
        """For a record of which nothing was heard in time; `reason` is the latest trouble seen."""
        return (
            f"{self.bootstrap_servers} did not confirm it within '{TIMEOUT_OPTION}' "
            f"({reason or 'no error was seen'}); check that the brokers run and are reached, and "
            "the partition's leader and in-sync replicas against 'min.insync.replicas', or raise "
            "that option to wait longer"
        )

    def record_too_large(
        self, where: str, *, value_bytes: int, key_bytes: int, header_bytes: int
    ) -> RowError:
        """For a record that may not even be sent."""
        return RowError(
            f"a record for {where} is too large: its value has {value_bytes} bytes, its key "
            f"{key_bytes} and its headers {header_bytes}, but 'kafka.max.request.size' is "
            f"{self.record_bytes_max}; raise that, and 'max.message.bytes' of the topic, or write "
            "smaller records"
        )

    def no_such_partition(self, topic: str, partition: int) -> RowError:
        """For a row that names a partition which the topic has not."""
        return RowError(
            f"a record is for partition {partition} of topic {topic}, which has no such "
            "partition: correct the column 'partition', or leave it null"
        )


def too_large_remedy(what: str, size_bytes: int) -> str:
    """For a record that the broker refuses; `what` of it has so many bytes."""
    return (
        f"{what} has {size_bytes} bytes: raise the topic's 'max.message.bytes' (or the broker's "
        "'message.max.bytes'), or write smaller records"
    )


def topic_remedy(topic: str) -> str:
    """For a topic that does not exist."""
    if not is_topic_name(topic):
        return f"it is no name for a topic, which has {LEGAL_TOPIC_NAMES}"
    return (
        "the topic does not exist and was not created by the broker: create it, or correct its name"
    )
