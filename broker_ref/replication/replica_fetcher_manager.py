"""The fetchers of this broker, one per leader.

Purpose: assign each followed partition to the fetcher of its leader. Invariant: at most one fetcher
fetches a partition, in the leader epoch that it follows. Must not know: records, the metadata.
Source: Kafka's `ReplicaFetcherManager`.
"""

from __future__ import annotations

from broker_ref.events import Channel
from broker_ref.replication.partition import Partition, PartitionKey
from broker_ref.replication.replica_fetcher import FetcherContext, ReplicaFetcher


class ReplicaFetcherManager:
    """The fetchers by leader, and the fetcher of each partition."""

    def __init__(self, *, context: FetcherContext) -> None:
        self._context = context
        self._by_leader: dict[int, ReplicaFetcher] = {}
        self._of: dict[PartitionKey, tuple[ReplicaFetcher, Partition, int]] = {}

    def add_partition(self, partition: Partition, channel: Channel) -> None:
        """Fetch a partition from this leader; do nothing where that is already so."""
        found = self._of.get(partition.key)
        if found is not None:
            fetcher, followed, leader_epoch = found
            same = followed is partition and leader_epoch == partition.leader_epoch
            if same and fetcher.channel == channel:
                return
            self.remove_partition(partition.key)
        fetcher = self._fetcher(channel)
        self._of[partition.key] = (fetcher, partition, partition.leader_epoch)
        fetcher.add_partition(partition)

    def remove_partition(self, key: PartitionKey) -> None:
        """Stop fetching a partition."""
        found = self._of.pop(key, None)
        if found is not None:
            fetcher, partition, _ = found
            fetcher.remove_partition(partition)

    def update_log_start_offset(self, partition: Partition) -> None:
        """Send a partition's new log start offset with the next fetch."""
        found = self._of.get(partition.key)
        if found is not None:
            found[0].update_log_start_offset(partition)

    def maybe_fetch(self) -> None:
        """Send the pending fetches, and remove fetchers without partitions."""
        for leader, fetcher in list(self._by_leader.items()):
            if fetcher.partitions:
                fetcher.maybe_fetch()
            else:
                fetcher.close()
                del self._by_leader[leader]

    def close(self) -> None:
        """Close all fetchers."""
        for fetcher in self._by_leader.values():
            fetcher.close()
        self._by_leader.clear()
        self._of.clear()

    def _fetcher(self, channel: Channel) -> ReplicaFetcher:
        """Return the leader's fetcher; a leader with a new address gets a new one."""
        fetcher = self._by_leader.get(channel.node_id)
        if fetcher is None or fetcher.channel != channel:
            if fetcher is not None:
                fetcher.close()
            fetcher = ReplicaFetcher(context=self._context, channel=channel)
            self._by_leader[channel.node_id] = fetcher
        return fetcher
