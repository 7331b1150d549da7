"""Options: what they become, and that every wrong one is an error that says what to do."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka.errors import OptionError
from pyspark_kafka.kafka.offsets import IsolationLevel
from pyspark_kafka.options import page, parse
from pyspark_kafka.options.parse import (
    check_source_options,
    parse_sink_options,
    parse_source_options,
)
from pyspark_kafka.options.table import OPTIONS
from pyspark_kafka.options.values import (
    Assign,
    ExactlyOnce,
    GlobalTimestamp,
    Limit,
    PartitionTimestamps,
    SinkOptions,
    SourceOptions,
    SpecificOffsets,
    Subscribe,
)
from tests.pyspark_kafka.source.planning import tp

SERVERS = {"kafka.bootstrap.servers": "a.example:9092, [::1]:9093"}


def batch(**options: str) -> SourceOptions:
    return parse_source_options({**SERVERS, "subscribe": "t", **options}, streaming=False)


def stream(**options: str) -> SourceOptions:
    return parse_source_options({**SERVERS, "subscribe": "t", **options}, streaming=True)


def sink(**options: str) -> SinkOptions:
    return parse_sink_options({**SERVERS, **options}, streaming=False)


def refused(parse: Callable[..., Any], options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(**options)


def test_defaults_of_a_batch_read() -> None:
    options = batch()
    assert options.selection == Subscribe(topics=frozenset({"t"}))
    assert (options.starting, options.ending) == (Limit.EARLIEST, Limit.LATEST)
    assert options.isolation_level is IsolationLevel.READ_COMMITTED
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.latest_without_match
    assert options.min_partitions is None
    assert options.max_trigger_delay_ms == 15 * 60 * 1000
    client = options.client
    assert client.bootstrap_servers == "a.example:9092,[::1]:9093"
    assert client.group_id.startswith("spark-kafka-source-")
    assert client.group_id != batch().client.group_id
    assert (client.engine, client.poll_timeout_ms) == ("auto", 120_000)
    assert (client.fetch_offset_num_retries, client.fetch_offset_retry_interval_ms) == (3, 1000)


def test_streams_start_at_latest() -> None:
    assert stream().starting is Limit.LATEST


def test_names_and_values_have_no_case() -> None:
    options = batch(
        STARTINGoffsets="Earliest",
        FailOnDataLoss="FALSE",
        INCLUDEHEADERS="True",
        **{"KAFKA.Isolation.Level": "READ_UNCOMMITTED", "kafkaconsumer.POLLtimeoutms": "5"},
    )
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert options.isolation_level is IsolationLevel.READ_UNCOMMITTED
    assert options.client.poll_timeout_ms == 5


def test_every_way_to_say_where() -> None:
    assert batch(startingOffsets='{"t":{"0":4}}').starting == SpecificOffsets(offsets={tp("t"): 4})
    assert batch(endingTimestamp="9").ending == GlobalTimestamp(timestamp_ms=9)
    assert batch(
        startingOffsets="earliest", startingOffsetsByTimestamp='{"t":{"0":4}}'
    ).starting == PartitionTimestamps(timestamps_ms={tp("t"): 4})
    assert stream(startingOffsets="committed", **{"kafka.group.id": "g"}).starting is (
        Limit.COMMITTED
    )


def test_group_id() -> None:
    assert batch(groupIdPrefix="mine").client.group_id.startswith("mine-")
    assert batch(**{"kafka.group.id": "g"}).client.group_id == "g"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("15m", 900_000),
        ("2 h", None),
        ("2H", 7_200_000),
        ("1500", 1500),
        ("1500us", 1),
        ("1d", 86_400_000),
        ("3min", 180_000),
        ("-1s", None),
        ("1w", None),
        ("", None),
    ],
)
def test_durations_are_sparks(text: str, milliseconds: int | None) -> None:
    if milliseconds is None:
        refused(stream, {"maxTriggerDelay": text}, r"'maxTriggerDelay' has the value .*such as 15m")
    else:
        assert stream(maxTriggerDelay=text).max_trigger_delay_ms == milliseconds


def test_options_go_to_executors_and_show_no_secret() -> None:
    options = batch(**{"kafka.sasl.password": "hunter2", "kafka.sasl.username": "me"})
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.client.kafka["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(options)


@pytest.mark.parametrize("parse", [batch, stream])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": " , "}, r"'subscribe' has the value .* names no topic"),
        ({"subscribe": ""}, r"'subscribe' has the value '': it is blank"),
        ({"subscribe": "a b"}, r"'subscribe' names the topic 'a b', which no topic can be called"),
        ({"assign": '{"t":[0]}'}, r"exactly one of .* and 'assign' and 'subscribe' are given"),
        ({"startingOffsets": "erliest"}, r"'startingOffsets' has the value 'erliest': it must be "),
        (
            {"startingOffsets": "{"},
            r"'startingOffsets' has the value '\{': it is not JSON .* at character 2",
        ),
        ({"startingOffsets": '{"t":{"0":-3}}'}, r"t-0 has -3"),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'},
            r"'startingOffsetsByTimestamp' .* t-0 has -1",
        ),
        ({"startingOffsets": "committed"}, r"'committed', which needs .* set 'kafka.group.id'"),
        (
            {"startingTimestamp": "soon"},
            r"'startingTimestamp' has the value 'soon': it must be a whole",
        ),
        ({"startingTimestamp": "-2"}, r"'startingTimestamp' has the value '-2': .* from 0 to"),
        ({"startingOffsetsByTimestampStrategy": "x"}, r"'x': it must be error or latest"),
        (
            {"failOnDataLoss": "no"},
            r"'failOnDataLoss' has the value 'no': it must be true or false",
        ),
        ({"minPartitions": "0"}, r"'minPartitions' has the value '0': .* from 1 to 2147483647"),
        ({"minPartitions": "9999999999"}, r"'minPartitions' .* from 1 to 2147483647"),
        ({"maxRecordsPerPartition": "1e6"}, r"'maxRecordsPerPartition' has the value '1e6'"),
        ({"kafkaConsumer.pollTimeoutMs": "0"}, r"'kafkaConsumer.pollTimeoutMs' has the value '0'"),
        ({"fetchOffset.numRetries": "x"}, r"'fetchOffset.numRetries' has the value 'x'"),
        ({"kafka.isolation.level": "serializable"}, r"read_committed or read_uncommitted"),
        ({"engine": "java"}, r"'engine' has the value 'java'"),
        (
            {"engine": "native", "kafka.security.protocol": "ssl"},
            r"'native', but .* the value 'ssl' of .*protocol', having no TLS .* leave it at 'auto'",
        ),
        ({"engine": "native", "kafka.debug": "all"}, r"does not know option 'kafka.debug'"),
        ({"topic": "t"}, r"'topic' has no meaning in a .* read: .* 'subscribe'"),
        (
            {"transactionalId": "x"},
            r"'transactionalId' has no meaning in a .* read: .* exactly once",
        ),
        (
            {"kafka.transaction.timeout.ms": "1"},
            r"not supported: set 'transactionTimeout' of a wri",
        ),
        (
            {"startingOffset": "earliest"},
            r"no option 'startingOffset': did you mean 'startingOffsets'",
        ),
        ({"subscribePatern": "x"}, r"did you mean 'subscribePattern'"),
        ({"topics": "x"}, r"did you mean 'subscribe'"),
        ({"security.protocol": "SSL"}, r"did you mean 'kafka.security.protocol'"),
        ({"kafka.bootstrap.servers": "a.example"}, r"'a\.example' is not host:port"),
        ({"kafka.bootstrap.servers": "a.example:99999"}, r"'a\.example:99999' is not host:port"),
        ({"kafka.bootstrap.servers": "http://a:1"}, r"'http://a:1' is not host:port"),
        ({"kafka.bootstrap.servers": ","}, r"names no server"),
        ({"kafka.auto.offset.reset": "earliest"}, r"not supported: .* 'startingOffsets'"),
        ({"kafka.enable.auto.commit": "true"}, r"'kafka.enable.auto.commit' is not supported"),
        (
            {"kafka.key.deserializer": "x"},
            r"'kafka.key.deserializer' is not supported: .*CAST\(key",
        ),
        ({"kafka.value.deserializer": "x"}, r"'kafka.value.deserializer' is not supported"),
        ({"kafka.interceptor.classes": "x"}, r"'kafka.interceptor.classes' is not supported"),
        ({"kafka.key.serializer": "x"}, r"'kafka.key.serializer' is not supported"),
        ({"kafka.value.serializer": "x"}, r"'kafka.value.serializer' is not supported"),
        ({"kafka.fetch.max.bites": "1"}, r"fetch\.max\.bytes"),
    ],
)
def test_refused_reads(
    parse: Callable[..., SourceOptions], options: dict[str, str], message: str
) -> None:
    refused(parse, options, message)
    with pytest.raises(OptionError, match=message):
        check_source_options({**SERVERS, "subscribe": "t", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, r"'startingOffsets' asks for latest, where a batch"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, r"asks for latest for t-0"),
        ({"endingOffsets": "earliest"}, r"'endingOffsets' asks for earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, r"asks for earliest for t-0"),
        ({"endingOffsets": "committed"}, r"'endingOffsets' has the value 'committed'"),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            r"'startingOffsets' starts t-0 at 5, behind 4",
        ),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":9}}'},
            r"different partitions: only one of them names t-0, t-1",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":5}}',
                "endingOffsetsByTimestamp": '{"t":{"0":4}}',
            },
            r"'startingOffsetsByTimestamp' starts t-0 at 5, behind 4",
        ),
        (
            {"startingTimestamp": "5", "endingTimestamp": "4"},
            r"'startingTimestamp' \(5\) is after 'endingTimestamp' \(4\)",
        ),
        (
            {"filterPushdown": "yes"},
            r"'filterPushdown' has the value 'yes': it must be false or true or single-scan",
        ),
    ],
)
def test_refused_batch_reads(options: dict[str, str], message: str) -> None:
    refused(batch, options, message)


def test_refused_streaming_reads() -> None:
    for option in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        refused(stream, {option: "1"}, rf"'{option}' has no meaning in a streaming read")
    refused(stream, {"filterPushdown": "true"}, r"no meaning in a streaming read: .*'startingOff")
    refused(
        stream,
        {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
        r"'minOffsetsPerTrigger' \(11\) is higher than 'maxOffsetsPerTrigger' \(10\)",
    )


@pytest.mark.parametrize(
    "option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"]
)
def test_rate_limits_need_a_spark_that_has_them(option: str) -> None:
    options = {**SERVERS, "subscribe": "t", option: "10"}
    with pytest.raises(OptionError, match=f"'{option}' needs Spark 4.2"):
        parse_source_options(options, streaming=True, admission_control=False)
    parse_source_options(options, streaming=True, admission_control=True)
    parse_source_options(options, streaming=False, admission_control=False)


def test_what_sparks_connector_ignores_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        batch(maxOffsetsPerTrigger="10")
        sink(topic="t", **{"kafka.group.id": "g"})
        stream(groupIdPrefix="x", **{"kafka.group.id": "g"})
    assert "'maxOffsetsPerTrigger' has no effect in a batch read" in caplog.text
    assert "'kafka.group.id' has no effect in a batch write" in caplog.text
    assert "'groupIdPrefix' has no effect" in caplog.text


def test_sparks_own_options_pass() -> None:
    batch(path="/x", checkpointLocation="/y", queryName="q", mergeSchema="true")


def test_no_way_to_say_what_to_read() -> None:
    with pytest.raises(OptionError, match="'assign', 'subscribe' and 'subscribePattern', and none"):
        parse_source_options(SERVERS, streaming=False)
    with pytest.raises(OptionError, match=r"option 'kafka\.bootstrap\.servers' is missing"):
        parse_source_options({"subscribe": "t"}, streaming=False)
    with pytest.raises(OptionError, match=r"'subscribePattern' has the value '\(', .* expression"):
        parse_source_options({**SERVERS, "subscribePattern": "("}, streaming=False)


def test_assign() -> None:
    parsed = parse_source_options({**SERVERS, "assign": '{"t":[1,0]}'}, streaming=True)
    assert parsed.selection == Assign(partitions=frozenset({tp("t", 0), tp("t", 1)}))


def test_sink() -> None:
    assert sink().topic is None
    assert sink(topic=" t ").topic == "t"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a/b"}, r"'topic' names the topic 'a/b'"),
        ({"topic": " "}, r"'topic' has the value ' ': it is blank"),
        ({"subscribe": "t"}, r"'subscribe' has no meaning in a batch write"),
        ({"topik": "t"}, r"no option 'topik': did you mean 'topic'"),
        ({"kafka.acks": "1"}, r"'kafka.acks' has the value '1': .* acks=all only"),
        ({"kafka.enable.idempotence": "false"}, r"'kafka.enable.idempotence' is not 'true'"),
        ({"kafka.transactional.id": "x"}, r"not supported: set 'transactionalId' of a write"),
        (
            {"kafka.transaction.timeout.ms": "1"},
            r"not supported: set 'transactionTimeout' of a wri",
        ),
        *(
            (
                {name: value},
                rf"'{name}' requires .* 'transactionalId': .* remove '{name}'",
            )
            for name, value in (
                ("transactionTimeout", "1m"),
                ("commitTopic", "t"),
                ("batchId", "1"),
                ("onReplayMismatch", "warn"),
                ("twoPhaseCommit", "true"),
            )
        ),
        ({"commitOffsets": "true"}, r"'commitOffsets' has no meaning in a batch write: .* micro-b"),
        (
            {"engine": "native", "kafka.security.protocol": "SSL"},
            r"'native', but the native engine does not know .* no TLS .* 'auto'",
        ),
    ],
)
def test_refused_writes(options: dict[str, str], message: str) -> None:
    refused(sink, options, message)


def test_acks_may_be_said_as_they_are() -> None:
    assert sink(**{"kafka.acks": "-1"}).client.kafka["acks"] == "-1"
    sink(**{"kafka.acks": "all", "kafka.enable.idempotence": "true"})


def exactly_once(**options: str) -> ExactlyOnce | None:
    given = {**SERVERS, "transactionalId": "x", **options}
    return parse_sink_options(given, streaming=True).exactly_once


def exactly_once_job(**options: str) -> ExactlyOnce | None:
    given = {**SERVERS, "transactionalId": "x", **options}
    return parse_sink_options(given, streaming=False).exactly_once


def test_rows_are_written_at_least_once_without_a_transactional_id() -> None:
    assert sink(topic="t").exactly_once is None


@pytest.mark.parametrize("parse", [exactly_once, exactly_once_job])
def test_defaults_of_writing_exactly_once(parse: Callable[[], ExactlyOnce | None]) -> None:
    assert parse() == ExactlyOnce(
        transactional_id="x",
        transaction_timeout_ms=900_000,
        commit_topic="__spark_commits",
        group_id=None,
        checkpoint=None,
        batch_id=None,
        fail_on_replay_mismatch=True,
        two_phase_commit=False,
    )


def test_all_options_of_writing_exactly_once() -> None:
    assert exactly_once(
        transactionalId=" a.B_c-1 ",
        TransactionTimeout="3m",
        commitTopic="commits",
        commitOffsets="true",
        checkpointLocation="s3://bucket/c",
        onReplayMismatch="WARN",
        twoPhaseCommit="true",
        **{"kafka.group.id": "g"},
    ) == ExactlyOnce(
        transactional_id="a.B_c-1",
        transaction_timeout_ms=180_000,
        commit_topic="commits",
        group_id="g",
        checkpoint="s3://bucket/c",
        batch_id=None,
        fail_on_replay_mismatch=False,
        two_phase_commit=True,
    )
    job = exactly_once_job(batchId="0")
    assert job is not None
    assert job.batch_id == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transactionalId": "a/b"}, r"'transactionalId' has the value 'a/b': .* letters, digits"),
        ({"transactionalId": "x" * 201}, r"at most 200"),
        ({"transactionalId": " "}, r"'transactionalId' has the value ' ': it is blank"),
        ({"transactionTimeout": "0"}, r"'transactionTimeout' has the value '0': .* from .* to"),
        ({"transactionTimeout": "30d"}, r"'transactionTimeout' has the value '30d': .* from .* to"),
        ({"commitTopic": "a b"}, r"'commitTopic' names the topic 'a b'"),
        ({"commitTopic": "t", "topic": "t"}, r"'topic' and 'commitTopic' both name 't'"),
        ({"onReplayMismatch": "skip"}, r"'skip': it must be fail or warn"),
        ({"twoPhaseCommit": "1"}, r"'1': it must be true or false"),
        ({"batchId": "1"}, r"'batchId' has no meaning in a streaming write: .* numbers its"),
        ({"commitOffsets": "true", "checkpointLocation": "/c"}, r"set 'kafka.group.id'"),
        (
            {"commitOffsets": "true", "kafka.group.id": "g"},
            r"set 'checkpointLocation' as an option of the write",
        ),
    ],
)
def test_refused_ways_to_write_exactly_once(options: dict[str, str], message: str) -> None:
    refused(exactly_once, options, message)


def test_a_batch_job_commits_no_offsets_and_has_an_id_that_is_no_less_than_0() -> None:
    refused(exactly_once_job, {"commitOffsets": "true"}, "no meaning in a batch write: .* micro-b")
    refused(exactly_once_job, {"batchId": "-1"}, r"'-1': .* from 0 to")
    refused(exactly_once_job, {"batchId": "one"}, r"must be a whole number")


def test_a_group_without_commits_is_told_to_have_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for options in ({}, {"transactionalId": "x"}):
        caplog.clear()
        given = {**SERVERS, "kafka.group.id": "g", **options}
        assert parse_sink_options(given, streaming=True).client.group_id == "g"
        assert "'kafka.group.id' has no effect without 'commitOffsets'" in caplog.text


def test_a_streaming_read_commits_to_a_group_that_the_user_names() -> None:
    assert stream(commitOffsets="true", **{"kafka.group.id": "g"}).commit_offsets
    assert not stream(**{"kafka.group.id": "g"}).commit_offsets
    refused(stream, {"commitOffsets": "true"}, "'commitOffsets' is true, .* set 'kafka.group.id'")
    refused(batch, {"commitOffsets": "true"}, "no meaning in a batch read: .* micro-batches only")


def test_every_option_of_the_table_is_read_where_it_is_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An option that only the table has would be ignored silently."""
    read: set[str] = set()
    value = parse._Given._value

    def recorded(self: parse._Given, name: str) -> object:
        read.add(name)
        return value(self, name)

    monkeypatch.setattr(parse._Given, "_value", recorded)
    ids = {"transactionalId": "x", "topic": "t", "kafka.group.id": "g"}
    ways = {"assign": '{"t":[0]}', "subscribe": "t", "subscribePattern": "t"}
    limits = {
        "Offsets": "earliest",
        "Timestamp": "1",
        "OffsetsByTimestamp": '{"t":{"0":1}}',
    }
    for (way, selected), limit in product(ways.items(), limits):
        given = {**SERVERS, way: selected}
        given |= {f"starting{limit}": limits[limit]}
        parse_source_options(given, streaming=True)
        given |= {f"ending{limit}": limits[limit].replace("earliest", "latest")}
        parse_source_options(given, streaming=False)
    parse_sink_options({**SERVERS, **ids}, streaming=False)
    parse_sink_options(
        {**SERVERS, **ids, "commitOffsets": "true", "checkpointLocation": "/c"}, streaming=True
    )
    assert read == {option.name for option in OPTIONS}


def test_documentation_is_current() -> None:
    path = Path(__file__).parents[3] / "docs" / "options.md"
    assert path.read_text() == page.render(), (
        "run: python -m pyspark_kafka.options.page > docs/options.md"
    )
