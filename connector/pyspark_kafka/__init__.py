"""A Spark data source for Apache Kafka, in Python.

`spark.read.format("pyspark_kafka")` works when this package is installed, because Spark imports
every `pyspark_*` package and registers its `DefaultSource`. Spark Connect servers and Databricks do
not register the source. On these platforms, call `pyspark_kafka.register(spark)`. `warm_up` makes
the first queries of a session faster. `lag`, `KafkaMetricsListener` and `count_bytes` monitor
streaming queries.

PySpark and the modules of this package are imported on first use, so `import pyspark_kafka` is
fast. The import also succeeds if PySpark is not installed, but names that require PySpark are then
unavailable.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark_kafka.datasource import KafkaDataSource as DefaultSource
    from pyspark_kafka.monitoring.lag import Lag, lag
    from pyspark_kafka.monitoring.listener import KafkaMetricsListener
    from pyspark_kafka.monitoring.sizes import count_bytes
    from pyspark_kafka.startup import register, warm_up

__all__ = [
    "DefaultSource",
    "KafkaMetricsListener",
    "Lag",
    "count_bytes",
    "lag",
    "register",
    "warm_up",
]

_LAZY: Final = {
    "DefaultSource": ("datasource", "KafkaDataSource"),
    "KafkaMetricsListener": ("monitoring.listener", "KafkaMetricsListener"),
    "Lag": ("monitoring.lag", "Lag"),
    "count_bytes": ("monitoring.sizes", "count_bytes"),
    "lag": ("monitoring.lag", "lag"),
    "register": ("startup", "register"),
    "warm_up": ("startup", "warm_up"),
}
"""The module and the attribute for each name that is imported on first use."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), attribute)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pyspark.") and error.name != "pyspark":
            raise
        raise AttributeError(
            f"pyspark_kafka.{name} requires PySpark 4.0 or later. Install it with: "
            "pip install 'pyspark-kafka[spark]'"
        ) from error
