"""Translates `kafka.*` settings of the Java client and of librdkafka to librdkafka properties.

The tables contain all settings of the Java client. A setting is passed on unchanged, renamed,
rejected with advice, or ignored with a warning because librdkafka does not need it. Invariants: the
error for an unknown name suggests the most similar known names. If two settings map to the same
property, their values must be equal. No error contains a value that may be secret. This module does
not import librdkafka. When a client is opened, librdkafka checks the values.

Sources: ConsumerConfig, ProducerConfig, CommonClientConfigs, SslConfigs and SaslConfigs of Apache
Kafka 4, and CONFIGURATION.md of librdkafka 2.16.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from pyspark_kafka.client.jaas import AWS_MSK_IAM, TOKEN_PROVIDER, sasl_properties
from pyspark_kafka.client.librdkafka_names import BOOLEANS, BOTH, CONSUMER, INTEGERS, PRODUCER
from pyspark_kafka.client.tls import TLS_NAMES, tls_properties
from pyspark_kafka.errors import OptionError, sentence
from pyspark_kafka.options.table import REJECTED_KAFKA

log = logging.getLogger(__name__)

Role = Literal["consumer", "producer", "admin"]

_READ_BY_OTHER_MODULES: Final = frozenset(
    {"bootstrap.servers", "default.api.timeout.ms", "group.id", "isolation.level"}
)
"""Settings that other modules read."""


def _same(value: str) -> str:
    return value


def _kibibytes(value: str) -> str:
    return str(max(1, -(-int(value) // 1024))) if value.isdecimal() else value


def _minus_one_is_zero(value: str) -> str:
    """Convert Java's -1 (the system default, or no limit) to librdkafka's 0."""
    return "0" if value == "-1" else value


def _identification(value: str) -> str:
    return value.lower() if value.strip() else "none"


def _mechanism(value: str) -> str:
    """Convert AWS_MSK_IAM to OAUTHBEARER, which Amazon MSK accepts on the same port."""
    return "OAUTHBEARER" if value.strip().upper() == AWS_MSK_IAM else value


@dataclass(frozen=True, slots=True)
class _LibrdkafkaProperties:
    """The librdkafka properties to which a Java setting is translated, and the value conversion."""

    properties: tuple[str, ...]
    value: Callable[[str], str] = _same


_LIBRDKAFKA_PROPERTIES: Final[Mapping[str, _LibrdkafkaProperties]] = MappingProxyType(
    {
        "acks": _LibrdkafkaProperties(("acks",), lambda value: "all" if value == "-1" else value),
        "buffer.memory": _LibrdkafkaProperties(("queue.buffering.max.kbytes",), _kibibytes),
        "compression.gzip.level": _LibrdkafkaProperties(("compression.level",)),
        "compression.lz4.level": _LibrdkafkaProperties(("compression.level",)),
        "compression.zstd.level": _LibrdkafkaProperties(("compression.level",)),
        "connections.max.idle.ms": _LibrdkafkaProperties(
            ("connections.max.idle.ms",), _minus_one_is_zero
        ),
        "fetch.max.wait.ms": _LibrdkafkaProperties(("fetch.wait.max.ms",)),
        "max.block.ms": _LibrdkafkaProperties(("topic.metadata.propagation.max.ms",)),
        "max.request.size": _LibrdkafkaProperties(("message.max.bytes",)),
        "receive.buffer.bytes": _LibrdkafkaProperties(
            ("socket.receive.buffer.bytes",), _minus_one_is_zero
        ),
        "request.timeout.ms": _LibrdkafkaProperties(("socket.timeout.ms",)),
        "send.buffer.bytes": _LibrdkafkaProperties(
            ("socket.send.buffer.bytes",), _minus_one_is_zero
        ),
        "ssl.endpoint.identification.algorithm": _LibrdkafkaProperties(
            ("ssl.endpoint.identification.algorithm",), _identification
        ),
        # librdkafka's aliases. Each property has one name here, so `put` can detect contradictions.
        "compression.codec": _LibrdkafkaProperties(("compression.type",)),
        "fetch.message.max.bytes": _LibrdkafkaProperties(("max.partition.fetch.bytes",)),
        "max.in.flight": _LibrdkafkaProperties(("max.in.flight.requests.per.connection",)),
        "message.send.max.retries": _LibrdkafkaProperties(("retries",)),
        "message.timeout.ms": _LibrdkafkaProperties(("delivery.timeout.ms",)),
        "queue.buffering.max.ms": _LibrdkafkaProperties(("linger.ms",)),
        "request.required.acks": _LibrdkafkaProperties(
            ("acks",), lambda v: "all" if v == "-1" else v
        ),
        "sasl.mechanism": _LibrdkafkaProperties(("sasl.mechanism",), _mechanism),
        "sasl.mechanisms": _LibrdkafkaProperties(("sasl.mechanism",), _mechanism),
    }
)

_RANGES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "batch.size": (1, 2**31 - 1),
        "connections.max.idle.ms": (0, 2**31 - 1),
        "metadata.max.age.ms": (1, 86_400_000),
        "reconnect.backoff.max.ms": (0, 3_600_000),
        "reconnect.backoff.ms": (0, 3_600_000),
        "retry.backoff.max.ms": (1, 300_000),
        "retry.backoff.ms": (1, 300_000),
        "socket.timeout.ms": (10, 300_000),
        "topic.metadata.propagation.max.ms": (0, 3_600_000),
    }
)
"""Ranges that are narrower in librdkafka than in the Java client.

