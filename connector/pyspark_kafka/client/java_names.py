"""Translates `kafka.*` settings, with the Java client's names or librdkafka's, to librdkafka.

Purpose: a table of all Java settings: used as they are, renamed, rejected with advice, or ignored
with a warning because librdkafka needs no such setting. Invariant: an unknown name is rejected with
the most similar known ones, two names for one property must agree, and no error contains a value
that may be secret. What it must not know: librdkafka itself, which checks the values when a client
is opened.

Sources: Apache Kafka 4's ConsumerConfig, ProducerConfig, CommonClientConfigs, SslConfigs and
SaslConfigs; librdkafka 2.16's CONFIGURATION.md.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from pyspark_kafka.client.jaas import sasl_properties
from pyspark_kafka.client.librdkafka_names import BOTH, CONSUMER, PRODUCER
from pyspark_kafka.client.tls import TLS_NAMES, tls_properties
from pyspark_kafka.errors import OptionError, sentence
from pyspark_kafka.options.table import REFUSED_KAFKA

log = logging.getLogger(__name__)

Role = Literal["consumer", "producer", "admin"]

_READ_ELSEWHERE: Final = frozenset(
    {"bootstrap.servers", "default.api.timeout.ms", "group.id", "isolation.level"}
)
"""Settings that other modules read."""


def _same(value: str) -> str:
    return value


def _kibibytes(value: str) -> str:
    return str(max(1, int(value) // 1024)) if value.isdecimal() else value


def _minus_one_is_zero(value: str) -> str:
    """Java's -1 (the system's default, never) is 0 in librdkafka."""
    return "0" if value == "-1" else value


def _identification(value: str) -> str:
    return value.lower() if value.strip() else "none"


@dataclass(frozen=True, slots=True)
class _Renamed:
    """The librdkafka properties of a Java setting, and the conversion of its value."""

    properties: tuple[str, ...]
    value: Callable[[str], str] = _same


_RENAMED: Final[Mapping[str, _Renamed]] = MappingProxyType(
    {
        "acks": _Renamed(("acks",), lambda value: "all" if value == "-1" else value),
        "buffer.memory": _Renamed(("queue.buffering.max.kbytes",), _kibibytes),
        "compression.gzip.level": _Renamed(("compression.level",)),
        "compression.lz4.level": _Renamed(("compression.level",)),
        "compression.zstd.level": _Renamed(("compression.level",)),
        "connections.max.idle.ms": _Renamed(("connections.max.idle.ms",), _minus_one_is_zero),
        "fetch.max.wait.ms": _Renamed(("fetch.wait.max.ms",)),
        "max.block.ms": _Renamed(("topic.metadata.propagation.max.ms",)),
        "max.request.size": _Renamed(("message.max.bytes",)),
        "receive.buffer.bytes": _Renamed(("socket.receive.buffer.bytes",), _minus_one_is_zero),
        "request.timeout.ms": _Renamed(("socket.timeout.ms",)),
        "send.buffer.bytes": _Renamed(("socket.send.buffer.bytes",), _minus_one_is_zero),
        "ssl.endpoint.identification.algorithm": _Renamed(
            ("ssl.endpoint.identification.algorithm",), _identification
        ),
        # librdkafka's aliases, under one name so that contradictions are detected.
        "compression.codec": _Renamed(("compression.type",)),
        "fetch.message.max.bytes": _Renamed(("max.partition.fetch.bytes",)),
        "max.in.flight": _Renamed(("max.in.flight.requests.per.connection",)),
        "message.send.max.retries": _Renamed(("retries",)),
        "message.timeout.ms": _Renamed(("delivery.timeout.ms",)),
        "queue.buffering.max.ms": _Renamed(("linger.ms",)),
        "request.required.acks": _Renamed(("acks",), lambda v: "all" if v == "-1" else v),
        "sasl.mechanisms": _Renamed(("sasl.mechanism",)),
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
"""librdkafka's ranges that are narrower than Java's; the nearest value is used.

