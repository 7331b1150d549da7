"""The benchmark cases: a table of sides, rounds and target ratios.

A side is an implementation that a case measures. Each case compares our side with other sides,
which are its peers. Invariant: names are unique, and the peer of each comparison is a side of the
same case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from integration.benchmarks.connectors import (
    DEFAULT,
    DEFAULT_SECURED,
    LIBRDKAFKA,
    OWN,
    OWN_PACKED,
    OWN_PREFETCHED,
    OWN_SECURED,
    TUNED_READER,
)
from integration.benchmarks.kernels import (
    Checksum,
    Consuming,
    Copying,
    Decoding,
    Encoding,
    OtherClientDecoding,
    OtherClientEncoding,
)
from integration.benchmarks.measure import CPU_SECONDS, SECONDS
from integration.benchmarks.new_sessions import (
    FIRST_SECONDS,
    STREAM_SECONDS,
    FirstQuery,
    ShortStream,
)
from integration.benchmarks.reads import BatchRead, FabricatedRead
from integration.benchmarks.sides import Side
from integration.benchmarks.streams import BATCH_SECONDS, Backlog, MicroBatches
from integration.benchmarks.synthetic import DROPPING
from integration.benchmarks.topics import Contents
from integration.benchmarks.worker_memory import GROWTH, LATE_OVER_MIDDLE, FixedLimit, WorkerMemory
from integration.benchmarks.writes import BatchWrite, DiscardingWrite

SPARKS: Final = "Spark's connector"
SPARKS_TUNED: Final = "Spark's connector, tuned"
LIBRDKAFKA_ENGINE: Final = "our librdkafka engine"
FABRICATING: Final = "a source that fabricates rows"
DROPPING_SINK: Final = "a sink that drops its rows"
TRIVIAL: Final = "a trivial source and sink"
AT_LEAST_ONCE: Final = "ours, at least once"
OURS_BY_DEFAULT: Final = "ours, default options"
OURS_COLD: Final = "ours, without warm_up"
OURS_COMPILED: Final = "ours, with compile-pyspark"
OURS_COLD_COMPILED: Final = "ours, with compile-pyspark, without warm_up"
PLAINTEXT: Final = "ours, without security"

GROWTH_LIMIT_MIB: Final = 256
MANY_TASKS: Final = 200
"""Spark's default for `spark.sql.shuffle.partitions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The ratio of two measured values, and its target.

    By default, the ratio is the peer's `quantity` divided by ours, and `target` is its minimum.
    With `at_most`, the ratio is ours divided by the peer's, and `target` is its maximum. `target`
    is None if there is no target. `suffix` is appended to the case's name if the quantity is not
    time.
    """

    peer: str
    target: float | None = None
    quantity: str = SECONDS
    at_most: bool = False
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One benchmark: our side, its peers and the comparisons.

    `records` is the number of records that each side processes per round. A quick run uses
    `quick_records` instead, and skips the case if `quick_records` is None. If `takes_records` is
    false, the case ignores `--records`. If `warms_up` is false, even the first run of each side is
    measured.
    """

    name: str
    title: str
    ours: Side
    peers: Mapping[str, Side]
    comparisons: tuple[Comparison, ...]
    records: int
    quick_records: int | None = None
    rounds: int = 5
    quick_rounds: int = 5
    takes_records: bool = True
    warms_up: bool = True


def _cpu(peer: str, target: float | None = 1.0) -> Comparison:
    return Comparison(peer=peer, target=target, quantity=CPU_SECONDS, suffix="-cpu")


_KERNEL: Final = Contents(value_bytes=100, partitions=1)
_SMALL: Final = Contents(value_bytes=100, partitions=4)
_SMALL_LZ4: Final = Contents(value_bytes=100, partitions=4, codec="lz4")
_SMALL_ZSTD: Final = Contents(value_bytes=100, partitions=4, codec="zstd")
_LARGE: Final = Contents(value_bytes=1024, partitions=4)
_THREE: Final = Contents(value_bytes=100, partitions=3)