A value outside a range is replaced with the nearest value in the range. For other properties,
librdkafka itself rejects values outside its ranges, but it truncates numbers to 32 bits.
"""

_JAVA_CLASS_ADVICE: Final = "remove the option, because the connector cannot load Java classes"
_CONFIG_PROVIDERS_ADVICE: Final = (
    "remove the option: ${env:NAME}, ${file:PATH:KEY} and ${dir:PATH:FILE} work without it"
)
_KERBEROS_ADVICE = (
    "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, because the confluent-kafka wheels do "
    "not support Kerberos (GSSAPI). To use Kerberos, build confluent-kafka from source with "
    "libsasl2 and set librdkafka's 'kafka.sasl.kerberos.*' properties"
)
_SET_BY_CONNECTOR_ADVICE = "remove the option, because the connector sets this property"

_REJECTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **REJECTED_KAFKA,
        "auto.commit.interval.ms": "remove the option: Spark stores the offsets of a query in its "
        "checkpoint",
        "config.providers": _CONFIG_PROVIDERS_ADVICE,
        "delivery.report.only.error": _SET_BY_CONNECTOR_ADVICE,
        "enable.auto.offset.store": "remove the option: Spark stores the offsets of a query in its "
        "checkpoint",
        "enable.partition.eof": _SET_BY_CONNECTOR_ADVICE,
        "log.queue": _SET_BY_CONNECTOR_ADVICE,
        "metadata.broker.list": "use 'kafka.bootstrap.servers'",
        "partitioner.class": "remove the option: keys are hashed with murmur2, as in Java's "
        "default partitioner. To choose partitions yourself, compute the 'partition' column",
        "partitioner.ignore.keys": "write null keys, or compute the 'partition' column",
        "sasl.kerberos.ticket.renew.jitter": _KERBEROS_ADVICE,
        "sasl.kerberos.ticket.renew.window.factor": _KERBEROS_ADVICE,
        "sasl.login.class": _JAVA_CLASS_ADVICE,
        "sasl.oauthbearer.jwks.endpoint.url": "remove the option: it is a broker setting",
        "security.providers": _JAVA_CLASS_ADVICE,
        "ssl.engine.factory.class": _JAVA_CLASS_ADVICE,
        "ssl.provider": "remove the option, because OpenSSL implements TLS. To set OpenSSL's "
        "providers, use librdkafka's 'kafka.ssl.providers'",
    }
)

_WITHOUT_EFFECT: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("auto.include.jmx.reporter", "metric.reporters", "metrics.num.samples"),
            "the connector does not support JMX",
        ),
        **dict.fromkeys(
            ("metrics.recording.level", "metrics.sample.window.ms"),
            "the connector does not support JMX",
        ),
        **dict.fromkeys(
            (
                "group.instance.id",
                "group.protocol",
                "group.protocol.type",
                "group.remote.assignor",
                "heartbeat.interval.ms",
                "internal.leave.group.on.close",
                "max.poll.interval.ms",
                "partition.assignment.strategy",
                "rebalance.timeout.ms",
                "session.timeout.ms",
            ),
            "the connector's consumers do not join a group, and Spark assigns the partitions",
        ),
        "sasl.oauthbearer.header.urlencode": "the client id and secret are never URL-encoded",
        "exclude.internal.topics": "a pattern never matches internal topics",
        "max.poll.records": "records are read in Arrow batches",
        "metadata.max.idle.ms": "librdkafka removes the metadata of unused topics on its own",
        "partitioner.adaptive.partitioning.enable": "librdkafka's sticky partitioner is not "
        "adaptive",
        "partitioner.availability.timeout.ms": "librdkafka's sticky partitioner is not adaptive",
        "socket.connection.setup.timeout.max.ms": "librdkafka does not increase "
        "'socket.connection.setup.timeout.ms'",
        "statistics.interval.ms": "the connector sets its own interval",
        "ssl.enabled.protocols": "OpenSSL uses the newest protocol that both sides support",
        "ssl.keymanager.algorithm": "OpenSSL implements TLS",
        "ssl.protocol": "OpenSSL uses the newest protocol that both sides support",
        "ssl.secure.random.implementation": "OpenSSL implements TLS",
        "ssl.trustmanager.algorithm": "OpenSSL implements TLS",
        **dict.fromkeys(
            (
                "sasl.login.connect.timeout.ms",
                "sasl.login.read.timeout.ms",
                "sasl.login.refresh.buffer.seconds",
                "sasl.login.refresh.min.period.seconds",
                "sasl.login.refresh.window.factor",
                "sasl.login.refresh.window.jitter",
                "sasl.login.retry.backoff.max.ms",
                "sasl.login.retry.backoff.ms",
                "sasl.oauthbearer.scope.claim.name",
            ),
            "librdkafka refreshes tokens on its own schedule",
        ),
    }
)

_SASL_NAMES: Final = frozenset(
    {
        "sasl.client.callback.handler.class",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
    }
)
_KNOWN: Final = (
    BOTH
    | CONSUMER
    | PRODUCER
    | _READ_BY_OTHER_MODULES
    | _SASL_NAMES
    | TLS_NAMES
    | {TOKEN_PROVIDER}
    | _LIBRDKAFKA_PROPERTIES.keys()
    | _REJECTED.keys()
    | _WITHOUT_EFFECT.keys()
)
_SECRET: Final = re.compile(
    r"password|passphrase|secret|jaas|token|sasl\.oauthbearer\.config|(^|\.)key($|\.pem)|key_pem"
)
_INTEGER: Final = re.compile(
    r"[+-]?(0[xX][0-9a-fA-F]{1,16}|(?P<octal>0[0-7]{0,20})|[1-9][0-9]{0,20})"
)
_LEVEL: Final = re.compile(r"compression\.(gzip|lz4|zstd)\.level")
_FIXED: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "acks": ("all", "a row counts as written when all in-sync replicas have it"),
        "enable.idempotence": ("true", "otherwise a retry could write a row twice"),
        "sasl.oauthbearer.header.urlencode": (
            "false",
            "the client id and secret are never URL-encoded",
        ),
        "allow.auto.create.topics": ("false", "a read never creates a topic"),
    }
)
"""Settings with only one supported value."""

_API_TIMEOUT_MS: Final = 60_000
_RECEIVE_BYTES_DEFAULT: Final = 100_000_000
_FETCH_OVERHEAD_BYTES: Final = 512


def is_secret(name: str) -> bool:
    """Return whether the value of this setting is sensitive."""
    return _SECRET.search(name.lower()) is not None


def librdkafka_properties(kafka: Mapping[str, str], *, role: Role) -> dict[str, str]:
    """Translate settings whose `kafka.` prefix has been removed. Raises `OptionError`.

    Integers are converted to decimal, because librdkafka ignores the unit in a value such as `60s`.
    The result does not contain settings that are fields of `ClientOptions`, such as the bootstrap
    servers and the group id. For `admin`, it contains only connection properties.
    """
    settings = {name.lower(): value for name, value in kafka.items()}
    for name in settings:
        _check_name(name)
    properties: dict[str, str] = {}
    origin: dict[str, str] = {}

    def put(name: str, source: str, value: str) -> None:
        if properties.setdefault(name, value) != value:
            raise OptionError(
                f"Options 'kafka.{origin[name]}' and 'kafka.{source}' set the same client property "
                f"'{name}' to different values.",
                advice="Remove one of the two options.",
                option=f"kafka.{source}",
            )
        origin.setdefault(name, source)

    for name, value in settings.items():
        if name in _READ_BY_OTHER_MODULES or name in _SASL_NAMES or name in TLS_NAMES:
            continue
        reason = _no_effect(name, settings)
        if reason is not None:
            log.warning("Option 'kafka.%s' has no effect: %s.", name, reason)
            continue
        renamed = _LIBRDKAFKA_PROPERTIES.get(name, _LibrdkafkaProperties((name,)))
        for property_name in renamed.properties:
            given = renamed.value(_decimal(name, value) if property_name in INTEGERS else value)
            nearest = _in_range(property_name, given)
            if nearest != given and role != "admin":
                log.warning(
                    "The value of option 'kafka.%s' is out of range. Using %s, the nearest allowed "
                    "value.",
                    name,
                    nearest,
                )
            put(property_name, name, nearest)
    for source, translated in (
        ("sasl.jaas.config", sasl_properties(settings)),
        ("ssl.keystore.location", tls_properties(settings)),
    ):
        for name, value in translated.items():
            put(name, _java_setting_of(name, settings) or source, value)
    _check_fixed({**settings, **properties}, origin, role)
    _check_protocol(settings)
    _check_token_source(properties)
    return _for_role(properties, role)


def native_token_source(properties: Mapping[str, str]) -> str | None:
    """Return the property for a token source that only the native engine supports, or None."""
    url = "sasl.oauthbearer.token.endpoint.url"
    if TOKEN_PROVIDER in properties:
        return TOKEN_PROVIDER
    return url if properties.get(url, "").lower().startswith("file:") else None


def api_timeout_ms(kafka: Mapping[str, str]) -> int:
    """Return `default.api.timeout.ms`, which is not a librdkafka property. Raises `OptionError`."""
    name = "default.api.timeout.ms"
    return positive_milliseconds(name, kafka.get(name, str(_API_TIMEOUT_MS)))


def positive_milliseconds(name: str, text: str) -> int:
    """Parse a positive number of milliseconds. Raises `OptionError`."""
    number = int(_decimal(name, text))
    if number <= 0:
        raise OptionError(
            f"Option 'kafka.{name}' has the invalid value {text!r}.",
            advice="Set it to a number of milliseconds greater than 0.",
            option=f"kafka.{name}",
        )
    return number


def setting_of(property_name: str, kafka: Mapping[str, str]) -> str | None:
    """Return the setting in `kafka` that sets a librdkafka property or an alias of it, or None."""
    properties = _properties_of(property_name)
    return next((name for name in kafka if _properties_of(name.lower()) == properties), None)


_HANDLER: Final = "sasl.login.callback.handler.class"
JAVA_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "https.ca.location": ("https.ca.location", "sasl.jaas.config"),
        "sasl.password": ("sasl.jaas.config",),
        "sasl.username": ("sasl.jaas.config",),
        "ssl.ca.location": ("ssl.truststore.location",),
        "ssl.ca.pem": ("ssl.truststore.certificates",),
        "ssl.certificate.location": ("ssl.keystore.location",),
        "ssl.certificate.pem": ("ssl.keystore.certificate.chain",),
        "ssl.key.location": ("ssl.keystore.location",),
        "ssl.key.pem": ("ssl.keystore.key",),
        "sasl.oauthbearer.client.id": (
            "sasl.oauthbearer.client.credentials.client.id",
            "sasl.jaas.config",
        ),
        "sasl.oauthbearer.client.secret": (
            "sasl.oauthbearer.client.credentials.client.secret",
            "sasl.jaas.config",
        ),
        "sasl.oauthbearer.config": ("sasl.jaas.config",),
        "sasl.oauthbearer.extensions": ("sasl.oauthbearer.extensions", "sasl.jaas.config"),
        "sasl.oauthbearer.scope": ("sasl.oauthbearer.scope", "sasl.jaas.config"),
        TOKEN_PROVIDER: (TOKEN_PROVIDER, _HANDLER, "sasl.mechanism", "sasl.mechanisms"),
    }
)
"""Further Java settings for each librdkafka property, in addition to those in the tables.

