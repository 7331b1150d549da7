"""What to do about records that were to be read and are gone: `failOnDataLoss`.

Purpose: one wording and one decision for driver and executors. What is loss, and what is not, is
said where it is found. What it must not know: clients, Spark.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark_kafka.errors import DataLossError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLossPolicy:
    fail: bool

    def report(self, what: str) -> None:
        """Raise `DataLossError`, or log a warning and let the caller go on with what exists."""
        if self.fail:
            raise DataLossError(
                f"{what}. The records were deleted (by retention, or with their topic) before they "
                "were read. To go on without them set the option 'failOnDataLoss' to 'false'"
            )
        log.warning("%s. Going on without them, since failOnDataLoss is false", what)