_KERNELS: Final = (
    Case(
        name="decode-100",
        title="Decode kernel with CRC, 100-byte values, 7 columns",
        ours=Decoding(contents=_KERNEL),
        peers={
            "CRC alone": Checksum(contents=_KERNEL),
            "memcpy": Copying(contents=_KERNEL),
            "confluent-kafka, consume()": Consuming(contents=_KERNEL),
            "confluent-kafka, with fields": Consuming(contents=_KERNEL, fields=True),
            "aiokafka": OtherClientDecoding(contents=_KERNEL, client="aiokafka", share=0.2),
            "kafka-python": OtherClientDecoding(
                contents=_KERNEL, client="kafka-python", share=0.05
            ),
            "our pure implementation": Decoding(
                contents=_KERNEL, implementation="pure", share=0.05
            ),
        },
        comparisons=(
            Comparison(peer="CRC alone", target=3.0, at_most=True),
            Comparison(peer="memcpy", at_most=True),
            Comparison(
                peer="confluent-kafka, consume()",
                target=25.0,
                quantity=CPU_SECONDS,
                suffix="-cpu",
            ),
            _cpu("confluent-kafka, with fields", None),
            Comparison(peer="aiokafka"),
            Comparison(peer="kafka-python"),
            Comparison(peer="our pure implementation"),
        ),
        records=1_000_000,
        quick_records=500_000,
        rounds=9,
    ),
    Case(
        name="encode-100",
        title="Encode kernel with CRC, 100-byte values",
        ours=Encoding(value_bytes=100),
        peers={
            "aiokafka": OtherClientEncoding(value_bytes=100, client="aiokafka", share=0.2),
            "kafka-python": OtherClientEncoding(value_bytes=100, client="kafka-python", share=0.05),
            "our pure implementation": Encoding(value_bytes=100, implementation="pure", share=0.05),
        },
        comparisons=(
            Comparison(peer="aiokafka"),
            Comparison(peer="kafka-python"),
            Comparison(peer="our pure implementation"),
        ),
        records=1_000_000,
        rounds=9,
    ),
)


def _read(name: str, title: str, contents: Contents, target: float, records: int) -> Case:
    """Return a case that compares batch reads of a topic with the given contents."""
    return Case(
        name=name,
        title=title,
        ours=BatchRead(connector=OWN, contents=contents),
        peers={SPARKS: BatchRead(connector=DEFAULT, contents=contents)},
        comparisons=(Comparison(peer=SPARKS, target=target), _cpu(SPARKS)),
        records=records,
    )


_READS: Final = (
    Case(
        name="read-100",
        title="Batch read, 100-byte values, 7 columns",
        ours=BatchRead(connector=OWN, contents=_SMALL),
        peers={
            SPARKS: BatchRead(connector=DEFAULT, contents=_SMALL),
            SPARKS_TUNED: BatchRead(connector=TUNED_READER, contents=_SMALL),
            FABRICATING: FabricatedRead(contents=_SMALL),
            LIBRDKAFKA_ENGINE: BatchRead(connector=LIBRDKAFKA, contents=_SMALL),
        },
        comparisons=(
            Comparison(peer=SPARKS, target=2.0),
            Comparison(peer=SPARKS_TUNED, target=1.6),
            Comparison(peer=FABRICATING, target=0.75),
            Comparison(peer=LIBRDKAFKA_ENGINE),
            _cpu(SPARKS),
            _cpu(SPARKS_TUNED),
        ),
        records=4_000_000,
        quick_records=1_000_000,
    ),
    Case(
        name="read-value-100",
        title="Batch read, 100-byte values, only the `value` column",
        ours=BatchRead(connector=OWN, contents=_SMALL, column="value"),
        peers={
            SPARKS: BatchRead(connector=DEFAULT, contents=_SMALL, column="value"),
            FABRICATING: FabricatedRead(contents=_SMALL, column="value"),
        },
        comparisons=(
            Comparison(peer=SPARKS, target=3.5),
            Comparison(peer=FABRICATING),
            _cpu(SPARKS),
        ),
        records=4_000_000,
        quick_records=1_000_000,
    ),
    Case(
        name="read-100-secured",
        title="Batch read over SASL_SSL, 100-byte values, 7 columns",
        ours=BatchRead(connector=OWN_SECURED, contents=_SMALL),
        peers={
            SPARKS: BatchRead(connector=DEFAULT_SECURED, contents=_SMALL),
            PLAINTEXT: BatchRead(connector=OWN, contents=_SMALL),
        },
        comparisons=(
            Comparison(peer=SPARKS, target=2.0),
            Comparison(peer=PLAINTEXT, target=0.8),
            _cpu(SPARKS),
        ),
        records=4_000_000,
    ),
    _read("read-1024", "Batch read, 1-KiB values, 7 columns", _LARGE, 2.0, 1_000_000),
    _read("read-100-lz4", "Batch read, 100-byte values, lz4", _SMALL_LZ4, 1.6, 4_000_000),
    _read("read-100-zstd", "Batch read, 100-byte values, zstd", _SMALL_ZSTD, 1.6, 4_000_000),
)


