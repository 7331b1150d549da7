"""Verification requests to coordinators, and their results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import Broker, ClusterMetadata
from broker_ref.coordination.replies import Reply
from broker_ref.events import Channel
from broker_ref.outbox import Outbox
from broker_ref.protocol.identifiers import ZERO_UUID
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.add_partitions_to_txn_manager import (
    AddPartitionsToTxnManager,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    Answer,
    PartitionResult,
    TopicResult,
    TransactionResult,
)

A, B = PartitionKey(topic="a", partition=3), PartitionKey(topic="b", partition=0)
NONE = ErrorCode.none


class Coordinator(Outbox):
    """Replaces the outbox: keeps requests until a test answers them."""

    def __init__(self) -> None:
        super().__init__(client_id="test")
        self.asked: list[tuple[Channel, AddPartitionsToTxnRequest]] = []
        self._answers: list[tuple[Callable[[Any], None], Callable[[str], None]]] = []

    def send(  # type: ignore[override]
        self,
        channel: Channel,
        *,
        request: AddPartitionsToTxnRequest,
        on_response: Callable[[Any], None],
        on_failure: Callable[[str], None],
        **rest: Any,
    ) -> None:
        assert (rest["api_key"], rest["version"]) == (24, 5)
        self.asked.append((channel, request))
        self._answers.append((on_response, on_failure))

    def fail(self) -> None:
        self._answers.pop(0)[1]("gone")

    def answer(
        self, codes: Mapping[str, ErrorCode] | None = None, *, error_code: ErrorCode = NONE
    ) -> None:
        """Answer the oldest open request, with a code for each transactional id."""
        number = len(self.asked) - len(self._answers)
        request = self.asked[number][1]
        results = tuple(
            TransactionResult(
                transactional_id=one.transactional_id,
                topic_results=tuple(
                    TopicResult(
                        name=topic.name,
                        results_by_partition=tuple(
                            PartitionResult(
                                partition_index=index,
                                partition_error_code=(codes or {}).get(one.transactional_id, NONE),
                            )
                            for index in topic.partitions
                        ),
                    )
                    for topic in one.topics
                ),
            )
            for one in request.transactions
        )
        self._answers.pop(0)[0](
            AddPartitionsToTxnResponse(
                error_code=error_code,
                results_by_transaction=results if error_code is NONE else (),
            )
        )


class Questions:
    """A broker that knows brokers 1 and 2; ids that begin with `2` are coordinated by 2."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.metadata = ClusterMetadata()
        for broker_id in (1, 2):
            self.metadata.brokers[broker_id] = Broker(
                broker_id=broker_id, broker_epoch=1, host=f"b{broker_id}", port=9, rack=None,
                incarnation_id=ZERO_UUID, is_fenced=False,
            )  # fmt: skip
        self.woken: list[Hashable] = []
        self.verifications = AddPartitionsToTxnManager(
            outbox=self.coordinator,
            metadata=self.metadata,
            coordinator=lambda name: {"2": 2, "?": None}.get(name[0], 1),
            wake=self.woken.append,
        )

    def verify(self, name: str, *, add: bool = False) -> Reply[Answer]:
        return self.verifications.add_or_verify_transaction(name, 7, 1, (A, B), add=add)

    def asked(self) -> list[list[str]]:
        return [
            [one.transactional_id for one in request.transactions]
            for _, request in self.coordinator.asked
        ]


def codes(reply: Reply[Answer]) -> set[ErrorCode] | None:
    return None if reply.result is None else set(reply.result.values())


def test_request_contains_the_producer_and_every_partition() -> None:
    questions = Questions()
    reply = questions.verify("x", add=True)
    ((channel, request),) = questions.coordinator.asked
    assert (channel.node_id, channel.host, channel.port) == (1, "b1", 9)
    (one,) = request.transactions
    assert (one.transactional_id, one.producer_id, one.producer_epoch) == ("x", 7, 1)
    assert not one.verify_only
    assert {(t.name, *t.partitions) for t in one.topics} == {("a", 3), ("b", 0)}
    assert codes(reply) is None
    questions.coordinator.answer()
    assert reply.result == {A: NONE, B: NONE}
    assert questions.woken == [reply]


def test_verify_only_does_not_add_partitions() -> None:
    questions = Questions()
    questions.verify("x")
    assert questions.coordinator.asked[0][1].transactions[0].verify_only


def test_queued_verifications_are_sent_together_with_one_per_id() -> None:
    questions = Questions()
    replies = [questions.verify(name) for name in ("x", "y", "z", "y", "2")]
    assert questions.asked() == [["x"], ["2"]]
    questions.coordinator.answer()
    assert questions.asked() == [["x"], ["2"], ["y", "z"]]
    questions.coordinator.answer()
    questions.coordinator.answer({"y": ErrorCode.invalid_txn_state})
    assert questions.asked()[3:] == [["y"]]
    questions.coordinator.answer()
    assert [codes(reply) for reply in replies] == [
        {NONE}, {ErrorCode.invalid_txn_state}, {NONE}, {NONE}, {NONE}
    ]  # fmt: skip


def test_producer_fenced_becomes_invalid_producer_epoch() -> None:
    questions = Questions()
    reply = questions.verify("x")
    questions.coordinator.answer({"x": ErrorCode.producer_fenced})
    assert codes(reply) == {ErrorCode.invalid_producer_epoch}


def test_unreachable_coordinator_is_a_retriable_error() -> None:
    questions = Questions()
    assert codes(questions.verify("?")) == {ErrorCode.coordinator_not_available}
    lost, following = questions.verify("x"), questions.verify("y")
    questions.coordinator.fail()
    assert codes(lost) == {ErrorCode.network_exception}
    questions.coordinator.answer(error_code=ErrorCode.not_coordinator)
    assert codes(following) == {ErrorCode.not_coordinator}
    del questions.metadata.brokers[1]
    assert codes(questions.verify("x")) == {ErrorCode.coordinator_not_available}
