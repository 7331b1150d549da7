"""Converts Spark's filters to conditions.

Only this module uses the filters from `pyspark.sql.datasource` (Spark 4.1 and later). The module
compares class names, so it can be imported with earlier Spark versions. Invariant: Spark evaluates
unknown filters itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark_kafka.source.pruning import Condition, Operator

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

OPERATORS: Final[Mapping[str, Operator]] = MappingProxyType(
    {
        "EqualTo": Operator.EQUAL,
        "EqualNullSafe": Operator.EQUAL_NULL_SAFE,
        "GreaterThan": Operator.GREATER,
        "GreaterThanOrEqual": Operator.GREATER_OR_EQUAL,
        "LessThan": Operator.LESS,
        "LessThanOrEqual": Operator.LESS_OR_EQUAL,
        "In": Operator.IN,
        "IsNull": Operator.IS_NULL,
        "IsNotNull": Operator.IS_NOT_NULL,
        "StringStartsWith": Operator.STARTS_WITH,
        "StringEndsWith": Operator.ENDS_WITH,
        "StringContains": Operator.CONTAINS,
    }
)


def condition_of(spark_filter: Filter) -> Condition | None:
    """Return the condition for a filter, or None if it is not a known filter on one column."""
    name = type(spark_filter).__name__
    child = getattr(spark_filter, "child", None) if name == "Not" else spark_filter
    operator = OPERATORS.get(type(child).__name__)
    path: tuple[str, ...] = getattr(child, "attribute", ())
    if operator is None or len(path) != 1:
        return None
    return Condition(
        column=path[0],
        operator=operator,
        value=getattr(child, "value", None),
        negated=name == "Not",
    )
