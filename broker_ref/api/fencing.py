"""The error code for a fenced producer, by request version.

Purpose: replace an error code that older clients do not know. Must not know: which producers are
fenced, and why. Source: KIP-588.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode


def producer_fenced_code(error_code: ErrorCode, *, version: int, first_version: int) -> ErrorCode:
    """Return INVALID_PRODUCER_EPOCH for PRODUCER_FENCED in versions before `first_version`."""
    if version < first_version and error_code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    return error_code
