"""Every option of the data source, as data: the one place that names them.

Purpose: `parse` reads options by this table, and `docs/options.md` is generated from it.
Invariant: an option that is not in this table has no effect. What it must not know: Spark's
classes, clients.
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
    requires: str | None = None
    """Another option without which this one is refused, where that one may be set at all."""
    spark_since: str | None = None
    """The first Spark version that supports this option; None: every supported version."""
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
        spark_since="4.2",
        doc="At most about this many offsets per micro-batch, shared out by backlog. Needs Spark "
        "4.2.",
    ),
    Option(
        name="minOffsetsPerTrigger",
        type=POSITIVE_LONG,
        modes=STREAM_READ,
        ignored_in=BATCH_READ,
        spark_since="4.2",
        doc="Wait with a micro-batch until there are this many offsets to read, or "
        "`maxTriggerDelay` is over. Needs Spark 4.2.",
    ),
    Option(
        name="maxTriggerDelay",
        type=Duration(),
        modes=STREAM_READ,
        ignored_in=BATCH_READ,
        spark_since="4.2",
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
        requires="transactionalId",
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
        f"all restarts: one for each query, of {LEGAL_SINK_IDS}. Without it rows are written at least "
        "once. The following options need it.",
    ),
    Option(
        name="transactionTimeout",
        type=Duration(TRANSACTION_TIMEOUT_MS_MIN, INT_MAX),
        modes=WRITES,
        default="15m",
        requires="transactionalId",
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
        requires="transactionalId",
        remedy=_OF_WRITES,
        doc="The topic that holds what was committed. Created where it is not there: compacted, "
        "with one partition.",
    ),
    Option(
        name="batchId",
        type=NOT_NEGATIVE_LONG,
        modes=BATCH_WRITE,
        requires="transactionalId",
        remedy="a streaming query numbers its micro-batches itself",
        doc="Makes a job repeatable, and `foreachBatch` exactly once: an id that was written "
        "before is compared and not written again, a lower one is an error.",
    ),
    Option(
        name="onReplayMismatch",
        type=Choice(("fail", "warn")),
        modes=WRITES,
        default="fail",
        requires="transactionalId",
        remedy=_OF_WRITES,
        doc="What to do where a micro-batch or job is repeated that was written before, and has "
        "other rows now: fail, or log a warning and keep what was written.",
    ),
    Option(
        name="twoPhaseCommit",
        type=Boolean(),
        modes=WRITES,
        default="false",
        requires="transactionalId",
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
