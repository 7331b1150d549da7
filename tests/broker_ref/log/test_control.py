"""Tests of control batches: Kafka's bytes, and other types of control records."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.log.batch import Record, decode_records, encode_batch, unpack_header
from broker_ref.log.control import EndTransactionMarker, Marker, decode_marker, encode_marker
from broker_ref.log.errors import LogError

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("marker", list(Marker))
def test_a_marker_is_a_transactional_control_batch_without_a_sequence(marker: Marker) -> None:
    end = EndTransactionMarker(marker=marker, coordinator_epoch=7)
    batch = encode_marker(end, producer_id=4711, producer_epoch=3, timestamp_ms=NOW_MS)
    header = unpack_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 3, -1)
    assert (header.record_count, header.max_timestamp) == (1, NOW_MS)
    (record,) = decode_records(batch)
    assert record.key == bytes((0, 0, 0, marker.value))
    assert record.value == bytes((0, 0, 0, 0, 0, 7))
    assert decode_marker(batch) == end


def control(key: bytes | None, value: bytes | None) -> bytes:
    return encode_batch([Record(key=key, value=value)], is_control=True, is_transactional=True)


def test_control_records_of_other_types_are_not_markers() -> None:
    assert decode_marker(control(bytes((0, 0, 0, 2)), bytes(6))) is None


def test_known_fields_of_a_later_version_are_read() -> None:
    read = decode_marker(control(bytes((0, 9, 0, 1, 5)), bytes((0, 9, 0, 0, 0, 2, 5))))
    assert read == EndTransactionMarker(marker=Marker.COMMIT, coordinator_epoch=2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, bytes(6)),
        (bytes(3), bytes(6)),
        (bytes((0xFF, 0xFF, 0, 1)), bytes(6)),
        (bytes((0, 0, 0, 1)), None),
        (bytes((0, 0, 0, 1)), bytes(5)),
        (bytes((0, 0, 0, 1)), bytes((0xFF, 0xFF, 0, 0, 0, 0))),
    ],
)
def test_a_damaged_control_record_is_rejected(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(LogError) as error:
        decode_marker(control(key, value))
    assert error.value.error_code is ErrorCode.invalid_record
