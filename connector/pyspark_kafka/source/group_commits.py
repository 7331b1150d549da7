"""`commitOffsets` of a streaming read: tell a consumer group how far the query has come.

Purpose: commit the end of every completed micro-batch to the group that the user names, for the
tools that watch groups. Invariant: the query never reads these offsets (its checkpoint holds its
own) and never fails for them: a commit that fails is a warning, and takes a few seconds at most.
What it must not know: Spark, and when a micro-batch is complete.
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

_COMMIT_MS_MAX: Final = 10_000
"""How long a micro-batch may wait for the last one's commit."""


class GroupCommits:
    """Of one query. Its client is its own, since it waits for less long than the others."""

    def __init__(self, options: ClientOptions) -> None:
        api_ms = min(api_timeout_ms(options.kafka), _COMMIT_MS_MAX)
        kafka = {**options.kafka, "default.api.timeout.ms": str(api_ms)}
        self._options = replace(options, kafka=kafka)
        self._client: KafkaReads | None = None
        self._committed: PartitionOffsets = {}

    def commit(self, offsets: PartitionOffsets) -> None:
        """Commit, unless it is what was committed last."""
        if offsets == self._committed:
            return
        group_id = self._options.group_id
        try:
            self._open().commit_offsets(group_id, offsets)
        except KafkaError as error:
            log.warning(
                "option 'commitOffsets': the offsets of a micro-batch were not committed to group "
                "'%s', and the query goes on; the next micro-batch commits anew. Nobody else may "
                "be a member of that group: %s",
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
