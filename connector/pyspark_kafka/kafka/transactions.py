"""Producers and transactions in Kafka's requests and responses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from pyspark_kafka.kafka.topics import TopicPartition

_SINK_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")

LEGAL_SINK_IDS: Final = "1 to 200 letters, digits, '.', '_' and '-'"
"""The rule that `is_sink_id` checks, as text for error messages."""

TransactionVersion = Literal[1, 2]
"""The level of the `transaction.version` feature.

At level 2 (KIP-890), the coordinator bumps the producer epoch with each EndTxn request (v5).
"""


def is_sink_id(transactional_id: str) -> bool:
    """Return whether `transactional_id` is a valid value of the `transactionalId` option.

    Kafka allows any string. The sink allows fewer characters, because it appends `/`-separated
    parts for its tasks and uses the id in regular expressions and record keys.
    """
    return _SINK_ID.fullmatch(transactional_id) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdAndEpoch:
    """A producer id and epoch (`org.apache.kafka.common.utils.ProducerIdAndEpoch`)."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"producer id {self.producer_id}, epoch {self.producer_epoch}"


class TransactionState(Enum):
    """A transaction state. The value is the name of the state in responses.

    Source: `TransactionState` in Kafka's admin client.
    """

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


class TransactionResult(Enum):
    """The result of a transaction (`org.apache.kafka.common.requests.TransactionResult`)."""

    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """The state of a transactional id in a DescribeTransactions response.

    `started_ms` is None if no transaction has started.
    """

    transactional_id: str
    state: TransactionState
    producer: ProducerIdAndEpoch
    timeout_ms: int
    started_ms: int | None
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id in a ListTransactions response."""

    transactional_id: str
    producer_id: int
    state: TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """The content of an EndTxn request.

    `version` is the transaction version, which must not change between retries.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    version: TransactionVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """An aborted transaction in a Fetch response."""

    producer_id: int
    first_offset: int
