"""The topic configs that the log uses.

The table `TOPIC_CONFIGS` defines how values are parsed and validated, and what the admin APIs
return for topic configs. Names, types, defaults and limits are those of Apache Kafka 4.3
(`LogConfig`, `TopicConfig`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from broker_ref.config_numbers import parse_double, parse_integer
from broker_ref.frozen import dataclass
from broker_ref.log.batch import Compression, TimestampType

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
WEEK_MS = 7 * 24 * 60 * 60 * 1000

ConfigValue = int | float | str | tuple[str, ...]


class ConfigType(StrEnum):
    """The types of Kafka's `ConfigDef` that the topic configs of the log use."""

    INT = "INT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    LIST = "LIST"


class InvalidTopicConfigError(Exception):
    """A topic config is unknown, cannot be parsed or is out of range."""

    def __init__(self, name: str, value: str, why: str) -> None:
        super().__init__(f"Invalid value {value} for configuration {name}: {why}")
        self.name = name
        self.value = value
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The definition of a topic config.

    `check` returns the reason why a value is invalid, or None. `server_config` is the broker config
    that sets the default of the topic config. DescribeConfigs returns this broker config as a
    synonym.
    """

    name: str
    type: ConfigType
    default: str
    check: Callable[[ConfigValue], str | None]
    server_config: str
    doc: str

    def parse(self, value: str) -> ConfigValue:
        """Parse the text of a value. Raises: InvalidTopicConfigError."""
        text = value.strip()
        parsed: ConfigValue
        if self.type in (ConfigType.INT, ConfigType.LONG):
            parsed = self._parse_number(text)
        elif self.type is ConfigType.DOUBLE:
            parsed = self._parse_double(text)
        elif self.type is ConfigType.LIST:
            parsed = tuple(part.strip() for part in text.split(",")) if text else ()
        else:
            parsed = text
        why = self.check(parsed)
        if why is not None:
            raise InvalidTopicConfigError(self.name, value, why)
        return parsed

    def _parse_number(self, text: str) -> int:
        limit = INT_MAX if self.type is ConfigType.INT else LONG_MAX
        why = f"Not a number of type {self.type.value}"
        try:
            number = parse_integer(text)
        except ValueError:
            raise InvalidTopicConfigError(self.name, text, why) from None
        if not -limit - 1 <= number <= limit:
            raise InvalidTopicConfigError(self.name, text, why)
        return number

    def _parse_double(self, text: str) -> float:
        try:
            return parse_double(text)
        except ValueError:
            raise InvalidTopicConfigError(self.name, text, "Not a number of type DOUBLE") from None


def _ratio(value: ConfigValue) -> str | None:
    assert isinstance(value, float)
    return None if 0 <= value <= 1 else "Value must be between 0 and 1"


def _at_least(minimum: int) -> Callable[[ConfigValue], str | None]:
    def check(value: ConfigValue) -> str | None:
        assert isinstance(value, int)
        return None if value >= minimum else f"Value must be at least {minimum}"

    return check


def _any_number(_: ConfigValue) -> str | None:
    return None


def _one_of(*allowed: str) -> Callable[[ConfigValue], str | None]:
    def check(value: ConfigValue) -> str | None:
        return None if value in allowed else f"String must be one of: {', '.join(allowed)}"

    return check


def _list_of(*allowed: str) -> Callable[[ConfigValue], str | None]:
    def check(value: ConfigValue) -> str | None:
        assert isinstance(value, tuple)
        if len(set(value)) != len(value):
            return "The list must not contain duplicates"
        wrong = [part for part in value if part not in allowed]
        return None if not wrong else f"String must be one of: {', '.join(allowed)}"

    return check


def _row(  # noqa: PLR0917
    name: str,
    type_: ConfigType,
    default: int | str,
    check: Callable[[ConfigValue], str | None],
    server_config: str,
    doc: str,
) -> TopicConfig:
    return TopicConfig(
        name=name,
        type=type_,
        default=str(default),
        check=check,
        server_config=server_config,
        doc=doc,
    )


_CODECS: Mapping[str, Compression | None] = MappingProxyType(
    {
        "producer": None,
        "uncompressed": Compression.NONE,
        "gzip": Compression.GZIP,
        "snappy": Compression.SNAPPY,
        "lz4": Compression.LZ4,
        "zstd": Compression.ZSTD,
    }
)

# fmt: off
TOPIC_CONFIGS: tuple[TopicConfig, ...] = (
    _row("cleanup.policy", ConfigType.LIST, "delete", _list_of("compact", "delete"),
         "log.cleanup.policy",
         "How old segments are cleaned up: 'delete' deletes them when they exceed the retention "
         "time or size, 'compact' retains the last record of each key, and 'compact,delete' does "
         "both. If the list is empty, all segments are retained. A compacted topic rejects records "
         "without a key."),
    _row("compression.type", ConfigType.STRING, "producer",
         _one_of(*_CODECS), "compression.type",
         "Codec of stored batches; 'producer' retains the codec that the producer used."),
    _row("delete.retention.ms", ConfigType.LONG, 86_400_000, _at_least(0),
         "log.cleaner.delete.retention.ms",
         "Time for which tombstones are retained after they are first compacted."),
    _row("file.delete.delay.ms", ConfigType.LONG, 60_000, _at_least(0),
         "log.segment.delete.delay.ms",
         "Time before the files of a deleted segment are removed. This config has no effect: "
         "this broker removes the files immediately."),
    _row("flush.messages", ConfigType.LONG, LONG_MAX, _at_least(1),
         "log.flush.interval.messages",
         "Number of records after which the log is flushed to disk. By default, the log relies on "
         "replication for durability."),
    _row("flush.ms", ConfigType.LONG, LONG_MAX, _at_least(0), "log.flush.interval.ms",
         "Maximum time before written records are flushed to disk."),
    _row("index.interval.bytes", ConfigType.INT, 4096, _at_least(0), "log.index.interval.bytes",
         "Number of bytes between two entries of the offset index and the time index."),
    _row("max.compaction.lag.ms", ConfigType.LONG, LONG_MAX, _at_least(1),
         "log.cleaner.max.compaction.lag.ms",
         "Maximum time that a record remains uncompacted. The active segment is rolled before "
         "this time has passed."),
    _row("max.message.bytes", ConfigType.INT, 1_048_588, _at_least(0), "message.max.bytes",
         "Maximum size of a record batch after compression, in bytes."),
    _row("message.timestamp.after.max.ms", ConfigType.LONG, 3_600_000, _at_least(0),
         "log.message.timestamp.after.max.ms",
         "Maximum time by which the timestamp of a record can be later than the broker's clock; "
         "ignored with LogAppendTime."),
    _row("message.timestamp.before.max.ms", ConfigType.LONG, LONG_MAX, _at_least(0),
         "log.message.timestamp.before.max.ms",
         "Maximum time by which the timestamp of a record can be earlier than the broker's clock; "
         "ignored with LogAppendTime."),
    _row("message.timestamp.type", ConfigType.STRING, "CreateTime",
         _one_of("CreateTime", "LogAppendTime"), "log.message.timestamp.type",
         "Whether the timestamps of records are set by the producer or by the broker."),
    _row("min.cleanable.dirty.ratio", ConfigType.DOUBLE, "0.5", _ratio,
         "log.cleaner.min.cleanable.ratio",
         "Ratio of uncompacted bytes to total bytes above which a log is compacted."),
    _row("min.compaction.lag.ms", ConfigType.LONG, 0, _at_least(0),
         "log.cleaner.min.compaction.lag.ms",
         "Minimum time that a record remains uncompacted."),
    _row("retention.bytes", ConfigType.LONG, -1, _any_number, "log.retention.bytes",
         "Size of a partition above which its oldest segments are deleted; -1 means no limit."),
    _row("retention.ms", ConfigType.LONG, WEEK_MS, _at_least(-1), "log.retention.ms",
         "Age of a segment's newest record above which the segment is deleted; -1 means no limit."),
    _row("segment.bytes", ConfigType.INT, 1 << 30, _at_least(1 << 20), "log.segment.bytes",
         "Size at which a segment is rolled."),
    _row("segment.index.bytes", ConfigType.INT, 10 << 20, _at_least(4),
         "log.index.size.max.bytes",
         "Maximum size of an index; a segment with a full index is rolled."),
    _row("segment.ms", ConfigType.LONG, WEEK_MS, _at_least(1), "log.roll.ms",
         "Time after which the next append rolls a segment even if it is not full."),
)
# fmt: on

_ROWS: Mapping[str, TopicConfig] = MappingProxyType({row.name: row for row in TOPIC_CONFIGS})


def check_combination(configs: Mapping[str, str]) -> None:
    """Check that `min.compaction.lag.ms` does not exceed `max.compaction.lag.ms`.

    Brokers skip this check when they open a log, because they never reject a combination of topic
    configs and dynamic broker configs. Source: `LogConfig.validateValues`. Raises:
    InvalidTopicConfigError.
    """
    shortest, longest = (
        _ROWS[name].parse(configs.get(name, _ROWS[name].default))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    assert isinstance(shortest, int)
    assert isinstance(longest, int)
    if shortest > longest:
        raise InvalidTopicConfigError(
            "min.compaction.lag.ms",
            str(shortest),
            f"Value must not exceed max.compaction.lag.ms={longest}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of a log. Times are in milliseconds, sizes in bytes, and -1 means no limit.

    `producer_id_expiration_ms` is a broker config. The constructor does not validate the values,
    because tests use smaller segments than `segment.bytes` allows.
    """

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    retention_bytes: int = -1
    retention_ms: int = WEEK_MS
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_ms: int = WEEK_MS
    producer_id_expiration_ms: int = 86_400_000

    @classmethod
    def from_topic_configs(cls, configs: Mapping[str, str]) -> LogConfig:
        """Return the settings of a topic. Configs that the log does not use are ignored.

        Each value is checked individually. `check_combination` checks constraints between two
        configs. Raises: InvalidTopicConfigError for a value that Kafka rejects.
        """
        fields: dict[str, object] = {
            name.replace(".", "_"): _ROWS[name].parse(value)
            for name, value in configs.items()
            if name in _ROWS
        }
        if "message_timestamp_type" in fields:
            fields["message_timestamp_type"] = TimestampType(str(fields["message_timestamp_type"]))
        return cls(**fields)  # type: ignore[arg-type]

    @property
    def codec(self) -> Compression | None:
        """Return the codec of all batches, or None if the codec of the producer is retained."""
        return _CODECS[self.compression_type]

    @property
    def segment_ms_max(self) -> int:
        """Return the age at which the active segment is rolled, in milliseconds.

        In a compacted topic, the segment must be rolled before `max.compaction.lag.ms`, because
        records of the active segment cannot be compacted.
        """
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy
