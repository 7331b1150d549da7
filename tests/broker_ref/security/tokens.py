"""Keys and signed tokens for tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

HASHES: dict[str, hashes.HashAlgorithm] = {
    "256": hashes.SHA256(),
    "384": hashes.SHA384(),
    "512": hashes.SHA512(),
}
CURVES: dict[str, tuple[ec.EllipticCurve, str]] = {
    "ES256": (ec.SECP256R1(), "P-256"),
    "ES384": (ec.SECP384R1(), "P-384"),
    "ES512": (ec.SECP521R1(), "P-521"),
}


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


@cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@dataclass(frozen=True)
class SigningKey:
    """A private key with an id. `algorithm` is the algorithm of its signatures."""

    key: Any
    algorithm: str
    key_id: str

    def jwk(self, **others: object) -> dict[str, object]:
        public = self.key.public_key()
        entry: dict[str, object] = {"kid": self.key_id, "use": "sig"}
        if isinstance(public, rsa.RSAPublicKey):
            numbers = public.public_numbers()
            entry |= {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
        elif isinstance(public, ec.EllipticCurvePublicKey):
            point = public.public_numbers()
            curve = CURVES[self.algorithm][1]
            entry |= {"kty": "EC", "crv": curve, "x": number(point.x), "y": number(point.y)}
        else:
            entry |= {"kty": "OKP", "crv": "Ed25519", "x": encoded(public.public_bytes_raw())}
        return entry | others

    def sign(self, data: bytes) -> bytes:
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(data)
        hashing = HASHES[self.algorithm[2:]]
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            size = (self.key.curve.key_size + 7) // 8
            numbers = decode_dss_signature(self.key.sign(data, ec.ECDSA(hashing)))
            return b"".join(each.to_bytes(size, "big") for each in numbers)
        if self.algorithm.startswith("PS"):
            pss = padding.PSS(mgf=padding.MGF1(hashing), salt_length=hashing.digest_size)
            return bytes(self.key.sign(data, pss, hashing))
        return bytes(self.key.sign(data, padding.PKCS1v15(), hashing))

    def token(self, claims: dict[str, object], **header: object) -> str:
        first = {"alg": self.algorithm, "kid": self.key_id, **header}
        signed = ".".join(encoded(json.dumps(part).encode()) for part in (first, claims))
        return f"{signed}.{encoded(self.sign(signed.encode()))}"


def signing_key(algorithm: str = "ES256", key_id: str = "k1") -> SigningKey:
    """Return a new key, or the same one for each RSA algorithm."""
    if algorithm in CURVES:
        return SigningKey(ec.generate_private_key(CURVES[algorithm][0]), algorithm, key_id)
    if algorithm == "EdDSA":
        return SigningKey(ed25519.Ed25519PrivateKey.generate(), algorithm, key_id)
    return SigningKey(rsa_key(), algorithm, key_id)


def key_set(*keys: Mapping[str, object]) -> bytes:
    return json.dumps({"keys": keys}).encode()
