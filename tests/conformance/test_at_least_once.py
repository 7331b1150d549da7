"""A test of at-least-once delivery.

With acks=all a retry after a lost response may duplicate a record, but never loses one.
"""

from __future__ import annotations

from collections.abc import Callable

from integration.raw import RawConnection
from tests.conformance.batches import batch, parse, values
from tests.conformance.eventually import eventually
from tests.conformance.producers import Producer
from tests.conformance.wire import LATEST, append, fetch, list_offset, produce_request

TopicFactory = Callable[..., str]


def stored_values(raw: RawConnection, topic: str) -> list[bytes | None]:
    return [r.value for found in parse(fetch(raw, topic).records) for r in found.records]


def test_retry_after_a_lost_response_is_written_twice(
    raw: RawConnection, raw_address: str, topic: TopicFactory
) -> None:
    name = topic()
    with RawConnection(raw_address) as lost:
        lost.send_only(produce_request(name, batch(values("a"))))
        eventually(lambda: list_offset(raw, name, LATEST).offset == 1)
    assert append(raw, name, batch(values("a"))) == 1
    assert stored_values(raw, name) == [b"a", b"a"]


def test_idempotent_retry_after_a_lost_response_is_written_once(
    raw: RawConnection, raw_address: str, topic: TopicFactory
) -> None:
    name = topic()
    producer = Producer(raw, name)
    with RawConnection(raw_address) as lost:
        producer.send_over(lost, 0)
        eventually(lambda: producer.end() == 1)
    assert producer.accepted(0) == 0
    assert len(stored_values(raw, name)) == 1
