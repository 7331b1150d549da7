"""Every option of the data source, as data: the one place that names them.

Purpose: `options.py` parses by this table, every option error is worded from it, and
`docs/options.md` is printed from it (`python -m pyspark_kafka.option_table`).
Invariant: an option that is not in this table has no effect. What it must not know: Spark's
classes, any client.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from pyspark_kafka.errors import OptionError
from pyspark_kafka.sink.exactly_once.names import LEGAL_ID

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
TRANSACTION_TIMEOUT_MS_MIN: Final = 1_000


class Mode(Enum):
    """What a query does with the data source; the value is how errors and docs say it."""

    BATCH_READ = "a batch read"
    STREAM_READ = "a streaming read"
    BATCH_WRITE = "a batch write"
    STREAM_WRITE = "a streaming write"


READS: Final = frozenset({Mode.BATCH_READ, Mode.STREAM_READ})
WRITES: Final = frozenset({Mode.BATCH_WRITE, Mode.STREAM_WRITE})
EVERYWHERE: Final = READS | WRITES
BATCH_READ: Final = frozenset({Mode.BATCH_READ})
STREAM_READ: Final = frozenset({Mode.STREAM_READ})
BATCH_WRITE: Final = frozenset({Mode.BATCH_WRITE})
STREAM_WRITE: Final = frozenset({Mode.STREAM_WRITE})


@dataclass(frozen=True, slots=True)
class Text:
    """Any text that is not blank."""

    label: str = "text"

    def parse(self, text: str) -> str:
        if not text.strip():
            raise ValueError("it is blank")
        return text.strip()


@dataclass(frozen=True, slots=True)
class Boolean:
    label: str = "boolean"

    def parse(self, text: str) -> bool:
        match text.strip().lower():
            case "true":
                return True
            case "false":
                return False
        raise ValueError("it must be true or false")


@dataclass(frozen=True, slots=True)
class Integer:
    minimum: int
    maximum: int
    label: str = "integer"

    def parse(self, text: str) -> int:
        stripped = text.strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", stripped):
            raise ValueError("it must be a whole number")
        number = int(stripped)
        if not self.minimum <= number <= self.maximum:
            raise ValueError(f"it must be a number from {self.minimum} to {self.maximum}")
        return number


@dataclass(frozen=True, slots=True)
class Choice:
    values: tuple[str, ...]
    label: str = "one of"

    def parse(self, text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in self.values:
            raise ValueError(f"it must be {' or '.join(self.values)}")
        return lowered


_MICROSECONDS_PER: Final = MappingProxyType(
    {
        "us": 1,
        "ms": 1_000,
        "s": 1_000_000,
        "m": 60_000_000,
        "min": 60_000_000,
        "h": 3_600_000_000,
        "d": 86_400_000_000,
    }
)


@dataclass(frozen=True, slots=True)
class Duration:
    """Spark's time strings (JavaUtils.timeStringAs): `15m`, `500ms`, `2h`; bare is milliseconds."""

    minimum_ms: int = 0
    maximum_ms: int = LONG_MAX
    label: str = "duration"

    def parse(self, text: str) -> int:
        """Milliseconds, rounded down."""
        match = re.fullmatch(r"([0-9]{1,12})([a-z]*)", text.strip().lower())
        unit = (match[2] or "ms") if match else ""
        if match is None or unit not in _MICROSECONDS_PER:
            raise ValueError("it must be a number and a unit (us, ms, s, m, h, d), such as 15m")
        duration_ms = int(match[1]) * _MICROSECONDS_PER[unit] // 1_000
        if not self.minimum_ms <= duration_ms <= self.maximum_ms:
            raise ValueError(f"it must be from {self.minimum_ms} ms to {self.maximum_ms} ms")
        return duration_ms


OptionType = Text | Boolean | Integer | Choice | Duration

