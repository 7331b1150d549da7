"""What the engine `native` writes with: librdkafka's properties as values of our own.

Purpose: the table of the producer's properties that the engine understands, their defaults and
ranges, and what it has no answer to. Invariant: whatever it is made of, settings keep every row
once and in order; a property that would change where rows go or how they are confirmed is never
ignored. What it must not know: connections, and what is said of them (`settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from pyspark_kafka.client.java_names import librdkafka_properties, setting_of
from pyspark_kafka.client.native.in_flight import IN_FLIGHT_MAX
from pyspark_kafka.client.native.settings import NativeSettings, number_of
from pyspark_kafka.errors import OptionError
from pyspark_kafka.records import Codec
from pyspark_kafka.records.compression import LEVELS
from pyspark_kafka.wire.retry import Backoff

PARTITIONER: Final = "murmur2_random"
"""As Java's default: murmur2 of the key; without a key one partition for a batch, then another."""

PRODUCER_PROPERTIES: Final = frozenset(
    """
    acks allow.auto.create.topics batch.size compression.level compression.type
    delivery.timeout.ms enable.idempotence linger.ms max.in.flight.requests.per.connection
    message.max.bytes partitioner queue.buffering.max.kbytes topic.metadata.propagation.max.ms
    """.split()  # noqa: SIM905, a table to be read
)
"""What `ProducerSettings.of` reads, or what is as it says by itself.

`acks` and `enable.idempotence` have one value here. `linger.ms` says nothing: rows are held back
until they fill batches, or `flush` is called, which a task does after its last row.
"""

_INT32_MAX: Final = 2**31 - 1
_MEBIBYTE: Final = 1024 * 1024
BATCH_BYTES: Final = 512 * 1024
"""`batch.size` where nothing is said. Measured against one Apache Kafka broker, 6 partitions, rows
of 100 and 1000 bytes with and without keys: Java's 16 KiB take 2.5 to 4 times as long, 64 KiB 1.5
to 2 times, 256 KiB up to 1.15 times; 1 MiB gains little, and is all that a topic takes by
default."""
_CODECS: Final = {codec.name.lower(): codec for codec in Codec}
_DEFAULT_LEVEL: Final = "-1"
_BOOLEANS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
"""As librdkafka reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """`level` None is the codec's default. The defaults are Java's, but for the batch size.

    `delivery_timeout_s` is the time from taking a row to its confirmation, `request_timeout_s` that
    of one request, `api_timeout_s` that of all tries of a question, `connect_timeout_s` that for a
    connection, `topic_wait_s` that for a topic to come into being.
    """

    codec: Codec = Codec.NONE
    level: int | None = None
    batch_bytes_max: int = BATCH_BYTES
    request_bytes_max: int = _MEBIBYTE
    buffer_bytes: int = 32 * _MEBIBYTE
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
        """From the settings `kafka.*`, and what `client` was made of the same ones.

        Raises `OptionError` for a value that is none; see `why_not_native` for what is not looked
        at here.
        """
        read = _Reading(librdkafka_properties(kafka, role="producer"), kafka)
        codec = read.codec()
        request_bytes_max = read.number("message.max.bytes", _MEBIBYTE, 1000)
        in_flight_name = "max.in.flight.requests.per.connection"
        return cls(
            codec=codec,
            level=read.level(codec),
            batch_bytes_max=min(read.number("batch.size", BATCH_BYTES, 1), request_bytes_max),
            request_bytes_max=request_bytes_max,
            buffer_bytes=read.number("queue.buffering.max.kbytes", 32 * 1024, 1) * 1024,
            in_flight_max=min(read.number(in_flight_name, IN_FLIGHT_MAX, 1), IN_FLIGHT_MAX),
            delivery_timeout_s=read.number("delivery.timeout.ms", 120_000, 1) / 1000,
            request_timeout_s=client.request_timeout_s,
            api_timeout_s=client.api_timeout_s,
            connect_timeout_s=client.connect_timeout_s,
            topic_wait_s=read.number("topic.metadata.propagation.max.ms", 30_000, 0) / 1000,
            create_topics=read.boolean("allow.auto.create.topics", default=True),
            backoff=client.retrying,
        )


def why_not_native(properties: Mapping[str, str]) -> str | None:
    """Why this engine cannot write with these properties of a producer; None where it can.

    Of the producer's own properties alone, not of those of connections.
    """
    partitioner = properties.get("partitioner", PARTITIONER)
    if partitioner != PARTITIONER:
        return f"'partitioner' is {partitioner!r}, and this engine has {PARTITIONER} alone"
    codec = _CODECS.get(properties.get("compression.type", "none").lower())
    level = properties.get("compression.level", _DEFAULT_LEVEL)
    if codec is not None and level != _DEFAULT_LEVEL and not _is_level(codec, level):
        return f"'compression.level' is {level!r}, which this engine does not have for {codec.name}"
    return None


def _is_level(codec: Codec, text: str) -> bool:
    # A codec without levels takes any, as librdkafka does.
    return not LEVELS[codec] or _number(text) in LEVELS[codec]


def _number(text: str) -> int | None:
    try:
        return number_of(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Reading:
    """Properties, and the settings that they were made of, by whose names errors call them."""

    properties: Mapping[str, str]
    kafka: Mapping[str, str]

    def refusal(self, name: str, advice: str) -> OptionError:
        setting = setting_of(name, self.kafka) or name
        text = self.kafka.get(setting, self.properties[name])
        return OptionError(f"option 'kafka.{setting}' is {text!r}: {advice}")

    def number(self, name: str, default: int, smallest: int) -> int:
        found = _number(self.properties.get(name, str(default)))
        if found is None or not smallest <= found <= _INT32_MAX:
            raise self.refusal(name, f"give a number from {smallest} to {_INT32_MAX}")
        return found

    def boolean(self, name: str, *, default: bool) -> bool:
        text = self.properties.get(name, str(default)).strip().lower()
        if text not in _BOOLEANS:
            raise self.refusal(name, "give true or false")
        return _BOOLEANS[text]

    def codec(self) -> Codec:
        text = self.properties.get("compression.type", "none").lower()
        if text not in _CODECS:
            raise self.refusal("compression.type", f"choose from {', '.join(_CODECS)}")
        return _CODECS[text]

    def level(self, codec: Codec) -> int | None:
        text = self.properties.get("compression.level", _DEFAULT_LEVEL)
        if not LEVELS[codec] or text == _DEFAULT_LEVEL:
            return None
        if not _is_level(codec, text):
            levels = LEVELS[codec]
            advice = f"{codec.name.lower()} has {levels[0]} to {levels[-1]}"
            raise self.refusal("compression.level", advice)
        return number_of(text)