def _write_compressed(codec: str) -> Case:
    return Case(
        name=f"write-100-{codec}",
        title=f"Batch write, 100-byte values, {codec}",
        ours=BatchWrite(connector=OWN, value_bytes=100, codec=codec),
        peers={SPARKS: BatchWrite(connector=DEFAULT, value_bytes=100, codec=codec)},
        comparisons=(Comparison(peer=SPARKS), _cpu(SPARKS)),
        records=2_000_000,
    )


_WRITES: Final = (
    Case(
        name="write-100",
        title="Batch write, 100-byte values",
        ours=BatchWrite(connector=OWN, value_bytes=100),
        peers={
            SPARKS: BatchWrite(connector=DEFAULT, value_bytes=100),
            DROPPING_SINK: DiscardingWrite(format=DROPPING, value_bytes=100),
            "Spark's no-op sink": DiscardingWrite(format="noop", value_bytes=100),
            LIBRDKAFKA_ENGINE: BatchWrite(connector=LIBRDKAFKA, value_bytes=100),
        },
        comparisons=(
            Comparison(peer=SPARKS, target=1.5),
            Comparison(peer=DROPPING_SINK, target=0.7),
            Comparison(
                peer=DROPPING_SINK, target=1.5, quantity=CPU_SECONDS, at_most=True, suffix="-cpu"
            ),
            Comparison(peer="Spark's no-op sink"),
            Comparison(peer=LIBRDKAFKA_ENGINE),
            _cpu(SPARKS),
        ),
        records=3_000_000,
        quick_records=1_000_000,
    ),
    Case(
        name="write-1024",
        title="Batch write, 1-KiB values",
        ours=BatchWrite(connector=OWN, value_bytes=1024),
        peers={
            SPARKS: BatchWrite(connector=DEFAULT, value_bytes=1024),
            DROPPING_SINK: DiscardingWrite(format=DROPPING, value_bytes=1024),
        },
        comparisons=(
            Comparison(peer=SPARKS, target=1.3),
            Comparison(peer=DROPPING_SINK),
            _cpu(SPARKS),
        ),
        records=1_000_000,
    ),
    Case(
        name="write-100-secured",
        title="Batch write over SASL_SSL, 100-byte values",
        ours=BatchWrite(connector=OWN_SECURED, value_bytes=100),
        peers={
            SPARKS: BatchWrite(connector=DEFAULT_SECURED, value_bytes=100),
            PLAINTEXT: BatchWrite(connector=OWN, value_bytes=100),
        },
        comparisons=(
            Comparison(peer=SPARKS, target=1.5),
            Comparison(peer=PLAINTEXT),
            _cpu(SPARKS),
        ),
        records=3_000_000,
    ),
    _write_compressed("lz4"),
    _write_compressed("zstd"),
    Case(
        name="write-100-exactly-once",
        title="Batch write exactly once, 100-byte values",
        ours=BatchWrite(connector=OWN, value_bytes=100, exactly_once=True),
        peers={
            AT_LEAST_ONCE: BatchWrite(connector=OWN, value_bytes=100),
            SPARKS: BatchWrite(connector=DEFAULT, value_bytes=100),
        },
        comparisons=(
            Comparison(peer=AT_LEAST_ONCE, target=0.9),
            Comparison(peer=SPARKS),
            _cpu(AT_LEAST_ONCE, None),
        ),
        records=3_000_000,
        quick_records=1_000_000,
    ),
    Case(
        name="write-200-tasks",
        title="Batch write exactly once, 200 tasks, 100-byte values",
        ours=BatchWrite(connector=OWN, value_bytes=100, exactly_once=True, tasks=MANY_TASKS),
        peers={AT_LEAST_ONCE: BatchWrite(connector=OWN, value_bytes=100, tasks=MANY_TASKS)},
        comparisons=(
            Comparison(peer=AT_LEAST_ONCE, target=0.9),
            _cpu(AT_LEAST_ONCE, None),
        ),
        records=10_000_000,
    ),
)

