"""Tests of `min.insync.replicas`: with too few in-sync replicas acks=all writes are rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.nodes import Nodes
from tests.conformance.topic_settings import SET, change
from tests.conformance.wire import append, fetch, produce

pytestmark = pytest.mark.slow

NameFactory = Callable[[], str]
TWO = {"min.insync.replicas": "2"}


def test_acks_all_is_refused_and_acks_1_accepted_below_min_isr(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2], **TWO)
    append(nodes.to(1), name, batch(values("a")))
    nodes.kill(2)
    nodes.await_isr(name, 1)
    taken = _produced_until_refused(nodes, name, "b")
    response = produce(nodes.to(1), name, batch(values("c")), acks=1)
    assert (response.error_code, response.base_offset) == (ErrorCode.none, 1 + len(taken))
    # The record is not committed until enough replicas have it, so consumers do not see it.
    assert fetch(nodes.to(1), name).high_watermark == 1
    nodes.start(2)
    nodes.await_isr(name, 1, 2)
    nodes.await_stored(1, name, "a", *taken, "c")
    append(nodes.to(1), name, batch(values("d")))


def _produced_until_refused(nodes: Nodes, name: str, value: str) -> list[str]:
    """Produce to broker 1 until it returns NOT_ENOUGH_REPLICAS.

    Return the values that broker 1 appended but did not acknowledge. The metadata shows the smaller
    ISR shortly before the partition uses it.
    """
    taken: list[str] = []

    def refused() -> bool:
        response = produce(nodes.to(1), name, batch(values(value)), timeout_ms=1_000)
        assert response.error_code != ErrorCode.none, response
        if response.error_code == ErrorCode.not_enough_replicas:
            return True
        taken.append(value)
        return False

    eventually(refused)
    return taken


def test_append_is_not_acknowledged_if_the_isr_shrinks_afterwards(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2], **TWO)
    nodes.pause(2)
    # The ISR was large enough at the append, but shrank before all replicas had the record.
    response = produce(nodes.to(1), name, batch(values("a")), timeout_ms=15_000)
    assert response.error_code == ErrorCode.request_timed_out
    nodes.await_isr(name, 1)
    assert fetch(nodes.to(1), name).high_watermark == 0
    nodes.resume(2)
    nodes.await_stored(1, name, "a")


def test_one_of_three_replicas_may_fail(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], **TWO)
    nodes.kill(3)
    append(nodes.to(1), name, batch(values("a")))
    nodes.await_isr(name, 1, 2)
    nodes.await_stored(1, name, "a")


def test_min_isr_can_be_changed_at_runtime(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2])
    nodes.pause(2)
    append(nodes.to(1), name, batch(values("a")))
    change(nodes.to(1), name, ("min.insync.replicas", SET, "2"))
    refused = ErrorCode.not_enough_replicas
    eventually(lambda: produce(nodes.to(1), name, batch(values("b"))).error_code == refused)
    change(nodes.to(1), name, ("min.insync.replicas", SET, "1"))
    served = ErrorCode.none
    eventually(lambda: produce(nodes.to(1), name, batch(values("c"))).error_code == served)


def test_min_isr_above_the_replication_factor_means_all_replicas(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1], **TWO)
    append(nodes.to(1), name, batch(values("a")))
    nodes.await_stored(1, name, "a")
