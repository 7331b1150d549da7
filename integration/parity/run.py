"""Runs one test case with one connector and records the outcome.

Invariant: both connectors run with the same options, the same SQL and the same steps.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Message
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.parity.case import (
    OWN,
    SERVERS,
    AddPartitions,
    Case,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    ForgetLastCommit,
    Kind,
    Produce,
    ReadAgain,
    Run,
    resolved,
)
from integration.parity.environment import Environment
from integration.parity.outcomes import Accepted, Outcome, Stage, refused
from integration.parity.topics import Topic

_TIMEOUT_S: Final = 150
_VIEW: Final = "records"
_RECENT_MS: Final = 3_600_000


def run(env: Environment, case: Case, connector: str) -> Outcome:
    """Run a case on a connector, `kafka` or `pyspark_kafka`."""
    with tempfile.TemporaryDirectory() as checkpoint:
        running = _CaseRun(env=env, case=case, connector=connector, checkpoint=Path(checkpoint))
        try:
            return running.outcome()
        finally:
            running.stop()


@dataclass(kw_only=True)
class _CaseRun:
    env: Environment
    case: Case
    connector: str
    checkpoint: Path
    own: str = field(default_factory=lambda: f"parity-own-{uuid4()}")
    runs: int = 0
    job_group: str = ""
    collected: DataFrame | None = None
    queries: list[StreamingQuery] = field(default_factory=list)
    aspects: dict[str, Any] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        own = self.case.own if self.case.kind.is_read else self.case.own or Topic()
        if own is not None:
            self.env.filler.create(own, self.own)
        if self.case.kind.is_read:
            self.aspects |= {"rows": [], "tasks": []}
        if self.case.kind is Kind.STREAM_READ:
            self.aspects |= {"batches": []}
        for step in self.case.steps:
            if not isinstance(step, Run | ReadAgain):
                self._change(step)
                continue
            try:
                self._run(step)
            except (PySparkException, Py4JJavaError, TimeoutError) as error:
                return refused(error, self._stage(), self.runs)
            self.runs += 1
        self._observe_end()
        text = json.dumps(self.aspects, default=_json).replace(self.own, OWN)
        return Accepted(aspects=json.loads(text))

    def stop(self) -> None:
        for query in self.queries:
            query.stop()

    def _change(self, step: object) -> None:
        filler = self.env.filler
        match step:
            case Produce(batches=batches):
                for batch in batches:
                    filler.append(self.own, batch)
            case DeleteRecords(before=before):
                filler.delete_records(self.own, before)
            case AddPartitions(count=count):
                filler.add_partitions(self.own, count)
            case DeleteTopic():
                filler.delete(self.own)
            case CreateTopic(topic=topic):
                filler.create(topic, self.own)
            case ForgetLastCommit():
                last = max((self.checkpoint / "commits").glob("[0-9]*"), key=_number)
                last.unlink()
                last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def _run(self, step: Run | ReadAgain) -> None:
        self.job_group = str(uuid4())
        if isinstance(step, ReadAgain):
            assert self.collected is not None
            self._collect(self._query() if step.is_new_query else self.collected)
            return
        options = {
            name: value.replace(OWN, self.own).replace(SERVERS, self.env.bootstrap_servers)
            for name, value in resolved(self.case, step.options).items()
        }
        runners = {
            Kind.BATCH_READ: self._read,
            Kind.STREAM_READ: self._stream,
            Kind.BATCH_WRITE: self._write,
            Kind.STREAM_WRITE: self._stream_to_topic,
        }
        runners[self.case.kind](options)

    def _read(self, options: Mapping[str, str]) -> None:
        reader = self.env.spark.read.format(self.connector).options(**options)
        self._use((reader.schema(self.case.schema) if self.case.schema else reader).load())
        self._collect(self._query())

    def _collect(self, frame: DataFrame) -> None:
        self.env.spark.sparkContext.setJobGroup(self.job_group, self.case.name)
        self.collected = frame
        self._observe(frame)

    def _stream(self, options: Mapping[str, str]) -> None:
        reader = self.env.spark.readStream.format(self.connector).options(**options)
        self._use((reader.schema(self.case.schema) if self.case.schema else reader).load())

        def collect(batch: DataFrame, batch_id: int) -> None:
            self._add("batches", [[batch_id, self._observe(_with_task(batch))]])

        writer = self._query().writeStream.option("checkpointLocation", str(self.checkpoint))
        # Continuous processing does not support foreachBatch.
        is_continuous = "continuous" in self.case.trigger
        self._await(writer.format("noop") if is_continuous else writer.foreachBatch(collect))

    def _write(self, options: Mapping[str, str]) -> None:
        self.env.spark.read.parquet(self.env.input_directory).createOrReplaceTempView(_VIEW)
        self.env.spark.sparkContext.setJobGroup(self.job_group, self.case.name)
        writer = self._query().write.format(self.connector).options(**options)
        (writer if self.case.mode is None else writer.mode(self.case.mode)).save()

    def _stream_to_topic(self, options: Mapping[str, str]) -> None:
        directory = self.env.input_directory
        schema = self.env.spark.read.parquet(directory).schema
        self.env.spark.readStream.schema(schema).parquet(directory).createOrReplaceTempView(_VIEW)
        writer = self._query().writeStream.format(self.connector).options(**options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        self._await(writer if self.case.mode is None else writer.outputMode(self.case.mode))

    def _use(self, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(_VIEW)
        self.aspects["schema"] = json.loads(frame.schema.json())

    def _query(self) -> DataFrame:
        frame = self.env.spark.sql(self.case.select.replace(OWN, self.own))
        return _with_task(frame) if self.case.kind is Kind.BATCH_READ else frame

    def _await(self, writer: DataStreamWriter) -> None:
        query = writer.trigger(**self.case.trigger).start()
        self.job_group = str(query.runId)
        self.queries.append(query)
        if "processingTime" in self.case.trigger:
            query.processAllAvailable()
            query.stop()
        elif "continuous" in self.case.trigger:
            query.stop()
        elif not query.awaitTermination(_TIMEOUT_S):
            raise TimeoutError(f"The query did not end within {_TIMEOUT_S} s.")
        self._observe_progress(query)

    def _stage(self) -> Stage:
        jobs = self.env.spark.sparkContext.statusTracker().getJobIdsForGroup(self.job_group)
        return Stage.TASK if jobs else Stage.DRIVER

    def _observe(self, frame: DataFrame) -> int:
        """Store the rows, and the row count of each task, in `aspects`. Return the number of rows.

        The column `task` contains the number of the task.
        """
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        tasks = Counter(row.pop("task") for row in rows)
        self._add("rows", sorted(rows, key=_position))
        self._add("tasks", [sorted(tasks.values())])
        if "partitions" in self.case.also:
            self._add("partitions", [frame.rdd.getNumPartitions()])
        return len(rows)

    def _observe_progress(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            for source in progress.sources:
                if "progress" in self.case.also:
                    found = [progress.numInputRows, source.startOffset, source.endOffset]
                    self._add("progress", [found])
                if "metrics" in self.case.also:
                    self.aspects["metrics"] = sorted(source.metrics)

    def _observe_end(self) -> None:
        if not self.case.kind.is_read:
            records = map(_record, self.env.filler.read(self.own))
            self.aspects["records"] = sorted(records, key=json.dumps)
        if self.case.kind is Kind.STREAM_READ:
            for name in ("offsets", "commits"):
                self.aspects[name] = _metadata_log(self.checkpoint / name)
            if "sources" in self.case.also:
                directory = self.checkpoint / "sources"
                found = (path.relative_to(directory) for path in directory.glob("*/[0-9]*"))
                self.aspects["sources"] = sorted(map(str, found))

    def _add(self, aspect: str, values: Sequence[Any]) -> None:
        self.aspects[aspect] = [*self.aspects.get(aspect, ()), *values]


def _with_task(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("*", "spark_partition_id() AS task")


def _position(row: Mapping[str, Any]) -> str:
    return json.dumps([row.get("partition"), row.get("offset"), row], default=_json)


def _json(value: object) -> str:
    return repr(bytes(value)) if isinstance(value, bytes | bytearray) else str(value)


def _number(path: Path) -> int:
    return int(path.name)


def _metadata_log(directory: Path) -> list[Any]:
    """Return the files of a checkpoint's metadata log, without timestamps and Spark configs."""
    files = sorted(directory.glob("[0-9]*"), key=_number)
    return [[path.name, *map(_entry, path.read_text().splitlines())] for path in files]


def _entry(line: str) -> Any:
    if not line.startswith("{"):
        return line.strip()
    found = json.loads(line)
    return {name: found[name] for name in found if name not in ("batchTimestampMs", "conf")}


def _record(message: Message) -> list[Any]:
    """Return a record as JSON. A recent timestamp is replaced, because it differs between runs."""
    kind, timestamp_ms = message.timestamp()
    headers: list[Any] = list(message.headers() or ())
    is_recent = timestamp_ms > time.time() * 1000 - _RECENT_MS
    return [
        message.partition(),
        repr(message.key()),
        repr(message.value()),
        [[name, repr(value)] for name, value in headers],
        [kind, "now" if is_recent else timestamp_ms],
    ]
