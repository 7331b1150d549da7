"""The rate limits for throttled replicas (KIP-73).

One quota limits the rate at which this broker sends data to followers from its replicas in
`leader.replication.throttled.replicas`. The other quota limits the rate at which it fetches data
for its replicas in `follower.replication.throttled.replicas`. Only replicas that are not in sync
are delayed. Invariant: the rate exceeds the limit by at most one fetch response. Source:
`kafka.server.ReplicationQuotaManager`, with the default windows (11 samples of one second).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.topic_configs import parse_throttled_replicas

SAMPLE_MS: Final = 1_000
SAMPLES: Final = 11

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"


class ReplicationQuotaManager:
    """The quota for the replication traffic of this broker, either as leader or as follower.

    `replicas_config` is the topic config that lists the throttled replicas. `limit` is the maximum
    rate in bytes per second. If `limit` is None, replication is not throttled.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        metadata: ClusterMetadata,
        replicas_config: str,
        clock: Callable[[], int],
    ) -> None:
        self.limit: int | None = None
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas_config = replicas_config
        self._clock = clock
        self._samples: deque[tuple[int, int]] = deque()
        """The start and the bytes of each sample, in ascending order."""

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Return whether this broker's replica of the partition is throttled."""
        if self.limit is None:
            return False
        found = self._metadata.topics.get(topic)
        value = found.configs.get(self._replicas_config, "") if found is not None else ""
        if not value:
            return False
        replicas = parse_throttled_replicas(value)
        return replicas is None or (partition, self._broker_id) in replicas

    def record(self, size_bytes: int) -> None:
        """Add bytes of throttled replicas to the current sample."""
        now_ms = self._clock()
        if self._samples and now_ms < self._samples[-1][0] + SAMPLE_MS:
            start_ms, counted = self._samples.pop()
            self._samples.append((start_ms, counted + size_bytes))
        else:
            self._samples.append((now_ms, size_bytes))

    def is_quota_exceeded(self) -> bool:
        """Return whether the current rate is higher than the limit."""
        if self.limit is None:
            return False
        now_ms = self._clock()
        while self._samples and self._samples[0][0] + SAMPLES * SAMPLE_MS <= now_ms:
            self._samples.popleft()
        if not self._samples:
            return False
        window_ms = max(now_ms - self._samples[0][0], SAMPLE_MS)
        return sum(counted for _, counted in self._samples) * 1_000 / window_ms > self.limit
