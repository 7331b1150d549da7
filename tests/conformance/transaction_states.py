"""A decoder of DescribeTransactions responses (KIP-664, DescribeTransactionsResponse.json).

Version 0 has the start time -1 for a transactional id without a transaction, which kio rejects. The
decoder reads the whole response.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection, request


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The state of one transactional id, with the partitions of its transaction in `topics`.

    `start_ms` is -1 without a transaction.
    """

    error_code: ErrorCode
    transactional_id: str
    state: str
    timeout_ms: int
    start_ms: int
    producer_id: int
    producer_epoch: int
    topics: Mapping[str, list[int]]


def describe_transactions(raw: RawConnection, *transactional_ids: str) -> list[Description]:
    """Send DescribeTransactions and return the descriptions in the order of the response."""
    raw.send_only(request("describe_transactions", 0, transactional_ids=transactional_ids))
    reader = _Reader(raw.receive_frame())
    reader.take(">i")  # correlation id, unused because only one request is in flight
    reader.no_tags()
    reader.take(">i")  # throttle time
    found = [_description(reader) for _ in range(reader.count())]
    reader.no_tags()
    assert reader.is_at_end
    return found


def describe_transaction(raw: RawConnection, transactional_id: str) -> Description:
    (found,) = describe_transactions(raw, transactional_id)
    return found


def _description(reader: _Reader) -> Description:
    (error_code,) = reader.take(">h")
    transactional_id, state = reader.text(), reader.text()
    timeout_ms, start_ms, producer_id, producer_epoch = reader.take(">iqqh")
    topics = {}
    for _ in range(reader.count()):
        name = reader.text()
        topics[name] = sorted(int(reader.take(">i")[0]) for _ in range(reader.count()))
        reader.no_tags()
    reader.no_tags()
    return Description(
        error_code=ErrorCode(error_code),
        transactional_id=transactional_id,
        state=state,
        timeout_ms=timeout_ms,
        start_ms=start_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        topics=topics,
    )


class _Reader:
    """A reader of Kafka's flexible encoding, in which lengths are stored plus one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._data)

    def take(self, layout: str) -> tuple[int, ...]:
        values: tuple[int, ...] = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return values

    def count(self) -> int:
        return self._varint() - 1

    def text(self) -> str:
        length = self.count()
        self._position += length
        return self._data[self._position - length : self._position].decode()

    def no_tags(self) -> None:
        assert self._varint() == 0

    def _varint(self) -> int:
        number = shift = 0
        while True:
            (byte,) = self.take(">B")
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number
