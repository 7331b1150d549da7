"""What this Spark can do, found by looking for it, never by its version.

`pyspark.sql.streaming.datasource` came with Spark 4.2, and with it read limits, `latestOffset`
that knows its start, `SupportsTriggerAvailableNow` and `reportLatestOffset`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

ADMISSION_CONTROL: Final = find_spec("pyspark.sql.streaming.datasource") is not None
