"""What the native engine is opened with, and which settings it can serve at all.

Purpose: the librdkafka properties that `java_names` makes of the user's settings, as plain values;
one table says of each property whether this engine follows it or may do without. Invariant: a
property that is not in the table speaks against this engine, and no value that may be secret is in
a message. What it must not know: connections; whether a value is sound, which librdkafka has
judged on the driver.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, Self

from pyspark_kafka.client.java_names import (
    api_timeout_ms,
    librdkafka_properties,
    setting_of,
)
from pyspark_kafka.options import ClientOptions
from pyspark_kafka.wire.retry import Backoff

Role = Literal["consumer", "producer"]
Family = Literal["any", "v4", "v6"]

CONSUMER: Final = frozenset[Role]({"consumer"})
PRODUCER: Final = frozenset[Role]({"producer"})
BOTH: Final = CONSUMER | PRODUCER


def _anything(_value: str) -> bool:
    return True


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value.strip().lower() in values


@dataclass(frozen=True, slots=True)
class _Property:
    """Known for these roles, with the values that `takes` accepts."""

    roles: frozenset[Role] = BOTH
    takes: Callable[[str], bool] = _anything


_FOLLOWED: Final[Mapping[str, _Property]] = {
    "broker.address.family": _Property(takes=_one_of("any", "v4", "v6")),
    "client.id": _Property(),
    "client.rack": _Property(),
    "connections.max.idle.ms": _Property(),
    "fetch.max.bytes": _Property(CONSUMER),
    "fetch.wait.max.ms": _Property(CONSUMER),
    "max.partition.fetch.bytes": _Property(CONSUMER),
    "metadata.max.age.ms": _Property(),
    "receive.message.max.bytes": _Property(),
    "reconnect.backoff.max.ms": _Property(),
    "reconnect.backoff.ms": _Property(),
    "retry.backoff.max.ms": _Property(),
    "retry.backoff.ms": _Property(),
    "socket.connection.setup.timeout.ms": _Property(),
    "socket.timeout.ms": _Property(),
}

_HARMLESS: Final[Mapping[str, _Property]] = {
    "api.version.request": _Property(takes=_one_of("true", "t", "1")),  # always asked for
    "client.dns.lookup": _Property(takes=_one_of("use_all_dns_ips")),  # always all
    "security.protocol": _Property(takes=_one_of("plaintext")),
    **dict.fromkeys(  # how librdkafka runs, or what it tells, with no counterpart here
        (
            "api.version.request.timeout.ms",
            "broker.address.ttl",  # names are resolved at each connect
            "enable.metrics.push",
            "enable.random.seed",
            "log.connection.close",
            "log.thread.name",
            "log_level",
            "message.copy.max.bytes",
            "metadata.recovery.rebootstrap.trigger.ms",
            "metadata.recovery.strategy",  # bootstrap servers are always tried, too
            "socket.keepalive.enable",
            "socket.max.fails",
            "socket.nagle.disable",  # always
            "socket.receive.buffer.bytes",  # the system's own choice adapts
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
            "check.crcs",  # always
            "coordinator.query.interval.ms",
            "fetch.error.backoff.ms",
            "fetch.min.bytes",  # what is asked for is known to be there: waiting gains nothing
            "fetch.queue.backoff.ms",
            "group.instance.id",  # no group is joined
            "group.protocol",
            "group.protocol.type",
            "heartbeat.interval.ms",
            "max.poll.interval.ms",
            "message.max.bytes",  # of what is written; `receive.message.max.bytes` bounds reading
            "queued.max.messages.kbytes",  # two responses at most are held
            "queued.min.messages",
            "session.timeout.ms",
        ),
        _Property(CONSUMER),
    ),
    **dict.fromkeys(
        (
            "batch.num.messages",  # `batch.size` bounds batches
            "queue.buffering.backpressure.threshold",
            "queue.buffering.max.messages",  # `queue.buffering.max.kbytes` bounds what is held
            "sticky.partitioning.linger.ms",  # rows without a key take turns by batches
        ),
        _Property(PRODUCER),
    ),
}

KNOWN: Final[Mapping[str, _Property]] = MappingProxyType({**_FOLLOWED, **_HARMLESS})
"""librdkafka's properties, by the names that `java_names` leaves; `producer_settings` has more."""

