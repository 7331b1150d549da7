"""Which partition is fetched from which leader.

Purpose: one fetcher for each broker that leads a partition followed here. Invariant: a partition is
fetched by one fetcher at most, in the leader epoch that it follows. What it must not know: what is
fetched, and the metadata. Source: Kafka's `ReplicaFetcherManager`.
"""

from __future__ import annotations

from broker_ref.events import Channel
from broker_ref.replication.fetcher import Fetcher, FetcherSurroundings
from broker_ref.replication.partition import Partition, PartitionKey


class Fetchers:
    """The fetchers of a broker, one for each leader, and which partition has which."""

    def __init__(self, *, surroundings: FetcherSurroundings) -> None:
        self._surroundings = surroundings
        self._by_leader: dict[int, Fetcher] = {}
        self._of: dict[PartitionKey, tuple[Fetcher, Partition, int]] = {}

    def follow(self, partition: Partition, channel: Channel) -> None:
        """Fetch a partition from the leader there; nothing changes where that is done already."""
        found = self._of.get(partition.key)
        if found is not None:
            fetcher, followed, leader_epoch = found
            same = followed is partition and leader_epoch == partition.leader_epoch
            if same and fetcher.channel == channel:
                return
            self.leave(partition.key)
        fetcher = self._fetcher(channel)
        self._of[partition.key] = (fetcher, partition, partition.leader_epoch)
        fetcher.follow(partition)

    def leave(self, key: PartitionKey) -> None:
        """Fetch a partition no more."""
        found = self._of.pop(key, None)
        if found is not None:
            fetcher, partition, _ = found
            fetcher.leave(partition)

    def log_start_moved(self, partition: Partition) -> None:
        """Let the leader hear of a log start offset that has moved here."""
        found = self._of.get(partition.key)
        if found is not None:
            found[0].log_start_moved(partition)

    def start(self) -> None:
        """Send what is to be sent, and drop fetchers without partitions."""
        for leader, fetcher in list(self._by_leader.items()):
            if fetcher.partitions:
                fetcher.start()
            else:
                fetcher.close()
                del self._by_leader[leader]

    def close(self) -> None:
        """Ask nothing more."""
        for fetcher in self._by_leader.values():
            fetcher.close()
        self._by_leader.clear()
        self._of.clear()

    def _fetcher(self, channel: Channel) -> Fetcher:
        """The leader's; a leader that has moved to another address is asked there, anew."""
        fetcher = self._by_leader.get(channel.node_id)
        if fetcher is None or fetcher.channel != channel:
            if fetcher is not None:
                fetcher.close()
            fetcher = Fetcher(surroundings=self._surroundings, channel=channel)
            self._by_leader[channel.node_id] = fetcher
        return fetcher
