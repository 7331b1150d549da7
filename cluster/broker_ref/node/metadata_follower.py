"""Replicates the metadata log from the controller to a broker.

Like a KRaft observer, the broker fetches new metadata records with long polling. If it is too far
behind, it fetches a snapshot. Invariants: records are applied in order, and all records of a commit
(one record batch) are applied together. The components of the broker are notified after every
change. One step decodes or applies a limited number of commits. Source: KIP-595 (Fetch), KIP-630
(FetchSnapshot).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import ControllerClient
from broker_ref.controller.metadata import ClusterMetadata, Commit
from broker_ref.controller.metadata_batches import (
    METADATA_PARTITION,
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    decode_commits,
    decode_snapshot,
)
from broker_ref.controller.metadata_delta import MetadataDelta
from broker_ref.controller.records import MetadataRecord, UnreadableRecordError
from broker_ref.controller_api.k01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
    SnapshotId,
)
from broker_ref.controller_api.k59_fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RequestedSnapshot,
    RequestedTopic,
)
from broker_ref.schedule import Schedule

FETCH_WAIT_MS: Final = 5_000
FETCH_BYTES_MAX: Final = 8 << 20
FETCH_TIMEOUT_MS: Final = FETCH_WAIT_MS + 10_000
RETRY_BACKOFF_MS: Final = 100
"""The backoff before a failed request is retried.

Kafka uses `controller.quorum.retry.backoff.ms`, by default 20 ms, with exponential backoff.
"""

RECORDS_PER_STEP: Final = 1_000
"""The number of records that one step decodes or applies.

A commit with more records is decoded in one step.
"""

NO_SNAPSHOT: Final = -1

logger = logging.getLogger(__name__)


class MetadataFollower:
    """Keeps the metadata of a broker up to date with the controller."""

    def __init__(
        self,
        *,
        node_id: int,
        controller: ControllerClient,
        metadata: ClusterMetadata,
        schedule: Schedule,
        now_ms: Callable[[], int],
        on_change: Callable[[MetadataDelta], None],
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._metadata = metadata
        self._schedule = schedule
        self._now_ms = now_ms
        self._on_change = on_change
        self._snapshot_id = SnapshotId()
        self._snapshot = bytearray()
        self._starts_over = False
        self._delta = MetadataDelta()
        self._commits: Iterator[Commit] = iter(())
        self._decoded: Commit | None = None

    def start(self) -> None:
        """Start fetching metadata. Fetching continues until the process ends."""
        self._fetch()

    def _fetch(self) -> None:
        offset = 0 if self._starts_over else self._metadata.end_offset
        self._controller.send(
            purpose="metadata",
            api_key=1,
            version=17,
            request=FetchRequest(
                max_wait_ms=FETCH_WAIT_MS,
                max_bytes=FETCH_BYTES_MAX,
                replica_state=ReplicaState(replica_id=self._node_id),
                topics=(
                    FetchTopic(
                        topic_id=METADATA_TOPIC_ID,
                        partitions=(
                            FetchPartition(
                                partition=METADATA_PARTITION,
                                fetch_offset=offset,
                                partition_max_bytes=FETCH_BYTES_MAX,
                            ),
                        ),
                    ),
                ),
            ),
            response=FetchResponse,
            on_response=self._fetched,
            on_failure=self._failed,
            timeout_ms=FETCH_TIMEOUT_MS,
        )

    def _fetched(self, response: FetchResponse) -> None:
        partitions = [part for topic in response.responses for part in topic.partitions]
        if response.error_code is not ErrorCode.none or len(partitions) != 1:
            self._failed(f"the error code is {response.error_code.name}")
            return
        (fetched,) = partitions
        if fetched.error_code is ErrorCode.offset_out_of_range:
            logger.warning(
                "The controller's metadata log ends before offset %d. Fetching all metadata again.",
                self._metadata.end_offset,
            )
            self._starts_over = True
            self._retry()
        elif fetched.error_code is not ErrorCode.none:
            self._failed(f"the error code is {fetched.error_code.name}")
        elif fetched.snapshot_id.end_offset != NO_SNAPSHOT:
            self._snapshot_id, self._snapshot = fetched.snapshot_id, bytearray()
            self._fetch_snapshot()
        else:
            self._commits = decode_commits(fetched.records or b"")
            self._apply_commits()

    def _apply_commits(self) -> None:
        """Apply some fetched commits and schedule the rest, or fetch if no commits are left."""
        end_offset = self._metadata.end_offset
        records_left = RECORDS_PER_STEP
        try:
            while records_left > 0:
                commit, self._decoded = self._decoded, None
                if commit is not None:
                    self._metadata.apply_commit(commit, self._delta)
                else:
                    commit = self._decoded = next(self._commits, None)
                if commit is None:
                    break
                records_left -= len(commit.records)
        except (UnreadableRecordError, ValueError) as error:
            self._failed(f"the records cannot be applied: {error}")
        else:
            if records_left > 0:
                self._fetch()
            else:
                self._schedule.at(self._now_ms(), lambda _: self._apply_commits())
        # If a record cannot be applied, the commits before it are still published.
        if self._metadata.end_offset != end_offset:
            self._publish()

    def _publish(self) -> None:
        """Notify the broker's components of the changes in the metadata delta.

        If a component raises an exception, the next delta contains these changes again.
        """
        self._on_change(self._delta)
        self._delta = MetadataDelta()

    def _fetch_snapshot(self) -> None:
        self._controller.send(
            purpose="metadata",
            api_key=59,
            version=1,
            request=FetchSnapshotRequest(
                replica_id=self._node_id,
                max_bytes=FETCH_BYTES_MAX,
                topics=(
                    RequestedTopic(
                        name=METADATA_TOPIC,
                        partitions=(
                            RequestedSnapshot(
                                partition=METADATA_PARTITION,
                                snapshot_id=self._snapshot_id,
                                position=len(self._snapshot),
                            ),
                        ),
                    ),
                ),
            ),
            response=FetchSnapshotResponse,
            on_response=self._fetched_snapshot,
            on_failure=self._failed,
            timeout_ms=FETCH_TIMEOUT_MS,
        )

    def _fetched_snapshot(self, response: FetchSnapshotResponse) -> None:
        partitions = [part for topic in response.topics for part in topic.partitions]
        if response.error_code is not ErrorCode.none or len(partitions) != 1:
            self._failed(f"the error code is {response.error_code.name}")
            return
        (piece,) = partitions
        if piece.error_code is not ErrorCode.none or piece.position != len(self._snapshot):
            self._failed(f"the error code of the snapshot response is {piece.error_code.name}")
            return
        self._snapshot += piece.unaligned_records
        if len(self._snapshot) < piece.size and piece.unaligned_records:
            self._fetch_snapshot()
            return
        try:
            records = decode_snapshot(bytes(self._snapshot))
        except UnreadableRecordError as error:
            self._failed(f"the snapshot cannot be decoded: {error}")
            return
        self._snapshot = bytearray()
        if len(records) > RECORDS_PER_STEP:
            self._schedule.at(self._now_ms(), lambda _: self._replace(records))
        else:
            self._replace(records)

    def _replace(self, records: Sequence[MetadataRecord]) -> None:
        self._metadata.replace(records, self._snapshot_id.end_offset, self._delta)
        self._starts_over = False
        self._fetch()
        self._publish()

    def _failed(self, reason: str) -> None:
        logger.info("Failed to fetch metadata from the controller: %s", reason)
        self._retry()

    def _retry(self) -> None:
        self._schedule.at(self._now_ms() + RETRY_BACKOFF_MS, lambda _: self._fetch())
