"""Reads `StreamingQueryProgress`, the report that Spark creates after each micro-batch.

Spark reports the same Java class name for every Python source. Kafka sources are therefore
recognized by the format of their offsets, which is the same for Spark's own connector.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark_kafka.kafka.offsets import PartitionOffsets
from pyspark_kafka.options.offsets_json import OffsetFormatError, from_json_object

Progress = Mapping[str, Any] | str
"""A `StreamingQueryProgress` (a dict), its JSON text, or its decoded JSON."""

Side = Literal["read", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProgress:
    """The progress of one Kafka source.

    `end` contains the end offsets of the micro-batch. `latest` contains the latest offsets at the
    time when Spark planned the micro-batch. `latest` is empty if Spark replayed a micro-batch that
    an earlier run had planned.
    """

    end: PartitionOffsets
    latest: PartitionOffsets
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress:
    """The monitored values of a progress report. Unknown values are None.

    `query` is the name of the query, or its id if it has no name. `timestamp` is the start time of
    the micro-batch, as text.
    """

    query: str
    query_id: str
    run_id: str
    batch_id: int
    timestamp: str
    duration_ms: int
    sources: tuple[SourceProgress, ...]
    rows_read: int | None
    rows_written: int | None
    bytes_read: int | None
    bytes_written: int | None


def metric_prefix(side: Side) -> str:
    """Return the name prefix of the metrics that `sizes.count_bytes` adds."""
    return f"pyspark_kafka.{side}."


def parse_progress(progress: Progress) -> QueryProgress:
    """Return the monitored values of a progress report of Spark 4.0 or later.

    Raises `TypeError` if `progress` is not a progress report, and `ValueError` for malformed JSON.
    """
    report = _decoded(progress)
    sources = tuple(filter(None, map(_kafka_source, report["sources"])))
    written = int(report["sink"]["numOutputRows"])
    return QueryProgress(
        query=report.get("name") or str(report["id"]),
        query_id=str(report["id"]),
        run_id=str(report["runId"]),
        batch_id=report["batchId"],
        timestamp=report["timestamp"],
        duration_ms=report["batchDuration"],
        sources=sources,
        rows_read=sum(source.rows for source in sources) if sources else None,
        rows_written=written if written >= 0 else _observed(report, "write", "rows"),
        bytes_read=_observed(report, "read", "bytes"),
        bytes_written=_observed(report, "write", "bytes"),
    )


def _decoded(progress: Progress) -> Mapping[str, Any]:
    # `StreamingQueryProgress.json` is the same in all versions, but the items of the dict differ.
    text = progress if isinstance(progress, str) else getattr(progress, "json", None)
    report = json.loads(text) if isinstance(text, str) else progress
    if not isinstance(report, Mapping) or "sources" not in report:
        raise TypeError(
            "The argument must be the progress of a streaming query, not an object of the class "
            f"{type(progress).__name__!r}. Pass query.lastProgress or event.progress."
        )
    return report


def _kafka_source(source: Mapping[str, Any]) -> SourceProgress | None:
    end, latest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
    if not end:
        return None
    return SourceProgress(end=end, latest=latest, rows=source["numInputRows"])


def _offsets(value: object) -> PartitionOffsets:
    """Parse offsets. Return an empty mapping if offsets are missing or not in Kafka's format.

    The items of a source's progress contain offsets as text: JSON or, before Spark 4.2, the `repr`
    of the decoded JSON. Offsets contain only strings and integers, so `ast.literal_eval` can parse
    both formats.
    """
    try:
        return from_json_object(ast.literal_eval(value) if isinstance(value, str) else value)
    except (OffsetFormatError, ValueError, SyntaxError):
        return {}


def _observed(report: Mapping[str, Any], side: Side, metric: str) -> int | None:
    """Return the sum of a metric from `sizes.count_bytes`, or None if no such metric exists.

    A metric is null if a micro-batch has no rows.
    """
    observed = report.get("observedMetrics") or {}
    values = [
        metrics[metric] or 0
        for name, metrics in observed.items()
        if name.startswith(metric_prefix(side))
    ]
    return sum(values) if values else None
