"""What a producer that is fenced is told, by the version that its client speaks.

Purpose: one place for the code that newer clients know and older ones do not. What it must not
know: who is fenced, and why. Source: KIP-588.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode


def producer_fenced_code(error_code: ErrorCode, *, version: int, first_version: int) -> ErrorCode:
    """PRODUCER_FENCED as INVALID_PRODUCER_EPOCH before the first version that knows it."""
    if version < first_version and error_code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    return error_code
