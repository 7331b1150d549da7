"""The connection and fetch settings of the native engine.

The settings are converted from librdkafka properties (see `java_names`), which librdkafka has
checked on the driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from pyspark_kafka.client.java_names import (
    api_timeout_ms,
    librdkafka_properties,
)
from pyspark_kafka.options.values import ClientOptions, Role
from pyspark_kafka.wire.retry import Backoff

if TYPE_CHECKING:
    from pyspark_kafka.client.native.security import Security

Family = Literal["any", "v4", "v6"]

_RECEIVE_BYTES_MAX: Final = 100 * 1024 * 1024
_OVERHEAD_BYTES: Final = 512
"""The minimum number of bytes in a fetch response in addition to its records."""
_PLAINTEXT: Final = "plaintext"
_UNBOUNDED: Final = 2**31 - 1
_BACKOFF_MS_MIN: Final = 10
"""Without this minimum, the client could send 1000 requests per second to an unavailable broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSettings:
    """The settings of a client. The defaults are those of the Java client.

    `security` is None if connections are neither encrypted nor authenticated.
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
    security: Security | None = None

    @classmethod
    def of(cls, options: ClientOptions, role: Role = "consumer") -> Self:
        """Convert settings that `supported_properties` accepts. Raises `OptionError`."""
        properties = librdkafka_properties(options.kafka, role=role)

        def number(name: str, default: int) -> int:
            return int(properties.get(name, default))

        response_bytes_max = number("receive.message.max.bytes", _RECEIVE_BYTES_MAX)
        idle_ms_max = number("connections.max.idle.ms", 540_000)
        family = properties.get("broker.address.family", "any").strip().lower()
        return cls(
            bootstrap_servers=options.bootstrap_servers,
            client_id=properties.get("client.id", "pyspark-kafka"),
            rack=properties.get("client.rack", ""),
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
            security=_security(properties, options.kafka),
        )


def _security(properties: Mapping[str, str], kafka: Mapping[str, str]) -> Security | None:
    """Convert the TLS and SASL settings.

    The modules for TLS and SASL are imported only if the settings use TLS or SASL.
    """
    if properties.get("security.protocol", _PLAINTEXT).strip().lower() == _PLAINTEXT:
        return None
    from pyspark_kafka.client.native.security import Security  # noqa: PLC0415

    return Security.of(properties, kafka)


def _backoff(first_ms: int, longest_ms: int) -> Backoff:
    longest_s = max(longest_ms, _BACKOFF_MS_MIN) / 1000
    return Backoff(
        first_s=min(max(first_ms, _BACKOFF_MS_MIN) / 1000, longest_s), longest_s=longest_s
    )
