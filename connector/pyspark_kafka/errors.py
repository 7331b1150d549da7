"""The connector's error tree.

    PysparkKafkaError
    ├── OptionError                    an option or its value; also a ValueError
    ├── SchemaError                    a column of the schema or DataFrame; also a ValueError
    ├── RowError                       a row that cannot be written; also a ValueError
    ├── OffsetError                    malformed offsets, or offsets of other partitions
    │   └── CheckpointError            ... in a checkpoint
    ├── DataLossError                  records to be read no longer exist (`failOnDataLoss`)
    ├── ExactlyOnceError               the sink with `transactionalId`
    │   ├── SinkFencedError            another run of this `transactionalId` has taken over
    │   ├── StaleBatchError            an old driver, or a checkpoint restored from an older copy
    │   ├── BatchNotCommittedError     no row of the batch will be visible
    │   ├── OutcomeUnknownError        whether the batch is committed is unknown
    │   ├── RowsLostError              committed rows whose transaction the brokers aborted
    │   ├── ReplayMismatchError        a replayed batch differs from what was committed
    │   └── CommitTopicError           the commit topic, or a record in it
    └── KafkaError                     the cluster, or the network
        ├── BrokerUnreachableError
        ├── LeaderNotAvailableError
        ├── UnknownTopicOrPartitionError
        ├── OffsetOutOfRangeError
        ├── FetchTimeoutError
        ├── CorruptBatchError
        ├── AccessError                the brokers refuse this principal
        │   ├── AuthenticationError
        │   └── AuthorizationError
        ├── DeliveryError
        ├── ProducerFencedError
        ├── ProtocolError
        └── UnsupportedVersionError

Every error has the fields of `PysparkKafkaError`, never contains a secret and can be pickled. Spark
carries errors between processes as text: `str()` is complete.
"""

from __future__ import annotations

from typing import ClassVar


class PysparkKafkaError(Exception):
    """Root of all errors that this package raises on purpose.

    `what` is what happened and, if known, why; `advice` is what to do next. Both are full
    sentences, and `str()` is one after the other. The other fields name the object; None where the
    error has no such object. An error about several partitions names the first or none. `remedy`
    is the advice of a class, for errors that are raised without one.
    """

    remedy: ClassVar[str] = "See the logs of the query and of the brokers."

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
    """Return the text with its first letter in upper case, for a field of an error."""
    return text[:1].upper() + text[1:]


def reason_of(error: Exception) -> str:
    """Return what happened, without advice and full stop, for the text of another error."""
    text = error.what if isinstance(error, PysparkKafkaError) else str(error)
    return text.removesuffix(".")


class OptionError(PysparkKafkaError, ValueError):
    """An option is missing, misspelt, unsupported, contradictory or has an invalid value."""

    remedy = "Correct the option; docs/options.md lists all options."


class SchemaError(PysparkKafkaError, ValueError):
    """A column has a wrong name or type."""

    remedy = "Correct the schema of the DataFrame, or the schema passed to `schema()`."


class RowError(PysparkKafkaError, ValueError):
    """A row cannot be written."""

    remedy = "Correct or filter out the row before the write."


class OffsetError(PysparkKafkaError, ValueError):
    """Offsets are malformed, or name other partitions than the query reads."""

    remedy = "Correct the offsets in the option or in the checkpoint."


class CheckpointError(OffsetError):
    """Offsets in a checkpoint cannot be used."""

    remedy = "Restore the checkpoint, or start the query with a new checkpointLocation."


class DataLossError(PysparkKafkaError):
    """Records that the query has to read no longer exist: they or their topic were deleted."""

    remedy = (
        "Start again from offsets that exist, or set 'failOnDataLoss' to 'false' to continue "
        "without the lost records."
    )


class ExactlyOnceError(PysparkKafkaError):
    """The exactly-once sink cannot continue."""


