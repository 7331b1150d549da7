"""What brokers answer to a producer, as errors of ours.

Purpose: codes, and what brokers add to them, to the words of `delivery_faults`. Invariant: a
message names the partition, who said what, and what to do. What it must not know: which answers are
final (`in_flight`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.client.delivery_errors import (
    BAD_TIMESTAMP,
    NOT_WRITTEN,
    DeliveryErrors,
    too_large_remedy,
    topic_remedy,
)
from pyspark_kafka.client.native.in_flight import VERDICTS, Batch, Verdict
from pyspark_kafka.errors import AccessError, DeliveryError, KafkaError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.error_codes import error_class, format_code
from pyspark_kafka.wire.produce import ProducedPartition
from pyspark_kafka.wire.router import ApiError

_ANEW: Final = (
    "the rows of this task count as not written; another try of the task writes them with a "
    "producer id of its own"
)
_NO_TOPIC: Final = (
    ErrorCode.invalid_topic_exception,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
_REMEDIES: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.invalid_producer_epoch: _ANEW,
    ErrorCode.invalid_timestamp: BAD_TIMESTAMP,
    ErrorCode.out_of_order_sequence_number: "records written before it are gone, as after the "
    f"election of a leader that was not in sync; {_ANEW}",
    ErrorCode.producer_fenced: _ANEW,
    ErrorCode.unknown_producer_id: _ANEW,
}


_FENCED: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.producer_fenced,
    }
)
_TRANSACTION_OVER: Final = frozenset({ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable})


def refused(
    faults: DeliveryErrors,
    answer: ProducedPartition,
    *,
    who: str,
    batch: Batch,
    transactional_id: str | None = None,
) -> KafkaError:
    """For a batch that a broker will not take, now or later."""
    partition, code = batch.topic_partition, answer.error_code
    words = format_code(code) + _details(answer)
    if transactional_id is not None:
        failed = f"a record for {partition} was not written"
        over = _transaction_over(faults, failed, code, f"{who} said {words}", transactional_id)
        if over is not None:
            return over
    if issubclass(error_class(code), AccessError):
        return not_asked(faults, ApiError(code, _writing(partition, transactional_id)))
    advice = _REMEDIES.get(code, NOT_WRITTEN)
    if code in _NO_TOPIC:
        advice = topic_remedy(partition.topic)
    elif VERDICTS[code] is Verdict.TOO_LARGE:
        advice = too_large_remedy("as a batch of its own it", batch.size)
        words = f"it is too large, {words}"
    return faults.not_written(str(partition), f"{who} said {words}", advice)


def not_added(
    faults: DeliveryErrors, partition: TopicPartition, code: ErrorCode, *, transactional_id: str
) -> KafkaError:
    """For a partition that the coordinator will not add to the transaction."""
    failed = f"a record for {partition} was not written"
    words = f"the coordinator said {format_code(code)}"
    over = _transaction_over(faults, failed, code, words, transactional_id)
    if over is not None:
        return over
    if issubclass(error_class(code), AccessError):
        return not_asked(faults, ApiError(code, _writing(partition, transactional_id)))
    words = f"{words}, asked to add it to the transaction of {transactional_id!r}"
    return faults.not_written(str(partition), words, NOT_WRITTEN)


def not_committed(
    faults: DeliveryErrors, answer: ApiError, *, group_id: str, transactional_id: str
) -> KafkaError:
    """For offsets that are not taken into the transaction."""
    failed = f"offsets of group {group_id!r} were not committed"
    words = f"the coordinator said {format_code(answer.code)}"
    over = _transaction_over(faults, failed, answer.code, words, transactional_id)
    return over or not_asked(faults, answer)


def _transaction_over(
    faults: DeliveryErrors, failed: str, code: ErrorCode, words: str, transactional_id: str
) -> KafkaError | None:
    if code in _FENCED:
        return faults.fenced(failed, words, transactional_id)
    if code in _TRANSACTION_OVER:
        return faults.not_in_transaction(failed, words, transactional_id)
    return None


def _writing(partition: TopicPartition, transactional_id: str | None) -> str:
    in_transaction = f" as transactional id {transactional_id!r}" if transactional_id else ""
    return f"writing to {partition}{in_transaction}"


def not_available(faults: DeliveryErrors, topic: str, code: ErrorCode) -> KafkaError:
    """For a topic that the cluster does not have, or not for us."""
    if issubclass(error_class(code), AccessError):
        return not_asked(faults, ApiError(code, f"writing to {topic}"))
    advice = topic_remedy(topic) if code in _NO_TOPIC else NOT_WRITTEN
    return faults.not_written(topic, f"{faults.bootstrap_servers} said {format_code(code)}", advice)


def not_asked(faults: DeliveryErrors, answer: ApiError) -> KafkaError:
    """For a refusal of what has to go before writing, or of who we are."""
    kind = error_class(answer.code)
    kind = kind if issubclass(kind, AccessError) else DeliveryError
    return kind(
        f"{answer.operation} failed at {faults.bootstrap_servers}: {format_code(answer.code)}."
    )


def unconfirmed(
    faults: DeliveryErrors, where: TopicPartition | str, reason: str | None
) -> DeliveryError:
    """For a row whose time is over."""
    return faults.not_written(
        str(where), "no confirmation came in time", faults.unconfirmed_remedy(reason)
    )


def _details(answer: ProducedPartition) -> str:
    """What the broker added, to the first record that is at fault or to the whole."""
    messages = [one.message for one in answer.record_errors if one.message]
    messages += [answer.error_message] if answer.error_message else []
    return f" ({messages[0]})" if messages else ""
