"""Transactional batches, markers, and a producer that counts its sequences, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_ref.log.append import AppendResult
from broker_ref.log.batch import Record, encode_batch
from broker_ref.log.control import EndTransactionMarker, Marker
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.verification_guards import VerificationGuard
from tests.broker_ref.log.batches import NOW_MS


def transactional(
    producer_id: int,
    *,
    epoch: int = 0,
    sequence: int = 0,
    count: int = 1,
    key: bytes = b"key",
    timestamp: int = NOW_MS,
) -> bytes:
    return encode_batch(
        [Record(timestamp=timestamp, key=key, value=b"value") for _ in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


@dataclass(slots=True, kw_only=True)
class Writer:
    """A transactional producer that writes to the log of one leader."""

    log: PartitionLog
    producer_id: int
    epoch: int = 0
    coordinator_epoch: int = 0
    sequence: int = field(default=0)

    def guard(self) -> VerificationGuard | None:
        return self.log.producers.maybe_start_transaction_verification(
            self.producer_id, self.epoch, self.sequence, supports_epoch_bump=False, now_ms=NOW_MS
        )

    def write(self, count: int = 1, *, key: bytes = b"key") -> AppendResult:
        """Append the next batch of the transaction, with verification if needed."""
        result = self.log.append(
            transactional(
                self.producer_id, epoch=self.epoch, sequence=self.sequence, count=count, key=key
            ),
            leader_epoch=0,
            now_ms=NOW_MS,
            guard=self.guard(),
        )
        self.sequence += count
        return result

    def end(self, marker: Marker, *, transaction_version: int = 1) -> AppendResult:
        """Append the marker as the coordinator does, with a higher epoch in version 2."""
        if transaction_version >= 2:
            self.epoch, self.sequence = self.epoch + 1, 0
        return self.log.append_end_marker(
            EndTransactionMarker(marker=marker, coordinator_epoch=self.coordinator_epoch),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            transaction_version=transaction_version,
            leader_epoch=0,
            now_ms=NOW_MS,
        )

    def commit(self) -> AppendResult:
        return self.end(Marker.COMMIT)

    def abort(self) -> AppendResult:
        return self.end(Marker.ABORT)
