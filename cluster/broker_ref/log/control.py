"""Control batches: the transaction markers in a log (KIP-98).

    key:   version int16 = 0 | type int16           0 abort, 1 commit; other types exist
    value: version int16 = 0 | coordinator epoch int32

A marker is a transactional batch with one record and no sequence number. Consumers receive markers,
but do not return them to applications. Source: `ControlRecordType`, `EndTransactionMarker`.
"""

from __future__ import annotations

import struct
from enum import Enum

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.log.batch import Buffer, decode_records, encode_batch
from broker_ref.log.errors import LogError
from broker_ref.log.records import Record

_KEY = struct.Struct("!hh")
_VALUE = struct.Struct("!hi")
_VERSION = 0


class Marker(Enum):
    """The type of a marker. The values are stored in the key of the record."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionMarker:
    """The type of a marker and the epoch of the transaction coordinator that sent it."""

    marker: Marker
    coordinator_epoch: int


def encode_marker(
    marker: EndTransactionMarker, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytes:
    """Encode a control batch that ends a transaction. The log assigns its offset."""
    record = Record(
        timestamp=timestamp_ms,
        key=_KEY.pack(_VERSION, marker.marker.value),
        value=_VALUE.pack(_VERSION, marker.coordinator_epoch),
    )
    return encode_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def decode_marker(batch: Buffer) -> EndTransactionMarker | None:
    """Decode the marker in a complete control batch whose CRC has been checked.

    Return None if the control record is not a transaction marker, or if compaction has removed it.
    Raises: LogError(INVALID_RECORD).
    """
    record = next(decode_records(batch), None)
    if record is None:
        return None
    if record.key is None or len(record.key) < _KEY.size:
        raise _invalid(record, "the key does not contain a version and a type")
    version, type_id = _KEY.unpack_from(record.key)
    if version < 0:
        raise _invalid(record, f"the key has unknown version {version}")
    if type_id not in (Marker.ABORT.value, Marker.COMMIT.value):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise _invalid(record, "the value does not contain a version and a coordinator epoch")
    version, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise _invalid(record, f"the value has unknown version {version}")
    return EndTransactionMarker(marker=Marker(type_id), coordinator_epoch=coordinator_epoch)


def _invalid(record: Record, reason: str) -> LogError:
    return LogError(
        ErrorCode.invalid_record,
        f"The control record at offset {record.offset} is invalid: {reason}.",
    )
