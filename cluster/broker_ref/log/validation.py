"""Checks a batch from a producer on the leader (Kafka's `LogValidator`).

Batches that violate the topic configs or the record format are rejected with Kafka's error codes.
Invariants: the checks do not change the batch or the log. Records are decoded only if the topic is
compacted or limits the age of timestamps, or if the max timestamp is too far in the future. The
records of a batch in a compacted topic have consecutive offsets, because compaction requires
ascending offsets.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from broker_ref.log.append import AppendOrigin
from broker_ref.log.batch import (
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    check_produced_batch,
    decode_records,
    parse_batches,
)
from broker_ref.log.config import LONG_MAX, LogConfig
from broker_ref.log.errors import LogError, RecordError, RecordValidationError

_RECORD_ERRORS_MAX = 100


def check_produced(
    records: bytes,
    *,
    config: LogConfig,
    directory: str,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> BatchHeader:
    """Check the batch in `records` and return its header.

    `directory` is the directory of the log to which the batch will be appended.

    Raises: LogError with one of Kafka's error codes (INVALID_RECORD, CORRUPT_MESSAGE,
    MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP), or RecordValidationError if some
    records are invalid.
    """
    headers = parse_batches(records)
    if len(headers) != 1:
        raise LogError(
            ErrorCode.invalid_record,
            f"The request must contain exactly one record batch per partition, not {len(headers)}.",
        )
    header = headers[0]
    if header.size_bytes > config.max_message_bytes:
        raise LogError(
            ErrorCode.message_too_large,
            f"A record batch of {header.size_bytes} bytes for {directory} exceeds "
            f"max.message.bytes={config.max_message_bytes}.",
        )
    if origin is AppendOrigin.CLIENT:
        check_produced_batch(header)
    batch = memoryview(records)[: header.size_bytes]  # An incomplete batch may follow.
    _check_records(header, batch, config=config, directory=directory, now_ms=now_ms)
    if header.size_bytes > config.segment_bytes:
        raise LogError(
            ErrorCode.record_list_too_large,
            f"A record batch of {header.size_bytes} bytes for {directory} exceeds the segment "
            f"size (segment.bytes={config.segment_bytes}).",
        )
    return header


def _check_records(
    header: BatchHeader, batch: memoryview, *, config: LogConfig, directory: str, now_ms: int
) -> None:
    """Check the records if necessary (`LogValidator.validateRecord`).

    For a compacted topic, also check the offsets, which Kafka does not check.
    """
    create_time = config.message_timestamp_type is TimestampType.CREATE_TIME
    sent_log_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    if sent_log_append_time and not (create_time and header.max_timestamp != NO_TIMESTAMP):
        raise LogError(
            ErrorCode.invalid_timestamp,
            "Producers must not set the timestamp type LogAppendTime.",
        )
    newest_ms = now_ms + config.message_timestamp_after_max_ms
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    limits_age = create_time and config.message_timestamp_before_max_ms != LONG_MAX
    too_new = create_time and header.max_timestamp > newest_ms
    if not (config.compact or limits_age or too_new):
        return
    errors: list[RecordError] = []
    bad_timestamp = False
    for index, record in enumerate(decode_records(batch)):
        expected_offset = header.base_offset + index
        if config.compact and record.offset != expected_offset:
            message = (
                f"The record has offset {record.offset}, but offset {expected_offset} was expected."
            )
        elif config.compact and record.key is None:
            message = "Compacted topic cannot accept message without key."
        elif (
            create_time
            and record.timestamp != NO_TIMESTAMP
            and not oldest_ms <= record.timestamp <= newest_ms
        ):
            bad_timestamp = True
            message = (
                f"Timestamp {record.timestamp} of the message is out of range. It should be "
                f"within [{oldest_ms}, {newest_ms}]."
            )
        else:
            continue
        errors.append(RecordError(batch_index=index, message=message))
        if len(errors) == _RECORD_ERRORS_MAX:
            break
    if errors:
        raise RecordValidationError(
            ErrorCode.invalid_timestamp if bad_timestamp else ErrorCode.invalid_record,
            f"A record batch for {directory} contains invalid records (errors: {len(errors)}). "
            f"First error: {errors[0].message}",
            record_errors=tuple(errors),
        )
    if too_new:
        raise LogError(
            ErrorCode.invalid_timestamp,
            f"The max timestamp in the batch header is {header.max_timestamp}, but timestamps must "
            f"not be later than {newest_ms}. No record in the batch has this max timestamp.",
        )
