"""The table of all options of the data source.

`parse` uses this table, and `docs/options.md` is generated from it. An option that is not in this
table is rejected, except for `kafka.*` settings and `queryName`.

To add an option, add it to this table, add a field in `values`, and set the field in `parse`. Then
regenerate the page with `python -m pyspark_kafka.pages docs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from pyspark_kafka.errors import OptionError
from pyspark_kafka.kafka.offsets import INT_MAX
from pyspark_kafka.kafka.transactions import LEGAL_SINK_IDS
from pyspark_kafka.options.types import (
    NOT_NEGATIVE_LONG,
    POSITIVE_INT,
    POSITIVE_LONG,
    Boolean,
    ByteSize,
    Choice,
    Duration,
    Integer,
    OptionType,
    Text,
)

TRANSACTION_TIMEOUT_MS_MIN: Final = 1_000


class Mode(Enum):
    """The mode of a query. The values are used in messages."""

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


class Section(Enum):
    """The sections of docs/options.md, in the order of the page."""

    CONNECTION = "Connection"
    SELECTION = "What to read"
    LIMITS = "Where to start and end"
    SIZE = "Size of tasks and micro-batches"
    TIMEOUTS = "Timeouts and retries"
    GROUP = "Consumer group"
    WRITING = "Writing"
    EXACTLY_ONCE = "Writing exactly once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of the data source.

    `modes` are the query modes to which the option applies. In `ignored_modes`, the option has no
    effect, as in Spark's connector, and a warning is logged. In all other modes, the option is
    rejected.
    """

    name: str
    section: Section
    type: OptionType
    modes: frozenset[Mode]
    doc: str
    default: str | None = None
    stream_default: str | None = None
    """The default of a streaming read, if it differs from `default`."""
    ignored_modes: frozenset[Mode] = frozenset()
    requires: str | None = None
    """Another option that must also be set, if that option applies to the query."""
    advice: str = field(default="Remove the option.", repr=False)
    """The advice of the error that is raised if the option does not apply to the query."""

    def parse(self, text: str) -> bool | int | str:
        """Return the parsed value. Raises `OptionError`."""
        try:
            return self.type.parse(text)
        except ValueError:
            raise OptionError(
                f"Option '{self.name}' has the invalid value '{text}'.",
                advice=f"Set it to {self.type.expected}.",
                option=self.name,
            ) from None

    def default_in(self, modes: frozenset[Mode]) -> str | None:
        return self.stream_default or self.default if modes == STREAM_READ else self.default


_ONLY_WRITES: Final = "Remove the option. It configures exactly-once writes."

