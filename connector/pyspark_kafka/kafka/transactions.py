"""Producers and transactions, as requests and responses describe them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from pyspark_kafka.kafka.topics import TopicPartition

_SINK_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")

LEGAL_SINK_IDS: Final = "letters, digits, '.', '_' and '-' (at most 200)"
"""The rule of `is_sink_id`, for error messages."""

TransactionVersion = Literal[1, 2]
"""The feature `transaction.version`. With 2 (KIP-890) each EndTxn (v5) bumps the epoch."""


def is_sink_id(transactional_id: str) -> bool:
    """Return whether the option `transactionalId` may have this value.

    Kafka allows any text. The sink appends `/`-separated parts for its tasks and uses the id in
    patterns and record keys, so that it allows fewer characters.
    """
    return _SINK_ID.fullmatch(transactional_id) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdAndEpoch:
    """`org.apache.kafka.common.utils.ProducerIdAndEpoch`."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"producer id {self.producer_id}, epoch {self.producer_epoch}"


class TransactionState(Enum):
    """`org.apache.kafka.clients.admin.TransactionState`; the values are its names in responses."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


class TransactionResult(Enum):
    """`org.apache.kafka.common.requests.TransactionResult`: how a transaction ended."""

    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """The state of one id (DescribeTransactions).

    `started_ms` is None where no transaction has begun.
    """

    transactional_id: str
    state: TransactionState
    producer: ProducerIdAndEpoch
    timeout_ms: int
    started_ms: int | None
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """One id that a coordinator holds (ListTransactions)."""

    transactional_id: str
    producer_id: int
    state: TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """One EndTxn to send. `version` is that of the transaction and the same in every retry."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    version: TransactionVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """An aborted transaction in a fetch response: its producer and its first offset."""

    producer_id: int
    first_offset: int
