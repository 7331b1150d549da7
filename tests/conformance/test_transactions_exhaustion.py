"""Tests of exhausted producer epochs, after which the producer id is replaced.

See KIP-360 and KIP-890. The highest producer epoch, 32767, is only used to fence the epoch 32766.
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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.sampled,
    pytest.mark.timeout(900),
]

NameFactory = Callable[[], str]
LAST_EPOCH = 2**15 - 2
REQUESTS_PER_ROUND = 100
CORRELATION_ID = 1


@pytest.fixture
def exhausted(
    one_broker: Cluster, unique_name: NameFactory, request: pytest.FixtureRequest
) -> Iterator[TransactionalProducer]:
    """Return a producer with the last usable epoch of its producer id.

    Each InitProducerId request bumps the epoch. The requests are pipelined, because a broker
    handles the requests of one connection in order.
    """
    generation: Generation = getattr(request, "param", VERSION_2)
    with Connections(one_broker) as brokers:
        producer = TransactionalProducer(brokers, unique_name(), generation).init()
        coordinator = producer.coordinator()
        requested = request_of(
            "init_producer_id",
            generation.init_producer_id,
            transactional_id=producer.transactional_id,
            transaction_timeout=60_000,
        )
        frame = encode_request(requested, CORRELATION_ID, None)
        while producer.epoch < LAST_EPOCH:
            count = min(REQUESTS_PER_ROUND, LAST_EPOCH - producer.epoch)
            for _ in range(count):
                coordinator.send_frame(frame)
            *_, last = [coordinator.receive_frame() for _ in range(count)]
            response = decode_response(requested, last, CORRELATION_ID)
            assert response.error_code == ErrorCode.none, response
            assert response.producer_id == producer.producer_id
            assert response.producer_epoch == producer.epoch + count
            producer.update_identity(response)
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
    response = retried(lambda: exhausted.init_once(**stale))
    assert code_of(response) == ErrorCode.producer_fenced


def test_version_2_rotates_the_producer_id_at_the_last_epoch(
    exhausted: TransactionalProducer, own_topic: str
) -> None:
    raw = exhausted.brokers.any()
    old = (exhausted.producer_id, exhausted.epoch)
    exhausted.write(own_topic, "a")
    response = retried(lambda: exhausted.end_once(commit=True))
    assert response.error_code == ErrorCode.none
    exhausted.await_complete()
    await_read(raw, own_topic, "a")
    # The marker has the reserved epoch, and the next transaction has another producer id.
    (marker,) = markers(raw, own_topic)
    assert (marker.producer_id, marker.producer_epoch) == (old[0], old[1] + 1)
    assert (response.producer_id != old[0], response.producer_epoch) == (True, 0)
    again = retried(lambda: exhausted.end_once(commit=True))
    assert (again.error_code, again.producer_id) == (ErrorCode.none, response.producer_id)
    exhausted.update_identity(response)
    exhausted.write(own_topic, "b")
    exhausted.commit()
    await_read(raw, own_topic, "a", "b")


def test_recovering_producer_gets_a_rotated_producer_id(
    exhausted: TransactionalProducer,
) -> None:
    identity = {"producer_id": exhausted.producer_id, "producer_epoch": exhausted.epoch}
    responses = [retried(lambda: exhausted.init_once(**identity)) for _ in range(2)]
    assert {code_of(response) for response in responses} == {ErrorCode.none}
    assert len({(a.producer_id, a.producer_epoch) for a in responses}) == 1
    assert responses[0].producer_id != exhausted.producer_id
    assert responses[0].producer_epoch == 0
    # The coordinator treats the new producer id as a new producer and does not detect the retry.
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
