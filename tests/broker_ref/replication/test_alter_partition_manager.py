"""Tests of the broker's client of AlterPartition."""

from __future__ import annotations

from uuid import UUID

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import ControllerClient
from broker_ref.events import RequestFailed, ResponseReceived, SendRequest
from broker_ref.outbox import Outbox
from broker_ref.protocol.frames import finish_header, read_prefix, request_schema, response_frame
from broker_ref.protocol.reader import Cursor, read_message
from broker_ref.replication.alter_partition_manager import (
    CHANGES_PER_REQUEST,
    RETRY_BACKOFF_MS,
    AlterPartitionRequest,
    AlterPartitionResponse,
    DefaultAlterPartitionManager,
    IsrChange,
    IsrMember,
    IsrOutcome,
    PartitionResponse,
    TopicResponse,
)
from broker_ref.schedule import Schedule

TOPIC_ID = UUID(int=5)


class Proposals:
    """`DefaultAlterPartitionManager` with a controller that the test simulates."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.outbox = Outbox(client_id="test")
        self.schedule = Schedule(self.now_ms)
        self.outcomes: list[tuple[int, IsrOutcome]] = []
        self.changes = DefaultAlterPartitionManager(
            broker_id=1,
            broker_epoch=lambda: 11,
            controller=ControllerClient(outbox=self.outbox, host="controller", port=1),
            schedule=self.schedule,
            clock=lambda: self.now_ms,
        )

    def propose(self, partition: int) -> None:
        change = IsrChange(
            topic_id=TOPIC_ID,
            partition=partition,
            leader_epoch=3,
            partition_epoch=4,
            new_isr=(IsrMember(broker_id=1, broker_epoch=11),),
        )
        self.changes.submit(change, lambda outcome: self.outcomes.append((partition, outcome)))

    def sent(self) -> tuple[SendRequest, list[int]]:
        (effect,) = self.outbox.take_effects()
        assert isinstance(effect, SendRequest)
        cursor = Cursor(effect.frame)
        header = read_prefix(cursor)
        schema = request_schema(header.api_key, header.api_version)
        finish_header(cursor, header, flexible=True)
        request = read_message(schema, AlterPartitionRequest, cursor)
        assert (request.broker_id, request.broker_epoch) == (1, 11)
        (topic,) = request.topics
        return effect, [partition.partition_index for partition in topic.partitions]

    def respond(
        self, sent: SendRequest, *partitions: int, error_code: ErrorCode = ErrorCode.none
    ) -> None:
        responses = tuple(
            PartitionResponse(
                partition_index=index,
                error_code=ErrorCode.none,
                leader_id=1,
                leader_epoch=3,
                isr=(1,),
                partition_epoch=5,
            )
            for index in partitions
        )
        frame = response_frame(
            api_key=56,
            version=3,
            correlation_id=sent.request_id,
            message=AlterPartitionResponse(
                error_code=error_code,
                topics=(TopicResponse(topic_id=TOPIC_ID, partitions=responses),),
            ),
        )
        self.outbox.handle(ResponseReceived(request_id=sent.request_id, frame=frame))

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.schedule.run(self.now_ms)


def test_queued_proposals_are_sent_together() -> None:
    proposals = Proposals()
    proposals.propose(0)
    sent, partitions = proposals.sent()
    assert partitions == [0]
    proposals.propose(1)
    proposals.propose(2)
    assert proposals.outbox.take_effects() == []
    proposals.respond(sent, 0)
    assert proposals.outcomes == [
        (0, IsrOutcome(error_code=ErrorCode.none, leader_epoch=3, partition_epoch=5, isr=(1,)))
    ]
    assert proposals.sent()[1] == [1, 2]


def test_a_request_contains_a_limited_number_of_proposals() -> None:
    proposals = Proposals()
    for partition in range(CHANGES_PER_REQUEST + 2):
        proposals.propose(partition)
    sent, first = proposals.sent()
    proposals.respond(sent, *first)
    sent, second = proposals.sent()
    proposals.respond(sent, *second)
    assert (len(first), len(second)) == (1, CHANGES_PER_REQUEST)
    assert proposals.sent()[1] == [CHANGES_PER_REQUEST + 1]


def test_second_change_of_a_partition_is_not_attempted() -> None:
    proposals = Proposals()
    proposals.propose(0)
    proposals.propose(0)
    assert proposals.outcomes == [(0, IsrOutcome(error_code=ErrorCode.operation_not_attempted))]


def test_failed_request_is_sent_again() -> None:
    proposals = Proposals()
    proposals.propose(0)
    sent, _ = proposals.sent()
    proposals.respond(sent, error_code=ErrorCode.stale_broker_epoch)
    proposals.propose(1)
    assert proposals.outbox.take_effects() == []
    proposals.pass_time(RETRY_BACKOFF_MS)
    sent, partitions = proposals.sent()
    assert partitions == [0, 1]
    proposals.outbox.handle(RequestFailed(request_id=sent.request_id, reason="gone"))
    proposals.pass_time(RETRY_BACKOFF_MS)
    sent, partitions = proposals.sent()
    assert partitions == [0, 1]
    proposals.respond(sent, 0, 1)
    assert [partition for partition, _ in proposals.outcomes] == [0, 1]


def test_partition_missing_in_the_response_is_sent_again() -> None:
    proposals = Proposals()
    proposals.propose(0)
    sent, _ = proposals.sent()
    proposals.propose(1)
    proposals.respond(sent, 0)
    sent, partitions = proposals.sent()
    assert partitions == [1]
    proposals.respond(sent)
    proposals.pass_time(RETRY_BACKOFF_MS)
    assert proposals.sent()[1] == [1]
