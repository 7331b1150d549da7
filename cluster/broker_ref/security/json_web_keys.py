"""JSON Web Keys (RFC 7517) and the verification of signatures with these keys (RFC 7518).

Only public keys are used: RSA keys (PKCS #1 v1.5 and PSS), EC keys on NIST curves, and Ed25519
keys. The `cryptography` package verifies the signatures. This package is optional, so other modules
import `json_web_keys` only when they need it. Source: `VerificationJwkSelector` in jose4j, which
Kafka uses.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from broker_ref.frozen import dataclass

RSA_BITS_MIN: Final = 2048
KEYS_MAX: Final = 1000

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey

_HASHES: Final[dict[str, hashes.HashAlgorithm]] = {
    "256": hashes.SHA256(),
    "384": hashes.SHA384(),
    "512": hashes.SHA512(),
}
_CURVES: Final[dict[str, tuple[ec.EllipticCurve, str]]] = {
    "P-256": (ec.SECP256R1(), "ES256"),
    "P-384": (ec.SECP384R1(), "ES384"),
    "P-521": (ec.SECP521R1(), "ES512"),
}
_RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EDDSA: Final = "EdDSA"

ALGORITHMS: Final = (*_RSA_ALGORITHMS, *(name for _, name in _CURVES.values()), _EDDSA)
"""The accepted algorithms. `none` and algorithms with shared secrets are not accepted."""


class InvalidKeySetError(ValueError):
    """The text is not a JSON Web Key Set, or it contains no usable key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonWebKey:
    """A public key, and the algorithms for which it can be used."""

    key_id: str | None
    algorithms: tuple[str, ...]
    key: PublicKey = field(repr=False)

    def verifies(self, algorithm: str, signature: bytes, data: bytes) -> bool:
        """Return whether `signature` is the signature of `data`."""
        try:
            self._verify(algorithm, signature, data)
        except InvalidSignature:
            return False
        return True

    def _verify(self, algorithm: str, signature: bytes, data: bytes) -> None:
        if algorithm not in self.algorithms:
            raise InvalidSignature
        if isinstance(self.key, ed25519.Ed25519PublicKey):
            self.key.verify(signature, data)
            return
        hashing = _HASHES[algorithm[2:]]
        if isinstance(self.key, ec.EllipticCurvePublicKey):
            size = (self.key.curve.key_size + 7) // 8
            if len(signature) != 2 * size:
                raise InvalidSignature
            numbers = (int.from_bytes(part, "big") for part in (signature[:size], signature[size:]))
            self.key.verify(encode_dss_signature(*numbers), data, ec.ECDSA(hashing))
        elif algorithm.startswith("PS"):
            salt_bytes = hashing.digest_size
            pss = padding.PSS(mgf=padding.MGF1(hashing), salt_length=salt_bytes)
            self.key.verify(signature, data, pss, hashing)
        else:
            self.key.verify(signature, data, padding.PKCS1v15(), hashing)


def parse_key_set(text: bytes) -> tuple[JsonWebKey, ...]:
    """Return the keys in a JSON Web Key Set that can verify signatures.

    Other keys are ignored. Raises: InvalidKeySetError.
    """
    try:
        entries = json.loads(text)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidKeySetError("the key set is not a JSON object with a 'keys' array") from error
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise InvalidKeySetError(f"'keys' must be an array of at most {KEYS_MAX} keys")
    keys = tuple(key for key in map(_key, entries) if key is not None)
    if not keys:
        raise InvalidKeySetError(f"the key set contains no public key for {', '.join(ALGORITHMS)}")
    return keys


def select_key(
    keys: Sequence[JsonWebKey], *, key_id: str | None, algorithm: str
) -> JsonWebKey | None:
    """Return the first key that matches the header of a token, or None."""
    return next(
        (
            key
            for key in keys
            if algorithm in key.algorithms and (key_id is None or key.key_id == key_id)
        ),
        None,
    )


def decode_base64url(text: str) -> bytes:
    """Decode unpadded Base64 URL text. Raises: ValueError."""
    if re.fullmatch("[A-Za-z0-9_-]*", text) is None:
        raise ValueError("invalid Base64 URL encoding")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError("invalid Base64 URL encoding") from error


def _key(entry: Any) -> JsonWebKey | None:
    """Return the key in a key set entry, or None if it is not a public key for signatures."""
    try:
        if entry.get("use", "sig") != "sig" or "verify" not in entry.get("key_ops", ["verify"]):
            return None
        key, algorithms = _public_key(entry)
        if "alg" in entry:
            algorithms = tuple(each for each in algorithms if each == entry["alg"])
        key_id = entry.get("kid")
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if not algorithms or not isinstance(key_id, str | None):
        return None
    return JsonWebKey(key_id=key_id, algorithms=algorithms, key=key)


def _public_key(entry: dict[str, Any]) -> tuple[PublicKey, tuple[str, ...]]:
    """Return a public key and its algorithms. Raises: KeyError, TypeError, ValueError."""

    def data(name: str) -> bytes:
        return decode_base64url(entry[name])

    def number(name: str) -> int:
        return int.from_bytes(data(name), "big")

    match entry["kty"]:
        case "RSA":
            key = rsa.RSAPublicNumbers(number("e"), number("n")).public_key()
            if key.key_size < RSA_BITS_MIN:
                raise ValueError("the RSA key is too short")
            return key, _RSA_ALGORITHMS
        case "EC":
            curve, algorithm = _CURVES[entry["crv"]]
            numbers = ec.EllipticCurvePublicNumbers(number("x"), number("y"), curve)
            return numbers.public_key(), (algorithm,)
        case "OKP" if entry["crv"] == "Ed25519":
            return ed25519.Ed25519PublicKey.from_public_bytes(data("x")), (_EDDSA,)
    raise ValueError("unknown key type")
