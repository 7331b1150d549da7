"""Tests of verification requests to coordinators, and of their results."""

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
    WAITING_PER_ID_MAX,
    AddPartitionsToTxnManager,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    PartitionErrorCodes,
    PartitionResult,
    TopicResult,
    TransactionResult,
)

A, B = PartitionKey(topic="a", partition=3), PartitionKey(topic="b", partition=0)
NONE = ErrorCode.none


class Coordinator(Outbox):
    """A fake outbox that keeps requests until a test answers them."""

    def __init__(self) -> None:
        super().__init__(client_id="test")
        self.requests: list[tuple[Channel, AddPartitionsToTxnRequest]] = []
        self._callbacks: list[tuple[Callable[[Any], None], Callable[[str], None]]] = []

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
        self.requests.append((channel, request))
        self._callbacks.append((on_response, on_failure))

    def fail(self) -> None:
        self._callbacks.pop(0)[1]("gone")

    def respond(
        self, codes: Mapping[str, ErrorCode] | None = None, *, error_code: ErrorCode = NONE
    ) -> None:
        """Respond to the oldest open request, with an error code for each transactional id."""
        number = len(self.requests) - len(self._callbacks)
        request = self.requests[number][1]
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
        self._callbacks.pop(0)[0](
            AddPartitionsToTxnResponse(
                error_code=error_code,
                results_by_transaction=results if error_code is NONE else (),
            )
        )


class FakeBroker:
    """A broker that knows brokers 1 and 2; broker 2 coordinates ids that begin with `2`."""

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

    def verify(self, name: str, *, add: bool = False) -> Reply[PartitionErrorCodes]:
        return self.verifications.add_or_verify_transaction(name, 7, 1, (A, B), add=add)

    def requested_ids(self) -> list[list[str]]:
        return [
            [one.transactional_id for one in request.transactions]
            for _, request in self.coordinator.requests
        ]


def codes(reply: Reply[PartitionErrorCodes]) -> set[ErrorCode] | None:
    return None if reply.result is None else set(reply.result.values())


def test_request_contains_the_producer_and_every_partition() -> None:
    broker = FakeBroker()
    reply = broker.verify("x", add=True)
    ((channel, request),) = broker.coordinator.requests
    assert (channel.node_id, channel.host, channel.port) == (1, "b1", 9)
    (one,) = request.transactions
    assert (one.transactional_id, one.producer_id, one.producer_epoch) == ("x", 7, 1)
    assert not one.verify_only
    assert {(t.name, *t.partitions) for t in one.topics} == {("a", 3), ("b", 0)}
    assert codes(reply) is None
    broker.coordinator.respond()
    assert reply.result == {A: NONE, B: NONE}
    assert broker.woken == [reply]


def test_verify_only_does_not_add_partitions() -> None:
    broker = FakeBroker()
    broker.verify("x")
    assert broker.coordinator.requests[0][1].transactions[0].verify_only


def test_queued_verifications_are_sent_together_with_one_per_id() -> None:
    broker = FakeBroker()
    replies = [broker.verify(name) for name in ("x", "y", "z", "y", "2")]
    assert broker.requested_ids() == [["x"], ["2"]]
    broker.coordinator.respond()
    assert broker.requested_ids() == [["x"], ["2"], ["y", "z"]]
    broker.coordinator.respond()
    broker.coordinator.respond({"y": ErrorCode.invalid_txn_state})
    assert broker.requested_ids()[3:] == [["y"]]
    broker.coordinator.respond()
    assert [codes(reply) for reply in replies] == [
        {NONE}, {ErrorCode.invalid_txn_state}, {NONE}, {NONE}, {NONE}
    ]  # fmt: skip


def test_too_many_waiting_verifications_of_an_id_fail_the_oldest() -> None:
    broker = FakeBroker()
    sent = broker.verify("x")
    oldest, *waiting = [broker.verify("x") for _ in range(WAITING_PER_ID_MAX + 1)]
    other = broker.verify("y")
    assert codes(oldest) == {ErrorCode.network_exception}
    assert not any(reply.is_done for reply in (sent, *waiting, other))
    for _ in range(WAITING_PER_ID_MAX + 1):
        broker.coordinator.respond()
    assert broker.requested_ids() == [["x"], ["x", "y"], *[["x"]] * (WAITING_PER_ID_MAX - 1)]
    assert all(codes(reply) == {NONE} for reply in (sent, *waiting, other))


def test_producer_fenced_becomes_invalid_producer_epoch() -> None:
    broker = FakeBroker()
    reply = broker.verify("x")
    broker.coordinator.respond({"x": ErrorCode.producer_fenced})
    assert codes(reply) == {ErrorCode.invalid_producer_epoch}


def test_clients_do_not_see_that_the_broker_lacks_an_acl() -> None:
    broker = FakeBroker()
    reply = broker.verify("x")
    broker.coordinator.respond(error_code=ErrorCode.cluster_authorization_failed)
    assert codes(reply) == {ErrorCode.invalid_txn_state}


def test_unreachable_coordinator_is_a_retriable_error() -> None:
    broker = FakeBroker()
    assert codes(broker.verify("?")) == {ErrorCode.coordinator_not_available}
    lost, following = broker.verify("x"), broker.verify("y")
    broker.coordinator.fail()
    assert codes(lost) == {ErrorCode.network_exception}
    broker.coordinator.respond(error_code=ErrorCode.not_coordinator)
    assert codes(following) == {ErrorCode.not_coordinator}
    del broker.metadata.brokers[1]
    assert codes(broker.verify("x")) == {ErrorCode.coordinator_not_available}
