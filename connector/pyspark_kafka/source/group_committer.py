"""The option `commitOffsets` of a streaming read.

Purpose: commit the end offsets of each completed micro-batch to a consumer group, for tools that
monitor lag. Invariant: the query never reads these offsets, because its checkpoint has its own. A
failed commit is a warning, and takes a few seconds at most. Must not know: Spark, and when a
micro-batch is complete.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from pyspark_kafka.client.java_names import api_timeout_ms
from pyspark_kafka.client.port import KafkaReads
from pyspark_kafka.errors import KafkaError
from pyspark_kafka.kafka.offsets import PartitionOffsets
from pyspark_kafka.options.values import ClientOptions

log = logging.getLogger(__name__)

_COMMIT_TIMEOUT_MS_MAX: Final = 10_000
"""The maximum delay of a micro-batch by the commit of the previous one."""


class GroupCommitter:
    """Commits the offsets of one query, with a client that has a shorter timeout than others."""

    def __init__(self, options: ClientOptions) -> None:
        timeout_ms = min(api_timeout_ms(options.kafka), _COMMIT_TIMEOUT_MS_MAX)
        kafka = {**options.kafka, "default.api.timeout.ms": str(timeout_ms)}
        self._options = replace(options, kafka=kafka)
        self._client: KafkaReads | None = None
        self._committed: PartitionOffsets = {}

    def commit(self, offsets: PartitionOffsets) -> None:
        """Commit these offsets, unless the last commit had the same."""
        if offsets == self._committed:
            return
        group_id = self._options.group_id
        try:
            self._open().commit_offsets(group_id, offsets)
        except KafkaError as error:
            log.warning(
                "The offsets of a micro-batch were not committed to group '%s' (option "
                "'commitOffsets'). The query continues, and the next micro-batch commits its own. "
                "The group must not have members. %s",
                group_id,
                error,
            )
            self.close()
        else:
            self._committed = dict(offsets)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _open(self) -> KafkaReads:
        if self._client is None:
            from pyspark_kafka.client.factory import open_client  # noqa: PLC0415

            self._client = open_client(self._options, is_checked=True)
        return self._client
