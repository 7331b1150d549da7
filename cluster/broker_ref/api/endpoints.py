"""Broker endpoints and partition leaders in responses.

Responses contain the addresses of the listener to which the client is connected. If a Produce or
Fetch response contains a leadership error, it also contains the current leader (KIP-951).
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_ref.api.contract import Broker
from broker_ref.controller.metadata import Broker as RegisteredBroker
from broker_ref.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    """The address of a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """The current leader of a partition. Both fields are -1 unless there is a leadership error."""

    leader_id: int = -1
    leader_epoch: int = -1


NO_LEADER = LeaderIdAndEpoch()


def live_brokers(broker: Broker) -> tuple[RegisteredBroker, ...]:
    """Return the brokers that are not fenced."""
    return tuple(node for node in broker.metadata.brokers.values() if not node.is_fenced)


def advertised_controller_id(broker: Broker) -> int:
    """Return the controller id to send to clients.

    This id is the lowest id of all live brokers. Clients can send controller requests to any
    broker, because brokers forward them to the controller.
    """
    return min((node.broker_id for node in live_brokers(broker)), default=-1)


def current_leader(broker: Broker, topic: str, partition: int) -> LeaderIdAndEpoch:
    """Return the partition's leader from the metadata."""
    found = broker.metadata.partition(topic, partition)
    if found is None:
        return NO_LEADER
    return LeaderIdAndEpoch(leader_id=found.leader, leader_epoch=found.leader_epoch)


def node_endpoint(node: RegisteredBroker, listener: str) -> NodeEndpoint | None:
    """Return the address of a broker's listener, or None if the broker has no such listener."""
    found = node.endpoint(listener)
    if found is None:
        return None
    return NodeEndpoint(node_id=node.broker_id, host=found.host, port=found.port, rack=node.rack)


def endpoints_of(
    broker: Broker, leaders: Iterable[LeaderIdAndEpoch], *, listener: str
) -> tuple[NodeEndpoint, ...]:
    """Return the addresses of these leaders without duplicates."""
    ids = {leader.leader_id: None for leader in leaders if leader is not NO_LEADER}
    if not ids:
        return ()
    nodes = [
        broker.metadata.brokers[node_id] for node_id in ids if node_id in broker.metadata.brokers
    ]
    found = (node_endpoint(node, listener) for node in nodes)
    return tuple(endpoint for endpoint in found if endpoint is not None)
