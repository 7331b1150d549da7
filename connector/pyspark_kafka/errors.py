"""The connector's error tree.

    PysparkKafkaError
    ├── OptionError                  an option or its value; also a ValueError
    ├── SchemaError                  a column of the user's schema or DataFrame; also a ValueError
    ├── RowError                     one row that cannot be written; also a ValueError
    ├── OffsetError                  offsets that are malformed or do not fit the topics
    │   └── CheckpointError          ... as found in a checkpoint
    ├── DataLossError                offsets wanted that exist no more (`failOnDataLoss`)
    ├── ExactlyOnceError             the transactional sink: what is safe, and what to do
    │   ├── Fenced                   another run of this `transactionalId` has taken over
    │   ├── StaleBatch               an old driver, or a checkpoint that was set back
    │   ├── BatchNotCommitted        a batch that failed undecided: nothing of it will be seen
    │   ├── OutcomeUnknown           whether a batch was decided is not known here
    │   ├── RowsLost                 decided rows whose transaction was aborted
    │   ├── ReplayMismatch           a replayed batch has other rows than were decided
    │   └── CommitTopicError         the commit topic, or a record in it
    └── KafkaError                   the cluster, or the way to it
        ├── BrokerUnreachable
        ├── LeaderNotAvailable
        ├── UnknownTopicOrPartition
        ├── OffsetOutOfRange
        ├── FetchTimeout
        ├── CorruptBatchError
        ├── AuthenticationFailed
        ├── DeliveryFailed
        ├── ProducerFenced           another producer has this transactional id by now
        ├── ProtocolError            an answer that is none to what was asked
        └── UnsupportedVersion

Every message says what happened, to which topic, partition, offset or option, and what to do
next. None carries a secret. All of them survive pickling (Spark carries them between processes
as text, tests and pools as objects): they take one message and nothing else.
"""

# Kafka's words name its errors, and none of them ends in Error.
# ruff: noqa: N818
from __future__ import annotations


class PysparkKafkaError(Exception):
    """Root of all errors that this package raises on purpose."""


class OptionError(PysparkKafkaError, ValueError):
    """An option is missing, misspelt, refused, contradictory or has a bad value."""


class SchemaError(PysparkKafkaError, ValueError):
    """A column has a wrong name or type."""


class RowError(PysparkKafkaError, ValueError):
    """A row cannot be written as it is."""


class OffsetError(PysparkKafkaError, ValueError):
    """Offsets are malformed, or name other partitions than the ones that are read."""


class CheckpointError(OffsetError):
    """Offsets found in a checkpoint cannot be used."""


class DataLossError(PysparkKafkaError):
    """Records that were to be read are gone."""


class ExactlyOnceError(PysparkKafkaError):
    """Writing exactly once cannot go on as it is."""


class Fenced(ExactlyOnceError):
    """Another run of the same `transactionalId` has taken over."""


class StaleBatch(ExactlyOnceError):
    """A later batch than this one was decided: an old driver, or a checkpoint set back."""


class BatchNotCommitted(ExactlyOnceError):
    """The batch failed before it was decided: none of its rows will be seen."""


class OutcomeUnknown(ExactlyOnceError):
    """Whether a batch was decided, or a decided transaction committed, is not known here."""


class RowsLost(ExactlyOnceError):
    """Rows that were decided are in a transaction that was aborted."""


class ReplayMismatch(ExactlyOnceError):
    """A replayed batch has other rows than those that were decided."""


class CommitTopicError(ExactlyOnceError):
    """The commit topic, or a record in it, cannot be used."""


class KafkaError(PysparkKafkaError):
    """The cluster refused, failed or did not answer."""


class BrokerUnreachable(KafkaError):
    """No bootstrap server answered in time."""


class LeaderNotAvailable(KafkaError):
    """Brokers answer, but none of them led the partition until the time was over."""


class UnknownTopicOrPartition(KafkaError):
    """A topic or partition does not exist, or may not be seen."""


class OffsetOutOfRange(KafkaError):
    """The broker has no such offset."""


class FetchTimeout(KafkaError):
    """Nothing arrived for `kafkaConsumer.pollTimeoutMs`."""


class CorruptBatchError(KafkaError):
    """A record batch is damaged."""


class AuthenticationFailed(KafkaError):
    """The broker refused who we are, or what we want to do."""


class DeliveryFailed(KafkaError):
    """A record was not accepted by the broker."""


class ProducerFenced(KafkaError):
    """Another producer has this transactional id, or this epoch of it is over."""


class ProtocolError(KafkaError):
    """What a broker sent is no answer to what it was asked: malformed, or out of order."""


class UnsupportedVersion(KafkaError):
    """A broker and this client have no version of a request in common."""
