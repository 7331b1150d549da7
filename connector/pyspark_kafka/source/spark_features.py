"""What this Spark can do, found by looking for it, never by its version.

`pyspark.sql.streaming.datasource` came with Spark 4.2, and with it read limits, `latestOffset`
that knows its start, `SupportsTriggerAvailableNow` and `reportLatestOffset`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from pyspark.sql.datasource import DataSourceReader

ADMISSION_CONTROL: Final = find_spec("pyspark.sql.streaming.datasource") is not None

FILTER_PUSHDOWN: Final = hasattr(DataSourceReader, "pushFilters")
"""Spark 4.1: readers of Python sources are told the filters of a query."""

SCANS_KEPT_APART: Final = hasattr(DataSourceReader, "pushLimit")
"""Spark 5.0, where `pushLimit` came together with it (SPARK-58551): what was planned for one scan
stays with it. Before, all scans of what one `load()` returned share the plan of the last one that
had filters, and so read too little or too much.
"""
