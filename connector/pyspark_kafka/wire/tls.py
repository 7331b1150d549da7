"""TLS connections: a `Connect` function and a `Transport` (`SslTransportLayer` in Kafka).

The handshake ends by the deadline of the connection. A peer that does not speak TLS causes an
error, so nothing is ever sent without encryption. TLS sessions are cached and resumed for each
address. The error for a failed handshake states which side rejected the handshake and why, and
names the option to check.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from pyspark_kafka.wire.transport import (
    CLOSED,
    READABLE,
    WRITABLE,
    Address,
    Family,
    Transport,
    TransportError,
    connected_socket,
    reason_of,
)

_RECORD_BYTES: Final = 16 * 1024
"""The maximum size of a TLS record. Smaller parts are joined, so that they share a record."""
_NAMES_TIMEOUT_S: Final = 2.0
_PROTOCOL: Final = "kafka.security.protocol"
_TRUST: Final = "kafka.ssl.truststore.location"
_IDENTITY: Final = "kafka.ssl.keystore.location"
_HOST_MISMATCH: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
_NOT_VALID_NOW: Final = frozenset({9, 10})  # X509_V_ERR_CERT_NOT_YET_VALID, _CERT_HAS_EXPIRED
_NOT_TLS: Final = frozenset(
    {
        "BAD_RECORD_TYPE",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
        "UNEXPECTED_RECORD",
        "WRONG_VERSION_NUMBER",
    }
)
_NO_COMMON_PARAMETERS: Final = frozenset(
    {
        "NO_PROTOCOLS_AVAILABLE",
        "NO_SHARED_CIPHER",
        "TLSV1_ALERT_INSUFFICIENT_SECURITY",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "UNSUPPORTED_PROTOCOL",
    }
)
_NO_CERTIFICATE: Final = frozenset(
    {
        # Before TLS 1.3, a server reports a missing certificate with one of the general alerts.
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    }
)
_CERTIFICATE_REJECTED: Final = frozenset(
    {
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)

_PEM_BLOCK: Final = re.compile(
    r"(?P<begin>-----BEGIN (?P<label>[A-Z0-9 ]+)-----)(?P<base64>[A-Za-z0-9+/=\s]*)"
    r"(?P<end>-----END (?P=label)-----)"
)
"""A PEM block without headers. OpenSSL requires headers to be on their own lines."""

Part = Literal["authorities", "certificate", "key", "passphrase"]


class TlsSettingsError(Exception):
    """The TLS setting `part` cannot be used. The error message contains the reason."""

    def __init__(self, part: Part, reason: str) -> None:
        super().__init__(reason)
        self.part = part


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """The certificate chain of a client and its private key, both in PEM."""

    chain: str = field(repr=False)
    key: str = field(repr=False)
    passphrase: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The trusted certificate authorities (CAs), verification settings and client certificate.

    `ca_location` is a PEM file or a directory, and `ca_pem` contains PEM certificates. Without
    either, the CAs of the operating system are trusted.
    """

    ca_location: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    verifies_certificate: bool = True
    verifies_host_name: bool = True
    client_certificate: ClientCertificate | None = None


