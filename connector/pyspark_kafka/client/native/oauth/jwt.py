"""Reads and writes parts of JSON web tokens (RFC 7519). Signatures are not checked."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any


def encoded(value: Mapping[str, Any]) -> str:
    """Encode a header or claims as one part of a token."""
    return encoded_bytes(json.dumps(value, separators=(",", ":")).encode())


def encoded_bytes(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims_of(token: str) -> Mapping[str, Any]:
    """Return the claims, or an empty mapping if the token is not a JWT."""
    try:
        claims = token.split(".")[1]
        decoded = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    except (ValueError, IndexError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def expiry_of(token: str) -> float | None:
    """Return the claim `exp` in seconds since the epoch, or None."""
    expiry = claims_of(token).get("exp")
    return float(expiry) if isinstance(expiry, int | float) else None
