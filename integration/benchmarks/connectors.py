"""The compared data sources, with their options.

Invariant: options are what a user writes, in one place. What it must not know: measurements.
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
    """`engine` None is the measured engine of the run; only ours has the option."""

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    engine: str | None = None

    def options_with(self, *, bootstrap_servers: str, engine: str) -> dict[str, str]:
        """Return the options for Spark; `engine` is that of the run."""
        options = {"kafka.bootstrap.servers": bootstrap_servers, **self.options}
        if self.format == OURS:
            options["engine"] = self.engine or engine
        return options


OWN: Final = Connector(format=OURS)
LIBRDKAFKA: Final = Connector(format=OURS, engine="librdkafka")
DEFAULT: Final = Connector(format=SPARKS_OWN)
TUNED_READER: Final = Connector(format=SPARKS_OWN, options=TUNED)
