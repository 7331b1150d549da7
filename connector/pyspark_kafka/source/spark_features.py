"""The features of the installed Spark, detected without its version number.

Spark 4.2 added `pyspark.sql.streaming.datasource`, with read limits, `latestOffset` with a start
offset, `SupportsTriggerAvailableNow` and `reportLatestOffset`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from pyspark.sql.datasource import DataSourceReader

ADMISSION_CONTROL: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Spark 4.2: micro-batches of Python sources can be limited."""

FILTER_PUSHDOWN: Final = hasattr(DataSourceReader, "pushFilters")
"""Spark 4.1: Spark passes the filters of a query to Python sources."""

FILTERS_PER_SCAN: Final = hasattr(DataSourceReader, "pushLimit")
"""Spark 5.0 plans each scan of one `load()` with its own filters (SPARK-58551).

Earlier versions plan all of them with the filters of the last one, and return wrong rows.
`pushLimit` was added in the same version.
"""
