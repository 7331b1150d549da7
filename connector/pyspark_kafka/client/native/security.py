"""The TLS and SASL settings of the native engine.

The settings are converted from librdkafka properties. `java_names` translates the settings of the
Java client to these properties. Errors name the option that the user set. Invariant: no error and
no `repr` contains a password, a key or a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from pyspark_kafka.client.jaas import TOKEN_PROVIDER
from pyspark_kafka.client.java_names import option_of
from pyspark_kafka.client.librdkafka_names import BOOLEANS
from pyspark_kafka.client.native.oauth.cached import CachedTokens
from pyspark_kafka.client.native.oauth.oidc import OidcTokens
from pyspark_kafka.client.native.oauth.providers import request_of
from pyspark_kafka.client.native.oauth.token_file import TokenFile
from pyspark_kafka.client.native.oauth.unsecured import UnsecuredTokens
from pyspark_kafka.errors import OptionError
from pyspark_kafka.tokens import Token
from pyspark_kafka.wire.sasl import (
    SCRAM_MECHANISMS,
    OAuthBearerCredentials,
    PlainCredentials,
    SaslCredentials,
    ScramCredentials,
    check_extensions,
)
from pyspark_kafka.wire.tls import (
    ClientCertificate,
    Part,
    TlsConnect,
    TlsSettings,
    TlsSettingsError,
    tls_context,
)
from pyspark_kafka.wire.transport import Connect, Family, connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The TLS and SASL settings of connections. The `repr` contains no secret.

    `options` maps the parts of `tls` to the options that set them. Errors name these options.
    """

    tls: TlsSettings | None
    credentials: SaslCredentials | None
    options: Mapping[Part, str] = field(default_factory=dict)

    @classmethod
    def of(cls, properties: Mapping[str, str], kafka: Mapping[str, str]) -> Self:
        """Convert the properties, and read the client's certificate. Raises `OptionError`.

        `security.protocol` must not be `PLAINTEXT`. `kafka` contains the settings from which
        `properties` were translated.
        """
        protocol = properties["security.protocol"].strip().lower()
        settings = _Settings(properties, kafka)
        security = cls(
            tls=_tls(settings) if protocol.endswith("ssl") else None,
            credentials=_credentials(settings) if protocol.startswith("sasl") else None,
            options={
                "authorities": settings.option(
                    "ssl.ca.location" if "ssl.ca.location" in properties else "ssl.ca.pem"
                ),
                "certificate": settings.option_of_any(_CERTIFICATE),
                "key": settings.option_of_any(_KEY),
                "passphrase": settings.option("ssl.key.password"),
            },
        )
        security.connect("any")
        return security

    def connect(self, family: Family) -> Connect:
        """Return the function that opens connections. Raises `OptionError`."""
        if self.tls is None:
            return partial(connect, family=family)
        try:
            return TlsConnect(self.tls, family=family)
        except TlsSettingsError as error:
            raise _unusable(error, self.options[error.part]) from None


def _unusable(error: TlsSettingsError, option: str) -> OptionError:
    return OptionError(
        f"Option '{option}' cannot be used: {error}.",
        advice=_TLS_ADVICE[error.part],
        option=option,
    )


_TLS_ADVICE: Final[Mapping[Part, str]] = {
    "authorities": "Set it to CA certificates in PEM format. A path must exist on all machines.",
    "certificate": "Set it to the certificate chain of this client in PEM format.",
    "key": "Set it to the private key that belongs to the certificate, in PEM format.",
    "passphrase": "Set it to the passphrase with which the private key is encrypted.",
}


