"""The fetchers of this broker, one for each leader.

The manager assigns each partition that this broker follows to the fetcher for its leader.
Invariant: a partition is fetched by at most one fetcher, and only in its current leader epoch.
Source: Kafka's `ReplicaFetcherManager`.
"""

from __future__ import annotations

from broker_ref.events import Channel
from broker_ref.replication.partition import Partition, PartitionKey
from broker_ref.replication.replica_fetcher import FetcherContext, ReplicaFetcher


class ReplicaFetcherManager:
    """The fetchers, keyed by leader, and the fetcher of each partition."""

    def __init__(self, *, context: FetcherContext) -> None:
        self._context = context
        self._by_leader: dict[int, ReplicaFetcher] = {}
        self._of: dict[PartitionKey, tuple[ReplicaFetcher, Partition, int]] = {}

    def add_partition(self, partition: Partition, channel: Channel) -> None:
        """Fetch a partition from a leader, unless it is already being fetched from that leader."""
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
        """Send the new log start offset of a partition with the next fetch request."""
        found = self._of.get(partition.key)
        if found is not None:
            found[0].update_log_start_offset(partition)

    def maybe_fetch(self) -> None:
        """Send fetch requests, and remove fetchers without partitions."""
        for leader, fetcher in list(self._by_leader.items()):
            if fetcher.has_partitions:
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
        """Return the fetcher for a leader; replace it if the leader's address has changed."""
        fetcher = self._by_leader.get(channel.node_id)
        if fetcher is None or fetcher.channel != channel:
            if fetcher is not None:
                fetcher.close()
            fetcher = ReplicaFetcher(context=self._context, channel=channel)
            self._by_leader[channel.node_id] = fetcher
        return fetcher
