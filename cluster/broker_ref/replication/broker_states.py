"""The states of other brokers, which determine whether a replica may join the ISR.

The states come from the metadata that this broker has applied. A replica on an unknown broker
cannot join the ISR. Source: Kafka's `Partition.isReplicaIsrEligible`, `KRaftMetadataCache`.
"""

from __future__ import annotations

from typing import Final

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.frozen import dataclass

ANY_EPOCH: Final = -1
"""The value for a follower that sends no broker epoch. This value is not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStates:
    """The states of the brokers in `metadata`."""

    metadata: ClusterMetadata

    def is_alive(self, broker_id: int) -> bool:
        """Return whether the broker is registered and not fenced."""
        broker = self.metadata.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced

    def is_stale(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether the broker has registered again with a higher broker epoch."""
        broker = self.metadata.brokers.get(broker_id)
        return (
            broker_epoch != ANY_EPOCH
            and broker is not None
            and not broker.is_fenced
            and broker.broker_epoch > broker_epoch
        )

    def may_join_isr(self, broker_id: int, broker_epoch: int | None) -> bool:
        """Return whether the broker is active and has this broker epoch."""
        broker = self.metadata.brokers.get(broker_id)
        if broker is None or not broker.is_active:
            return False
        return broker_epoch in (ANY_EPOCH, broker.broker_epoch)