If the user has set none of these settings, errors name the first setting.
"""


def option_of(property_name: str, kafka: Mapping[str, str]) -> str:
    """Return the option that sets this property.

    If no such option is set, return an option that can set the property.
    """
    java = JAVA_SETTINGS.get(property_name, ())
    found = setting_of(property_name, kafka) or next((name for name in java if name in kafka), None)
    return f"kafka.{found or next(iter(java), property_name)}"


def _java_setting_of(property_name: str, kafka: Mapping[str, str]) -> str | None:
    """Return the Java setting in `kafka` for a librdkafka property, or None."""
    java = (name for name in JAVA_SETTINGS.get(property_name, ()) if name != property_name)
    return next((name for name in java if name in kafka), None)


def _properties_of(name: str) -> tuple[str, ...]:
    return _LIBRDKAFKA_PROPERTIES[name].properties if name in _LIBRDKAFKA_PROPERTIES else (name,)


def _decimal(name: str, text: str) -> str:
    """Parse an integer as librdkafka does: octal with prefix 0, hexadecimal with prefix 0x.

    Raises `OptionError` if `text` is not an integer.
    """
    stripped = text.strip()
    match = _INTEGER.fullmatch(stripped)
    if match is None:
        raise OptionError(
            f"Option 'kafka.{name}' has the invalid value {text!r}.",
            advice="Set it to an integer without a unit.",
            option=f"kafka.{name}",
        )
    return str(int(stripped, 8 if match["octal"] else 0))


def _in_range(property_name: str, value: str) -> str:
    if property_name not in _RANGES or not value.isdecimal():
        return value
    smallest, largest = _RANGES[property_name]
    return str(min(max(int(value), smallest), largest))


def _no_effect(name: str, settings: Mapping[str, str]) -> str | None:
    """Return the reason why a known setting has no effect, or None."""
    level_of = _LEVEL.fullmatch(name)
    codec = settings.get("compression.type", settings.get("compression.codec", "none"))
    if level_of is not None and level_of[1] != codec:
        return f"'kafka.compression.type' is {codec}"
    return _WITHOUT_EFFECT.get(name)


def _check_name(name: str) -> None:
    advice = _REJECTED.get("config.providers" if name.startswith("config.providers.") else name)
    if advice is not None:
        raise OptionError(
            f"Option 'kafka.{name}' is not supported.",
            advice=f"{sentence(advice.removesuffix('.'))}.",
            option=f"kafka.{name}",
        )
    if name not in _KNOWN and not name.startswith(f"{TOKEN_PROVIDER}."):
        close = difflib.get_close_matches(name, sorted(_KNOWN), n=3, cutoff=0.6)
        advice = (
            f"Did you mean {' or '.join(repr('kafka.' + c) for c in close)}?"
            if close
            else "See the documentation of the Java client or of librdkafka for valid settings."
        )
        raise OptionError(
            f"Option 'kafka.{name}' is not a setting of a Kafka client.",
            advice=advice,
            option=f"kafka.{name}",
        )


def _check_fixed(properties: Mapping[str, str], origin: Mapping[str, str], role: Role) -> None:
    for name, (fixed, reason) in _FIXED.items():
        if name == "allow.auto.create.topics" and role != "consumer":
            continue
        if name in properties and properties[name].lower() != fixed:
            option = f"kafka.{origin.get(name, name)}"
            raise OptionError(
                f"Option '{option}' has the value {properties[name]!r}, but only {fixed!r} is "
                f"supported: {reason}.",
                advice="Remove the option.",
                option=option,
            )


_SASL_SETTINGS: Final = (
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "sasl.login.callback.handler.class",
    TOKEN_PROVIDER,
)
_TLS_SETTINGS: Final = (
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
)


def _check_protocol(settings: Mapping[str, str]) -> None:
    """Raise `OptionError` if TLS or SASL is configured, but `security.protocol` is not set.

    With Kafka's default, PLAINTEXT, the connection would silently be unprotected.
    """
    if "security.protocol" in settings:
        return
    for names, protocols in (
        (_SASL_SETTINGS, "SASL_SSL, or to SASL_PLAINTEXT for a listener without TLS"),
        (_TLS_SETTINGS, "SSL, or to SASL_SSL for a listener with SASL"),
    ):
        name = next((name for name in names if name in settings), None)
        if name is not None:
            raise OptionError(
                f"Option 'kafka.{name}' is set, but 'kafka.security.protocol' is not. Its default "
                "is PLAINTEXT, which provides neither encryption nor authentication.",
                advice=f"Set 'kafka.security.protocol' to {protocols}.",
                option="kafka.security.protocol",
            )


_TOKEN_SOURCES: Final = (
    TOKEN_PROVIDER,
    "sasl.oauthbearer.metadata.authentication.type",
    "sasl.oauthbearer.token.endpoint.url",
)


def _check_token_source(properties: Mapping[str, str]) -> None:
    """Raise `OptionError` if OAUTHBEARER is used without a token source."""
    if (
        properties.get("sasl.mechanism", "").strip().upper() != "OAUTHBEARER"
        or not properties.get("security.protocol", "").strip().lower().startswith("sasl")
        or any(properties.get(name) for name in _TOKEN_SOURCES)
        or BOOLEANS.get(
            properties.get("enable.sasl.oauthbearer.unsecure.jwt", "").strip().lower(), False
        )
    ):
        return
    raise OptionError(
        "Option 'kafka.sasl.mechanism' has the value 'OAUTHBEARER', but no option specifies a "
        "token source.",
        advice="Set 'kafka.sasl.oauthbearer.token.endpoint.url' to the token endpoint of an "
        "identity provider (with a client id and secret) or to a token file (file:///PATH). "
        f"Alternatively, set 'kafka.{TOKEN_PROVIDER}' to aws_msk_iam, azure, google or "
        "module:callable.",
        option="kafka.sasl.oauthbearer.token.endpoint.url",
    )


def _for_role(properties: dict[str, str], role: Role) -> dict[str, str]:
    unused = {"consumer": PRODUCER, "producer": CONSUMER, "admin": CONSUMER | PRODUCER}[role]
    for name in sorted(properties.keys() & unused):
        if role != "admin":
            log.warning("Option 'kafka.%s' has no effect for a %s.", name, role)
        del properties[name]
    if role != "producer":
        properties.pop("allow.auto.create.topics", None)
    fetch_bytes = properties.get("fetch.max.bytes", "0")
    if role == "consumer" and fetch_bytes.isdecimal():
        # librdkafka rejects a fetch size that exceeds its maximum response size.
        needed = int(fetch_bytes) + _FETCH_OVERHEAD_BYTES
        if needed > _RECEIVE_BYTES_DEFAULT:
            properties.setdefault("receive.message.max.bytes", str(needed))
    return properties
