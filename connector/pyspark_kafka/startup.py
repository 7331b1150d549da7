"""Prepares a Spark session: registers the data source, and starts Python processes in advance.

In a new session, Spark starts one Python process after another: one for each step of planning and
committing (`PythonPlannerRunner`), and one on each executor (`PythonWorkerFactory`). Each process
imports PySpark, and these imports take most of the time of a short first query. To start all
processes at the same time, this module runs a read and a write that do not use Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from pyspark_kafka.datasource import KafkaDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_ROWS: Final = 1_000
_SCHEMA: Final = "id bigint"
_READ_MODULES: Final = ("source.batch_reader", "client.factory", "client.native.client")
_WRITE_MODULES: Final = ("sink.writers", "client.factory", "client.native.client")


def register(spark: SparkSession) -> None:
    """Register the `pyspark_kafka` format with a Spark session unless it is already registered."""
    try:
        spark.dataSource.register(KafkaDataSource)
    except AnalysisException as error:
        # Spark 4.0 rejects the registration of a data source that it has already discovered.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def warm_up(spark: SparkSession) -> Thread:
    """Start the Python processes of a session in a background thread, and return the thread.

    The first reads and writes then take less time. Call this function right after the session is
    created. The thread runs two short Spark jobs without connecting to Kafka. To wait for the jobs,
    call `join()` on the returned thread. If a job fails, the thread logs a warning and raises no
    error.
    """
    thread = Thread(target=_run, args=(spark,), name="pyspark_kafka.warm_up", daemon=True)
    thread.start()
    return thread


def _run(spark: SparkSession) -> None:
    def prepare() -> None:
        spark.dataSource.register(_EmptyDataSource)

    def read() -> None:
        spark.read.format(_EmptyDataSource.name()).load().count()

    def write() -> None:
        # By default, Spark runs one task on each core. `createDataFrame` makes the session active
        # in this thread, which a write requires.
        rows = spark.createDataFrame([(number,) for number in range(_ROWS)], _SCHEMA)
        rows.write.format(_EmptyDataSource.name()).mode("append").save()

    if not _succeeds(prepare):
        return
    threads = [Thread(target=_succeeds, args=(job,), daemon=True) for job in (read, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _succeeds(job: Callable[[], object]) -> bool:
    try:
        job()
    except Exception as error:  # The user's queries report such errors.
        log.warning("The Python processes could not be started in advance: %s", error)
        return False
    return True


class _EmptyDataSource(DataSource):
    """A source without rows and a sink that drops its rows. Both import `pyspark_kafka` modules."""

    @classmethod
    def name(cls) -> str:
        return "pyspark_kafka_warm_up"

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        _import(_READ_MODULES)
        return _EmptyReader()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        _import(_WRITE_MODULES)
        return _DroppingWriter()


class _EmptyReader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        _import(_READ_MODULES)
        return iter(())


class _DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _import(_WRITE_MODULES)
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        _import(_WRITE_MODULES)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass


def _import(modules: Sequence[str]) -> None:
    for name in modules:
        import_module(f"pyspark_kafka.{name}")
