"""Which brokers there are, and who leads a partition now.

The latter is what Produce and Fetch add to an error about it (KIP-951).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker_ref.api.contract import Broker
from broker_ref.controller.metadata import Broker as RegisteredBroker


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    """Where a broker can be reached."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """The present leader of a partition, where the client meant another; -1 otherwise."""

    leader_id: int = -1
    leader_epoch: int = -1


NO_LEADER = LeaderIdAndEpoch()


def live_brokers(broker: Broker) -> tuple[RegisteredBroker, ...]:
    """The brokers that are not fenced."""
    return tuple(node for node in broker.metadata.brokers.values() if not node.is_fenced)


def advertised_controller_id(broker: Broker) -> int:
    """What clients are told is the controller: any broker, since each passes requests on."""
    return min((node.broker_id for node in live_brokers(broker)), default=-1)


def current_leader(broker: Broker, topic: str, partition: int) -> LeaderIdAndEpoch:
    """The leader that the metadata names."""
    found = broker.metadata.partition(topic, partition)
    if found is None:
        return NO_LEADER
    return LeaderIdAndEpoch(leader_id=found.leader, leader_epoch=found.leader_epoch)


def endpoints_of(broker: Broker, leaders: Iterable[LeaderIdAndEpoch]) -> tuple[NodeEndpoint, ...]:
    """The addresses of the leaders named, each once."""
    ids = dict.fromkeys(leader.leader_id for leader in leaders)
    nodes = [
        broker.metadata.brokers[node_id] for node_id in ids if node_id in broker.metadata.brokers
    ]
    return tuple(
        NodeEndpoint(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
        for node in nodes
    )
