"""Exhausted producer epochs: the producer id is replaced (KIP-360, KIP-890).

The last epoch, 32767, is reserved for fencing the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import decode_response, encode_request
from integration.raw import request as request_of
from tests.conformance.isolation import await_read, markers
from tests.conformance.transactions import (
    VERSION_1,
    VERSION_2,
    Connections,
    Generation,
    TransactionalProducer,
    code_of,
    retried,
)

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

NameFactory = Callable[[], str]
LAST_EPOCH = 2**15 - 2
AT_ONCE = 100
CORRELATION_ID = 1


@pytest.fixture
def exhausted(
    one_broker: Cluster, unique_name: NameFactory, request: pytest.FixtureRequest
) -> Iterator[TransactionalProducer]:
    """A producer with the last epoch of its producer id, after as many requests.

    They are pipelined: a broker handles the requests of one connection in order.
    """
    generation: Generation = getattr(request, "param", VERSION_2)
    with Connections(one_broker) as brokers:
        producer = TransactionalProducer(brokers, unique_name(), generation).init()
        coordinator = producer.coordinator()
        asked = request_of(
            "init_producer_id",
            generation.init_producer_id,
            transactional_id=producer.transactional_id,
            transaction_timeout=60_000,
        )
        frame = encode_request(asked, CORRELATION_ID, None)
        while producer.epoch < LAST_EPOCH:
            count = min(AT_ONCE, LAST_EPOCH - producer.epoch)
            for _ in range(count):
                coordinator.send_frame(frame)
            *_, last = [coordinator.receive_frame() for _ in range(count)]
            answer = decode_response(asked, last, CORRELATION_ID)
            assert answer.error_code == ErrorCode.none, answer
            assert answer.producer_id == producer.producer_id
            assert answer.producer_epoch == producer.epoch + count
            producer.adopt(answer)
        yield producer


@pytest.fixture
def own_topic(one_broker: Cluster, unique_name: NameFactory) -> str:
    name = unique_name()
    one_broker.create_topic(name)
    return name


@pytest.mark.parametrize("exhausted", [VERSION_1], indirect=True, ids=["version-1"])
def test_version_1_keeps_the_last_epoch_until_the_next_init(
    exhausted: TransactionalProducer, own_topic: str
) -> None:
    raw = exhausted.brokers.any()
    old = (exhausted.producer_id, exhausted.epoch)
    for text in "ab":
        exhausted.write(own_topic, text)
        exhausted.commit()
    await_read(raw, own_topic, "a", "b")
    assert {m.producer_epoch for m in markers(raw, own_topic)} == {old[1]}
    exhausted.init()
    assert (exhausted.producer_id != old[0], exhausted.epoch) == (True, 0)
    exhausted.write(own_topic, "c")
    exhausted.commit()
    await_read(raw, own_topic, "a", "b", "c")
    stale = {"producer_id": old[0], "producer_epoch": old[1] - 1}
    answer = retried(lambda: exhausted.init_once(**stale))
    assert code_of(answer) == ErrorCode.producer_fenced


def test_version_2_rotates_the_producer_id_at_the_last_epoch(
    exhausted: TransactionalProducer, own_topic: str
) -> None:
    raw = exhausted.brokers.any()
    old = (exhausted.producer_id, exhausted.epoch)
    exhausted.write(own_topic, "a")
    answer = retried(lambda: exhausted.end_once(commit=True))
    assert answer.error_code == ErrorCode.none
    exhausted.await_complete()
    await_read(raw, own_topic, "a")
    # The marker has the reserved epoch; the next transaction has another producer id.
    (marker,) = markers(raw, own_topic)
    assert (marker.producer_id, marker.producer_epoch) == (old[0], old[1] + 1)
    assert (answer.producer_id != old[0], answer.producer_epoch) == (True, 0)
    again = retried(lambda: exhausted.end_once(commit=True))
    assert (again.error_code, again.producer_id) == (ErrorCode.none, answer.producer_id)
    exhausted.adopt(answer)
    exhausted.write(own_topic, "b")
    exhausted.commit()
    await_read(raw, own_topic, "a", "b")


def test_recovering_producer_gets_a_rotated_producer_id(
    exhausted: TransactionalProducer,
) -> None:
    identity = {"producer_id": exhausted.producer_id, "producer_epoch": exhausted.epoch}
    answers = [retried(lambda: exhausted.init_once(**identity)) for _ in range(2)]
    assert {code_of(answer) for answer in answers} == {ErrorCode.none}
    assert len({(a.producer_id, a.producer_epoch) for a in answers}) == 1
    assert answers[0].producer_id != exhausted.producer_id
    assert answers[0].producer_epoch == 0
    # The coordinator treats the rotated id as a new producer, so it does not detect the retry.
    assert code_of(exhausted.init_once(**identity)) == ErrorCode.producer_fenced


def test_transaction_of_the_last_epoch_can_be_fenced(
    exhausted: TransactionalProducer, own_topic: str
) -> None:
    raw = exhausted.brokers.any()
    old = (exhausted.producer_id, exhausted.epoch)
    exhausted.write(own_topic, "a")
    new = TransactionalProducer(
        exhausted.brokers, exhausted.transactional_id, exhausted.generation
    ).init()
    assert new.producer_id != old[0]
    (marker,) = markers(raw, own_topic)
    assert (marker.producer_id, marker.producer_epoch) == (old[0], old[1] + 1)
    late = exhausted.produce_once(own_topic, "late")
    assert late.error_code == ErrorCode.invalid_producer_epoch
    assert code_of(exhausted.end_once(commit=True)) != ErrorCode.none
    new.write(own_topic, "b")
    new.commit()
    await_read(raw, own_topic, "b")
