"""The table of all options of the data source.

Purpose: `parse` reads options by this table, and `docs/options.md` is generated from it.
Invariant: an option that is not in this table has no effect. Must not know: Spark's classes,
clients.

To add an option, add its row here, its field in `values`, and the line in `parse` that sets it;
then generate the page (`python -m pyspark_kafka.pages docs`).
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
    Choice,
    Duration,
    Integer,
    OptionType,
    Text,
)

TRANSACTION_TIMEOUT_MS_MIN: Final = 1_000


class Mode(Enum):
    """The type of a query; the values are used in error messages and in docs/options.md."""

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
    """A section of docs/options.md, in the order of the page."""

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
    """One row of the table.

    The option applies to `modes`. In `ignored_in` it has no effect, as in Spark's connector, and a
    warning is logged. In any other mode it is an error.
    """

    name: str
    section: Section
    type: OptionType
    modes: frozenset[Mode]
    doc: str
    default: str | None = None
    stream_default: str | None = None
    """The default of a streaming read, where it differs."""
    ignored_in: frozenset[Mode] = frozenset()
    requires: str | None = None
    """The option without which this one is an error, in the modes to which that one applies."""
    spark_since: str | None = None
    """The first Spark version that supports this option; None: every supported version."""
    advice: str = field(default="Remove it.", repr=False)
    """The advice of the error in a mode to which the option does not apply."""

    def parse(self, text: str) -> bool | int | str:
        """Return the value; raises `OptionError`."""
        try:
            return self.type.parse(text)
        except ValueError:
            raise OptionError(
                f"Option '{self.name}' has the value '{text}'.",
                advice=f"Set it to {self.type.expected}.",
                option=self.name,
            ) from None

    def default_in(self, modes: frozenset[Mode]) -> str | None:
        return self.stream_default or self.default if modes == STREAM_READ else self.default


_ONLY_WRITES: Final = "Remove it: the option configures exactly-once writes."

OPTIONS: Final = (
    Option(
        name="kafka.bootstrap.servers",
        section=Section.CONNECTION,
        type=Text("host:port,..."),
        modes=EVERYWHERE,
        doc="Required. The brokers to connect to first: `host:port[,host:port...]`.",
    ),
    Option(
        name="engine",
        section=Section.CONNECTION,
        type=Choice(("auto", "native", "librdkafka")),
        modes=EVERYWHERE,
        default="auto",
        doc="The Kafka client. `native` is part of this package and decodes record batches "
        "directly into Arrow; it does not support TLS and SASL yet. `auto` uses `native` if that "
        "supports all settings of the query, else `librdkafka`; the log names the engine and the "
        "reason. A write with `transactionalId` always uses `native`.",
    ),
    Option(
        name="assign",
        section=Section.SELECTION,
        type=Text("JSON"),
        modes=READS,
        doc='The partitions to read: `{"topicA":[0,1],"topicB":[2]}`. Exactly one of `assign`, '
        "`subscribe` and `subscribePattern` is required.",
    ),
    Option(
        name="subscribe",
        section=Section.SELECTION,
        type=Text("topic,..."),
        modes=READS,
        doc="The topics to read, separated by commas.",
    ),
    Option(
        name="subscribePattern",
        section=Section.SELECTION,
        type=Text("regular expression"),
        modes=READS,
        doc="Read all topics whose name contains a match of this expression (Python's "
        "`re.search`), except internal topics.",
    ),
    Option(
        name="includeHeaders",
        section=Section.SELECTION,
        type=Boolean(),
        modes=READS,
        ignored_in=WRITES,
        default="false",
        doc="Add the column `headers`.",
    ),
    Option(
        name="kafka.isolation.level",
        section=Section.SELECTION,
        type=Choice(("read_committed", "read_uncommitted")),
        modes=READS,
        ignored_in=WRITES,
        default="read_committed",
        doc="`read_committed` reads up to the last stable offset and skips the records of aborted "
        "transactions. The default of Spark's connector is `read_uncommitted`.",
    ),
    Option(
        name="filterPushdown",
        section=Section.SELECTION,
        type=Choice(("false", "true", "single-scan")),
        modes=BATCH_READ,
        default="false",
        advice="Remove it, and set 'startingOffsets' or 'startingTimestamp' for a new query: Spark "
        "does not push filters down to streaming sources.",
        doc="Use filters on `topic`, `partition`, `offset` and `timestamp` to read less. `true` "
        "needs Spark 5.0; earlier versions log a warning and read everything. `single-scan` needs "
        "Spark 4.1, and is only correct if the result of each `load()` is scanned once. See "
        "[Filters](guide.md#filters).",
    ),
    Option(
        name="failOnDataLoss",
        section=Section.SELECTION,
        type=Boolean(),
        modes=READS,
        default="true",
        doc="Whether to fail the query if records that it has to read no longer exist: retention "
        "deleted them, or their topic was deleted or recreated. With `false` the query logs a "
        "warning and continues with the records that exist.",
    ),
    Option(
        name="startingOffsets",
        section=Section.LIMITS,
        type=Text("JSON, name"),
        modes=READS,
        default="earliest",
        stream_default="latest",
        doc="Where a query starts: `earliest`, `latest` (streaming only), `committed` (the "
        'committed offsets of `kafka.group.id`), or JSON: `{"topicA":{"0":23,"1":-2}}`. The JSON '
        "contains exactly the partitions to read; -2 is earliest, -1 latest (streaming only). For "
        "streaming queries this applies only to a new query; a restarted query continues from its "
        "checkpoint. Partitions discovered during a query start at earliest.",
    ),
    Option(
        name="startingTimestamp",
        section=Section.LIMITS,
        type=NOT_NEGATIVE_LONG,
        modes=READS,
        doc="Start each partition at its first record with this timestamp (epoch milliseconds) or "
        "a later one. Takes precedence over `startingOffsetsByTimestamp` and `startingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        section=Section.LIMITS,
        type=Text("JSON"),
        modes=READS,
        doc='A starting timestamp for each partition: `{"topicA":{"0":1700000000000}}`. Contains '
        "exactly the partitions to read. Takes precedence over `startingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        section=Section.LIMITS,
        type=Choice(("error", "latest")),
        modes=READS,
        default="error",
        doc="What to do if a partition has no record with the starting timestamp or a later one: "
        "`error` fails the query, `latest` starts the partition at latest.",
    ),
    Option(
        name="endingOffsets",
        section=Section.LIMITS,
        type=Text("JSON, name"),
        modes=BATCH_READ,
        default="latest",
        doc="Where a batch query ends (exclusive): `latest`, or JSON: "
        '`{"topicA":{"0":50,"1":-1}}`. The JSON contains exactly the partitions to read; -1 is '
        "latest.",
    ),
    Option(
        name="endingTimestamp",
        section=Section.LIMITS,
        type=NOT_NEGATIVE_LONG,
        modes=BATCH_READ,
        doc="End each partition before its first record with this timestamp (epoch milliseconds) "
        "or a later one, or at latest if there is none. Takes precedence over "
        "`endingOffsetsByTimestamp` and `endingOffsets`.",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        section=Section.LIMITS,
        type=Text("JSON"),
        modes=BATCH_READ,
        doc="An ending timestamp for each partition, in the format of "
        "`startingOffsetsByTimestamp`. Takes precedence over `endingOffsets`.",
    ),
    Option(
        name="minPartitions",
        section=Section.SIZE,
        type=POSITIVE_INT,
        modes=READS,
        doc="The desired minimum number of Spark partitions. Large offset ranges are split in "
        "proportion to their size. By default there is one Spark partition for each topic "
        "partition.",
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
        ignored_in=BATCH_READ,
        spark_since="4.2",
        doc="The approximate maximum number of offsets in a micro-batch, divided among partitions "
        "in proportion to their backlog.",
    ),
    Option(
        name="minOffsetsPerTrigger",
        section=Section.SIZE,
        type=POSITIVE_LONG,
        modes=STREAM_READ,
        ignored_in=BATCH_READ,
        spark_since="4.2",
        doc="The minimum number of offsets in a micro-batch. With fewer offsets the micro-batch "
        "waits for up to `maxTriggerDelay`.",
    ),
    Option(
        name="maxTriggerDelay",
        section=Section.SIZE,
        type=Duration(),
        modes=STREAM_READ,
        ignored_in=BATCH_READ,
        spark_since="4.2",
        default="15m",
        doc="The maximum delay of a micro-batch by `minOffsetsPerTrigger`.",
    ),
    Option(
        name="kafkaConsumer.pollTimeoutMs",
        section=Section.TIMEOUTS,
        type=POSITIVE_INT,
        modes=READS,
        ignored_in=WRITES,
        default="120000",
        doc="How many milliseconds a task waits for records, and how long planning waits for an "
        "open transaction to end.",
    ),
    Option(
        name="fetchOffset.numRetries",
        section=Section.TIMEOUTS,
        type=POSITIVE_INT,
        modes=READS,
        ignored_in=WRITES,
        default="3",
        doc="How often to request metadata and offsets before an error that may be permanent is "
        "raised, or before a topic counts as deleted.",
    ),
    Option(
        name="fetchOffset.retryIntervalMs",
        section=Section.TIMEOUTS,
        type=Integer(0, INT_MAX),
        modes=READS,
        ignored_in=WRITES,
        default="1000",
        doc="How many milliseconds to wait between these requests.",
    ),
    Option(
        name="groupIdPrefix",
        section=Section.GROUP,
        type=Text(),
        modes=READS,
        default="spark-kafka-source",
        doc="The prefix of the generated consumer group id. Has no effect with `kafka.group.id`.",
    ),
    Option(
        name="kafka.group.id",
        section=Section.GROUP,
        type=Text(),
        modes=READS | STREAM_WRITE,
        ignored_in=BATCH_WRITE,
        doc="The consumer group id. A read sends it to the brokers, where ACLs and quotas can "
        "apply to it, and does not join the group. `commitOffsets` commits to this group.",
    ),
    Option(
        name="commitOffsets",
        section=Section.GROUP,
        type=Boolean(),
        modes=STREAM_READ | STREAM_WRITE,
        default="false",
        requires="transactionalId",
        advice="Remove it: only streaming queries commit offsets.",
        doc="Commit the offsets that the query has read to the group `kafka.group.id`, for tools "
        "that monitor consumer lag. On a read: after each completed micro-batch; a failed commit "
        "is logged as a warning. On a write with `transactionalId`: in the same transaction as the "
        "rows of the micro-batch; this requires `checkpointLocation` as an option of the query. "
        "Set the option either on the read or on the write.",
    ),
    Option(
        name="topic",
        section=Section.WRITING,
        type=Text(),
        modes=WRITES,
        doc="The topic to write to. Takes precedence over the column `topic`.",
        advice="Set 'subscribe' to the topics to read.",
    ),
    Option(
        name="transactionalId",
        section=Section.EXACTLY_ONCE,
        type=Text(),
        modes=WRITES,
        advice=_ONLY_WRITES,
        doc="Write exactly once, with Kafka transactions. The id identifies the sink across "
        f"restarts and must be unique for each query: {LEGAL_SINK_IDS}. Without it, rows are "
        "written at least once.",
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
        "job. After that the brokers abort the transaction. Must not exceed the brokers' "
        "`transaction.max.timeout.ms`.",
    ),
    Option(
        name="commitTopic",
        section=Section.EXACTLY_ONCE,
        type=Text("topic"),
        modes=WRITES,
        default="__spark_commits",
        requires="transactionalId",
        advice=_ONLY_WRITES,
        doc="The topic in which the sink records its commits. The sink creates it if it does not "
        "exist: compacted, with one partition.",
    ),
    Option(
        name="batchId",
        section=Section.EXACTLY_ONCE,
        type=NOT_NEGATIVE_LONG,
        modes=BATCH_WRITE,
        requires="transactionalId",
        advice="Remove it: a streaming query numbers its micro-batches itself.",
        doc="Makes a batch job repeatable, and `foreachBatch` exactly once. A job with the id of a "
        "committed job compares its rows and does not write them again; a lower id is an error.",
    ),
    Option(
        name="onReplayMismatch",
        section=Section.EXACTLY_ONCE,
        type=Choice(("fail", "warn")),
        modes=WRITES,
        default="fail",
        requires="transactionalId",
        advice=_ONLY_WRITES,
        doc="What to do if a replayed micro-batch or job has other rows than the committed one: "
        "fail, or log a warning and keep the committed rows.",
    ),
    Option(
        name="twoPhaseCommit",
        section=Section.EXACTLY_ONCE,
        type=Boolean(),
        modes=WRITES,
        default="false",
        requires="transactionalId",
        advice=_ONLY_WRITES,
        doc="Use transactions without a timeout (KIP-939), if the cluster supports them.",
    ),
    Option(
        name="checkpointLocation",
        section=Section.EXACTLY_ONCE,
        type=Text("path"),
        modes=STREAM_WRITE,
        ignored_in=READS | BATCH_WRITE,
        doc="Spark's option for the directory of the checkpoint. A write with `commitOffsets` "
        "reads the offsets of a micro-batch there, and does not see a location that is set in "
        "Spark's configuration.",
    ),
)

BY_LOWER_NAME: Final = MappingProxyType({option.name.lower(): option for option in OPTIONS})

_BINARY: Final = "decode them in Spark, for example with CAST({0} AS STRING)."
_SERIALIZED: Final = "are written as they are in the column, which is binary or string."

REFUSED_KAFKA: Final[Mapping[str, str]] = MappingProxyType(
    {
        "auto.offset.reset": "Set 'startingOffsets' instead.",
        "enable.auto.commit": "Remove it: the offsets of a query are in Spark's checkpoint.",
        "key.deserializer": f"Remove it: keys are binary; {_BINARY.format('key')}",
        "value.deserializer": f"Remove it: values are binary; {_BINARY.format('value')}",
        "interceptor.classes": "Remove it: interceptors are not supported.",
        "key.serializer": f"Remove it: keys {_SERIALIZED}",
        "value.serializer": f"Remove it: values {_SERIALIZED}",
        "transactional.id": "Set the option 'transactionalId' of a write instead.",
        "transaction.timeout.ms": "Set 'transactionTimeout' of a write with 'transactionalId' "
        "instead.",
    }
)
"""`kafka.*` settings that are not supported, and the advice of the error: full sentences."""
