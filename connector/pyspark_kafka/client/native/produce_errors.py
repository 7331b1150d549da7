"""Converts error codes that a producer receives to errors of `pyspark_kafka.errors`.

Invariant: an error contains the error code and the affected object, for example the partition, the
broker or the bootstrap servers. `batch_queues` determines which error codes are retried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.client.delivery_errors import (
    SIZE_ADVICE,
    TIMESTAMP_ADVICE,
    DeliveryErrors,
    missing_topic_advice,
)
from pyspark_kafka.client.native.batch_queues import (
    PRODUCE_REACTIONS,
    ProducerBatch,
    ProduceReaction,
)
from pyspark_kafka.errors import AccessError, DeliveryError, KafkaError, sentence
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.error_codes import error_class, format_code
from pyspark_kafka.wire.produce import ProducedPartition
from pyspark_kafka.wire.router import ApiError

_NEW_ID_ADVICE: Final = "Run the task again. It will write its rows with a new producer id."
_NO_TOPIC: Final = (
    ErrorCode.invalid_topic_exception,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
_ADVICE: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.invalid_producer_epoch: _NEW_ID_ADVICE,
    ErrorCode.invalid_timestamp: TIMESTAMP_ADVICE,
    ErrorCode.out_of_order_sequence_number: _NEW_ID_ADVICE,
    ErrorCode.producer_fenced: _NEW_ID_ADVICE,
    ErrorCode.unknown_producer_id: _NEW_ID_ADVICE,
}
_FENCED: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.producer_fenced,
    }
)
_TRANSACTION_ENDED: Final = frozenset(
    {ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable}
)


def batch_rejected(
    errors: DeliveryErrors,
    partition_response: ProducedPartition,
    *,
    broker: str,
    batch: ProducerBatch,
    transactional_id: str | None = None,
) -> KafkaError:
    """Return the error for a batch that a broker rejected with a non-retriable error code."""
    partition, code = batch.topic_partition, partition_response.error_code
    reason = f"{broker} returned {format_code(code)}{_details(partition_response)}"
    if transactional_id is not None:
        ended = _transaction_ended(
            errors, _not_written(partition, reason), code, transactional_id, partition=partition
        )
        if ended is not None:
            return ended
    if issubclass(error_class(code), AccessError):
        return _write_denied(errors, code, partition, transactional_id)
    advice = _ADVICE.get(code)
    if code in _NO_TOPIC:
        advice = missing_topic_advice(partition.topic)
    elif code is ErrorCode.out_of_order_sequence_number:
        reason += (
            ". Earlier records from this producer were lost, for example during an unclean leader "
            "election"
        )
    elif PRODUCE_REACTIONS[code] is ProduceReaction.TOO_LARGE:
        reason += f". A batch with only this record is {batch.size} bytes long"
        advice = SIZE_ADVICE
    return errors.not_written(partition.topic, partition.partition, reason, advice=advice)


def partition_not_added(
    errors: DeliveryErrors, partition: TopicPartition, code: ErrorCode, *, transactional_id: str
) -> KafkaError:
    """Return the error for a partition that the coordinator did not add to the transaction."""
    reason = (
        "the coordinator did not add the partition to the transaction with transactional id "
        f"{transactional_id!r}: {format_code(code)}"
    )
    ended = _transaction_ended(
        errors, _not_written(partition, reason), code, transactional_id, partition=partition
    )
    if ended is not None:
        return ended
    if issubclass(error_class(code), AccessError):
        return _write_denied(errors, code, partition, transactional_id)
    return errors.not_written(partition.topic, partition.partition, reason)


def offsets_not_committed(
    errors: DeliveryErrors, error: ApiError, *, group_id: str, transactional_id: str
) -> KafkaError:
    """Return the error for group offsets that were not committed with the transaction."""
    what = (
        f"Offsets of group {group_id!r} were not committed: the coordinator returned "
        f"{format_code(error.code)}."
    )
    ended = _transaction_ended(errors, what, error.code, transactional_id, group_id=group_id)
    return ended or request_failed(
        errors, error, group_id=group_id, transactional_id=transactional_id
    )


def topic_not_available(errors: DeliveryErrors, topic: str, code: ErrorCode) -> KafkaError:
    """Return the error for a topic that does not exist or to which the principal cannot write."""
    if issubclass(error_class(code), AccessError):
        return request_failed(errors, ApiError(code, f"writing to topic {topic!r}"), topic=topic)
    advice = missing_topic_advice(topic) if code in _NO_TOPIC else None
    reason = f"{errors.bootstrap_servers} returned {format_code(code)}"
    return errors.not_written(topic, None, reason, advice=advice)


def request_failed(
    errors: DeliveryErrors,
    error: ApiError,
    *,
    topic: str | None = None,
    partition: int | None = None,
    group_id: str | None = None,
    transactional_id: str | None = None,
) -> KafkaError:
    """Return the error for a request other than Produce that failed with an error code."""
    kind = error_class(error.code)
    kind = kind if issubclass(kind, AccessError) else DeliveryError
    return kind(
        f"{sentence(error.operation)} failed at {errors.bootstrap_servers}: "
        f"{format_code(error.code)}.",
        topic=topic,
        partition=partition,
        group_id=group_id,
        transactional_id=transactional_id,
    )


def _write_denied(
    errors: DeliveryErrors,
    code: ErrorCode,
    partition: TopicPartition,
    transactional_id: str | None,
) -> KafkaError:
    in_transaction = f" with transactional id {transactional_id!r}" if transactional_id else ""
    return request_failed(
        errors,
        ApiError(code, f"writing to {partition}{in_transaction}"),
        topic=partition.topic,
        partition=partition.partition,
        transactional_id=transactional_id,
    )


def _transaction_ended(
    errors: DeliveryErrors,
    what: str,
    code: ErrorCode,
    transactional_id: str,
    *,
    partition: TopicPartition | None = None,
    group_id: str | None = None,
) -> KafkaError | None:
    if code in _FENCED:
        return errors.fenced(what, transactional_id, partition=partition, group_id=group_id)
    if code in _TRANSACTION_ENDED:
        return errors.transaction_ended(
            what, transactional_id, partition=partition, group_id=group_id
        )
    return None


def _not_written(partition: TopicPartition, reason: str) -> str:
    return f"A record for {partition} was not written: {reason}."


def _details(partition_response: ProducedPartition) -> str:
    """Return the broker's message about the first invalid record or the batch, in parentheses."""
    messages = [one.message for one in partition_response.record_errors if one.message]
    messages += [partition_response.error_message] if partition_response.error_message else []
    return f" ({messages[0]})" if messages else ""
