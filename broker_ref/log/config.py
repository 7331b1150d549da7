"""The topic configs that are the log's, as one table.

Purpose: `TOPIC_CONFIGS` is the single list from which values are parsed and validated, and from
which the admin APIs describe and document topic configs. Names, types, defaults and limits are
those of Apache Kafka 4.3 (LogConfig, TopicConfig). Invariant: a `LogConfig` that exists is valid.
What it must not know: requests, and configs that are not the log's (`min.insync.replicas`, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from broker_ref.log.batch import TimestampType

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
WEEK_MS = 7 * 24 * 60 * 60 * 1000

ConfigValue = int | float | str | tuple[str, ...]


class ConfigType(StrEnum):
    """Kafka's ConfigDef types, as far as the log's configs use them."""

    INT = "INT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    LIST = "LIST"


class InvalidTopicConfigError(Exception):
    """A topic config that is unknown, unparsable or out of its limits."""

    def __init__(self, name: str, value: str, why: str) -> None:
        super().__init__(f"Invalid value {value} for configuration {name}: {why}")
        self.name = name
        self.value = value
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One row of the table. `default` is spelt as a user would; `check` says why a value is wrong.

    `server_config` is the broker config whose value is the topic's default in Apache Kafka, as
    DescribeConfigs names it among the synonyms.
    """

    name: str
    type: ConfigType
    default: str
    check: Callable[[ConfigValue], str | None]
    server_config: str
    doc: str

    def parse(self, value: str) -> ConfigValue:
        """The typed value. Raises: InvalidTopicConfigError."""
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
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit()) or not -limit - 1 <= int(text) <= limit:
            raise InvalidTopicConfigError(
                self.name, text, f"Not a number of type {self.type.value}"
            )
        return int(text)

    def _parse_double(self, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise InvalidTopicConfigError(self.name, text, "Not a number of type DOUBLE") from None


def _ratio(value: ConfigValue) -> str | None:
    assert isinstance(value, float)
    return None if 0 <= value <= 1 else "Value must be from 0 to 1"


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
        if not value:
            return f"The list must hold at least one of: {', '.join(allowed)}"
        if len(set(value)) != len(value):
            return "The list must not name anything twice"
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


# fmt: off
TOPIC_CONFIGS: tuple[TopicConfig, ...] = (
    _row("cleanup.policy", ConfigType.LIST, "delete", _list_of("compact", "delete"),
         "log.cleanup.policy",
         "What becomes of old segments: 'delete' drops them by retention time and size, 'compact' "
         "keeps the last value of every key, 'compact,delete' does both. A compacted topic "
         "refuses records without a key."),
    _row("compression.type", ConfigType.STRING, "producer",
         _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), "compression.type",
         "The codec batches are kept in; 'producer' keeps what the producer chose."),
    _row("delete.retention.ms", ConfigType.LONG, 86_400_000, _at_least(0),
         "log.cleaner.delete.retention.ms",
         "How long compaction keeps the marks of deleted keys, from when it first meets them."),
    _row("file.delete.delay.ms", ConfigType.LONG, 60_000, _at_least(0),
         "log.segment.delete.delay.ms",
         "How long a deleted segment's files may stay on disk. Without an effect: this broker "
         "removes them at once."),
    _row("flush.messages", ConfigType.LONG, LONG_MAX, _at_least(1),
         "log.flush.interval.messages",
         "After how many records the log is forced to disk; by default the page cache and "
         "replication are relied upon."),
    _row("flush.ms", ConfigType.LONG, LONG_MAX, _at_least(0), "log.flush.interval.ms",
         "After how many milliseconds written records are forced to disk."),
    _row("index.interval.bytes", ConfigType.INT, 4096, _at_least(0), "log.index.interval.bytes",
         "How many bytes of log lie between two entries of the offset and the time index."),
    _row("max.compaction.lag.ms", ConfigType.LONG, LONG_MAX, _at_least(1),
         "log.cleaner.max.compaction.lag.ms",
         "How long a record may be left uncompacted at most, however little there is to gain; a "
         "segment is closed by then."),
    _row("max.message.bytes", ConfigType.INT, 1_048_588, _at_least(0), "message.max.bytes",
         "The largest record batch, compressed as it comes, that is accepted."),
    _row("message.timestamp.after.max.ms", ConfigType.LONG, 3_600_000, _at_least(0),
         "log.message.timestamp.after.max.ms",
         "How far a record's timestamp may lie ahead of the broker's clock; ignored under "
         "LogAppendTime."),
    _row("message.timestamp.before.max.ms", ConfigType.LONG, LONG_MAX, _at_least(0),
         "log.message.timestamp.before.max.ms",
         "How far a record's timestamp may lie behind the broker's clock; ignored under "
         "LogAppendTime."),
    _row("message.timestamp.type", ConfigType.STRING, "CreateTime",
         _one_of("CreateTime", "LogAppendTime"), "log.message.timestamp.type",
         "Whether records keep the producer's timestamp or get the broker's."),
    _row("min.cleanable.dirty.ratio", ConfigType.DOUBLE, "0.5", _ratio,
         "log.cleaner.min.cleanable.ratio",
         "The uncompacted part of a log from which compaction is worth it."),
    _row("min.compaction.lag.ms", ConfigType.LONG, 0, _at_least(0),
         "log.cleaner.min.compaction.lag.ms",
         "How long a record is left uncompacted at least."),
    _row("retention.bytes", ConfigType.LONG, -1, _any_number, "log.retention.bytes",
         "How large a partition may grow before its oldest segments are deleted; -1: no limit."),
    _row("retention.ms", ConfigType.LONG, WEEK_MS, _at_least(-1), "log.retention.ms",
         "How long records are kept before their segment is deleted; -1: no limit."),
    _row("segment.bytes", ConfigType.INT, 1 << 30, _at_least(1 << 20), "log.segment.bytes",
         "The size at which a segment is closed and a new one not_retriable."),
    _row("segment.index.bytes", ConfigType.INT, 10 << 20, _at_least(4),
         "log.index.size.max.bytes",
         "The size at which an index is full and its segment is closed."),
    _row("segment.ms", ConfigType.LONG, WEEK_MS, _at_least(1), "log.roll.ms",
         "The time after which the next append closes a segment even if it is not full."),
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The log's settings, typed. Times in milliseconds, sizes in bytes, -1: no limit.

    `producer_id_expiration_ms` is the broker's, and so no topic's. Made directly, nothing is
    checked: tests may have segments of a few hundred bytes.
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
        """The settings of a topic with these configs; names that are not the log's are ignored.

        Raises: InvalidTopicConfigError for a value that Kafka refuses, and for a `compression.type`
        other than `producer`, which this broker does not have (it never recompresses).
        """
        typed: dict[str, ConfigValue] = {
            row.name: row.parse(configs.get(row.name, row.default)) for row in TOPIC_CONFIGS
        }
        if typed["compression.type"] != "producer":
            raise InvalidTopicConfigError(
                "compression.type",
                str(typed["compression.type"]),
                "This broker keeps batches as producers send them; only 'producer' is supported",
            )
        fields: dict[str, object] = {name.replace(".", "_"): value for name, value in typed.items()}
        fields["message_timestamp_type"] = TimestampType(str(typed["message.timestamp.type"]))
        config = cls(**fields)  # type: ignore[arg-type]
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidTopicConfigError(
                "min.compaction.lag.ms",
                str(config.min_compaction_lag_ms),
                f"It is more than max.compaction.lag.ms={config.max_compaction_lag_ms}",
            )
        return config

    @property
    def segment_ms_max(self) -> int:
        """When a segment is closed: records of an active one cannot be compacted in time."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy
