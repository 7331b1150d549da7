"""Broker endpoints and current partition leaders in responses.

Produce and Fetch add the current leader to leadership errors (KIP-951).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker_ref.api.contract import Broker
from broker_ref.controller.metadata import Broker as RegisteredBroker


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    """The address of a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """The current leader of a partition, if the client requested another one; otherwise -1."""

    leader_id: int = -1
    leader_epoch: int = -1


NO_LEADER = LeaderIdAndEpoch()


def live_brokers(broker: Broker) -> tuple[RegisteredBroker, ...]:
    """Return the brokers that are not fenced."""
    return tuple(node for node in broker.metadata.brokers.values() if not node.is_fenced)


def advertised_controller_id(broker: Broker) -> int:
    """Return the controller id for clients: any live broker, because brokers forward requests."""
    return min((node.broker_id for node in live_brokers(broker)), default=-1)


def current_leader(broker: Broker, topic: str, partition: int) -> LeaderIdAndEpoch:
    """Return the leader in the metadata."""
    found = broker.metadata.partition(topic, partition)
    if found is None:
        return NO_LEADER
    return LeaderIdAndEpoch(leader_id=found.leader, leader_epoch=found.leader_epoch)


def endpoints_of(broker: Broker, leaders: Iterable[LeaderIdAndEpoch]) -> tuple[NodeEndpoint, ...]:
    """Return the addresses of these leaders without duplicates."""
    ids = dict.fromkeys(leader.leader_id for leader in leaders)
    nodes = [
        broker.metadata.brokers[node_id] for node_id in ids if node_id in broker.metadata.brokers
    ]
    return tuple(
        NodeEndpoint(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
        for node in nodes
    )