POSITIVE_INT: Final = Integer(1, INT_MAX)
POSITIVE_LONG: Final = Integer(1, LONG_MAX)
NOT_NEGATIVE_LONG: Final = Integer(0, LONG_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table.

    `modes` is where it has its meaning, `ignored_in` where Spark's connector takes it and does
    nothing (we do the same, with a warning). Anywhere else it is refused.
    """

    name: str
    type: OptionType
    doc: str
    modes: frozenset[Mode]
    default: str | None = None
    stream_default: str | None = None
    ignored_in: frozenset[Mode] = frozenset()
    remedy: str = field(default="remove it", repr=False)

    def parse(self, text: str) -> bool | int | str:
        """The value; raises `OptionError` that names option, value and what would be right."""
        try:
            return self.type.parse(text)
        except ValueError as error:
            raise OptionError(f"option '{self.name}' has the value '{text}': {error}") from None

    def default_in(self, modes: frozenset[Mode]) -> str | None:
        return self.stream_default or self.default if modes == STREAM_READ else self.default


_OF_WRITES: Final = "it says how rows are written exactly once"

OPTIONS: Final = (
    Option(
        name="kafka.bootstrap.servers",
        type=Text("host:port[,...]"),
        modes=EVERYWHERE,
        doc="Required. Brokers to ask first, as `host:port[,host:port...]`.",
    ),
    Option(
        name="assign",
        type=Text("JSON"),
        modes=READS,
        doc='The partitions to read: `{"topic":[0,1]}`. Exactly one of `assign`, `subscribe` and '
        "`subscribePattern` must be given.",
    ),
    Option(
        name="subscribe",
        type=Text("topics"),
        modes=READS,
        doc="The topics to read, separated by commas.",
    ),
    Option(
        name="subscribePattern",
        type=Text("regular expression"),
        modes=READS,
        doc="Read every topic in whose name the expression (Python's `re.search`) is found; "
        "internal topics are skipped.",
    ),
    Option(
        name="startingOffsets",
        type=Text("JSON or name"),
        modes=READS,
        default="earliest",
        stream_default="latest",
        doc="`earliest`, `latest` (streaming only), `committed` (the committed offsets of "
        '`kafka.group.id`), or `{"topic":{"0":23,"1":-2}}` with exactly the partitions read; -2 '
        "is earliest, -1 latest (streaming only). A streaming query uses it when it is new; a "
        "restarted one goes on from its checkpoint. Partitions found later start at earliest.",
    ),
    Option(
        name="endingOffsets",
        type=Text("JSON or name"),
        modes=BATCH_READ,
        default="latest",
        doc='`latest`, or `{"topic":{"0":50,"1":-1}}` with exactly the partitions read; -1 is '
        "latest. The end is exclusive.",
    ),
    Option(
        name="startingTimestamp",
        type=NOT_NEGATIVE_LONG,
        modes=READS,
        doc="Start every partition at its first record with this timestamp (epoch ms) or a later "
        "one. Goes before the other two ways to say where to start.",
    ),
    Option(
        name="endingTimestamp",
        type=NOT_NEGATIVE_LONG,
        modes=BATCH_READ,
        doc="End every partition before its first record with this timestamp (epoch ms) or a later "
        "one; where there is none, at latest.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        type=Text("JSON"),
        modes=READS,
        doc='`{"topic":{"0":1700000000000}}`, a timestamp for exactly the partitions read. Goes '
        "before `startingOffsets`.",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        type=Text("JSON"),
        modes=BATCH_READ,
        doc="As `startingOffsetsByTimestamp`. Goes before `endingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        type=Choice(("error", "latest")),
        modes=READS,
        default="error",
        doc="What to do where no record is as recent as the starting timestamp: fail, or start at "
        "latest.",
    ),
    Option(
        name="failOnDataLoss",
        type=Boolean(),
        modes=READS,
        default="true",
        doc="Fail when records that were to be read are gone: aged out, or their topic deleted or "
        "recreated. With `false` a warning is logged and the read goes on with what exists.",
    ),
    Option(
        name="includeHeaders",
        type=Boolean(),
        modes=READS,
        ignored_in=WRITES,
        default="false",
        doc="Add the column `headers`.",
    ),
    Option(
        name="minPartitions",
        type=POSITIVE_INT,
        modes=READS,
        doc="Split large ranges in proportion to their size until there are about this many Spark "
        "partitions. Without it there is one per topic partition.",
    ),
    Option(
        name="maxRecordsPerPartition",
        type=POSITIVE_LONG,
        modes=READS,
        doc="Split ranges so that none has more offsets than this.",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        type=POSITIVE_LONG,
        modes=STREAM_READ,
        ignored_in=BATCH_READ,
        doc="At most about this many offsets per micro-batch, shared out by backlog. Needs Spark "
        "4.2.",
    ),
    Option(
        name="minOffsetsPerTrigger",
        type=POSITIVE_LONG,
        modes=STREAM_READ,
        ignored_in=BATCH_READ,
        doc="Wait with a micro-batch until there are this many offsets to read, or "
        "`maxTriggerDelay` is over. Needs Spark 4.2.",
    ),
    Option(
        name="maxTriggerDelay",
        type=Duration(),
        modes=STREAM_READ,
        ignored_in=BATCH_READ,
        default="15m",
        doc="How long `minOffsetsPerTrigger` may hold a micro-batch back.",
    ),
    Option(
        name="groupIdPrefix",
        type=Text(),
        modes=READS,
        default="spark-kafka-source",
        doc="The consumer group id is this and a random part, unless `kafka.group.id` is given.",
    ),
    Option(
        name="kafka.group.id",
        type=Text(),
        modes=READS | STREAM_WRITE,
        ignored_in=BATCH_WRITE,
        doc="The consumer group id: of reads, to show to the brokers (for ACLs and quotas); the "
        "group that `commitOffsets` commits to. No group is joined.",
    ),
    Option(
        name="kafka.isolation.level",
        type=Choice(("read_committed", "read_uncommitted")),
        modes=READS,
        ignored_in=WRITES,
        default="read_committed",
        doc="`read_committed` reads up to the last stable offset and leaves aborted records out. "
        "Spark's own connector defaults to `read_uncommitted`.",
    ),
    Option(
        name="kafkaConsumer.pollTimeoutMs",
        type=POSITIVE_INT,
        modes=READS,
        ignored_in=WRITES,
        default="120000",
        doc="How long a task waits for records, and planning for an open transaction to end.",
    ),
    Option(
        name="fetchOffset.numRetries",
        type=POSITIVE_INT,
        modes=READS,
        ignored_in=WRITES,
        default="3",
        doc="How often to ask before an error that need not pass is raised, or something counts as "
        "gone.",
    ),
    Option(
        name="fetchOffset.retryIntervalMs",
        type=Integer(0, INT_MAX),
        modes=READS,
        ignored_in=WRITES,
        default="1000",
        doc="The wait between these tries.",
    ),
    Option(
        name="topic",
        type=Text(),
        modes=WRITES,
        doc="The topic to write to; overrides the column `topic`.",
        remedy="name the topics to read with 'subscribe'",
    ),
    Option(
        name="engine",
        type=Choice(("auto", "native", "librdkafka")),
        modes=EVERYWHERE,
        default="auto",
        doc="The Kafka client underneath. `native` is our own, which reads record batches straight "
        "into Arrow and Arrow into batches; it has no TLS and no SASL yet. `auto` is `native` "
        "where nothing speaks against it, else `librdkafka`; the log says which and why. With "
        "`transactionalId` it is always `native`.",
    ),
    Option(
        name="commitOffsets",
        type=Boolean(),
        modes=STREAM_READ | STREAM_WRITE,
        default="false",
        remedy="offsets are committed by micro-batches only",
        doc="Commit the offsets that were read to the group `kafka.group.id`, for tools that watch "
        "it. On a read: after each completed micro-batch; a commit that fails is a warning. On a "
        "write with `transactionalId`: in one with the rows of the micro-batch, which needs "
        "`checkpointLocation` as an option of the query. Set it on one side only.",
    ),
    Option(
        name="filterPushdown",
        type=Choice(("false", "true", "single-scan")),
        modes=BATCH_READ,
        default="false",
        remedy="Spark tells a streaming source no filters; narrow a new query with "
        "'startingOffsets' or 'startingTimestamp'",
        doc="Turn filters on `topic`, `partition`, `offset` and `timestamp` into narrower reads. "
        "`true` does so where Spark can be trusted with it (5.0), and elsewhere logs a warning and "
        "reads everything; `single-scan` does so from Spark 4.1 on, if each `load()` is scanned "
        "once only. See [Filters](guide.md#filters).",
    ),
    Option(
        name="transactionalId",
        type=Text(),
        modes=WRITES,
        remedy=_OF_WRITES,
        doc="Write exactly once, by Kafka's transactions, and recognise this sink by that name over "
        f"all restarts: one for each query, of {LEGAL_ID}. Without it rows are written at least "
        "once. The following options need it.",
    ),
    Option(
        name="transactionTimeout",
        type=Duration(TRANSACTION_TIMEOUT_MS_MIN, INT_MAX),
        modes=WRITES,
        default="15m",
        remedy=_OF_WRITES,
        doc="How long a transaction may be open, from a task's first row until its micro-batch or "
        "job is committed; then the brokers abort it. At most their "
        "`transaction.max.timeout.ms`.",
    ),
    Option(
        name="commitTopic",
        type=Text("topic"),
        modes=WRITES,
        default="__spark_commits",
        remedy=_OF_WRITES,
        doc="The topic that holds what was committed. Created where it is not there: compacted, "
        "with one partition.",
    ),
    Option(
        name="batchId",
        type=NOT_NEGATIVE_LONG,
        modes=BATCH_WRITE,
        remedy="a streaming query numbers its micro-batches itself",
        doc="Makes a job repeatable, and `foreachBatch` exactly once: an id that was written "
        "before is compared and not written again, a lower one is an error.",
    ),
    Option(
        name="onReplayMismatch",
        type=Choice(("fail", "warn")),
        modes=WRITES,
        default="fail",
        remedy=_OF_WRITES,
        doc="What to do where a micro-batch or job is repeated that was written before, and has "
        "other rows now: fail, or log a warning and keep what was written.",
    ),
    Option(
        name="twoPhaseCommit",
        type=Boolean(),
        modes=WRITES,
        default="false",
        remedy=_OF_WRITES,
        doc="Transactions that never time out (KIP-939), where the cluster has them.",
    ),
    Option(
        name="checkpointLocation",
        type=Text("path"),
        modes=STREAM_WRITE,
        ignored_in=READS | BATCH_WRITE,
        doc="Spark's own: where the query's checkpoint is. `commitOffsets` on a write reads it, and "
        "so needs it here and not in Spark's configuration.",
    ),
)

BY_LOWER_NAME: Final = MappingProxyType({option.name.lower(): option for option in OPTIONS})

REFUSED_KAFKA: Final[Mapping[str, str]] = MappingProxyType(
    {
        "auto.offset.reset": "say where a new query starts with 'startingOffsets'",
        "enable.auto.commit": "remove it: Spark's checkpoint holds the offsets of a query",
        "key.deserializer": "remove it: keys arrive as binary; decode them with DataFrame "
        "operations, such as CAST(key AS STRING)",
        "value.deserializer": "remove it: values arrive as binary; decode them with DataFrame "
        "operations, such as CAST(value AS STRING)",
        "interceptor.classes": "remove it: interceptors can change records, so none are run",
        "key.serializer": "remove it: keys are written as the binary or string column they are",
        "value.serializer": "remove it: values are written as the binary or string column they are",
        "transactional.id": "set 'transactionalId' of a write",
        "transaction.timeout.ms": "set 'transactionTimeout' of a write, beside 'transactionalId'",
    }
)
"""`kafka.*` settings that are refused everywhere, and what to do instead."""

# Guesses that no measure of similarity leads to the right name.
_ALIASES: Final = MappingProxyType(
    {
        "topics": "subscribe",
        "topicpattern": "subscribePattern",
        "bootstrapservers": "kafka.bootstrap.servers",
        "bootstrap_servers": "kafka.bootstrap.servers",
        "brokers": "kafka.bootstrap.servers",
        "groupid": "kafka.group.id",
        "isolationlevel": "kafka.isolation.level",
    }
)
_CLIENT_SETTING: Final = re.compile(
    r"(acks|auto|batch|bootstrap|client|compression|connections|delivery|enable|fetch|group"
    r"|isolation|linger|max|metadata|receive|reconnect|request|retry|sasl|security|send|session"
    r"|socket|ssl)\.[a-z.]+|acks"
)


def check_name(name: str) -> None:
    """Refuse an unknown option that looks like a known one misspelt; raises `OptionError`.

    Other unknown options are let through as Spark's connector does: Spark itself and its
    platforms add options of their own.
    """
    lowered = name.lower()
    if lowered in BY_LOWER_NAME or lowered.startswith("kafka."):
        return
    suggestion = _ALIASES.get(lowered)
    if suggestion is None:
        close = difflib.get_close_matches(lowered, BY_LOWER_NAME, n=1, cutoff=0.8)
        suggestion = BY_LOWER_NAME[close[0]].name if close else None
    if suggestion is None and _CLIENT_SETTING.fullmatch(lowered):
        suggestion = f"kafka.{lowered}"
    if suggestion is not None:
        raise OptionError(f"there is no option '{name}': did you mean '{suggestion}'?")


def render() -> str:
    """The page `docs/options.md`."""
    lines = [
        "# Options",
        "",
        "<!-- Printed by `python -m pyspark_kafka.option_table`; change the table there. -->",
        "",
        "Names are not case-sensitive. They are those of Spark's own Kafka connector and mean the",
        "same. Each is checked on the driver, before any task runs.",
        "",
    ]
    for title, modes in (("Reading", READS), ("Writing", WRITES)):
        lines += [f"## {title}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
        lines += [_row(option, modes) for option in OPTIONS if option.modes & modes]
        lines.append("")
    lines += [
        "## Settings of the Kafka client",
        "",
        "`kafka.*` passes a setting to the Kafka client, under its name in the Java client or in",
        "librdkafka: `kafka.security.protocol`, `kafka.sasl.jaas.config`, `kafka.fetch.max.bytes`.",
        "`kafka.default.api.timeout.ms` (60000) bounds each question of the driver to the brokers.",
        "These are refused:",
        "",
        "| option | instead |",
        "|---|---|",
        *(f"| `kafka.{name}` | {remedy} |" for name, remedy in REFUSED_KAFKA.items()),
        "",
    ]
    return "\n".join(lines)


def _row(option: Option, of: frozenset[Mode]) -> str:
    default = "" if option.default is None else f"`{option.default}`"
    if option.stream_default is not None:
        default = f"batch `{option.default}`, streaming `{option.stream_default}`"
    return f"| `{option.name}` | {_type(option)} | {default} | {_where(option, of)}{option.doc} |"


def _type(option: Option) -> str:
    match option.type:
        case Choice(values):
            return " or ".join(f"`{value}`" for value in values)
        case Integer(minimum) if minimum > 0:
            return "integer > 0"
    return option.type.label


def _where(option: Option, of: frozenset[Mode]) -> str:
    modes = option.modes & of
    if modes in (BATCH_READ, BATCH_WRITE):
        return "*Batch only.* "
    return "*Streaming only.* " if modes in (STREAM_READ, STREAM_WRITE) else ""


def names(options: Iterable[Option]) -> str:
    """`'a', 'b' and 'c'`."""
    quoted = [f"'{option.name}'" for option in options]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


if __name__ == "__main__":
    sys.stdout.write(render())