OPTIONS: Final = (
    Option(
        name="kafka.bootstrap.servers",
        section=Section.CONNECTION,
        type=Text("host:port,..."),
        modes=EVERYWHERE,
        doc="Required. The initial brokers to connect to: `host:port[,host:port...]`.",
    ),
    Option(
        name="engine",
        section=Section.CONNECTION,
        type=Choice(("auto", "native", "librdkafka")),
        modes=EVERYWHERE,
        default="auto",
        doc="The Kafka client. `native` is part of this package and decodes record batches "
        "directly to Arrow. `auto` uses `native` if it "
        "supports all settings of the query, and `librdkafka` otherwise; the engine and the reason "
        "are logged. A write with `transactionalId` always uses `native`.",
    ),
    Option(
        name="assign",
        section=Section.SELECTION,
        type=Text("JSON"),
        modes=READS,
        doc='The partitions to read, for example `{"topicA":[0,1],"topicB":[2]}`. Exactly one of '
        "`assign`, `subscribe` and `subscribePattern` is required.",
    ),
    Option(
        name="subscribe",
        section=Section.SELECTION,
        type=Text("topic,..."),
        modes=READS,
        doc="A comma-separated list of the topics to read.",
    ),
    Option(
        name="subscribePattern",
        section=Section.SELECTION,
        type=Text("regular expression"),
        modes=READS,
        doc="A regular expression in Python syntax. The query reads all topics whose names contain "
        "a match (`re.search`), except internal topics.",
    ),
    Option(
        name="includeHeaders",
        section=Section.SELECTION,
        type=Boolean(),
        modes=READS,
        ignored_modes=WRITES,
        default="false",
        doc="Whether to add the `headers` column, which contains the headers of each record.",
    ),
    Option(
        name="kafka.isolation.level",
        section=Section.SELECTION,
        type=Choice(("read_committed", "read_uncommitted")),
        modes=READS,
        ignored_modes=WRITES,
        default="read_committed",
        doc="With `read_committed`, the query reads up to the last stable offset and skips the "
        "records of aborted transactions. The default of Spark's built-in connector is "
        "`read_uncommitted`.",
    ),
    Option(
        name="filterPushdown",
        section=Section.SELECTION,
        type=Choice(("false", "true", "single-scan")),
        modes=BATCH_READ,
        default="false",
        advice="Remove the option, because Spark does not push filters down to streaming sources. "
        "To read fewer records in a new query, set 'startingOffsets' or 'startingTimestamp'.",
        doc="Whether filters on `topic`, `partition`, `offset` and `timestamp` reduce the number "
        "of records read. `true` requires Spark 5.0; with earlier versions, the query logs a "
        "warning and reads all records. `single-scan` requires Spark 4.1 and is correct only if "
        "the result of each `load()` is scanned once. See [Filters](guide.md#filters).",
    ),
    Option(
        name="failOnDataLoss",
        section=Section.SELECTION,
        type=Boolean(),
        modes=READS,
        default="true",
        doc="Whether the query fails if records that it must read no longer exist, because "
        "retention deleted them or because their topic was deleted or recreated. With `false`, the "
        "query logs a warning and continues with the records that exist.",
    ),
    Option(
        name="startingOffsets",
        section=Section.LIMITS,
        type=Text("name or JSON"),
        modes=READS,
        default="earliest",
        stream_default="latest",
        doc="The start of the query: `earliest`, `latest` (streaming only), `committed` (the "
        "committed offsets of the group in `kafka.group.id`), or JSON such as "
        '`{"topicA":{"0":23,"1":-2}}`. The JSON must contain exactly the partitions to read; -2 '
        "means earliest, and -1 means latest (streaming only). A streaming query that is restarted "
        "after its first micro-batch is complete ignores the option and continues from its "
        "checkpoint. Partitions that are added while a query "
        "runs start at earliest.",
    ),
    Option(
        name="startingTimestamp",
        section=Section.LIMITS,
        type=NOT_NEGATIVE_LONG,
        modes=READS,
        doc="The starting timestamp for all partitions, in milliseconds since the epoch. Each "
        "partition is read from its first record with this timestamp or a later one. Takes "
        "precedence over `startingOffsetsByTimestamp` and `startingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        section=Section.LIMITS,
        type=Text("JSON"),
        modes=READS,
        doc="The starting timestamp of each partition, for example "
        '`{"topicA":{"0":1700000000000}}`. The JSON must contain exactly the partitions to read. '
        "Takes precedence over `startingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        section=Section.LIMITS,
        type=Choice(("error", "latest")),
        modes=READS,
        default="error",
        doc="The behavior if a partition has no record with the starting timestamp or a later one: "
        "`error` fails the query, and `latest` starts the partition at its latest offset.",
    ),
    Option(
        name="endingOffsets",
        section=Section.LIMITS,
        type=Text("name or JSON"),
        modes=BATCH_READ,
        default="latest",
        doc="The end of a batch query (exclusive): `latest`, or JSON such as "
        '`{"topicA":{"0":50,"1":-1}}`. The JSON must contain exactly the partitions to read; -1 '
        "means latest.",
    ),
    Option(
        name="endingTimestamp",
        section=Section.LIMITS,
        type=NOT_NEGATIVE_LONG,
        modes=BATCH_READ,
        doc="The ending timestamp for all partitions, in milliseconds since the epoch. Each "
        "partition is read up to its first record with this timestamp or a later one (exclusive), "
        "or to its end if there is no such record. Takes precedence over "
        "`endingOffsetsByTimestamp` and `endingOffsets`.",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        section=Section.LIMITS,
        type=Text("JSON"),
        modes=BATCH_READ,
        doc="The ending timestamp of each partition, in the format of "
        "`startingOffsetsByTimestamp`. Takes precedence over `endingOffsets`.",
    ),
    Option(
        name="minPartitions",
        section=Section.SIZE,
        type=POSITIVE_INT,
        modes=READS,
        doc="The desired minimum number of Spark partitions. Large offset ranges are split in "
        "proportion to their size. By default, each topic partition becomes one Spark partition.",
    ),
    Option(
        name="maxPartitions",
        section=Section.SIZE,
        type=POSITIVE_INT,
        modes=READS,
        doc="The maximum number of Spark partitions. If there are more offset ranges, a Spark "
        "partition contains several of them. To read many topic partitions with few records in "
        "less time, set this option to about the number of cores.",
    ),
    Option(
        name="maxRecordsPerPartition",
        section=Section.SIZE,
        type=POSITIVE_LONG,
        modes=READS,
        doc="The maximum number of offsets in a Spark partition. Larger offset ranges are split.",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        section=Section.SIZE,
        type=POSITIVE_LONG,
        modes=STREAM_READ,
        ignored_modes=BATCH_READ,
        doc="The approximate maximum number of offsets in a micro-batch. It is divided among the "
        "topic partitions in proportion to the number of their unread offsets. Before Spark 4.2, "
        "the triggers `availableNow` and `once` run [only one](guide.md#limit-the-rate) such "
        "micro-batch.",
    ),
    Option(
        name="maxBytesPerTrigger",
        section=Section.SIZE,
        type=ByteSize(),
        modes=STREAM_READ,
        ignored_modes=BATCH_READ,
        doc="The estimated maximum size of the keys, values and headers in a micro-batch, "
        "uncompressed, for example `512m` or `10g`. The driver reads a sample of the next records "
        "to [estimate](guide.md#limit-the-rate) their size.",
    ),
    Option(
        name="minOffsetsPerTrigger",
        section=Section.SIZE,
        type=POSITIVE_LONG,
        modes=STREAM_READ,
        ignored_modes=BATCH_READ,
        doc="The minimum number of offsets in a micro-batch. If fewer offsets are available, the "
        "micro-batch is delayed by at most `maxTriggerDelay`.",
    ),
    Option(
        name="maxTriggerDelay",
        section=Section.SIZE,
        type=Duration(),
        modes=STREAM_READ,
        ignored_modes=BATCH_READ,
        default="15m",
        doc="The maximum time that `minOffsetsPerTrigger` can delay a micro-batch.",
    ),
    Option(
        name="kafkaConsumer.pollTimeoutMs",
        section=Section.TIMEOUTS,
        type=POSITIVE_INT,
        modes=READS,
        ignored_modes=WRITES,
        default="120000",
        doc="The maximum time in milliseconds that a task waits for records, and that the driver "
        "waits for an open transaction to end.",
    ),
    Option(
        name="fetchOffset.numRetries",
        section=Section.TIMEOUTS,
        type=POSITIVE_INT,
        modes=READS,
        ignored_modes=WRITES,
        default="3",
        doc="The maximum number of attempts to request metadata or offsets. After the last "
        "attempt, an error that may be permanent fails the query, and a missing topic is treated "
        "as deleted.",
    ),
    Option(
        name="fetchOffset.retryIntervalMs",
        section=Section.TIMEOUTS,
        type=Integer(0, INT_MAX),
        modes=READS,
        ignored_modes=WRITES,
        default="1000",
        doc="The time in milliseconds between attempts (see `fetchOffset.numRetries`).",
    ),
    Option(
        name="groupIdPrefix",
        section=Section.GROUP,
        type=Text(),
        modes=READS,
        default="spark-kafka-source",
        doc="The prefix of the generated consumer group id. Has no effect if `kafka.group.id` is "
        "set.",
    ),
    Option(
        name="kafka.group.id",
        section=Section.GROUP,
        type=Text(),
        modes=READS | STREAM_WRITE,
        ignored_modes=BATCH_WRITE,
        doc="The consumer group id. The query does not join the group. With `startingOffsets` set "
        "to `committed`, it reads the group's committed offsets. With `commitOffsets`, it commits "
        "offsets to the group. The principal may need ACLs on the group.",
    ),
    Option(
        name="commitOffsets",
        section=Section.GROUP,
        type=Boolean(),
        modes=STREAM_READ | STREAM_WRITE,
        default="false",
        requires="transactionalId",
        advice="Remove the option. Only streaming queries commit offsets.",
        doc="Whether the offsets that the query has read are committed to the group in "
        "`kafka.group.id`, for tools that monitor consumer lag. A read commits them after each "
        "completed micro-batch; before Spark 4.2, only when the next micro-batch starts. A failed "
        "commit is logged as a warning. A write with `transactionalId` commits them in the same "
        "transaction as the rows of the micro-batch. This requires the `checkpointLocation` "
        "option. Set `commitOffsets` on either the read or the write.",
    ),
    Option(
        name="topic",
        section=Section.WRITING,
        type=Text(),
        modes=WRITES,
        doc="The topic to write to. Takes precedence over the `topic` column.",
        advice="To read topics, set 'subscribe' instead.",
    ),
    Option(
        name="transactionalId",
        section=Section.EXACTLY_ONCE,
        type=Text(),
        modes=WRITES,
        advice=_ONLY_WRITES,
        doc="Enables exactly-once writes with Kafka transactions. The id identifies the sink "
        f"across restarts and must be unique for each query. It consists of {LEGAL_SINK_IDS}. "
        "Without this option, rows are written at least once.",
    ),
    Option(
        name="transactionTimeout",
        section=Section.EXACTLY_ONCE,
        type=Duration(TRANSACTION_TIMEOUT_MS_MIN, INT_MAX),
        modes=WRITES,
        default="15m",
        requires="transactionalId",
        advice=_ONLY_WRITES,
        doc="The maximum time from the first row of a task to the commit of its micro-batch or "
        "batch job. After this time, the brokers abort the transaction. Must not exceed the "
        "brokers' `transaction.max.timeout.ms`.",
    ),
    Option(
        name="commitTopic",
        section=Section.EXACTLY_ONCE,
        type=Text("topic"),
        modes=WRITES,
        default="__spark_commits",
        requires="transactionalId",
        advice=_ONLY_WRITES,
        doc="The topic in which the sink records its commits. If the topic does not exist, the "
        "sink creates it as a compacted topic with 16 partitions.",
    ),
    Option(
        name="batchId",
        section=Section.EXACTLY_ONCE,
        type=NOT_NEGATIVE_LONG,
        modes=BATCH_WRITE,
        requires="transactionalId",
        advice="Remove the option. Spark assigns the batch ids of a streaming query.",
        doc="The id of a batch job, which makes the job repeatable. If the last committed job has "
        "the same id, the job compares its rows with the committed rows and does not write them "
        "again. An id lower than that of the last committed job is an error.",
    ),
    Option(
        name="onReplayMismatch",
        section=Section.EXACTLY_ONCE,
        type=Choice(("fail", "warn")),
        modes=WRITES,
        default="fail",
        requires="transactionalId",
        advice=_ONLY_WRITES,
        doc="The behavior if the rows of a replayed micro-batch or batch job differ from the "
        "committed rows: `fail` fails the query, and `warn` logs a warning and keeps the committed "
        "rows. In a streaming query, `warn` requires `checkpointLocation`. If the sink has stored "
        "the source offsets (with `warn` or a local checkpoint), a replay with different source "
        "offsets always fails.",
    ),
    Option(
        name="checkpointLocation",
        section=Section.EXACTLY_ONCE,
        type=Text("path"),
        modes=STREAM_WRITE,
        ignored_modes=READS | BATCH_WRITE,
        doc="Spark's option for the checkpoint directory. A write with `commitOffsets` reads the "
        "offsets of a micro-batch from this directory. A location that is set only in Spark's "
        "configuration cannot be used.",
    ),
)

BY_LOWER_NAME: Final = MappingProxyType({option.name.lower(): option for option in OPTIONS})

_BINARY: Final = "decode them in Spark, for example with CAST({0} AS STRING)."
_SERIALIZED: Final = "are written without conversion from a binary or string column."

REJECTED_KAFKA: Final[Mapping[str, str]] = MappingProxyType(
    {
        "auto.offset.reset": "Set 'startingOffsets' instead.",
        "enable.auto.commit": "Remove the option. Spark's checkpoint contains the offsets.",
        "key.deserializer": f"Remove the option. Keys are binary; {_BINARY.format('key')}",
        "value.deserializer": f"Remove the option. Values are binary; {_BINARY.format('value')}",
        "interceptor.classes": "Remove the option. Interceptors are not supported.",
        "key.serializer": f"Remove the option. Keys {_SERIALIZED}",
        "value.serializer": f"Remove the option. Values {_SERIALIZED}",
        "transactional.id": "Set the option 'transactionalId' on a write instead.",
        "transaction.timeout.ms": "Set the option 'transactionTimeout' on a write with "
        "'transactionalId' instead.",
    }
)
"""Unsupported `kafka.*` settings, each with the advice of its error in full sentences."""
