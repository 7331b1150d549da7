"""Minimum of in-sync replicas: where too few are left, acks=all is refused and nothing is lost."""

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


def test_with_too_few_replicas_acks_all_is_refused_and_acks_1_is_served(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2], **TWO)
    append(nodes.to(1), name, batch(values("a")))
    nodes.kill(2)
    nodes.await_isr(name, 1)
    taken = _produced_until_refused(nodes, name, "b")
    answer = produce(nodes.to(1), name, batch(values("c")), acks=1)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 1 + len(taken))
    # It is not committed before enough replicas have it: readers do not see it yet.
    assert fetch(nodes.to(1), name).high_watermark == 1
    nodes.start(2)
    nodes.await_isr(name, 1, 2)
    nodes.await_stored(1, name, "a", *taken, "c")
    append(nodes.to(1), name, batch(values("d")))


def _produced_until_refused(nodes: Nodes, name: str, value: str) -> list[str]:
    """What broker 1 appended, and did not acknowledge, before it knew that it was alone.

    The metadata of a broker tells of a smaller ISR a moment before its partition goes by it.
    """
    taken: list[str] = []

    def refused() -> bool:
        answer = produce(nodes.to(1), name, batch(values(value)), timeout_ms=1_000)
        assert answer.error_code != ErrorCode.none, answer
        if answer.error_code == ErrorCode.not_enough_replicas:
            return True
        taken.append(value)
        return False

    eventually(refused)
    return taken


def test_what_was_appended_when_replicas_went_is_not_acknowledged(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2], **TWO)
    nodes.pause(2)
    # There were enough when it came, and too few before all of them had it.
    answer = produce(nodes.to(1), name, batch(values("a")), timeout_ms=15_000)
    assert answer.error_code == ErrorCode.request_timed_out
    nodes.await_isr(name, 1)
    assert fetch(nodes.to(1), name).high_watermark == 0
    nodes.resume(2)
    nodes.await_stored(1, name, "a")


def test_one_of_three_may_go(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], **TWO)
    nodes.kill(3)
    append(nodes.to(1), name, batch(values("a")))
    nodes.await_isr(name, 1, 2)
    nodes.await_stored(1, name, "a")


def test_the_minimum_can_be_changed_while_the_topic_is_used(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2])
    nodes.pause(2)
    append(nodes.to(1), name, batch(values("a")))
    change(nodes.to(1), name, ("min.insync.replicas", SET, "2"))
    refused = ErrorCode.not_enough_replicas
    eventually(lambda: produce(nodes.to(1), name, batch(values("b"))).error_code == refused)
    change(nodes.to(1), name, ("min.insync.replicas", SET, "1"))
    served = ErrorCode.none
    eventually(lambda: produce(nodes.to(1), name, batch(values("c"))).error_code == served)


def test_a_minimum_beyond_the_replicas_means_all_of_them(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1], **TWO)
    append(nodes.to(1), name, batch(values("a")))
    nodes.await_stored(1, name, "a")
