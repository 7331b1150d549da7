"""A development CA, stored in a directory, that issues certificates with elliptic curve keys.

Requires the package `cryptography`, so other modules import this module lazily. All files are
readable only by their owner. Invariant: a file is either complete or does not exist.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker_ref.io.private_files import write_private

CA_LIFETIME: Final = datetime.timedelta(days=3650)
CERTIFICATE_LIFETIME: Final = datetime.timedelta(days=365)
RENEWAL: Final = datetime.timedelta(days=30)
"""A certificate is renewed if its remaining validity is at most this period."""

_CLOCK_SKEW: Final = datetime.timedelta(days=1)


class CertificateAuthority:
    """A CA with its key and certificates in `directory`.

    If `directory` does not contain a CA, a new CA is created. Clients must then trust its
    certificate, `ca.pem`.

    Raises: ValueError if the files are corrupt, OSError if they cannot be read or written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path: Final = directory / "ca.pem"
        """The certificate of the CA, which clients trust."""
        store = directory / "ca.key"
        if store.exists():
            data = store.read_bytes()
            key = serialization.load_pem_private_key(data, None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError(f"{store} does not contain an elliptic curve key.")
            self._key = key
            self._certificate = x509.load_pem_x509_certificate(data)
        else:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._certificate = self._new_certificate()
            write_private(store, _pem(self._key, self._certificate))
        certificate = _pem(None, self._certificate)
        if not self.path.exists() or self.path.read_bytes() != certificate.encode():
            write_private(self.path, certificate)

    def issue(
        self,
        name: str,
        common_name: str,
        names: Iterable[str] = (),
        *,
        not_after: datetime.datetime | None = None,
    ) -> Path:
        """Return the PEM file `NAME.pem` with a private key (PKCS #8) and its certificate.

        `names` are host names and IP addresses. Servers and clients can use the certificate. An
        existing file is reused if its certificate contains exactly these names and is valid for
        more than `RENEWAL`.
        """
        path = self._directory / f"{name}.pem"
        subjects = list(dict.fromkeys(_general_name(each) for each in names))
        if not_after is not None or not self._is_current(path, subjects):
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = self._certificate_of(
                key.public_key(), common_name, subjects, not_after or _now() + CERTIFICATE_LIFETIME
            )
            write_private(path, _pem(key, certificate))
        return path

    def _is_current(self, path: Path, subjects: list[x509.GeneralName]) -> bool:
        if not path.exists():
            return False
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        try:
            certificate.verify_directly_issued_by(self._certificate)
            found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            existing = list(found.value)
        except InvalidSignature:
            return False
        except x509.ExtensionNotFound:
            existing = []
        return existing == subjects and certificate.not_valid_after_utc > _now() + RENEWAL

    def _new_certificate(self) -> x509.Certificate:
        subject = _subject("broker_ref development CA")
        usage = _key_usage(key_cert_sign=True, crl_sign=True)
        return (
            _builder(subject, subject, self._key.public_key(), _now() + CA_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _certificate_of(
        self,
        key: ec.EllipticCurvePublicKey,
        common_name: str,
        subjects: list[x509.GeneralName],
        not_after: datetime.datetime,
    ) -> x509.Certificate:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(_subject(common_name), self._certificate.subject, key, not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer_key, critical=False)
        )
        if subjects:
            builder = builder.add_extension(x509.SubjectAlternativeName(subjects), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    not_after: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(_now(), not_after) - _CLOCK_SKEW)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(**used: bool) -> x509.KeyUsage:
    unused = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(**{**unused, **used})


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey | None, certificate: x509.Certificate) -> str:
    text = b""
    if key is not None:
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    return (text + certificate.public_bytes(serialization.Encoding.PEM)).decode()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
