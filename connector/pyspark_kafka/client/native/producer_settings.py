"""The producer settings of the native engine.

This module contains the supported producer properties with their defaults and valid ranges.
Invariant: with any valid settings, every row is written once and in order. A property that affects
partitioning or acknowledgments is never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from pyspark_kafka.client.java_names import librdkafka_properties, setting_of
from pyspark_kafka.client.librdkafka_names import BOOLEANS
from pyspark_kafka.client.native.batch_queues import IN_FLIGHT_MAX
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.errors import OptionError
from pyspark_kafka.records import Codec
from pyspark_kafka.records.compression import LEVELS
from pyspark_kafka.wire.retry import Backoff

PARTITIONER: Final = "murmur2_random"
"""The default partitioner of the Java client: murmur2 of the key.

For rows without a key, each batch uses the next partition.
"""

PRODUCER_PROPERTIES: Final = frozenset(
    """
    acks allow.auto.create.topics batch.size compression.level compression.type
    delivery.timeout.ms enable.idempotence linger.ms max.in.flight.requests.per.connection
    message.max.bytes partitioner queue.buffering.max.kbytes topic.metadata.propagation.max.ms
    """.split()  # noqa: SIM905, more readable than a list
)
"""Supported producer properties.

`acks` and `enable.idempotence` each have only one supported value. Rows wait until a batch is full,
until `linger.ms` has passed, or until the task calls `flush` after its last row.
"""

_INT32_MAX: Final = 2**31 - 1
_MEBIBYTE: Final = 1024 * 1024
BATCH_BYTES: Final = 512 * 1024
"""Default of `batch.size`. Measured with one Apache Kafka broker, 6 partitions, and rows of 100 and
1000 bytes with and without keys: compared to this size, writes take 2.5 to 4 times as long with 16
KiB (Java's default), 1.5 to 2 times as long with 64 KiB, and up to 1.15 times as long with 256 KiB.
With 1 MiB, the default limit of a topic, writes are only slightly faster."""
_CODECS: Final = {codec.name.lower(): codec for codec in Codec}
_DEFAULT_LEVEL: Final = "-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer. Most defaults are those of the Java client.

    If `level` is None, the codec's default level is used. `linger_s` is the maximum time that rows
    wait for their batch to fill, excluding the time between calls. `delivery_timeout_s` limits the
    time from `send` to the acknowledgment of a row. `request_timeout_s` limits one request, and
    `api_timeout_s` limits all attempts of a request. `topic_wait_s` limits the wait for a topic to
    be created.
    """

    codec: Codec = Codec.NONE
    level: int | None = None
    batch_bytes_max: int = BATCH_BYTES
    request_bytes_max: int = _MEBIBYTE
    buffer_bytes: int = 32 * _MEBIBYTE
    linger_s: float = 1.0
    in_flight_max: int = IN_FLIGHT_MAX
    delivery_timeout_s: float = 120.0
    request_timeout_s: float = 30.0
    api_timeout_s: float = 60.0
    connect_timeout_s: float = 10.0
    topic_wait_s: float = 30.0
    create_topics: bool = True
    backoff: Backoff = field(default=Backoff())

    @classmethod
    def of(cls, kafka: Mapping[str, str], client: NativeSettings) -> Self:
        """Convert the `kafka.*` settings. Raises `OptionError` for an invalid value.

        `client` contains the client settings, converted from the same `kafka` settings.
        """
        parser = _Parser(librdkafka_properties(kafka, role="producer"), kafka)
        codec = parser.codec()
        request_bytes_max = parser.number("message.max.bytes", _MEBIBYTE, 1000)
        in_flight_name = "max.in.flight.requests.per.connection"
        return cls(
            codec=codec,
            level=parser.level(codec),
            batch_bytes_max=min(parser.number("batch.size", BATCH_BYTES, 1), request_bytes_max),
            request_bytes_max=request_bytes_max,
            buffer_bytes=parser.number("queue.buffering.max.kbytes", 32 * 1024, 1) * 1024,
            linger_s=parser.number("linger.ms", 1_000, 0) / 1000,
            in_flight_max=min(parser.number(in_flight_name, IN_FLIGHT_MAX, 1), IN_FLIGHT_MAX),
            delivery_timeout_s=parser.number("delivery.timeout.ms", 120_000, 1) / 1000,
            request_timeout_s=client.request_timeout_s,
            api_timeout_s=client.api_timeout_s,
            connect_timeout_s=client.connect_timeout_s,
            topic_wait_s=parser.number("topic.metadata.propagation.max.ms", 30_000, 0) / 1000,
            create_topics=parser.boolean("allow.auto.create.topics", default=True),
            backoff=client.retrying,
        )


def unsupported_reason(properties: Mapping[str, str]) -> str | None:
    """Return a clause that names an unsupported property, or None."""
    partitioner = properties.get("partitioner", PARTITIONER)
    if partitioner != PARTITIONER:
        return (
            f"the native engine does not support the value {partitioner!r} of option "
            "'kafka.partitioner'"
        )
    codec = _CODECS.get(properties.get("compression.type", "none").lower())
    level = properties.get("compression.level", _DEFAULT_LEVEL)
    if codec is not None and level != _DEFAULT_LEVEL and not _is_level(codec, level):
        return (
            f"the native engine does not support compression level {level!r} for "
            f"{codec.name.lower()}"
        )
    return None


def _is_level(codec: Codec, text: str) -> bool:
    # For a codec without levels, any value is valid, as in librdkafka.
    return not LEVELS[codec] or int(text) in LEVELS[codec]


@dataclass(frozen=True, slots=True)
class _Parser:
    """Parses librdkafka properties. Errors name the options that set the properties."""

    properties: Mapping[str, str]
    kafka: Mapping[str, str]

    def invalid(self, name: str, advice: str) -> OptionError:
        setting = setting_of(name, self.kafka) or name
        text = self.kafka.get(setting, self.properties[name])
        option = f"kafka.{setting}"
        return OptionError(
            f"Option '{option}' has the invalid value {text!r}.", advice=advice, option=option
        )

    def number(self, name: str, default: int, smallest: int) -> int:
        found = int(self.properties.get(name, default))
        if not smallest <= found <= _INT32_MAX:
            raise self.invalid(name, f"Set it to a number from {smallest} to {_INT32_MAX}.")
        return found

    def boolean(self, name: str, *, default: bool) -> bool:
        text = self.properties.get(name, str(default)).strip().lower()
        if text not in BOOLEANS:
            raise self.invalid(name, "Set it to true or false.")
        return BOOLEANS[text]

    def codec(self) -> Codec:
        text = self.properties.get("compression.type", "none").lower()
        if text not in _CODECS:
            raise self.invalid("compression.type", f"Set it to one of {', '.join(_CODECS)}.")
        return _CODECS[text]

    def level(self, codec: Codec) -> int | None:
        text = self.properties.get("compression.level", _DEFAULT_LEVEL)
        if not LEVELS[codec] or text == _DEFAULT_LEVEL:
            return None
        if not _is_level(codec, text):
            levels = LEVELS[codec]
            advice = f"Set it to a {codec.name.lower()} level from {levels[0]} to {levels[-1]}."
            raise self.invalid("compression.level", advice)
        return int(text)
