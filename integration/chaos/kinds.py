"""The kinds of queries in chaos runs, and the cluster that each kind needs.

Invariant: the seed alone determines the kind and the `transaction.version`. Consecutive seeds cover
each kind with both transaction versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from integration.chaos.schedule import FaultKind

SINK_ID: Final = "chaos"
GROUP: Final = "chaos"
TRANSACTION_TIMEOUT_S: Final = 10
"""The transaction timeout of the kind `short-timeouts`. Its pauses and stalls last longer."""

COUNTED_KEYS: Final = 20
"""The aggregation counts the records of each key. The key is the offset modulo this number."""

_EVENT_LOG: Final = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of query.

    `query` is a key of `queries.QUERIES`. `conf` contains Spark properties, and `configs` contains
    broker configs. `sink_options` are options for the sink of `pyspark_kafka` only. With
    `on_two_hosts`, tasks run in two executors on different hosts. Otherwise, tasks run in the
    driver's JVM. The schedule contains `faults` in addition to the faults that all kinds have in
    common. With `has_control`, the query can also run with Spark's own connector.
    """

    name: str
    query: str = "copy"
    conf: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)
    on_two_hosts: bool = False
    faults: tuple[FaultKind, ...] = ()
    has_control: bool = True


_KINDS: Final = (
    Kind(name="copy"),
    Kind(
        name="aggregation",
        query="count",
        # The oracle reads the source offsets of all micro-batches.
        conf={"spark.sql.streaming.minBatchesToRetain": "1000000"},
    ),
    Kind(name="foreach-batch", query="copy_twice"),
    Kind(
        name="commit-offsets",
        sink_options={"commitOffsets": "true", "kafka.group.id": GROUP},
        has_control=False,
    ),
    Kind(
        name="speculation",
        query="copy_with_slow_tasks",
        on_two_hosts=True,
        conf={
            **_EVENT_LOG,
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.minTaskRuntime": "50ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.3",
            "spark.speculation.efficiency.enabled": "false",
            # A slow task pauses between two Arrow batches, that is, after it has written rows.
            "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        },
    ),
    Kind(
        name="stage-retries",
        query="copy_with_shuffle",
        on_two_hosts=True,
        conf={
            **_EVENT_LOG,
            "spark.locality.wait": "0",
            "spark.shuffle.io.maxRetries": "1",
            "spark.shuffle.io.retryWait": "100ms",
        },
        faults=(FaultKind.KILL_EXECUTOR,) * 3,
    ),
    Kind(
        name="short-timeouts",
        sink_options={"transactionTimeout": str(TRANSACTION_TIMEOUT_S * 1000)},
        configs={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"},
        faults=(FaultKind.PAUSE_DRIVER, FaultKind.STALL_SINK, FaultKind.STALL_SINK),
        has_control=False,
    ),
)
KINDS: Final[Mapping[str, Kind]] = MappingProxyType({kind.name: kind for kind in _KINDS})


def kind_of(seed: int, *, is_control: bool = False) -> Kind:
    """Return the kind of query that a seed runs.

    If `is_control` is true, consider only the kinds that Spark's connector can run.
    """
    kinds = [kind for kind in _KINDS if kind.has_control or not is_control]
    return kinds[(seed - 1) % len(kinds)]


def transaction_version_of(seed: int) -> int:
    """Return the `transaction.version` of a seed's cluster.

    Consecutive seeds alternate between versions 1 and 2. Because the number of kinds is odd, each
    kind runs with both versions.
    """
    return 1 + seed % 2
