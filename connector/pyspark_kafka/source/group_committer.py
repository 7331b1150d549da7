"""Implements the `commitOffsets` option for streaming reads.

The end offsets of each completed micro-batch are committed to a consumer group, for tools that
monitor lag. Invariant: the query never reads these offsets, because it uses the offsets in its
checkpoint. If a commit fails, the committer logs a warning. After a slow failure, it skips commits
for a while, so that slow failures take at most about a tenth of the query's time.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Final

from pyspark_kafka.client.java_names import api_timeout_ms
from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.client.resolved import resolved
from pyspark_kafka.errors import PysparkKafkaError
from pyspark_kafka.kafka.offsets import PartitionOffsets
from pyspark_kafka.options.values import ClientOptions

log = logging.getLogger(__name__)

RECOMMIT_S: Final = 3_600.0
"""The time after which equal offsets are committed again, so that they do not expire.

`offsets.retention.minutes` applies to groups without members. The default is 7 days.
"""
_COMMIT_TIMEOUT_MS_MAX: Final = 10_000
"""The maximum time by which a commit can delay the next micro-batch."""
_SLOW_FAILURE_S: Final = 1.0
_PAUSE_FACTOR: Final = 10
"""After a slow failure, no commit starts until this multiple of the time spent has passed."""


class GroupCommitter:
    """Commits the offsets of one query. The client has a short timeout."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._client: KafkaReadClient | None = None
        self._committed: PartitionOffsets = {}
        self._again_at_s = 0.0
        self._paused_until_s = 0.0

    def commit(self, offsets: PartitionOffsets) -> None:
        """Commit offsets, unless the same offsets were committed less than an hour ago.

        After a slow failure, skip commits for ten times as long as the failed commit took.
        """
        started_s = time.monotonic()
        is_committed = offsets == self._committed and started_s < self._again_at_s
        if is_committed or started_s < self._paused_until_s:
            return
        group_id = self._options.group_id
        try:
            self._open().commit_offsets(group_id, offsets)
        except PysparkKafkaError as error:  # Includes errors about missing SSL files.
            log.warning(
                "The offsets of a micro-batch were not committed for group '%s' (option "
                "'commitOffsets'). The query continues, and a later micro-batch will commit "
                "its own offsets. Check that the group has no members. %s",
                group_id,
                error,
            )
            self.close()
            spent_s = time.monotonic() - started_s
            if spent_s >= _SLOW_FAILURE_S:
                self._paused_until_s = started_s + _PAUSE_FACTOR * spent_s
        else:
            self._committed = dict(offsets)
            self._again_at_s = time.monotonic() + RECOMMIT_S

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _open(self) -> KafkaReadClient:
        if self._client is None:
            from pyspark_kafka.client.factory import open_client  # noqa: PLC0415

            with resolved(self._options) as known:
                timeout_ms = min(api_timeout_ms(known.kafka), _COMMIT_TIMEOUT_MS_MAX)
            kafka = {**self._options.kafka, "default.api.timeout.ms": str(timeout_ms)}
            self._client = open_client(replace(self._options, kafka=kafka), is_checked=True)
        return self._client