class SinkFencedError(ExactlyOnceError):
    """Another run with the same `transactionalId` has taken over."""

    remedy = "Let only one query run with this 'transactionalId'."


class StaleBatchError(ExactlyOnceError):
    """A later batch is already committed: an old driver, or a checkpoint from an older copy."""

    remedy = "Stop the old driver, or restore the newest checkpoint."


class BatchNotCommittedError(ExactlyOnceError):
    """The batch failed before its commit: no reader with read_committed will see its rows."""

    remedy = "Run the batch again."


class OutcomeUnknownError(ExactlyOnceError):
    """Whether a batch or one of its transactions is committed could not be determined."""

    remedy = "Determine the outcome before you write these rows again."


class RowsLostError(ExactlyOnceError):
    """Rows of a committed batch are in a transaction that the brokers aborted."""

    remedy = "Run the batch again: only the lost rows are written."


class ReplayMismatchError(ExactlyOnceError):
    """A replayed batch has other rows or source offsets than the committed one."""

    remedy = "Make the query deterministic, or set 'onReplayMismatch' to 'warn' to keep the rows."


class CommitTopicError(ExactlyOnceError):
    """The commit topic, or a record in it, cannot be used."""

    remedy = "Check the topic of 'commitTopic' and its configuration."


class KafkaError(PysparkKafkaError):
    """The cluster returned an error, failed or did not answer."""

    remedy = "See the broker's log."


class BrokerUnreachableError(KafkaError):
    """No broker answered in time."""

    remedy = (
        "Check 'kafka.bootstrap.servers', that the brokers run, and that this machine can reach "
        "the addresses that they advertise."
    )


class LeaderNotAvailableError(KafkaError):
    """Brokers answer, but none of them led the partition until the timeout."""

    remedy = "Start a broker that has an in-sync replica of the partition."


class UnknownTopicOrPartitionError(KafkaError):
    """A topic or partition does not exist, or the principal may not describe it."""

    remedy = (
        "Create the topic, correct its name, or grant the principal DESCRIBE on it: without that "
        "ACL brokers answer as if the topic did not exist."
    )


class OffsetOutOfRangeError(KafkaError):
    """The broker does not have the offset."""

    remedy = "Read from offsets that exist."


class FetchTimeoutError(KafkaError):
    """No data arrived for `kafkaConsumer.pollTimeoutMs`."""

    remedy = "Raise 'kafkaConsumer.pollTimeoutMs' if the brokers are slow."


class CorruptBatchError(KafkaError):
    """A record batch is corrupt."""

    remedy = (
        "Read the offsets before and after the batch with 'startingOffsets' and 'endingOffsets', "
        "restore the partition from another replica, or delete the batch with DeleteRecords."
    )


class AccessError(KafkaError):
    """The brokers refuse this principal."""

    remedy = (
        "Check 'kafka.security.protocol', the 'kafka.sasl.*' and 'kafka.ssl.*' options, and the "
        "ACLs of the principal."
    )


class AuthenticationError(AccessError):
    """The brokers refuse the credentials or the certificate."""

    remedy = "Check 'kafka.security.protocol' and the 'kafka.sasl.*' and 'kafka.ssl.*' options."


class AuthorizationError(AccessError):
    """The principal lacks an ACL."""

    remedy = "Grant the principal the ACL that the operation needs."


class DeliveryError(KafkaError):
    """The brokers did not acknowledge a record."""


class ProducerFencedError(KafkaError):
    """Another producer owns this transactional id, or the producer's epoch has ended."""

    remedy = (
        "Let only one query run with this 'transactionalId'. If transactions time out, raise "
        "'transactionTimeout'."
    )


class ProtocolError(KafkaError):
    """A broker's answer is malformed or does not match the request."""

    remedy = (
        "Check that the address belongs to a Kafka broker, and what is between it and this "
        "machine; see the broker's log."
    )


class UnsupportedVersionError(KafkaError):
    """This client and the broker have no version of a request in common."""

    remedy = "Upgrade the broker."
