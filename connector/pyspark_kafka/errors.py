"""The errors of the connector.

    PysparkKafkaError
    ├── OptionError                    invalid option; also a ValueError
    ├── SchemaError                    invalid column in the schema or DataFrame; also a ValueError
    ├── RowError                       a row that cannot be written; also a ValueError
    ├── OffsetError                    malformed offsets, or offsets of the wrong partitions
    │   └── CheckpointError            invalid offsets in a checkpoint
    ├── DataLossError                  unread records no longer exist (`failOnDataLoss`)
    ├── ExactlyOnceError               errors of the exactly-once sink
    │   ├── SinkFencedError            another run with this `transactionalId` has taken over
    │   ├── StaleBatchError            old driver, or checkpoint restored from an older copy
    │   ├── BatchNotCommittedError     no row of the batch will become visible
    │   ├── OutcomeUnknownError        unknown whether the batch was committed
    │   ├── RowsLostError              the brokers aborted a transaction of a committed batch
    │   ├── EarlierJobCommittedError   the commit of an earlier job was not reported
    │   ├── ReplayMismatchError        a replayed batch differs from the committed batch
    │   └── CommitTopicError           unusable commit topic, or unusable record in it
    └── KafkaError                     cluster and network errors
        ├── BrokerUnreachableError
        ├── LeaderNotAvailableError
        ├── UnknownTopicOrPartitionError
        ├── OffsetOutOfRangeError
        ├── FetchTimeoutError
        ├── CorruptBatchError
        ├── AccessError                the brokers deny access
        │   ├── AuthenticationError
        │   └── AuthorizationError
        ├── DeliveryError
        ├── ProducerFencedError
        ├── ProtocolError
        └── UnsupportedVersionError

Every error has the fields of `PysparkKafkaError` and can be pickled. No error contains a secret.
Spark passes errors between processes as text, so `str()` contains the whole error message.
"""

from __future__ import annotations

from typing import ClassVar


