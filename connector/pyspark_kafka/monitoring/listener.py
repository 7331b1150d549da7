"""A `StreamingQueryListener` that logs each progress report and exports Prometheus metrics.

Spark does not call the methods of the listener in the thread of the query, so a slow or failing
method does not affect the query. The only exception is `onQueryStarted`: `start()` waits for this
method, which does nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_kafka.errors import PysparkKafkaError
from pyspark_kafka.monitoring.lag import Lag, LatestOffsets, lag_of
from pyspark_kafka.monitoring.progress import QueryProgress, parse_progress
from pyspark_kafka.options.offsets_json import to_json_object

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger(__name__)

METRICS: Final = logging.getLogger("pyspark_kafka.metrics")
"""The logger to which only JSON objects are logged."""


class KafkaMetricsListener(StreamingQueryListener):
    """Reports the lag, rows and bytes of all streaming queries of a session.

    After each micro-batch, the listener logs a JSON object on a single line to the logger
    `pyspark_kafka.metrics` at level INFO. With `registry`, the listener also exports Prometheus
    metrics until the query terminates. With `options` (the options of a read), the lag is relative
    to the latest offsets in the cluster at the time of the report. Without `options`, the lag is
    relative to the latest offsets at the time when Spark planned the micro-batch (see `lag`).

    If the request for the latest offsets fails, the listener logs a warning and reports no lag. The
    constructor raises `OptionError` if an option is invalid, and `ModuleNotFoundError` if
    `registry` is set but prometheus-client is not installed.
    """

    def __init__(
        self,
        *,
        options: Mapping[str, str] | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._latest = None if options is None else LatestOffsets(options)
        self._collector = None
        if registry is not None:
            from pyspark_kafka.monitoring.prometheus import QueryCollector  # noqa: PLC0415

            self._collector = QueryCollector()
            registry.register(self._collector)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = parse_progress(event.progress)
        lag = self._lag(progress)
        if METRICS.isEnabledFor(logging.INFO):
            METRICS.info("%s", json.dumps(_fields(progress, lag)))
        if self._collector is not None:
            self._collector.update(progress, lag, now_s=time.time())

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if self._collector is not None:
            self._collector.touch(str(event.runId), now_s=time.time())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if self._collector is not None:
            self._collector.remove(str(event.runId))

    def _lag(self, progress: QueryProgress) -> Lag | None:
        try:
            return lag_of(progress.sources, self._latest)
        except PysparkKafkaError as error:
            log.warning("The lag of query '%s' cannot be determined. %s", progress.query, error)
            return None


def _fields(progress: QueryProgress, lag: Lag | None) -> dict[str, Any]:
    """Return the object that is logged. All keys are always present. Unknown values are null."""
    return {
        "event": "progress",
        "query": progress.query,
        "id": progress.query_id,
        "runId": progress.run_id,
        "batchId": progress.batch_id,
        "timestamp": progress.timestamp,
        "batchDurationMs": progress.duration_ms,
        "rowsRead": progress.rows_read,
        "bytesRead": progress.bytes_read,
        "rowsWritten": progress.rows_written,
        "bytesWritten": progress.bytes_written,
        "minOffsetsBehindLatest": None if lag is None else lag.min,
        "maxOffsetsBehindLatest": None if lag is None else lag.max,
        "avgOffsetsBehindLatest": None if lag is None else lag.avg,
        "offsetsBehindLatest": None if lag is None else to_json_object(lag.partitions),
    }