class TlsConnect:
    """A `Connect` function for TLS. Raises `TlsSettingsError` if `settings` cannot be used."""

    def __init__(self, settings: TlsSettings, *, family: Family = "any") -> None:
        self._settings = settings
        self._family = family
        self._context = tls_context(settings)
        self._sessions: dict[Address, ssl.SSLSession] = {}

    def __call__(self, address: Address, timeout_s: float) -> Transport:
        deadline = time.monotonic() + timeout_s
        opened = connected_socket(address, timeout_s, family=self._family)
        try:
            encrypted = self._handshake(self._context, opened, address, deadline)
        except ssl.SSLCertVerificationError as error:
            raise _untrusted(error, address, self._names(error, address, deadline)) from None
        except OSError as error:
            raise _failed_handshake(
                error, timeout_s, has_certificate=self._settings.client_certificate is not None
            ) from None
        return TlsTransport(
            encrypted,
            address,
            self._sessions,
            has_certificate=self._settings.client_certificate is not None,
        )

    def _handshake(
        self, context: ssl.SSLContext, opened: socket.socket, address: Address, deadline: float
    ) -> ssl.SSLSocket:
        try:
            encrypted = context.wrap_socket(
                opened,
                do_handshake_on_connect=False,
                server_hostname=address.host.removesuffix("."),
                session=self._sessions.get(address) if context is self._context else None,
            )
        except BaseException:
            opened.close()
            raise
        try:
            encrypted.settimeout(max(deadline - time.monotonic(), 0.001))  # for the whole handshake
            encrypted.do_handshake()
        except BaseException:
            encrypted.close()
            raise
        return encrypted

    def _names(
        self, error: ssl.SSLCertVerificationError, address: Address, deadline: float
    ) -> str | None:
        """Return the names in a certificate that does not match the host, or None for other errors.

        Python does not return the certificate of a failed handshake, so this method connects
        again. It does not send anything after the handshake.
        """
        if error.verify_code not in _HOST_MISMATCH:
            return None
        settings = TlsSettings(
            ca_location=self._settings.ca_location,
            ca_pem=self._settings.ca_pem,
            verifies_host_name=False,
        )
        timeout_s = min(deadline - time.monotonic(), _NAMES_TIMEOUT_S)
        until = time.monotonic() + timeout_s
        with contextlib.suppress(OSError, TransportError):
            opened = connected_socket(address, timeout_s, family=self._family)
            with self._handshake(tls_context(settings), opened, address, until) as encrypted:
                certificate = encrypted.getpeercert() or {}
                names = [str(name[1]) for name in certificate.get("subjectAltName", ())]
                return ", ".join(names) or "no names"
        return None


class TlsTransport:
    """A TLS connection. Stores its session, so that the next handshake can resume it."""

    def __init__(
        self,
        connected: ssl.SSLSocket,
        address: Address,
        sessions: dict[Address, ssl.SSLSession],
        *,
        has_certificate: bool,
    ) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._address = address
        self._sessions = sessions
        self._has_certificate = has_certificate
        self.read_event: int = READABLE
        self.write_event: int = WRITABLE

    def send(self, parts: Iterable[memoryview]) -> int:
        self.write_event = WRITABLE
        try:
            return self._socket.send(_first_record(parts))
        except ssl.SSLWantWriteError:
            return 0
        except ssl.SSLWantReadError:
            self.write_event = READABLE
            return 0
        except OSError as error:
            raise self._explained(error) from None

    def receive_into(self, buffer: memoryview) -> int | None:
        self.read_event = READABLE
        try:
            count = self._socket.recv_into(buffer)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self.read_event = WRITABLE
            return None
        except OSError as error:
            raise self._rejected(error) from None
        if count == 0:
            raise TransportError(CLOSED)
        return count

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        # TLS 1.3 sends tickets after the handshake, so the session is complete only now.
        with contextlib.suppress(ValueError, OSError):
            session = self._socket.session
            if session is not None and session.has_ticket:
                self._sessions[self._address] = session
        self._socket.close()

    def _explained(self, error: OSError) -> TransportError:
        """Return the broker's alert if there is one, because it explains why sending failed."""
        try:
            while self.receive_into(memoryview(bytearray(_RECORD_BYTES))) is not None:
                pass
        except TransportError as received:
            if received.is_rejection:
                return received
        return self._rejected(error)

    def _rejected(self, error: OSError) -> TransportError:
        """Return the error for an alert. With TLS 1.3, alerts can arrive after the handshake."""
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return _alert(error, has_certificate=self._has_certificate)
        return TransportError(CLOSED if isinstance(error, ssl.SSLEOFError) else reason_of(error))


