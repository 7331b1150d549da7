"""The data sources to compare, with their options.

Invariant: the options are those that a user would set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

OURS: Final = "pyspark_kafka"
SPARKS_OWN: Final = "kafka"

TUNED: Final[Mapping[str, str]] = {
    "kafka.max.poll.records": "50000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}
"""Options that make Spark's connector read faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """A data source and its options.

    Only our connector has an `engine`; None means the engine that is selected for the benchmark
    run. With `is_secured`, the data source connects over SASL_SSL with SCRAM.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    engine: str | None = None
    is_secured: bool = False


OWN: Final = Connector(format=OURS)
OWN_PACKED: Final = Connector(format=OURS, options={"maxPartitions": "2"})
OWN_PREFETCHED: Final = Connector(format=OURS, options={"maxPartitions": "1"})
LIBRDKAFKA: Final = Connector(format=OURS, engine="librdkafka")
OWN_SECURED: Final = Connector(format=OURS, is_secured=True)
DEFAULT: Final = Connector(format=SPARKS_OWN)
DEFAULT_SECURED: Final = Connector(format=SPARKS_OWN, is_secured=True)
TUNED_READER: Final = Connector(format=SPARKS_OWN, options=TUNED)
