"""Detects the features of the installed Spark version from its classes and modules.

Spark 4.2 added `pyspark.sql.streaming.datasource`, which provides read limits, a start offset for
`latestOffset`, `SupportsTriggerAvailableNow` and `reportLatestOffset`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from pyspark.sql.datasource import DataSourceReader

ADMISSION_CONTROL: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Since Spark 4.2, Python sources receive start offsets and read limits, and support
availableNow."""

FILTER_PUSHDOWN: Final = hasattr(DataSourceReader, "pushFilters")
"""Since Spark 4.1, Spark passes the filters of a query to Python sources."""

FILTERS_PER_SCAN: Final = hasattr(DataSourceReader, "pushLimit")
"""Since Spark 5.0, each scan of the result of one `load()` has its own filters (SPARK-58551).

Earlier versions plan all scans with the filters of the last scan, and return wrong rows.
Spark 5.0 also added `pushLimit`, so this method identifies the version.
"""