class PysparkKafkaError(Exception):
    """Base class of all errors that this package raises.

    `what` describes what happened and, if known, why. `advice` describes what to do next. Both
    consist of full sentences, and `str()` returns `what` followed by `advice`. The other fields
    identify the affected object, and are None if they do not apply. If an error concerns several
    partitions, `topic` and `partition` identify the first of them or are None. `remedy` is the
    default advice of a class.
    """

    remedy: ClassVar[str] = "Check the logs of the query and of the brokers."

    def __init__(
        self,
        what: str,
        *,
        advice: str | None = None,
        option: str | None = None,
        column: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        group_id: str | None = None,
        transactional_id: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.advice = self.remedy if advice is None else advice
        self.option = option
        self.column = column
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.group_id = group_id
        self.transactional_id = transactional_id

    def __str__(self) -> str:
        return f"{self.what} {self.advice}".rstrip()


def sentence(text: str) -> str:
    """Return the text with its first letter capitalized."""
    return text[:1].upper() + text[1:]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, for example `1 row` or `2 rows`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def reason_of(error: Exception) -> str:
    """Return the text of an error without its advice and its final period."""
    text = error.what if isinstance(error, PysparkKafkaError) else str(error)
    return text.removesuffix(".")


class OptionError(PysparkKafkaError, ValueError):
    """An option is missing, misspelled, unsupported, invalid or in conflict with another option."""

    remedy = "Correct the option. docs/options.md lists all options."


class SchemaError(PysparkKafkaError, ValueError):
    """A column has an unexpected name or type."""

    remedy = "Correct the schema of the DataFrame, or the schema passed to `schema()`."


class RowError(PysparkKafkaError, ValueError):
    """A row cannot be written."""

    remedy = "Correct the row or filter it out before the write."


class OffsetError(PysparkKafkaError, ValueError):
    """Offsets are malformed, or their partitions differ from those that the query reads."""

    remedy = "Correct the offsets in the option or in the checkpoint."


class CheckpointError(OffsetError):
    """The offsets in a checkpoint cannot be used."""

    remedy = "Restore the checkpoint, or start the query with a new 'checkpointLocation'."


class DataLossError(PysparkKafkaError):
    """Records that the query must read, or their topic, no longer exist."""

    remedy = (
        "Start the query from offsets that exist, or set 'failOnDataLoss' to 'false' to continue "
        "without the lost records."
    )


class ExactlyOnceError(PysparkKafkaError):
    """The exactly-once sink cannot continue."""


class SinkFencedError(ExactlyOnceError):
    """Another run has taken over the sink, or a task exceeded `transactionTimeout`."""

    remedy = (
        "Run only one query with this 'transactionalId'. If a task was fenced because it was "
        "writing for too long, increase 'transactionTimeout'."
    )


class StaleBatchError(ExactlyOnceError):
    """A later batch is already committed.

    An old driver is still running, or the checkpoint was restored from an older copy.
    """

    remedy = "Stop the old driver, or restore the newest checkpoint."


class BatchNotCommittedError(ExactlyOnceError):
    """The batch failed before the commit, and `read_committed` consumers will not see its rows."""

    remedy = "Run the batch again."


class OutcomeUnknownError(ExactlyOnceError):
    """It is unknown whether a batch or one of its transactions was committed."""

    remedy = "Determine whether the batch was committed before you write its rows again."


class RowsLostError(ExactlyOnceError):
    """Rows of a committed batch are in a transaction that the brokers aborted."""

    remedy = "Run the batch again. Only the lost rows will be written."


class EarlierJobCommittedError(ExactlyOnceError):
    """An earlier batch job without `batchId` was committed, but did not report its success."""

    remedy = "If this run is a retry of that job, do not run the job again."


class ReplayMismatchError(ExactlyOnceError):
    """The rows or source offsets of a replayed batch differ from those of the committed batch."""

    remedy = (
        "Make the query deterministic, or set 'onReplayMismatch' to 'warn' to keep the committed "
        "rows."
    )


class CommitTopicError(ExactlyOnceError):
    """The commit topic or a record in it cannot be used."""

    remedy = "Check the commit topic (option 'commitTopic') and its configuration."


class KafkaError(PysparkKafkaError):
    """The cluster returned an error, failed or did not respond."""

    remedy = "Check the logs of the brokers."


class BrokerUnreachableError(KafkaError):
    """No broker responded in time."""

    remedy = (
        "Check that 'kafka.bootstrap.servers' is correct, that the brokers are running, and that "
        "this machine can reach the addresses that the brokers advertise."
    )


class LeaderNotAvailableError(KafkaError):
    """The brokers respond, but no leader of the partition was found before the timeout."""

    remedy = "Start a broker that has an in-sync replica of the partition."


class UnknownTopicOrPartitionError(KafkaError):
    """A topic or partition does not exist, or the principal is not allowed to describe it."""

    remedy = (
        "Create the topic, correct its name, or grant the principal DESCRIBE on the topic. "
        "Without this ACL, the brokers respond as if the topic did not exist."
    )


class OffsetOutOfRangeError(KafkaError):
    """The offset is outside the partition's log."""

    remedy = "Read from offsets that exist in the partition."


class FetchTimeoutError(KafkaError):
    """No data arrived within `kafkaConsumer.pollTimeoutMs`."""

    remedy = "Raise 'kafkaConsumer.pollTimeoutMs' if the brokers are slow."


class CorruptBatchError(KafkaError):
    """A record batch is corrupt."""

    remedy = (
        "Skip the batch with 'startingOffsets' and 'endingOffsets', restore the partition from "
        "another replica, or delete the records up to the end of the batch with DeleteRecords."
    )


class AccessError(KafkaError):
    """The brokers did not authenticate or authorize this client."""

    remedy = (
        "Check 'kafka.security.protocol', the 'kafka.sasl.*' and 'kafka.ssl.*' options, and the "
        "ACLs of the principal."
    )


class AuthenticationError(AccessError):
    """The brokers rejected the credentials or the certificate of this client."""

    remedy = "Check 'kafka.security.protocol' and the 'kafka.sasl.*' and 'kafka.ssl.*' options."


class AuthorizationError(AccessError):
    """The principal lacks a required ACL."""

    remedy = "Grant the principal the ACL that the operation requires."


class DeliveryError(KafkaError):
    """The brokers did not acknowledge a record."""


class ProducerFencedError(KafkaError):
    """Another producer owns the transactional id, or the producer epoch is no longer valid."""

    remedy = (
        "Run only one query with this 'transactionalId'. If transactions time out, raise "
        "'transactionTimeout'."
    )


class ProtocolError(KafkaError):
    """A broker's response is malformed or does not match the request."""

    remedy = (
        "Check that the address belongs to a Kafka broker, check any proxy in front of the broker, "
        "and check the broker's log."
    )


class UnsupportedVersionError(KafkaError):
    """The broker and this client do not support a common version of a request."""

    remedy = "Upgrade the broker."
