"""Which settings the native engine supports: one table of properties, and the check against it.

Purpose: `unsupported_setting`. Invariant: a property that is not in the table is unsupported, and no
value that may be secret is in a message. What it must not know: connections; whether a value is
valid, which librdkafka has checked on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark_kafka.client.java_names import librdkafka_properties, setting_of
from pyspark_kafka.options.values import ClientOptions, Role

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


def unsupported_setting(options: ClientOptions, role: Role) -> str | None:
    """Return why this engine cannot serve the options, or None; raises what `java_names` raises."""
    return next(_unsupported_settings(options.kafka, role), None)


def _unsupported_settings(kafka: Mapping[str, str], role: Role) -> Iterator[str]:
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