_RECEIVE_BYTES_MAX: Final = 100 * 1024 * 1024
_OVERHEAD_BYTES: Final = 512
"""Of a fetch response around its records, at least."""
_OCTAL: Final = re.compile(r"[+-]?0[0-7]+")
_UNBOUNDED: Final = 2**31 - 1
_BACKOFF_MS_MIN: Final = 10
"""Without any pause a broker that is down is asked a thousand times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSettings:
    """Times in seconds unless named otherwise; fetch bytes are upper bounds. No secrets in it.

    Defaults are those of Java's client; `rack` and `client_id` are shown to the brokers.
    """

    bootstrap_servers: str
    client_id: str
    rack: str
    address_family: Family
    poll_timeout_ms: int
    api_timeout_s: float
    retries: int
    retry_interval_s: float
    request_timeout_s: float
    connect_timeout_s: float
    idle_s_max: float
    metadata_age_s_max: float
    response_bytes_max: int
    retrying: Backoff
    reconnecting: Backoff
    fetch_wait_ms_max: int
    fetch_bytes_max: int

    @classmethod
    def of(cls, options: ClientOptions, role: Role = "consumer") -> Self:
        """From settings that `objection` has nothing against; raises `OptionError`."""
        given = librdkafka_properties(options.kafka, role=role)

        def number(name: str, default: int) -> int:
            return number_of(given[name]) if name in given else default

        response_bytes_max = number("receive.message.max.bytes", _RECEIVE_BYTES_MAX)
        idle_ms_max = number("connections.max.idle.ms", 540_000)
        family = given.get("broker.address.family", "any").strip().lower()
        return cls(
            bootstrap_servers=options.bootstrap_servers,
            client_id=given.get("client.id", "pyspark-kafka"),
            rack=given.get("client.rack", ""),
            address_family="v4" if family == "v4" else "v6" if family == "v6" else "any",
            poll_timeout_ms=options.poll_timeout_ms,
            api_timeout_s=api_timeout_ms(options.kafka) / 1000,
            retries=options.fetch_offset_num_retries,
            retry_interval_s=options.fetch_offset_retry_interval_ms / 1000,
            request_timeout_s=number("socket.timeout.ms", 30_000) / 1000,
            connect_timeout_s=number("socket.connection.setup.timeout.ms", 10_000) / 1000,
            idle_s_max=idle_ms_max / 1000 if idle_ms_max else math.inf,
            metadata_age_s_max=number("metadata.max.age.ms", 300_000) / 1000,
            response_bytes_max=response_bytes_max,
            retrying=_backoff(
                number("retry.backoff.ms", 100), number("retry.backoff.max.ms", 1_000)
            ),
            reconnecting=_backoff(
                number("reconnect.backoff.ms", 50), number("reconnect.backoff.max.ms", 1_000)
            ),
            fetch_wait_ms_max=number("fetch.wait.max.ms", 500),
            fetch_bytes_max=min(
                number("fetch.max.bytes", _UNBOUNDED),
                number("max.partition.fetch.bytes", _UNBOUNDED),
                max(response_bytes_max - _OVERHEAD_BYTES, 1),
            ),
        )


def objection(options: ClientOptions, role: Role) -> str | None:
    """What speaks against this engine, or None; raises `OptionError` as `java_names` does."""
    return next(_objections(options.kafka, role), None)


def _objections(kafka: Mapping[str, str], role: Role) -> Iterator[str]:
    properties = librdkafka_properties(kafka, role=role)
    if not properties:
        return
    from pyspark_kafka.client.native.producer_settings import (  # noqa: PLC0415
        PRODUCER_PROPERTIES,
        why_not_native,
    )

    producing = PRODUCER_PROPERTIES if role == "producer" else frozenset[str]()
    # First, since all the settings of a secured listener are unknown here.
    for name in sorted(properties, key=lambda name: (name != "security.protocol", name)):
        known = _Property() if name in producing else KNOWN.get(name)
        if known is None or role not in known.roles:
            setting = setting_of(name, kafka) or name
            yield f"the native engine does not know option 'kafka.{setting}'"
        elif not known.takes(properties[name]):
            setting = setting_of(name, kafka) or name
            lacking = ", having no TLS and no SASL yet" if name == "security.protocol" else ""
            yield (
                f"the native engine does not know the value {properties[name]!r} of option "
                f"'kafka.{setting}'{lacking}"
            )
    if role == "producer":
        reason = why_not_native(properties)
        if reason is not None:
            yield reason


def number_of(text: str) -> int:
    """As C's `strtol` reads it, by which librdkafka has judged it: octal after a 0, hexadecimal."""
    stripped = text.strip()
    return int(stripped, 8) if _OCTAL.fullmatch(stripped) else int(stripped, 0)


def _backoff(first_ms: int, longest_ms: int) -> Backoff:
    longest_s = max(longest_ms, _BACKOFF_MS_MIN) / 1000
    return Backoff(
        first_s=min(max(first_ms, _BACKOFF_MS_MIN) / 1000, longest_s), longest_s=longest_s
    )
