"""Which producers are about to begin a transaction in a partition, as far as is known (KIP-890).

    begin -> guard -> the coordinator is asked -> append with the guard
                 \\-> a marker, or another append, comes first: the guard is worth nothing any more

Purpose: no batch gets into a log as part of a transaction that the coordinator does not know, or
that it has ended meanwhile, which nobody would ever end then. Invariant: a guard is good for one
transaction: it is void once anything of its producer's transactions has been written. What it must
not know: coordinators, and the log. Source: VerificationStateEntry, VerificationGuard.

The lowest sequence asked about is remembered, so that a later batch is not taken before it, whose
own question may have to be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from broker_ref.log.batch import BatchHeader
from broker_ref.log.errors import LogError


@dataclass(frozen=True, slots=True, eq=False)
class VerificationGuard:
    """Stands for one look at a producer's transaction; equal to itself alone."""


@dataclass(slots=True, kw_only=True)
class _Verification:
    begun_ms: int
    epoch: int
    lowest_sequence: int
    supports_epoch_bump: bool
    guard: VerificationGuard = field(default_factory=VerificationGuard)

    def note(self, epoch: int, sequence: int, *, supports_epoch_bump: bool) -> None:
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
            self.supports_epoch_bump = supports_epoch_bump
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


class VerificationGuards:
    """The verifications of one partition, by producer."""

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
        """The guard with which the batch may be appended once it is verified."""
        verification = self._verifications.get(producer_id)
        if verification is None:
            verification = _Verification(
                begun_ms=now_ms,
                epoch=epoch,
                lowest_sequence=sequence,
                supports_epoch_bump=supports_epoch_bump,
            )
            self._verifications[producer_id] = verification
        verification.note(epoch, sequence, supports_epoch_bump=supports_epoch_bump)
        return verification.guard

    def allows(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Whether a batch with this guard may begin a transaction of the producer."""
        verification = self._verifications.get(producer_id)
        return verification is not None and verification.guard is guard

    def check_sequence(self, header: BatchHeader, *, is_first: bool) -> None:
        """Whether a client's batch comes in its turn; `is_first`: none of its producer is known.

        Raises: LogError(OUT_OF_ORDER_SEQUENCE_NUMBER).
        """
        verification = self._verifications.get(header.producer_id)
        if verification is None:
            return
        if verification.supports_epoch_bump and is_first and header.base_sequence != 0:
            expected = "0, for each of its transactions has an epoch of its own"
        elif header.base_sequence > verification.lowest_sequence:
            expected = f"{verification.lowest_sequence}, which it has sent before"
        else:
            return
        raise LogError(
            ErrorCode.out_of_order_sequence_number,
            f"Producer {header.producer_id} (epoch {header.producer_epoch}) begins a transaction "
            f"with sequence {header.base_sequence}, but is to begin with {expected}.",
        )

    def end(self, header: BatchHeader) -> None:
        """Something of a producer's transactions has been written: its guard is void.

        But for the marker of a transaction, late, whose client gives each an epoch of its own:
        what was asked about in the marker's epoch is the transaction after it.
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
        """Forget those that nothing came of."""
        self._verifications = {
            producer_id: verification
            for producer_id, verification in self._verifications.items()
            if now_ms - verification.begun_ms < expiration_ms
        }