@dataclass(frozen=True, slots=True, repr=False)
class _Settings:
    """librdkafka properties, and the settings from which they were translated."""

    properties: Mapping[str, str]
    kafka: Mapping[str, str]

    def option(self, name: str) -> str:
        """Return the option that sets this property.

        If no such option is set, return an option that can set the property.
        """
        return option_of(name, self.kafka)

    def option_of_any(self, names: tuple[str, ...]) -> str:
        return self.option(next((name for name in names if name in self.properties), names[0]))

    def get(self, name: str) -> str | None:
        return self.properties.get(name)

    def required(self, name: str, purpose: str) -> str:
        value = self.properties.get(name)
        if not value:
            option = self.option(name)
            problem = "is not set" if value is None else f"sets '{name}' to an empty value"
            raise OptionError(
                f"Option '{option}' {problem}, but {purpose} requires it.",
                advice=f"Set '{option}'." if value is None else f"Correct '{option}'.",
                option=option,
            )
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        return BOOLEANS.get(self.properties.get(name, "").strip().lower(), default)

    def read(self, name: str) -> str:
        """Return the content of the file that this property names."""
        return self.read_bytes(name).decode(errors="replace")

    def read_bytes(self, name: str) -> bytes:
        return self.read_file(self.properties[name], name)

    def read_file(self, path: str, name: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except (OSError, ValueError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            option = self.option(name)
            raise OptionError(
                f"The file {path!r} in option '{option}' cannot be read ({reason}).",
                advice="Correct the path. The file must exist on the driver and on all executors.",
                option=option,
            ) from None


# --- TLS ---

_CERTIFICATE: Final = ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location")
_KEY: Final = ("ssl.key.location", "ssl.key.pem", "ssl.keystore.location")


def _tls(settings: _Settings) -> TlsSettings:
    location = settings.get("ssl.ca.location")
    algorithm = settings.get("ssl.endpoint.identification.algorithm") or "https"
    return TlsSettings(
        ca_location=None if location == "probe" else location,
        ca_pem=settings.get("ssl.ca.pem"),
        verifies_certificate=settings.boolean("enable.ssl.certificate.verification", default=True),
        verifies_host_name=algorithm.strip().lower() != "none",
        client_certificate=_client_certificate(settings),
    )


def _client_certificate(settings: _Settings) -> ClientCertificate | None:
    if settings.get("ssl.keystore.location") is not None:
        return _from_pkcs12(settings)
    chain, key = (
        settings.read(location) if settings.get(location) else settings.get(pem)
        for location, pem in (_CERTIFICATE[:2], _KEY[:2])
    )
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        given, missing = (_KEY, _CERTIFICATE) if chain is None else (_CERTIFICATE, _KEY)
        option = settings.option_of_any(given)
        raise OptionError(
            f"Option '{option}' is set, but no {'certificate' if chain is None else 'private key'} "
            "is set.",
            advice=f"Set '{settings.option(missing[0])}' or 'kafka.{missing[1]}'.",
            option=option,
        )
    return ClientCertificate(chain=chain, key=key, passphrase=settings.get("ssl.key.password"))


def _from_pkcs12(settings: _Settings) -> ClientCertificate:
    # The package is optional. `supported_properties` checks that it is installed.
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415

    option = settings.option("ssl.keystore.location")
    data = settings.read_bytes("ssl.keystore.location")
    password = settings.get("ssl.keystore.password")
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        wrong = settings.option("ssl.keystore.password")
        raise OptionError(
            f"Option '{option}' refers to a store that cannot be read. Either the password in "
            f"'{wrong}' is wrong, or the file is not a PKCS#12 store.",
            advice=f"Correct '{wrong}', or convert the store to PKCS#12 with keytool.",
            option=wrong,
        ) from None
    if store.key is None or store.cert is None:
        raise OptionError(
            f"Option '{option}' refers to a store without a private key and its certificate.",
            advice="Use a key store. A trust store contains only certificates.",
            option=option,
        )
    pem = serialization.Encoding.PEM
    certificates = [store.cert, *store.additional_certs]
    return ClientCertificate(
        chain="".join(c.certificate.public_bytes(pem).decode() for c in certificates),
        key=store.key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )


# --- SASL ---


def _credentials(settings: _Settings) -> SaslCredentials:
    mechanism = settings.required("sasl.mechanism", "SASL").strip().upper()
    _check_provider(settings, mechanism)
    if mechanism == "OAUTHBEARER":
        return _oauthbearer(settings)
    if mechanism != "PLAIN" and mechanism not in SCRAM_MECHANISMS:
        option = settings.option("sasl.mechanism")
        raise OptionError(
            f"Option '{option}' has the unknown value {mechanism!r}.",
            advice=f"Set it to PLAIN, {', '.join(SCRAM_MECHANISMS)} or OAUTHBEARER.",
            option=option,
        )
    username = settings.required("sasl.username", mechanism)
    password = settings.required("sasl.password", mechanism)
    for name, text in (("sasl.username", username), ("sasl.password", password)):
        if "\0" in text:
            what = "user name" if name == "sasl.username" else "password"
            raise OptionError(
                f"The {what} in option '{settings.option(name)}' contains a NUL character.",
                advice=f"Correct the {what}.",
                option=settings.option(name),
            )
    if mechanism == "PLAIN":
        return PlainCredentials(username=username, password=password)
    return ScramCredentials(mechanism=mechanism, username=username, password=password)


def _oauthbearer(settings: _Settings) -> SaslCredentials:
    url_name = "sasl.oauthbearer.token.endpoint.url"
    request: Callable[[], Token]
    if settings.get(TOKEN_PROVIDER) is not None:
        name, option = settings.properties[TOKEN_PROVIDER].strip(), settings.option(TOKEN_PROVIDER)
        request = request_of(name, _provider_settings(settings), option, _extensions(settings))
    elif settings.boolean("enable.sasl.oauthbearer.unsecure.jwt", default=False):
        option = settings.option("sasl.oauthbearer.config")
        config = settings.required("sasl.oauthbearer.config", "an unsecured token")
        request = UnsecuredTokens.parse(config, option)
        name = request.principal
        _check_extensions(request.extensions, option)
    elif settings.required(url_name, "OAUTHBEARER").lower().startswith("file:"):
        option = settings.option(url_name)
        name = "token file"
        url = settings.properties[url_name]
        request = TokenFile(url=url, option=option, extensions=_extensions(settings))
        settings.read_file(request.path, url_name)
    else:
        option = settings.option(url_name)
        request = _oidc(settings, settings.properties[url_name], option)
        name = request.client_id
    return OAuthBearerCredentials(source=CachedTokens(request=request, option=option, name=name))


_WITHOUT_PROVIDER: Final = (
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.scope",
)
"""Properties of token sources other than token providers."""


def _check_provider(settings: _Settings, mechanism: str) -> None:
    """Raise `OptionError` for settings that conflict with a token provider."""
    if settings.get(TOKEN_PROVIDER) is None:
        return
    provider = settings.option(TOKEN_PROVIDER)
    if mechanism != "OAUTHBEARER":
        option = settings.option("sasl.mechanism")
        raise OptionError(
            f"Option '{provider}' requires the mechanism OAUTHBEARER, but '{option}' is "
            f"{mechanism!r}.",
            advice=f"Set '{option}' to OAUTHBEARER, or remove '{provider}'.",
            option=provider,
        )
    other = next((name for name in _WITHOUT_PROVIDER if settings.get(name) is not None), None)
    if other is not None:
        option = settings.option(other)
        raise OptionError(
            f"Option '{option}' has no effect, because '{provider}' sets a token provider.",
            advice="Remove one of the two options. The options of the token provider begin with "
            f"'kafka.{TOKEN_PROVIDER}.'.",
            option=option,
        )


def _provider_settings(settings: _Settings) -> Mapping[str, str]:
    prefix = f"{TOKEN_PROVIDER}."
    given = {
        name.removeprefix(prefix): value
        for name, value in settings.properties.items()
        if name.startswith(prefix)
    }
    return {**given, "bootstrap.servers": settings.kafka.get("bootstrap.servers", "")}


def _oidc(settings: _Settings, url: str, option: str) -> OidcTokens:
    if not url.lower().startswith("https://") and not _is_local(url):
        raise OptionError(
            f"Option '{option}' must be an https:// or file:/// URL.",
            advice="Set it to the token endpoint of the identity provider, or to file:///PATH. "
            "With http://, the client secret would not be encrypted, so http:// is supported only "
            "for localhost.",
            option=option,
        )
    client_id, secret = (
        settings.required(
            new if (new := f"sasl.oauthbearer.client.credentials.{end}") in settings.properties
            else f"sasl.oauthbearer.{end}",
            "OAUTHBEARER",
        )
        for end in ("client.id", "client.secret")
    )  # fmt: skip
    tls = _tls(replace(settings, properties=_https(settings.properties)))
    try:
        tls_context(tls)
    except TlsSettingsError as error:
        names = ("https.ca.location", "https.ca.pem")
        raise _unusable(error, settings.option_of_any(names)) from None
    return OidcTokens(
        url=url,
        client_id=client_id,
        secret=secret,
        scope=settings.get("sasl.oauthbearer.scope"),
        tls=tls,
        extensions=_extensions(settings),
        option=option,
    )


def _is_local(url: str) -> bool:
    """Return whether `url` is an `http:` URL that refers to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
    return parts.scheme == "http" and is_local


def _extensions(settings: _Settings) -> tuple[tuple[str, str], ...]:
    name = "sasl.oauthbearer.extensions"
    pairs = [pair.partition("=") for pair in (settings.get(name) or "").split(",") if pair.strip()]
    extensions = tuple((key.strip(), value) for key, _, value in pairs)
    _check_extensions(extensions, settings.option(name))
    return extensions


def _check_extensions(extensions: tuple[tuple[str, str], ...], option: str) -> None:
    reason = check_extensions(dict(extensions))
    if reason is not None:
        raise OptionError(
            f"Option '{option}' is invalid: {reason}.",
            advice="Use only letters in extension names.",
            option=option,
        )


def _https(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the TLS properties for the token endpoint.

    As in Kafka and in librdkafka, `ssl.ca.*` applies only to the brokers.
    """
    names = ("ca.location", "ca.pem")
    return {
        f"ssl.{name}": properties[f"https.{name}"]
        for name in names
        if f"https.{name}" in properties
    }
