"""The verification state of transactions that producers start in a partition (KIP-890).

    begin -> guard -> the coordinator verifies -> append with the guard
                \\-> another batch or a marker is appended first: the guard is invalid

A log must not contain a batch of a transaction that the transaction coordinator has not registered
or has already ended. Verification rejects such a batch, because its transaction would remain open
forever. Invariant: a guard is valid for one transaction. It becomes invalid when a transactional
batch or a marker of the same producer is appended. Source: `VerificationStateEntry`,
`VerificationGuard`.

For each producer, the lowest sequence number that was verified is stored. If the verification of a
batch is retried, this sequence number prevents a later batch from being appended first.
"""

from __future__ import annotations

from dataclasses import field

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.log.batch import BatchHeader
from broker_ref.log.errors import LogError


@dataclass(frozen=True, slots=True, eq=False)
class VerificationGuard:
    """Identifies one verification of a producer's transaction. Guards are compared by identity."""


@dataclass(slots=True, kw_only=True)
class _Verification:
    begun_ms: int
    epoch: int
    lowest_sequence: int
    supports_epoch_bump: bool
    guard: VerificationGuard = field(default_factory=VerificationGuard)

    def update(self, epoch: int, sequence: int, *, supports_epoch_bump: bool) -> None:
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
            self.supports_epoch_bump = supports_epoch_bump
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


class VerificationGuards:
    """The verifications of one partition, by producer id."""

    def __init__(self) -> None:
        self._verifications: dict[int, _Verification] = {}

    def begin(
        self,
        *,
        producer_id: int,
        epoch: int,
        sequence: int,
        supports_epoch_bump: bool,
        now_ms: int,
    ) -> VerificationGuard:
        """Return the guard that the producer's append requires.

        The append must wait until the transaction coordinator has verified the transaction.
        """
        verification = self._verifications.get(producer_id)
        if verification is None:
            verification = _Verification(
                begun_ms=now_ms,
                epoch=epoch,
                lowest_sequence=sequence,
                supports_epoch_bump=supports_epoch_bump,
            )
            self._verifications[producer_id] = verification
        verification.update(epoch, sequence, supports_epoch_bump=supports_epoch_bump)
        return verification.guard

    def allows(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Return whether a batch with this guard can start a transaction of the producer."""
        verification = self._verifications.get(producer_id)
        return verification is not None and verification.guard is guard

    def check_sequence(self, header: BatchHeader, *, is_first: bool) -> None:
        """Check the base sequence of a batch that starts a transaction.

        `is_first` is True if the producer state contains no batch of the producer. Raises:
        LogError(OUT_OF_ORDER_SEQUENCE_NUMBER).
        """
        verification = self._verifications.get(header.producer_id)
        if verification is None:
            return
        if verification.supports_epoch_bump and is_first and header.base_sequence != 0:
            expected = "0, because each transaction of the producer has a new epoch"
        elif header.base_sequence > verification.lowest_sequence:
            expected = f"{verification.lowest_sequence}, the lowest sequence that was verified"
        else:
            return
        raise LogError(
            ErrorCode.out_of_order_sequence_number,
            f"Producer {header.producer_id} (epoch {header.producer_epoch}) starts a transaction "
            f"with sequence number {header.base_sequence}. The first sequence number must be "
            f"{expected}.",
        )

    def end(self, header: BatchHeader) -> None:
        """Invalidate a producer's guard after a transactional batch or a marker has been appended.

        If the producer uses a new epoch for each transaction, a marker with the epoch of the
        verified transaction does not invalidate the guard. Such a marker belongs to the previous
        transaction.
        """
        verification = self._verifications.get(header.producer_id)
        if verification is None:
            return
        is_before = (
            verification.supports_epoch_bump
            and header.is_control
            and header.producer_epoch == verification.epoch
        )
        if not is_before:
            del self._verifications[header.producer_id]

    def expire(self, now_ms: int, *, expiration_ms: int) -> None:
        """Remove pending verifications that started at least `expiration_ms` ago."""
        self._verifications = {
            producer_id: verification
            for producer_id, verification in self._verifications.items()
            if now_ms - verification.begun_ms < expiration_ms
        }
