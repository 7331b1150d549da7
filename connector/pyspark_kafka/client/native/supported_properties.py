"""The table of properties that the native engine supports, and the check of a client's settings.

Invariant: only the properties in the table are supported, and no message contains a value that may
be secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from pyspark_kafka.client.jaas import TOKEN_PROVIDER
from pyspark_kafka.client.java_names import librdkafka_properties, setting_of
from pyspark_kafka.client.librdkafka_names import BOOLEANS
from pyspark_kafka.options.values import ClientOptions, Role

CONSUMER: Final = frozenset[Role]({"consumer"})
PRODUCER: Final = frozenset[Role]({"producer"})
BOTH: Final = CONSUMER | PRODUCER
_KERBEROS: Final = "GSSAPI"


def _anything(_value: str) -> bool:
    return True


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value.strip().lower() in values


def _is_boolean(value: str) -> bool:
    return value.strip().lower() in BOOLEANS


def _is_no_kerberos(value: str) -> bool:
    """Return False for GSSAPI, and True for all other SASL mechanisms, including unknown ones."""
    return value.strip().upper() != _KERBEROS


@dataclass(frozen=True, slots=True)
class _Property:
    """The roles for which a property is supported, and a predicate for its supported values."""

    roles: frozenset[Role] = BOTH
    accepts: Callable[[str], bool] = _anything


_IMPLEMENTED: Final[Mapping[str, _Property]] = {
    "broker.address.family": _Property(accepts=_one_of("any", "v4", "v6")),
    "client.id": _Property(),
    "client.rack": _Property(),
    "connections.max.idle.ms": _Property(),
    "fetch.max.bytes": _Property(CONSUMER),
    "fetch.wait.max.ms": _Property(CONSUMER),
    "max.partition.fetch.bytes": _Property(CONSUMER),
    "metadata.max.age.ms": _Property(),
    "enable.sasl.oauthbearer.unsecure.jwt": _Property(accepts=_is_boolean),
    "enable.ssl.certificate.verification": _Property(accepts=_is_boolean),
    "https.ca.location": _Property(),
    "https.ca.pem": _Property(),
    "receive.message.max.bytes": _Property(),
    "reconnect.backoff.max.ms": _Property(),
    "reconnect.backoff.ms": _Property(),
    "retry.backoff.max.ms": _Property(),
    "retry.backoff.ms": _Property(),
    "sasl.mechanism": _Property(accepts=_is_no_kerberos),
    **dict.fromkeys(
        (
            "sasl.oauthbearer.client.credentials.client.id",
            "sasl.oauthbearer.client.credentials.client.secret",
            "sasl.oauthbearer.client.id",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.config",
            "sasl.oauthbearer.extensions",
            "sasl.oauthbearer.scope",
            "sasl.oauthbearer.token.endpoint.url",
            "sasl.password",
            "sasl.username",
            "ssl.ca.location",
            "ssl.ca.pem",
            "ssl.certificate.location",
            "ssl.certificate.pem",
            "ssl.key.location",
            "ssl.key.password",
            "ssl.key.pem",
            "ssl.keystore.location",
            "ssl.keystore.password",
        ),
        _Property(),
    ),
    "sasl.oauthbearer.grant.type": _Property(accepts=_one_of("client_credentials")),
    "sasl.oauthbearer.metadata.authentication.type": _Property(accepts=_one_of("none")),
    "sasl.oauthbearer.method": _Property(accepts=_one_of("default", "oidc")),
    "security.protocol": _Property(
        accepts=_one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
    ),
    "socket.connection.setup.timeout.ms": _Property(),
    "socket.timeout.ms": _Property(),
    "ssl.endpoint.identification.algorithm": _Property(accepts=_one_of("https", "none")),
}

_WITHOUT_EFFECT: Final[Mapping[str, _Property]] = {
    "api.version.request": _Property(accepts=_one_of("true", "t", "1")),  # always true
    "client.dns.lookup": _Property(accepts=_one_of("use_all_dns_ips")),  # all addresses are tried
    **dict.fromkeys(  # internal settings and log settings of librdkafka
        (
            "api.version.request.timeout.ms",
            "broker.address.ttl",  # host names are resolved for each connection
            "enable.metrics.push",
            "enable.random.seed",
            "log.connection.close",
            "log.thread.name",
            "log_level",
            "message.copy.max.bytes",
            "metadata.recovery.rebootstrap.trigger.ms",
            "metadata.recovery.strategy",  # the bootstrap servers are always tried
            "socket.keepalive.enable",
            "socket.max.fails",
            "socket.nagle.disable",  # always disabled
            "socket.receive.buffer.bytes",  # the operating system adapts the size
            "socket.send.buffer.bytes",
            "topic.metadata.propagation.max.ms",
            "topic.metadata.refresh.fast.interval.ms",
            "topic.metadata.refresh.interval.ms",
            "topic.metadata.refresh.sparse",
        ),
        _Property(),
    ),
    **dict.fromkeys(
        (
            "check.crcs",  # CRCs are always checked
            "coordinator.query.interval.ms",
            "fetch.error.backoff.ms",
            "fetch.min.bytes",  # the records of a range already exist
            "fetch.queue.backoff.ms",
            "message.max.bytes",  # for producers; `receive.message.max.bytes` limits fetches
            "queued.max.messages.kbytes",  # at most two responses are in memory
            "queued.min.messages",
        ),
        _Property(CONSUMER),
    ),
    **dict.fromkeys(
        (
            "batch.num.messages",  # `batch.size` limits a batch
            "queue.buffering.backpressure.threshold",
            "queue.buffering.max.messages",  # `queue.buffering.max.kbytes` limits the buffer
            "sticky.partitioning.linger.ms",  # each batch without keys uses the next partition
        ),
        _Property(PRODUCER),
    ),
}

KNOWN: Final[Mapping[str, _Property]] = MappingProxyType({**_IMPLEMENTED, **_WITHOUT_EFFECT})
"""Supported librdkafka properties. Producer properties are in `producer_settings`."""


def _security_reasons(properties: Mapping[str, str]) -> Iterator[str]:
    if "ssl.keystore.location" in properties and find_spec("cryptography") is None:
        yield (
            "option 'kafka.ssl.keystore.location' refers to a PKCS#12 store, which the native "
            "engine cannot read without the package 'cryptography' (pip install "
            "'pyspark-kafka[pkcs12]')"
        )
    if not properties.get("sasl.mechanism", "").strip().upper().startswith("SCRAM-"):
        return
    for name, what in (("sasl.username", "user name"), ("sasl.password", "password")):
        text = properties.get(name, "")
        if not (text.isascii() and text.isprintable()):
            from pyspark_kafka.wire.sasl import is_kept_by_saslprep  # noqa: PLC0415

            if not is_kept_by_saslprep(text):
                yield (
                    f"the {what} contains characters that SASLprep (RFC 4013) changes or rejects, "
                    "which the native engine does not support with SCRAM"
                )


def unsupported_setting(options: ClientOptions, role: Role) -> str | None:
    """Return a clause that names the first unsupported setting, or None. Raises `OptionError`."""
    return next(_unsupported_settings(options.kafka, role), None)


def _unsupported_settings(kafka: Mapping[str, str], role: Role) -> Iterator[str]:
    properties = librdkafka_properties(kafka, role=role)
    if not properties:
        return
    from pyspark_kafka.client.native.producer_settings import (  # noqa: PLC0415
        PRODUCER_PROPERTIES,
        unsupported_reason,
    )

    producing = PRODUCER_PROPERTIES if role == "producer" else frozenset[str]()
    protocol = properties.get("security.protocol", "").strip().lower()
    if protocol.startswith("sasl") and "sasl.mechanism" not in properties:
        yield (
            "option 'kafka.sasl.mechanism' is not set, and its default is GSSAPI (Kerberos), "
            "which the native engine does not support"
        )
    yield from _security_reasons(properties)
    for name in sorted(properties):
        is_known = name in producing or name.startswith(TOKEN_PROVIDER)
        known = _Property() if is_known else KNOWN.get(name)
        if known is None or role not in known.roles:
            setting = setting_of(name, kafka) or name
            yield f"the native engine does not support option 'kafka.{setting}'"
        elif not known.accepts(properties[name]):
            setting = setting_of(name, kafka) or name
            yield (
                f"the native engine does not support the value {properties[name]!r} of option "
                f"'kafka.{setting}'"
            )
    if role == "producer":
        reason = unsupported_reason(properties)
        if reason is not None:
            yield reason