_STREAMS: Final = (
    Case(
        name="stream-backlog-100",
        title="Streaming read of a backlog (AvailableNow), 100-byte values",
        ours=Backlog(connector=OWN, contents=_SMALL),
        peers={SPARKS: Backlog(connector=DEFAULT, contents=_SMALL)},
        comparisons=(Comparison(peer=SPARKS, target=1.8), _cpu(SPARKS)),
        records=10_000_000,
        quick_records=2_000_000,
    ),
    Case(
        name="micro-batch",
        title="A micro-batch of 10 rows, Kafka to Kafka",
        ours=MicroBatches(connector=OWN),
        peers={TRIVIAL: MicroBatches(connector=None), SPARKS: MicroBatches(connector=DEFAULT)},
        comparisons=(
            Comparison(peer=TRIVIAL, target=1.15, quantity=BATCH_SECONDS, at_most=True),
            Comparison(peer=SPARKS, quantity=BATCH_SECONDS, at_most=True),
        ),
        records=300,
        quick_records=60,
        takes_records=False,
    ),
    Case(
        name="micro-batch-max-partitions-1",
        title="A micro-batch of 10 rows, Kafka to Kafka, maxPartitions=1",
        ours=MicroBatches(connector=OWN, max_partitions=1),
        peers={
            OURS_BY_DEFAULT: MicroBatches(connector=OWN),
            SPARKS: MicroBatches(connector=DEFAULT),
        },
        comparisons=(
            Comparison(peer=OURS_BY_DEFAULT, quantity=BATCH_SECONDS, at_most=True),
            Comparison(peer=SPARKS, target=1.0, quantity=BATCH_SECONDS, at_most=True),
        ),
        records=300,
        quick_records=60,
        takes_records=False,
    ),
    Case(
        name="micro-batch-exactly-once",
        title="A micro-batch of 10 rows, Kafka to Kafka, exactly once",
        ours=MicroBatches(connector=OWN, exactly_once=True),
        peers={AT_LEAST_ONCE: MicroBatches(connector=OWN)},
        comparisons=(
            Comparison(peer=AT_LEAST_ONCE, target=1.1, quantity=BATCH_SECONDS, at_most=True),
        ),
        records=300,
        quick_records=60,
        takes_records=False,
    ),
    Case(
        name="micro-batch-200-tasks",
        title="A micro-batch of 200 tasks with one row each, Kafka to Kafka, exactly once",
        ours=MicroBatches(connector=OWN, exactly_once=True, rows=MANY_TASKS, tasks=MANY_TASKS),
        peers={AT_LEAST_ONCE: MicroBatches(connector=OWN, rows=MANY_TASKS, tasks=MANY_TASKS)},
        comparisons=(
            Comparison(peer=AT_LEAST_ONCE, target=1.3, quantity=BATCH_SECONDS, at_most=True),
        ),
        records=1_000,
        takes_records=False,
    ),
)


def _first(name: str, title: str, *, writes: bool) -> Case:
    """Return a case that compares the first query of a session."""
    return Case(
        name=name,
        title=title,
        ours=FirstQuery(connector=OWN, writes=writes, is_warm=True),
        peers={
            SPARKS: FirstQuery(connector=DEFAULT, writes=writes),
            OURS_COLD: FirstQuery(connector=OWN, writes=writes),
            OURS_COMPILED: FirstQuery(connector=OWN, writes=writes, is_warm=True, is_compiled=True),
            OURS_COLD_COMPILED: FirstQuery(connector=OWN, writes=writes, is_compiled=True),
            TRIVIAL: FirstQuery(connector=None, writes=writes),
        },
        comparisons=(
            Comparison(peer=SPARKS, quantity=FIRST_SECONDS, target=1.0, at_most=True),
            Comparison(peer=OURS_COLD, quantity=FIRST_SECONDS, at_most=True),
            Comparison(peer=OURS_COMPILED, quantity=FIRST_SECONDS, at_most=True),
            Comparison(peer=OURS_COLD_COMPILED, quantity=FIRST_SECONDS, at_most=True),
            Comparison(peer=TRIVIAL, quantity=FIRST_SECONDS, at_most=True),
        ),
        records=1,
        takes_records=False,
        warms_up=False,
    )


