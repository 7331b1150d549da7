"""Consumers that send heartbeats to a coordinator in virtual time, as real clients do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata_delta import MetadataDelta
from broker_ref.group.consumer.assignment import Assignment
from broker_ref.group.consumer.group import ConsumerGroup, ConsumerGroupState
from broker_ref.group.consumer.heartbeats import ConsumerHeartbeat, ConsumerHeartbeatResult
from broker_ref.protocol.identifiers import Uuid
from tests.broker_ref.group.coordinators import Coordinators
from tests.broker_ref.node.requests import create_topic

CONFIG = BrokerConfig(offsets_topic_num_partitions=1, group_consumer_assignment_interval_ms=0)


class Groups(Coordinators):
    """A coordinator of the group g, and topics t (10 partitions), t2 (3) and t3 (1)."""

    def __init__(self, config: BrokerConfig = CONFIG) -> None:
        super().__init__(config)
        create_topic(self.driver, "t2", 3)
        create_topic(self.driver, "t3", 1)
        created = MetadataDelta(partitions={("t2", 0): None, ("t3", 0): None})
        self.groups.on_metadata_update(created, self.now_ms)

    def topic_id(self, name: str) -> Uuid:
        return self.driver.broker.metadata.topics[name].topic_id

    @property
    def group(self) -> ConsumerGroup:
        return self.groups.describe_consumer_group("g")[0]

    def heartbeat_of(self, member_id: str, epoch: int, **fields: Any) -> ConsumerHeartbeatResult:
        """Send a heartbeat and return the result after its replication."""
        request = ConsumerHeartbeat(
            group_id="g", member_id=member_id, member_epoch=epoch, client_host="/h", **fields
        )
        reply = self.groups.consumer_heartbeat(request, lambda _: True, self.now_ms)
        self.settle()
        assert reply.result is not None
        return reply.result


class Consumer:
    """A member that reports its partitions, and revokes those that it may no longer use.

    `owned` contains the partitions that the client uses. After a heartbeat, `wanted` contains the
    partitions that it may use.
    """

    def __init__(self, groups: Groups, member_id: str, *topics: str, **fields: Any) -> None:
        self.groups = groups
        self.member_id = member_id
        self.topics: Collection[str] = topics
        self.fields = fields
        self.epoch = 0
        self.owned: Assignment = {}

    def join(self) -> ErrorCode:
        self.epoch, self.owned = 0, {}
        return self.heartbeat()

    def heartbeat(self, **changed: Any) -> ErrorCode:
        """Send a heartbeat. If it succeeds, revoke and take partitions as its result demands."""
        fields: dict[str, Any] = {"topic_partitions": self.owned}
        if self.epoch == 0:
            fields |= {
                "rebalance_timeout_ms": 10_000,
                "subscribed_topic_names": self.topics,
                **self.fields,
            }
        result = self.groups.heartbeat_of(self.member_id, self.epoch, **(fields | changed))
        if result.error_code is ErrorCode.none:
            self.epoch = result.member_epoch
            if result.assignment is not None:
                self.owned = result.assignment
        elif result.error_code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            self.epoch, self.owned = 0, {}
        return result.error_code

    def subscribe(self, *topics: str) -> ErrorCode:
        self.topics = topics
        if self.epoch == 0:
            return ErrorCode.none
        return self.heartbeat(subscribed_topic_names=topics)

    @property
    def partitions(self) -> set[tuple[Uuid, int]]:
        return {(topic, one) for topic, found in self.owned.items() for one in found}


def settle(groups: Groups, *members: Consumer) -> None:
    """Send heartbeats until the group is stable, which takes a bounded number of rounds."""
    for _ in range(4):
        for member in members:
            assert member.heartbeat() is ErrorCode.none
    assert groups.group.state is ConsumerGroupState.STABLE