librdkafka rejects other values outside of its ranges, but truncates numbers to 32 bits.
"""

_NO_CLASSES: Final = "remove it, since Java classes cannot be loaded"
_NO_KERBEROS = (
    "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, since the confluent-kafka wheels do "
    "not contain Kerberos (GSSAPI), or set librdkafka's 'kafka.sasl.kerberos.*' properties with a "
    "confluent-kafka that is built from source with libsasl2"
)
_SET_BY_CONNECTOR = "remove it, since the connector sets it"

_REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **REFUSED_KAFKA,
        "auto.commit.interval.ms": "remove it: Spark's checkpoint holds the offsets of a query",
        "config.providers": _NO_CLASSES,
        "delivery.report.only.error": _SET_BY_CONNECTOR,
        "enable.auto.offset.store": "remove it: Spark's checkpoint holds the offsets of a query",
        "enable.partition.eof": _SET_BY_CONNECTOR,
        "log.queue": _SET_BY_CONNECTOR,
        "metadata.broker.list": "use 'kafka.bootstrap.servers'",
        "partitioner.class": "remove it: keys are partitioned by murmur2 like Java's default; for "
        "other partitions compute the column 'partition'",
        "partitioner.ignore.keys": "write null keys, or compute the column 'partition'",
        "sasl.client.callback.handler.class": _NO_CLASSES,
        "sasl.kerberos.ticket.renew.jitter": _NO_KERBEROS,
        "sasl.kerberos.ticket.renew.window.factor": _NO_KERBEROS,
        "sasl.login.class": _NO_CLASSES,
        "sasl.oauthbearer.jwks.endpoint.url": "remove it: it is a broker's setting",
        "security.providers": _NO_CLASSES,
        "ssl.engine.factory.class": _NO_CLASSES,
        "ssl.provider": "remove it: OpenSSL implements TLS; see librdkafka's 'ssl.providers'",
    }
)

_WITHOUT_EFFECT: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("auto.include.jmx.reporter", "metric.reporters", "metrics.num.samples"),
            "the connector has no JMX",
        ),
        **dict.fromkeys(
            ("metrics.recording.level", "metrics.sample.window.ms"), "the connector has no JMX"
        ),
        **dict.fromkeys(
            (
                "group.remote.assignor",
                "internal.leave.group.on.close",
                "partition.assignment.strategy",
                "rebalance.timeout.ms",
            ),
            "consumers join no group; Spark assigns the partitions",
        ),
        "exclude.internal.topics": "internal topics are never matched by a pattern",
        "max.poll.records": "records are read in Arrow batches",
        "metadata.max.idle.ms": "librdkafka forgets unused topics by itself",
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
                "sasl.oauthbearer.header.urlencode",
                "sasl.oauthbearer.scope.claim.name",
            ),
            "librdkafka refreshes tokens on its own schedule",
        ),
    }
)

_SASL_NAMES: Final = frozenset({"sasl.jaas.config", "sasl.login.callback.handler.class"})
_KNOWN: Final = (
    BOTH
    | CONSUMER
    | PRODUCER
    | _READ_ELSEWHERE
    | _SASL_NAMES
    | TLS_NAMES
    | _RENAMED.keys()
    | _REFUSED.keys()
    | _WITHOUT_EFFECT.keys()
)
_SECRET: Final = re.compile(
    r"password|passphrase|secret|jaas|token|sasl\.oauthbearer\.config|(^|\.)key($|\.pem)|key_pem"
)
_LEVEL: Final = re.compile(r"compression\.(gzip|lz4|zstd)\.level")
_FIXED: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "acks": ("all", "a row counts as written when all in-sync replicas have it"),
        "enable.idempotence": ("true", "a retried row would be written twice"),
        "allow.auto.create.topics": ("false", "reading never creates a topic"),
    }
)
"""Settings with only one supported value."""

_API_TIMEOUT_MS: Final = 60_000
_RECEIVE_BYTES_DEFAULT: Final = 100_000_000
_FETCH_OVERHEAD_BYTES: Final = 512


def is_secret(name: str) -> bool:
    """Return whether the value of this setting must never be shown."""
    return _SECRET.search(name.lower()) is not None


def librdkafka_properties(kafka: Mapping[str, str], *, role: Role) -> dict[str, str]:
    """Translate settings without their prefix `kafka.`; raises `OptionError`.

    The result does not contain fields of `ClientOptions` (bootstrap servers, group, isolation
    level). For `admin` it contains only the properties of connections.
    """
    settings = {name.lower(): value for name, value in kafka.items()}
    for name in settings:
        _check_name(name)
    properties: dict[str, str] = {}
    origin: dict[str, str] = {}

    def put(name: str, source: str, value: str) -> None:
        if properties.setdefault(name, value) != value:
            raise OptionError(
                f"Options 'kafka.{origin[name]}' and 'kafka.{source}' set the same property of the "
                f"client ({name}) to different values.",
                advice="Remove one of them.",
                option=f"kafka.{source}",
            )
        origin.setdefault(name, source)

    for name, value in settings.items():
        if name in _READ_ELSEWHERE or name in _SASL_NAMES or name in TLS_NAMES:
            continue
        reason = _no_effect(name, settings)
        if reason is not None:
            log.warning("Option 'kafka.%s' has no effect: %s.", name, reason)
            continue
        renamed = _RENAMED.get(name, _Renamed((name,)))
        for property_name in renamed.properties:
            nearest = _in_range(property_name, renamed.value(value))
            if nearest != renamed.value(value) and role != "admin":
                log.warning(
                    "Option 'kafka.%s' is set to %s, the nearest value in its range.", name, nearest
                )
            put(property_name, name, nearest)
    for source, translated in (
        ("sasl.jaas.config", sasl_properties(settings)),
        ("ssl.*", tls_properties(settings)),
    ):
        for name, value in translated.items():
            put(name, source, value)
    _check_fixed(properties, origin, role)
    return _for_role(properties, role)


def api_timeout_ms(kafka: Mapping[str, str]) -> int:
    """Return Java's `default.api.timeout.ms`, which librdkafka lacks; raises `OptionError`."""
    name = "default.api.timeout.ms"
    return positive_milliseconds(name, kafka.get(name, str(_API_TIMEOUT_MS)))


