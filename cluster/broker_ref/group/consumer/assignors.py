"""The server-side assignors of consumer groups, and their input.

An assignor calculates the target assignment of all members from their subscriptions and the
previous target assignment. Invariants: each partition of a subscribed topic is assigned to exactly
one member, which subscribes to the topic. The same input always produces the same result. Source:
KIP-848; Kafka's `ConsumerGroupPartitionAssignor`, `RangeAssignor` and `UniformAssignor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from broker_ref.config import BrokerConfig
from broker_ref.group.consumer.assignment import Assignment, MemberSpec
from broker_ref.group.consumer.range_assignor import assign_ranges
from broker_ref.group.consumer.uniform_assignor import assign_uniformly
from broker_ref.protocol.identifiers import Uuid

Assignor = Callable[[Mapping[str, MemberSpec], Mapping[Uuid, int]], dict[str, Assignment]]
"""Calculates the target assignment of each member from the members and the partition counts."""

UNIFORM: Final = "uniform"
RANGE: Final = "range"

ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {UNIFORM: assign_uniformly, RANGE: assign_ranges}
)
"""The assignors by name. The first one is the default of `group.consumer.assignors`."""


def configured_assignors(config: BrokerConfig) -> list[str]:
    """Return the names in `group.consumer.assignors`. The first one is the default."""
    return [name.strip() for name in config.group_consumer_assignors.split(",")]
