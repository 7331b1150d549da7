"""Which settings the native engine supports: one table of properties, and the check against it.

Purpose: `unsupported_setting`. Invariant: a property that is not in the table is unsupported, and
no value that may be secret is in a message. What it must not know: connections; whether a value is
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
    """Known for these roles, with the values that `accepts` accepts."""

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
    "receive.message.max.bytes": _Property(),
    "reconnect.backoff.max.ms": _Property(),
    "reconnect.backoff.ms": _Property(),
    "retry.backoff.max.ms": _Property(),
    "retry.backoff.ms": _Property(),
    "socket.connection.setup.timeout.ms": _Property(),
    "socket.timeout.ms": _Property(),
}

_WITHOUT_EFFECT: Final[Mapping[str, _Property]] = {
    "api.version.request": _Property(accepts=_one_of("true", "t", "1")),  # always true
    "client.dns.lookup": _Property(accepts=_one_of("use_all_dns_ips")),  # always all addresses
    "security.protocol": _Property(accepts=_one_of("plaintext")),
    **dict.fromkeys(  # internals and logs of librdkafka
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
            "metadata.recovery.strategy",  # bootstrap servers are always tried
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
            "fetch.min.bytes",  # records up to the end of the range exist already
            "fetch.queue.backoff.ms",
            "group.instance.id",  # consumers join no group
            "group.protocol",
            "group.protocol.type",
            "heartbeat.interval.ms",
            "max.poll.interval.ms",
            "message.max.bytes",  # of producers; `receive.message.max.bytes` limits fetches
            "queued.max.messages.kbytes",  # at most two responses are in memory
            "queued.min.messages",
            "session.timeout.ms",
        ),
        _Property(CONSUMER),
    ),
    **dict.fromkeys(
        (
            "batch.num.messages",  # `batch.size` limits batches
            "queue.buffering.backpressure.threshold",
            "queue.buffering.max.messages",  # `queue.buffering.max.kbytes` limits the buffer
            "sticky.partitioning.linger.ms",  # partitions take turns by batch
        ),
        _Property(PRODUCER),
    ),
}

KNOWN: Final[Mapping[str, _Property]] = MappingProxyType({**_IMPLEMENTED, **_WITHOUT_EFFECT})
"""Supported librdkafka properties; `producer_settings` has those of producers."""


def unsupported_setting(options: ClientOptions, role: Role) -> str | None:
    """Return the first unsupported setting as a clause, or None; raises `OptionError`."""
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
    # First, since the other settings of a secured listener are unsupported, too.
    for name in sorted(properties, key=lambda name: (name != "security.protocol", name)):
        known = _Property() if name in producing else KNOWN.get(name)
        if known is None or role not in known.roles:
            setting = setting_of(name, kafka) or name
            yield f"the native engine does not support option 'kafka.{setting}'"
        elif not known.accepts(properties[name]):
            setting = setting_of(name, kafka) or name
            features = " (TLS and SASL)" if name == "security.protocol" else ""
            yield (
                f"the native engine does not support the value {properties[name]!r} of option "
                f"'kafka.{setting}'{features}"
            )
    if role == "producer":
        reason = unsupported_reason(properties)
        if reason is not None:
            yield reason
