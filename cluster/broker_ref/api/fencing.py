"""The error code for fenced producers, selected by the request version (KIP-588).

Older clients do not support PRODUCER_FENCED. This module does not decide whether a producer is
fenced.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode


def producer_fenced_code(error_code: ErrorCode, *, version: int, first_version: int) -> ErrorCode:
    """Replace PRODUCER_FENCED with INVALID_PRODUCER_EPOCH if `version` is below `first_version`."""
    if version < first_version and error_code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    return error_code