def _wide(partitions: int) -> Case:
    """Return a case that reads a topic with many partitions of 1,000 records each."""
    contents = Contents(value_bytes=100, partitions=partitions)
    return Case(
        name=f"read-{partitions}-partitions",
        title=f"Batch read of {partitions} partitions of 1,000 values, maxPartitions=2",
        ours=BatchRead(connector=OWN_PACKED, contents=contents),
        peers={
            SPARKS: BatchRead(connector=DEFAULT, contents=contents),
            OURS_BY_DEFAULT: BatchRead(connector=OWN, contents=contents),
        },
        comparisons=(
            Comparison(peer=SPARKS, at_most=True),
            Comparison(peer=OURS_BY_DEFAULT, at_most=True),
        ),
        records=1_000 * partitions,
        takes_records=False,
    )


_SMALL_JOBS: Final = (
    _first("first-write", "The first write of a session, after warm_up", writes=True),
    _first("first-read", "The first read of a session, after warm_up", writes=False),
    _wide(20),
    _wide(100),
    Case(
        name="stream-3000",
        title="Streaming read of 3,000 records in 3 partitions (AvailableNow), maxPartitions=1",
        ours=ShortStream(connector=OWN_PREFETCHED, contents=_THREE),
        peers={
            SPARKS: ShortStream(connector=DEFAULT, contents=_THREE),
            OURS_BY_DEFAULT: ShortStream(connector=OWN, contents=_THREE),
            OURS_COMPILED: ShortStream(connector=OWN_PREFETCHED, contents=_THREE, is_compiled=True),
            TRIVIAL: ShortStream(connector=None, contents=_THREE),
        },
        comparisons=(
            Comparison(peer=SPARKS, target=0.7, quantity=STREAM_SECONDS, at_most=True),
            Comparison(peer=OURS_BY_DEFAULT, quantity=STREAM_SECONDS, at_most=True),
            Comparison(peer=OURS_COMPILED, quantity=STREAM_SECONDS, at_most=True),
            Comparison(peer=TRIVIAL, quantity=STREAM_SECONDS, at_most=True),
        ),
        records=3_000,
        takes_records=False,
        warms_up=False,
    ),
    Case(
        name="stream-1000000",
        title="Streaming read of 1,000,000 records in 4 partitions (AvailableNow)",
        ours=ShortStream(connector=OWN, contents=_SMALL),
        peers={
            SPARKS: ShortStream(connector=DEFAULT, contents=_SMALL),
            OURS_COMPILED: ShortStream(connector=OWN, contents=_SMALL, is_compiled=True),
            TRIVIAL: ShortStream(connector=None, contents=_SMALL),
        },
        comparisons=(
            Comparison(peer=SPARKS, target=0.6, quantity=STREAM_SECONDS, at_most=True),
            Comparison(peer=OURS_COMPILED, quantity=STREAM_SECONDS, at_most=True),
            Comparison(peer=TRIVIAL, quantity=STREAM_SECONDS, at_most=True),
        ),
        records=1_000_000,
        takes_records=False,
        warms_up=False,
    ),
)

_MEMORY: Final = (
    Case(
        name="worker-memory",
        title="Memory growth of a Python worker that reads a partition of 100-byte values",
        ours=WorkerMemory(connector=OWN, contents=_KERNEL),
        peers={
            f"{GROWTH_LIMIT_MIB} MiB": FixedLimit(sample={GROWTH: GROWTH_LIMIT_MIB}),
            "a flat line": FixedLimit(sample={LATE_OVER_MIDDLE: 1.0}),
        },
        comparisons=(
            Comparison(peer=f"{GROWTH_LIMIT_MIB} MiB", target=1.0, quantity=GROWTH, at_most=True),
            Comparison(
                peer="a flat line",
                target=1.05,
                quantity=LATE_OVER_MIDDLE,
                at_most=True,
                suffix="-over-time",
            ),
        ),
        records=10_000_000,
    ),
)

CASES: Final = (*_KERNELS, *_READS, *_WRITES, *_STREAMS, *_SMALL_JOBS, *_MEMORY)
