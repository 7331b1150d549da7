"""Tests of option parsing: values, defaults, and an error for every invalid option."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from pyspark_kafka.errors import OptionError
from pyspark_kafka.kafka.offsets import IsolationLevel
from pyspark_kafka.options.parse import (
    check_source_options,
    parse_sink_options,
    parse_source_options,
)
from pyspark_kafka.options.raw_options import RawOptions
from pyspark_kafka.options.table import OPTIONS
from pyspark_kafka.options.values import (
    Assign,
    ExactlyOnce,
    GlobalTimestamp,
    OffsetLimitName,
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


def refused(
    parse: Callable[..., Any], options: dict[str, str], option: str | None = None
) -> OptionError:
    """Check that parsing fails with an error for `option`, by default the first given option."""
    with pytest.raises(OptionError) as caught:
        parse(**options)
    assert caught.value.option == (option or next(iter(options)))
    return caught.value


def test_defaults_of_a_batch_read() -> None:
    options = batch()
    assert options.selection == Subscribe(topics=frozenset({"t"}))
    assert (options.starting, options.ending) == (OffsetLimitName.EARLIEST, OffsetLimitName.LATEST)
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


def test_a_streaming_read_starts_at_latest() -> None:
    assert stream().starting is OffsetLimitName.LATEST


def test_names_and_values_are_not_case_sensitive() -> None:
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


def test_starting_and_ending_options() -> None:
    assert batch(startingOffsets='{"t":{"0":4}}').starting == SpecificOffsets(offsets={tp("t"): 4})
    assert batch(endingTimestamp="9").ending == GlobalTimestamp(timestamp_ms=9)
    assert batch(
        startingOffsets="earliest", startingOffsetsByTimestamp='{"t":{"0":4}}'
    ).starting == PartitionTimestamps(timestamps_ms={tp("t"): 4})
    assert stream(startingOffsets="committed", **{"kafka.group.id": "g"}).starting is (
        OffsetLimitName.COMMITTED
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
def test_durations_have_the_format_of_spark(text: str, milliseconds: int | None) -> None:
    if milliseconds is None:
        assert "15m" in refused(stream, {"maxTriggerDelay": text}).advice
    else:
        assert stream(maxTriggerDelay=text).max_trigger_delay_ms == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1500", 1500),
        ("1500b", 1500),
        ("10k", 10 * 1024),
        ("2MB", 2 * 1024**2),
        ("10g", 10 * 1024**3),
        ("0", None),
        ("-1k", None),
        ("1.5g", None),
        ("1kk", None),
        ("9000000p", None),
        ("m", None),
    ],
)
def test_sizes_have_the_format_of_spark(text: str, size: int | None) -> None:
    if size is None:
        assert "512m" in refused(stream, {"maxBytesPerTrigger": text}).advice
    else:
        assert stream(maxBytesPerTrigger=text).max_bytes_per_trigger == size


def test_options_can_be_pickled_and_their_repr_has_no_secret() -> None:
    given = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.username": "me"}
    options = batch(**given, **{"kafka.sasl.password": "hunter2"})
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.client.kafka["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(options)


@pytest.mark.parametrize("parse", [batch, stream])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("subscribe", " , "),
        ("subscribe", ""),
        ("subscribe", "a b"),
        ("startingOffsets", "erliest"),
        ("startingOffsets", "{"),
        ("startingOffsets", '{"t":{"0":-3}}'),
        ("startingOffsets", "committed"),
        ("startingOffsetsByTimestamp", '{"t":{"0":-1}}'),
        ("startingTimestamp", "soon"),
        ("startingTimestamp", "-2"),
        ("startingOffsetsByTimestampStrategy", "x"),
        ("failOnDataLoss", "no"),
        ("minPartitions", "0"),
        ("minPartitions", "9999999999"),
        ("maxRecordsPerPartition", "1e6"),
        ("kafkaConsumer.pollTimeoutMs", "0"),
        ("fetchOffset.numRetries", "x"),
        ("kafka.isolation.level", "serializable"),
        ("engine", "java"),
        ("topic", "t"),
        ("transactionalId", "x"),
        ("kafka.bootstrap.servers", "a.example"),
        ("kafka.bootstrap.servers", "a.example:99999"),
        ("kafka.bootstrap.servers", "http://a:1"),
        ("kafka.bootstrap.servers", ","),
        ("kafka.transaction.timeout.ms", "1"),
        ("kafka.auto.offset.reset", "earliest"),
        ("kafka.enable.auto.commit", "true"),
        ("kafka.key.deserializer", "x"),
        ("kafka.value.deserializer", "x"),
        ("kafka.interceptor.classes", "x"),
        ("kafka.key.serializer", "x"),
        ("kafka.value.serializer", "x"),
        ("startingOffsets", "x"),
        ("endingOffsets", "x"),
    ],
)
def test_invalid_option_of_a_read(
    parse: Callable[..., SourceOptions], option: str, value: str
) -> None:
    refused(parse, {option: value})
    with pytest.raises(OptionError) as caught:
        check_source_options({**SERVERS, "subscribe": "t", option: value})
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscribePatern", "subscribePattern"),
        ("topics", "subscribe"),
        ("security.protocol", "kafka.security.protocol"),
        (
            "databricks.serviceCredential",
            "kafka.sasl.oauthbearer.token.provider.service.credential",
        ),
        ("path", "subscribe"),
    ],
)
def test_a_misspelt_option_is_an_error_with_the_correct_name(name: str, suggestion: str) -> None:
    assert f"'{suggestion}'" in refused(batch, {name: "x"}).advice


@pytest.mark.parametrize("name", ["schema.registry.url", "mergeSchema", "x"])
def test_an_option_of_another_data_source_is_an_error(name: str) -> None:
    refused(batch, {name: "x"})


@pytest.mark.parametrize(
    ("option", "value"), [("kafka.ssl.crl.location", "x"), ("kafka.debug", "all")]
)
@pytest.mark.parametrize("parse", [batch, stream, sink])
def test_the_engine_native_rejects_unsupported_settings(
    parse: Callable[..., object], option: str, value: str
) -> None:
    with pytest.raises(OptionError, match=option):
        parse(engine="native", **{option: value})


def test_unknown_client_settings_are_errors() -> None:
    with pytest.raises(OptionError, match=r"fetch\.max\.bytes"):
        batch(**{"kafka.fetch.max.bites": "1"})


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ({"startingOffsets": "latest"}, None),
        ({"startingOffsets": '{"t":{"0":-1}}'}, 0),
        ({"endingOffsets": "earliest"}, None),
        ({"endingOffsets": '{"t":{"0":-2}}'}, 0),
        ({"endingOffsets": "committed"}, None),
        ({"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'}, 0),
        ({"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":9}}'}, None),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":5}}',
                "endingOffsetsByTimestamp": '{"t":{"0":4}}',
            },
            0,
        ),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, None),
        ({"filterPushdown": "yes"}, None),
    ],
)
def test_invalid_option_of_a_batch_read(options: dict[str, str], partition: int | None) -> None:
    error = refused(batch, options)
    assert (error.topic, error.partition) == (None if partition is None else "t", partition)


@pytest.mark.parametrize(
    "option",
    ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "filterPushdown"],
)
def test_options_of_batch_reads_do_not_apply_to_streaming_reads(option: str) -> None:
    refused(stream, {option: "1"})


@pytest.mark.parametrize("what", ["OffsetsPerTrigger", "Partitions"])
def test_a_minimum_must_not_exceed_the_maximum(what: str) -> None:
    refused(stream, {f"min{what}": "11", f"max{what}": "10"})


def test_options_that_sparks_connector_ignores_are_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        batch(maxOffsetsPerTrigger="10")
        sink(topic="t", **{"kafka.group.id": "g"})
        stream(groupIdPrefix="x", **{"kafka.group.id": "g"})
    for option in ("maxOffsetsPerTrigger", "kafka.group.id", "groupIdPrefix"):
        assert f"'{option}'" in caplog.text


def test_options_of_spark_are_accepted() -> None:
    batch(checkpointLocation="/y", queryName="q")


def test_options_of_a_table_are_rejected_as_a_whole() -> None:
    """Spark adds `owner` and `provider` if it reads the schema for CREATE TABLE."""
    table = {"owner": "me", "provider": "pyspark_kafka"}
    for options in (table, {**SERVERS, "subscribe": "t", **table}):
        with pytest.raises(OptionError) as caught:
            check_source_options(options)
        assert caught.value.option is None


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (SERVERS, "subscribe"),
        ({**SERVERS, "subscribe": "t", "assign": '{"t":[0]}'}, "assign"),
        ({"subscribe": "t"}, "kafka.bootstrap.servers"),
        ({**SERVERS, "subscribePattern": "("}, "subscribePattern"),
        ({**SERVERS, "subscribePattern": "a{99999999999}"}, "subscribePattern"),
        ({**SERVERS, "subscribePattern": "(" * 5_000}, "subscribePattern"),
    ],
)
def test_a_read_needs_servers_and_exactly_one_selection(
    options: dict[str, str], option: str
) -> None:
    with pytest.raises(OptionError) as caught:
        parse_source_options(options, streaming=False)
    assert caught.value.option == option


def test_assign() -> None:
    parsed = parse_source_options({**SERVERS, "assign": '{"t":[1,0]}'}, streaming=True)
    assert parsed.selection == Assign(partitions=frozenset({tp("t", 0), tp("t", 1)}))


def test_topic_of_a_write() -> None:
    assert sink().topic is None
    assert sink(topic=" t ").topic == "t"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("topic", "a/b"),
        ("topic", " "),
        ("topik", "t"),
        ("subscribe", "t"),
        ("kafka.acks", "1"),
        ("kafka.enable.idempotence", "false"),
        ("kafka.transactional.id", "x"),
        ("kafka.transaction.timeout.ms", "1"),
        ("commitOffsets", "true"),
    ],
)
def test_invalid_option_of_a_write(option: str, value: str) -> None:
    refused(sink, {option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("transactionTimeout", "1m"),
        ("commitTopic", "t"),
        ("batchId", "1"),
        ("onReplayMismatch", "warn"),
    ],
)
def test_options_that_require_transactional_id(option: str, value: str) -> None:
    assert "'transactionalId'" in refused(sink, {option: value}).what


def test_acks_all_and_idempotence_may_be_set() -> None:
    assert sink(**{"kafka.acks": "-1"}).client.kafka["acks"] == "-1"
    sink(**{"kafka.acks": "all", "kafka.enable.idempotence": "true"})


def exactly_once(**options: str) -> ExactlyOnce | None:
    with_id = {**SERVERS, "transactionalId": "x", **options}
    return parse_sink_options(with_id, streaming=True).exactly_once


def exactly_once_job(**options: str) -> ExactlyOnce | None:
    with_id = {**SERVERS, "transactionalId": "x", **options}
    return parse_sink_options(with_id, streaming=False).exactly_once


def test_rows_are_written_at_least_once_without_a_transactional_id() -> None:
    assert sink(topic="t").exactly_once is None


@pytest.mark.parametrize("parse", [exactly_once, exactly_once_job])
def test_defaults_of_exactly_once_writes(parse: Callable[[], ExactlyOnce | None]) -> None:
    assert parse() == ExactlyOnce(
        transactional_id="x",
        transaction_timeout_ms=900_000,
        commit_topic="__spark_commits",
        group_id=None,
        checkpoint=None,
        batch_id=None,
        fail_on_replay_mismatch=True,
    )


def test_all_options_of_exactly_once_writes() -> None:
    assert exactly_once(
        transactionalId=" a.B_c-1 ",
        TransactionTimeout="3m",
        commitTopic="commits",
        commitOffsets="true",
        checkpointLocation="s3://bucket/c",
        onReplayMismatch="WARN",
        **{"kafka.group.id": "g"},
    ) == ExactlyOnce(
        transactional_id="a.B_c-1",
        transaction_timeout_ms=180_000,
        commit_topic="commits",
        group_id="g",
        checkpoint="s3://bucket/c",
        batch_id=None,
        fail_on_replay_mismatch=False,
    )
    job = exactly_once_job(batchId="0")
    assert job is not None
    assert job.batch_id == 0


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"transactionalId": "a/b"}, "transactionalId"),
        ({"transactionalId": "x" * 201}, "transactionalId"),
        ({"transactionalId": " "}, "transactionalId"),
        ({"transactionTimeout": "0"}, "transactionTimeout"),
        ({"transactionTimeout": "30d"}, "transactionTimeout"),
        ({"commitTopic": "a b"}, "commitTopic"),
        ({"commitTopic": "t", "topic": "t"}, "commitTopic"),
        ({"onReplayMismatch": "skip"}, "onReplayMismatch"),
        ({"onReplayMismatch": "warn"}, "checkpointLocation"),
        ({"batchId": "1"}, "batchId"),
        ({"commitOffsets": "true", "checkpointLocation": "/c"}, "commitOffsets"),
        ({"commitOffsets": "true", "kafka.group.id": "g"}, "checkpointLocation"),
    ],
)
def test_invalid_option_of_an_exactly_once_write(options: dict[str, str], option: str) -> None:
    refused(exactly_once, options, option)


@pytest.mark.parametrize(
    ("option", "value"), [("commitOffsets", "true"), ("batchId", "-1"), ("batchId", "one")]
)
def test_invalid_option_of_an_exactly_once_batch_job(option: str, value: str) -> None:
    refused(exactly_once_job, {option: value})


def test_a_group_without_commit_offsets_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for options in ({}, {"transactionalId": "x"}):
        caplog.clear()
        with_group = {**SERVERS, "kafka.group.id": "g", **options}
        assert parse_sink_options(with_group, streaming=True).client.group_id == "g"
        assert "'kafka.group.id'" in caplog.text


def test_commit_offsets_of_a_streaming_read_requires_a_group() -> None:
    assert stream(commitOffsets="true", **{"kafka.group.id": "g"}).commit_offsets
    assert not stream(**{"kafka.group.id": "g"}).commit_offsets
    assert "'kafka.group.id'" in refused(stream, {"commitOffsets": "true"}).advice
    refused(batch, {"commitOffsets": "true"})


def test_every_option_of_the_table_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that is only in the table would have no effect."""
    parsed: set[str] = set()
    value = RawOptions._value

    def recorded(self: RawOptions, name: str) -> object:
        parsed.add(name)
        return value(self, name)

    monkeypatch.setattr(RawOptions, "_value", recorded)
    ids = {"transactionalId": "x", "topic": "t", "kafka.group.id": "g"}
    selections = {"assign": '{"t":[0]}', "subscribe": "t", "subscribePattern": "t"}
    limits = {
        "Offsets": "earliest",
        "Timestamp": "1",
        "OffsetsByTimestamp": '{"t":{"0":1}}',
    }
    for (name, selection), limit in product(selections.items(), limits):
        options = {**SERVERS, name: selection}
        options |= {f"starting{limit}": limits[limit]}
        parse_source_options(options, streaming=True)
        options |= {f"ending{limit}": limits[limit].replace("earliest", "latest")}
        parse_source_options(options, streaming=False)
    parse_sink_options({**SERVERS, **ids}, streaming=False)
    parse_sink_options(
        {**SERVERS, **ids, "commitOffsets": "true", "checkpointLocation": "/c"}, streaming=True
    )
    assert parsed == {option.name for option in OPTIONS}
