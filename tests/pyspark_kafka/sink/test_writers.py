"""Tests of the writers as Spark creates, pickles and calls them."""

from __future__ import annotations

import logging
import pickle
import re

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_kafka.client import factory
from pyspark_kafka.errors import OptionError, SchemaError
from pyspark_kafka.options.parse import parse_sink_options
from pyspark_kafka.options.values import SinkOptions
from pyspark_kafka.sink.at_least_once import write
from pyspark_kafka.sink.at_least_once.write import AtLeastOnceWrite, Written
from pyspark_kafka.sink.writers import StreamRowWriter, batch_writer, stream_writer
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import options, read_all

SCHEMA = StructType().add("value", "string")


def sink_options(
    servers: str = "127.0.0.1:1", topic: str | None = "t", **kafka: str
) -> SinkOptions:
    return SinkOptions(client=options(servers, **kafka), topic=topic)  # type: ignore[arg-type]


def test_schema_and_options_are_checked_when_a_writer_is_created() -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(SchemaError) as wrong_schema:
            make(sink_options(), StructType().add("key", "string"))
        assert wrong_schema.value.column == "value"
        with pytest.raises(OptionError) as no_topic:
            make(sink_options(topic=None), SCHEMA)
        assert no_topic.value.option == "topic"
        with pytest.raises(OptionError, match="compression"):
            make(sink_options(compression_type="rar"), SCHEMA)


def test_settings_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    write._check_settings.cache_clear()
    monkeypatch.setattr(factory, "check_settings", lambda *given, **_: checked.append(given))
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.client.id": "once", "topic": "t"}
    for _ in range(2):
        AtLeastOnceWrite.of(parse_sink_options(given, streaming=True), SCHEMA)
    write._check_settings.cache_clear()
    assert len(checked) == 1


def test_writers_take_arrow_batches() -> None:
    assert isinstance(batch_writer(sink_options(), SCHEMA), DataSourceArrowWriter)
    stream = stream_writer(sink_options(), SCHEMA)
    arrow = getattr(datasource, "DataSourceStreamArrowWriter", None)
    assert isinstance(stream, DataSourceStreamWriter if arrow is None else arrow)


def test_older_spark_gets_the_row_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pyspark.sql.datasource.DataSourceStreamArrowWriter", raising=False)
    assert isinstance(stream_writer(sink_options(), SCHEMA), StreamRowWriter)


def test_rows_are_written(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    writer = StreamRowWriter(AtLeastOnceWrite.of(sink_options(bootstrap, name), SCHEMA))
    assert writer.write(iter([Row(value="a"), Row(value=None)])) == Written(rows_by_topic={name: 2})
    assert [record.value for record in read_all(bootstrap, name)] == [b"a", None]


def test_writers_and_messages_can_be_pickled() -> None:
    for writer in (batch_writer(sink_options(), SCHEMA), stream_writer(sink_options(), SCHEMA)):
        pickled = cloudpickle.dumps(writer)  # type: ignore[no-untyped-call]
        assert type(pickle.loads(pickled)) is type(writer)
    written = Written(rows_by_topic={"t": 3})
    assert pickle.loads(pickle.dumps(written)) == written


def test_commit_logs_rows_by_topic(caplog: pytest.LogCaptureFixture) -> None:
    messages: list[WriterCommitMessage | None] = [
        Written(rows_by_topic={"t": 2, "u": 1}),
        None,
        Written(rows_by_topic={}),
        Written(rows_by_topic={"t": 3}),
    ]
    with caplog.at_level(logging.INFO, logger="pyspark_kafka"):
        batch_writer(sink_options(), SCHEMA).commit(messages)
        stream_writer(sink_options(), SCHEMA).commit(messages, 7)
        stream_writer(sink_options(), SCHEMA).abort([None], 8)
    facts = [re.findall(r"\d+|\b[tu]\b", record.getMessage()) for record in caplog.records]
    assert facts == [["5", "t", "1", "u"], ["7", "5", "t", "1", "u"], ["8"]]