def positive_milliseconds(name: str, text: str) -> int:
    """Parse a positive number of milliseconds; raises `OptionError`."""
    if not text.isdecimal() or int(text) == 0:
        raise OptionError(
            f"Option 'kafka.{name}' has the value {text!r}.",
            advice="Set it to a number of milliseconds above 0.",
            option=f"kafka.{name}",
        )
    return int(text)


def setting_of(property_name: str, kafka: Mapping[str, str]) -> str | None:
    """Return the setting that sets this property of librdkafka, or an alias of it, if any."""
    properties = _properties_of(property_name)
    return next((name for name in kafka if _properties_of(name.lower()) == properties), None)


def _properties_of(name: str) -> tuple[str, ...]:
    return _RENAMED[name].properties if name in _RENAMED else (name,)


def _in_range(property_name: str, value: str) -> str:
    if property_name not in _RANGES or not value.isdecimal():
        return value
    smallest, largest = _RANGES[property_name]
    return str(min(max(int(value), smallest), largest))


def _no_effect(name: str, settings: Mapping[str, str]) -> str | None:
    """Return why a known setting has no effect, or None."""
    level_of = _LEVEL.fullmatch(name)
    codec = settings.get("compression.type", settings.get("compression.codec", "none"))
    if level_of is not None and level_of[1] != codec:
        return f"'kafka.compression.type' is {codec}"
    return _WITHOUT_EFFECT.get(name)


def _check_name(name: str) -> None:
    if name in _REFUSED:
        raise OptionError(
            f"Option 'kafka.{name}' is not supported.",
            advice=f"{sentence(_REFUSED[name].removesuffix('.'))}.",
            option=f"kafka.{name}",
        )
    if name not in _KNOWN:
        close = difflib.get_close_matches(name, sorted(_KNOWN), n=3, cutoff=0.6)
        advice = (
            f"Did you mean {' or '.join(repr('kafka.' + c) for c in close)}?"
            if close
            else "See the settings of the Java client or of librdkafka."
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
            raise OptionError(
                f"Option 'kafka.{origin[name]}' has the value {properties[name]!r}, but can only "
                f"be {fixed!r}: {reason}.",
                advice="Remove it.",
                option=f"kafka.{origin[name]}",
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
        # librdkafka rejects a fetch size above its largest response.
        needed = int(fetch_bytes) + _FETCH_OVERHEAD_BYTES
        if needed > _RECEIVE_BYTES_DEFAULT:
            properties.setdefault("receive.message.max.bytes", str(needed))
    return properties