def _first_record(parts: Iterable[memoryview]) -> memoryview | bytes:
    """Return the first of `parts` if it fills a TLS record. Otherwise, join several small parts.

    After an incomplete send, OpenSSL requires the same bytes again. Therefore, the next result of
    this function starts with the bytes of the previous result.
    """
    joined = bytearray()
    for part in parts:
        if not joined and len(part) >= _RECORD_BYTES:
            return part
        joined += part[: _RECORD_BYTES - len(joined)]
        if len(joined) >= _RECORD_BYTES:
            break
    return bytes(joined)


# --- settings ---


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the SSL context for a client. Raises `TlsSettingsError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # As in Java, a trusted certificate does not need the certificate of its issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = settings.verifies_certificate and settings.verifies_host_name
    if not settings.verifies_certificate:
        context.verify_mode = ssl.CERT_NONE
    _load_authorities(context, settings)
    if settings.client_certificate is not None:
        _load_certificate(context, settings.client_certificate)
    return context


def _load_authorities(context: ssl.SSLContext, settings: TlsSettings) -> None:
    try:
        if settings.ca_location is not None:
            is_directory = os.path.isdir(settings.ca_location)  # noqa: PTH112, the path is a str
            context.load_verify_locations(
                cafile=None if is_directory else settings.ca_location,
                capath=settings.ca_location if is_directory else None,
            )
        if settings.ca_pem is not None:
            # Comments can contain non-ASCII characters.
            ascii_only = _normalized(settings.ca_pem).encode("ascii", "ignore").decode()
            context.load_verify_locations(cadata=ascii_only)
        if settings.ca_location is None and settings.ca_pem is None:
            context.load_default_certs()
    except ssl.SSLError:
        reason = "no certificate in PEM format was found"
        raise TlsSettingsError("authorities", reason) from None
    except (OSError, ValueError) as error:
        where = "" if settings.ca_location is None else f"{settings.ca_location!r}: "
        raise TlsSettingsError("authorities", where + _text(error)) from None


def _normalized(pem: str) -> str:
    """Return PEM with the line breaks that OpenSSL requires.

    Kafka's `PemParser` also accepts PEM on a single line, as it appears in Java properties files.
    """
    return _PEM_BLOCK.sub(_block, pem)


def _block(match: re.Match[str]) -> str:
    lines = textwrap.wrap("".join(match["base64"].split()), 64)
    return "\n".join(("", match["begin"], *lines, match["end"], ""))


def _load_certificate(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    was_asked = False

    def passphrase() -> str:
        nonlocal was_asked
        was_asked = True
        return certificate.passphrase or ""

    chain_pem, key_pem = _normalized(certificate.chain), _normalized(certificate.key)
    if "-----BEGIN CERTIFICATE-----" not in chain_pem:
        raise TlsSettingsError("certificate", "no certificate in PEM format was found")
    if "PRIVATE KEY-----" not in key_pem:
        raise TlsSettingsError("key", "no private key in PEM format was found")
    try:
        with _file(chain_pem) as chain, _file(key_pem) as key:
            context.load_cert_chain(chain, key, password=passphrase)
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            reason = "the private key does not match the certificate"
            raise TlsSettingsError("key", reason) from None
        if was_asked:
            reason = (
                "the private key is encrypted, but no passphrase is set"
                if certificate.passphrase is None
                else "the passphrase of the private key is wrong"
            )
            raise TlsSettingsError("passphrase", reason) from None
        reason = f"OpenSSL cannot read the certificate ({_text(error)})"
        raise TlsSettingsError("certificate", reason) from None
    except (OSError, ValueError) as error:
        raise TlsSettingsError("certificate", _text(error)) from None


@contextlib.contextmanager
def _file(pem: str) -> Iterator[str]:
    """Yield the path of a file with this content. Python loads certificates only from files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate")
        try:
            with open(descriptor, "w", closefd=False) as file:
                file.write(pem)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile("w", prefix="pyspark-kafka-") as file:  # mode 0600
            file.write(pem)
            file.flush()
            yield file.name


def _text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return reason_of(error) if isinstance(error, OSError) else str(error)


# --- failures ---


def _untrusted(
    error: ssl.SSLCertVerificationError, address: Address, names: str | None
) -> TransportError:
    if error.verify_code in _HOST_MISMATCH:
        found = "not valid" if names is None else f"valid for {names}, but not"
        return TransportError(
            f"the broker's certificate is {found} for {address.host!r}",
            advice="In 'kafka.bootstrap.servers' and in the brokers' 'advertised.listeners', use a "
            "name that the certificate contains. To accept any name, set "
            "'kafka.ssl.endpoint.identification.algorithm' to an empty string.",
            option="kafka.ssl.endpoint.identification.algorithm",
            is_rejection=True,
        )
    reason = f"the broker's certificate is not trusted: {error.verify_message}"
    if error.verify_code in _NOT_VALID_NOW:
        return TransportError(
            reason,
            advice="Renew the broker's certificate, or correct the clock of this machine.",
            option=_TRUST,
            is_rejection=True,
        )
    return TransportError(
        reason,
        advice="Set 'kafka.ssl.ca.location' to a PEM file that contains the certificate of the "
        "certificate authority (CA) that issued the broker's certificate. "
        f"Alternatively, set '{_TRUST}' to this file and '{_TRUST.replace('location', 'type')}' to "
        "'PEM'.",
        option=_TRUST,
        is_rejection=True,
    )


def _failed_handshake(error: OSError, timeout_s: float, *, has_certificate: bool) -> TransportError:
    if isinstance(error, TimeoutError):
        return _unfinished(f"the TLS handshake did not complete within {timeout_s:.3g} s")
    if isinstance(error, ssl.SSLEOFError):
        return _unfinished("the broker closed the connection during the TLS handshake")
    if isinstance(error, ssl.SSLError):
        return _alert(error, has_certificate=has_certificate)
    return _unfinished(f"the TLS handshake failed: {reason_of(error)}")


def _unfinished(reason: str) -> TransportError:
    """Return the error for a peer that may be a listener without TLS, or a failing broker."""
    return TransportError(
        reason,
        advice=f"Check that the listener uses TLS. If it does not, set '{_PROTOCOL}' to "
        "'PLAINTEXT' or 'SASL_PLAINTEXT'.",
        option=_PROTOCOL,
    )


def _alert(error: ssl.SSLError, *, has_certificate: bool) -> TransportError:
    """Return the error for a TLS alert from the broker, or for bytes that violate the protocol."""
    code = error.reason or ""
    if code in _NOT_TLS:
        return TransportError(
            f"the broker does not speak TLS ({_text(error)})",
            advice=f"Set '{_PROTOCOL}' to 'PLAINTEXT' or 'SASL_PLAINTEXT', or use a listener with "
            "TLS.",
            option=_PROTOCOL,
            is_rejection=True,
        )
    if code in _NO_COMMON_PARAMETERS:
        return TransportError(
            f"the broker and this client have no TLS version or cipher suite in common "
            f"({_text(error)})",
            advice="Enable TLS 1.2 or 1.3 on the broker ('ssl.enabled.protocols').",
            option=_PROTOCOL,
            is_rejection=True,
        )
    if code in _NO_CERTIFICATE and not has_certificate:
        return TransportError(
            f"the broker requires a client certificate ({_text(error)})",
            advice=f"Set '{_IDENTITY}' to a file with the client's certificate and private key.",
            option=_IDENTITY,
            is_rejection=True,
        )
    if code in _CERTIFICATE_REJECTED | _NO_CERTIFICATE:
        return TransportError(
            f"the broker rejected this client's certificate ({_text(error)})",
            advice=f"Check that the certificate in '{_IDENTITY}' is valid and that the CA that "
            "issued it is in the broker's trust store.",
            option=_IDENTITY,
            is_rejection=True,
        )
    return TransportError(f"the TLS connection failed ({_text(error)})")
