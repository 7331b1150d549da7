"""A shard with the components that serve its groups.

Creates these components, and selects the component that handles a request of the classic protocol.
Source: Kafka's `GroupCoordinatorShard`.
"""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.coordination.replies import Wake
from broker_ref.group.classic_protocol_membership import ClassicProtocolMembership
from broker_ref.group.consumer.group import ConsumerGroup
from broker_ref.group.consumer_membership import ConsumerMembership
from broker_ref.group.membership import Membership
from broker_ref.group.offset_metadata_manager import OffsetMetadataManager
from broker_ref.group.shard import Shard, ShardState
from broker_ref.protocol.identifiers import random_uuid, uuid_text
from broker_ref.replication.partition import Partition
from broker_ref.schedule import Schedule


class OwnedShard:
    """A shard with the members of its groups and the committed offsets."""

    def __init__(
        self,
        partition: Partition,
        *,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        schedule: Schedule,
        random_bytes: Callable[[int], bytes],
        wake: Wake,
    ) -> None:
        self.shard = Shard(
            partition,
            schedule=schedule,
            write_timeout_ms=config.offsets_commit_timeout_ms,
            mark_changed=lambda: wake(partition.key),
        )
        self._leader_epoch = partition.leader_epoch
        self.membership = Membership(
            self.shard,
            config=config,
            schedule=schedule,
            wake=wake,
            new_id=lambda: str(random_uuid(random_bytes)),
        )
        self.consumers = ConsumerMembership(
            self.shard,
            config=config,
            metadata=metadata,
            schedule=schedule,
            wake=wake,
            new_id=lambda: uuid_text(random_uuid(random_bytes)),
            adopt=self.membership.adopt,
        )
        self._classic_protocol = ClassicProtocolMembership(
            self.consumers,
            metadata=metadata,
            wake=wake,
            new_id=lambda: uuid_text(random_uuid(random_bytes)),
        )
        self.commits = OffsetMetadataManager(self.shard, self.membership, metadata=metadata)

    def membership_of(self, group_id: str) -> Membership | ClassicProtocolMembership:
        """Return the component that handles the classic-protocol requests for a group."""
        group = self.shard.consumer_group(group_id)
        return self.membership if group is None or not group.members else self._classic_protocol

    def is_outdated(self, partition: Partition) -> bool:
        """Return whether the groups must be loaded again from `partition`.

        The groups are outdated if this broker has reopened the partition, or if loading failed and
        the leader epoch has increased (`CoordinatorRuntime.scheduleLoadOperation`).
        """
        has_failed = self.shard.state is ShardState.FAILED
        is_elected_again = partition.leader_epoch > self._leader_epoch
        return self.shard.partition is not partition or (has_failed and is_elected_again)

    def unload(self, now_ms: int) -> None:
        """Unload all groups. Pending requests fail with NOT_COORDINATOR."""
        self.consumers.unload()
        for group in tuple(self.shard.groups.values()):
            if isinstance(group, ConsumerGroup):
                continue
            group.fail_requests(ErrorCode.not_coordinator)
            self.shard.remove(group, now_ms)
        self.shard.state = ShardState.FAILED
        self.shard.writes.abandon(now_ms)
