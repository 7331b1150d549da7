"""What replication asks about other brokers.

Purpose: whether a broker may join the in-sync replicas, by the metadata that this broker follows.
Invariant: what is not known of a broker counts against it. What it must not know: partitions.
Source: Kafka's `Partition.isReplicaIsrEligible`, `KRaftMetadataCache`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker_ref.controller.metadata import ClusterMetadata

ANY_EPOCH: Final = -1
"""The broker epoch of a follower that does not tell it; not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStates:
    """The brokers of `metadata`."""

    metadata: ClusterMetadata

    def is_alive(self, broker_id: int) -> bool:
        """Whether the broker is registered and not fenced."""
        broker = self.metadata.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced

    def is_stale(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker has registered anew since it had that epoch."""
        broker = self.metadata.brokers.get(broker_id)
        return (
            broker_epoch != ANY_EPOCH
            and broker is not None
            and not broker.is_fenced
            and broker.broker_epoch > broker_epoch
        )

    def may_join_isr(self, broker_id: int, broker_epoch: int | None) -> bool:
        """Whether the broker is alive, not shutting down, and fetched as what it is now."""
        broker = self.metadata.brokers.get(broker_id)
        if broker is None or not broker.is_active:
            return False
        return broker_epoch in (ANY_EPOCH, broker.broker_epoch)
