"""A producer id whose batches have sequences and epochs that the test chooses."""

from __future__ import annotations

import time
from typing import Any

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.wire import LATEST, list_offset, produce, produce_request


def init_producer_id(raw: RawConnection, *, version: int = 4) -> Any:
    """Send InitProducerId, with retries while the broker has no block of producer ids."""
    responses: list[Any] = []

    def answered() -> bool:
        responses.append(raw.call("init_producer_id", version, transaction_timeout=60_000))
        return bool(responses[-1].error_code != ErrorCode.coordinator_load_in_progress)

    eventually(answered)
    assert (responses[-1].error_code, responses[-1].producer_epoch) == (ErrorCode.none, 0), version
    return responses[-1]


def new_producer_id(raw: RawConnection) -> int:
    return int(init_producer_id(raw).producer_id)


class Producer:
    def __init__(self, raw: RawConnection, topic: str, *, partition: int = 0) -> None:
        self._raw = raw
        self.topic = topic
        self._partition = partition
        self.producer_id = new_producer_id(raw)

    def send(self, sequence: int, *, count: int = 1, epoch: int = 0, padding: int = 0) -> Any:
        """Produce `count` records, starting at this sequence, and return the response.

        `padding` is the number of bytes that are added to each value.
        """
        data = self._batch(sequence, count=count, epoch=epoch, padding=padding)
        return produce(self._raw, self.topic, data, partition=self._partition)

    def send_over(self, connection: RawConnection, sequence: int) -> None:
        """Produce one record over another connection and do not receive the response."""
        data = self._batch(sequence, count=1, epoch=0)
        connection.send_only(produce_request(self.topic, data, partition=self._partition))

    def _batch(self, sequence: int, *, count: int, epoch: int, padding: int = 0) -> bytes:
        # Use the current time, because partitions expire producers after a day.
        now_ms = int(time.time() * 1000)
        return batch(
            values(*(f"{sequence}+{i}{' ' * padding}" for i in range(count)), timestamp_ms=now_ms),
            producer_id=self.producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )

    def accepted(self, sequence: int, *, count: int = 1, epoch: int = 0) -> int:
        """Send records that must be accepted, and return the base offset."""
        response = self.send(sequence, count=count, epoch=epoch)
        assert response.error_code == ErrorCode.none, response
        return int(response.base_offset)

    def end(self) -> int:
        return int(list_offset(self._raw, self.topic, LATEST, partition=self._partition).offset)
