"""Tests with two third-party clients: records, offsets, topics and commits."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from tests.conformance.batches import NOW_MS
from tests.conformance.clients import Client, ClientError, Confluent, Message, Settings, Topic
from tests.conformance.eventually import eventually
from tests.conformance.wire import partitions_led

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]
MEBIBYTE = 1024 * 1024


def numbered(count: int) -> list[Message]:
    return [
        Message(key=f"k{n}".encode(), value=f"v{n}".encode(), timestamp_ms=NOW_MS + n)
        for n in range(count)
    ]


@pytest.mark.parametrize("acks", ["1", "all"])
def test_written_records_are_read_in_order(client: Client, topic: TopicFactory, acks: str) -> None:
    name = topic()
    offsets = client.write(name, numbered(50), settings=Settings(acks=acks))
    assert offsets == list(range(50))
    rows = client.read(name, 50)
    assert [row.offset for row in rows] == list(range(50))
    assert [(row.key, row.value) for row in rows] == [(m.key, m.value) for m in numbered(50)]
    assert [row.timestamp_ms for row in rows] == [NOW_MS + n for n in range(50)]


def test_records_arrive_with_acks_0(client: Client, topic: TopicFactory) -> None:
    name = topic()
    client.write(name, numbered(20), settings=Settings(acks="0"))
    assert [row.value for row in client.read(name, 20)] == [m.value for m in numbered(20)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_of_librdkafka_is_stored_and_searched(
    bootstrap: str, topic: TopicFactory, codec: str
) -> None:
    client = Confluent(bootstrap)
    name = topic()
    messages = [
        Message(value=b"compressible " * 50, timestamp_ms=NOW_MS + 10 * n) for n in range(100)
    ]
    client.write(name, messages, settings=Settings(codec=codec))
    assert [row.value for row in client.read(name, 100)] == [m.value for m in messages]
    # The record is inside a compressed batch.
    assert client.offset_at(name, NOW_MS + 10 * 57 - 5) == 57


def test_gzip_of_kafka_python_is_stored_and_searched(client: Client, topic: TopicFactory) -> None:
    name = topic()
    client.write(name, numbered(100), settings=Settings(codec="gzip"))
    assert [row.value for row in client.read(name, 100)] == [m.value for m in numbered(100)]
    assert client.offset_at(name, NOW_MS + 57) == 57


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_idempotent_producer_writes_every_record_once(
    client: Client, topic: TopicFactory, codec: str
) -> None:
    name = topic()
    offsets = client.write(name, numbered(300), settings=Settings(idempotent=True, codec=codec))
    assert offsets == list(range(300))
    assert [row.value for row in client.read(name, 300)] == [m.value for m in numbered(300)]
    assert client.ends(name) == (0, 300)


def test_null_and_empty_are_different(client: Client, topic: TopicFactory, bootstrap: str) -> None:
    name = topic()
    # librdkafka writes the records, because kafka-python refuses a record without key and value.
    pairs = [(None, b"v"), (b"k", None), (None, None), (b"", b"")]
    Confluent(bootstrap).write(name, [Message(key=key, value=value) for key, value in pairs])
    client.write(name, [Message(key=None, value=b""), Message(key=b"", value=None)])
    expected = [*pairs, (None, b""), (b"", None)]
    assert [(row.key, row.value) for row in client.read(name, 6)] == expected


def test_headers_keep_order_duplicates_and_nulls(
    client: Client, topic: TopicFactory, bootstrap: str
) -> None:
    name = topic()
    headers = (("b", b"1"), ("a", b""), ("b", b"2"), ("ünïcödé", b"\xff\x00"))
    client.write(name, [Message(headers=headers), Message()])
    # librdkafka writes the record, because kafka-python sends no header without a value.
    Confluent(bootstrap).write(name, [Message(headers=(("none", None),))])
    assert [row.headers for row in client.read(name, 3)] == [headers, (), (("none", None),)]


def test_records_of_a_mebibyte_where_the_topic_allows(client: Client, topic: TopicFactory) -> None:
    name = topic(**{"max.message.bytes": str(2 * MEBIBYTE)})
    values = [bytes([n]) * MEBIBYTE for n in range(3)]
    client.write(name, [Message(value=value) for value in values])
    assert [row.value for row in client.read(name, 3)] == values


def test_record_above_the_limit_is_refused(client: Client, topic: TopicFactory) -> None:
    name = topic()
    with pytest.raises(ClientError) as refused:
        client.write(name, [Message(value=b"x" * 2 * MEBIBYTE)])
    assert refused.value.code == ErrorCode.message_too_large
    assert client.ends(name) == (0, 0)


def test_keyless_record_in_a_compacted_topic_is_refused(
    client: Client, topic: TopicFactory
) -> None:
    name = topic(**{"cleanup.policy": "compact"})
    with pytest.raises(ClientError) as refused:
        client.write(name, [Message(key=None)])
    assert refused.value.code == ErrorCode.invalid_record
    assert client.write(name, [Message()]) == [0]


def test_log_append_time_replaces_the_timestamp_of_the_producer(
    client: Client, topic: TopicFactory
) -> None:
    name = topic(**{"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    client.write(name, numbered(3))
    after_ms = int(time.time() * 1000)
    for row in client.read(name, 3):
        assert row.is_log_append_time
        assert before_ms <= row.timestamp_ms <= after_ms


def test_first_write_creates_a_missing_topic(client: Client, unique_name: NameFactory) -> None:
    name = unique_name()
    assert client.write(name, [Message()]) == [0]
    eventually(lambda: client.topics().get(name) == 1)


def test_reading_starts_at_any_offset(client: Client, topic: TopicFactory) -> None:
    name = topic()
    client.write(name, numbered(30))
    for offset in (0, 7, 29):
        assert client.read(name, 1, offset=offset)[0].value == f"v{offset}".encode()


def test_reading_outside_the_log_is_out_of_range(client: Client, topic: TopicFactory) -> None:
    name = topic()
    client.write(name, numbered(3))
    with pytest.raises(ClientError) as refused:
        client.read(name, 1, offset=10)
    assert refused.value.code == ErrorCode.offset_out_of_range


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_both_isolation_levels_read_nontransactional_records(
    client: Client, topic: TopicFactory, isolation: str
) -> None:
    name = topic()
    client.write(name, numbered(10))
    rows = client.read(name, 10, isolation=isolation)
    assert [row.value for row in rows] == [m.value for m in numbered(10)]


def test_offsets_are_found_by_time(client: Client, topic: TopicFactory) -> None:
    name = topic()
    client.write(name, [Message(timestamp_ms=NOW_MS + 10 * n) for n in range(10)])
    assert client.offset_at(name, NOW_MS - 1) == 0
    assert client.offset_at(name, NOW_MS + 40) == 4
    assert client.offset_at(name, NOW_MS + 41) == 5
    assert client.ends(name) == (0, 10)


def test_time_after_the_last_record_is_not_found(topic: TopicFactory, client: Client) -> None:
    name = topic()
    client.write(name, [Message(timestamp_ms=NOW_MS)])
    assert client.offset_at(name, NOW_MS + 1) is None


def test_topics_are_created_and_listed(
    client: Client, cluster: Cluster, unique_name: NameFactory
) -> None:
    name = unique_name()
    client.create(Topic(name=name, partitions=3, configs={"retention.ms": "5000"}))
    eventually(lambda: client.topics().get(name) == 3)
    # Clients send the request to any broker, so all brokers must have applied the change.
    addresses = [cluster.address(broker_id) for broker_id in cluster.broker_ids]
    eventually(lambda: all(partitions_led(address, name) == 3 for address in addresses))
    configs = client.configs(name)
    assert (configs["retention.ms"], configs["cleanup.policy"]) == ("5000", "delete")


def test_refused_topics_have_the_error_codes_of_kafka(
    client: Client, topic: TopicFactory, unique_name: NameFactory
) -> None:
    for refused, code in (
        (Topic(name=topic()), ErrorCode.topic_already_exists),
        (Topic(name="no spaces"), ErrorCode.invalid_topic_exception),
        (Topic(name=unique_name(), configs={"no.such": "x"}), ErrorCode.invalid_config),
    ):
        with pytest.raises(ClientError) as error:
            client.create(refused)
        assert error.value.code == code


def test_topics_are_deleted(client: Client, topic: TopicFactory) -> None:
    name = topic()
    client.delete(name)
    eventually(lambda: name not in client.topics())
    with pytest.raises(ClientError) as refused:
        client.delete(name)
    assert refused.value.code == ErrorCode.unknown_topic_or_partition


def test_topics_grow(client: Client, topic: TopicFactory) -> None:
    name = topic()
    client.grow(name, 4)
    eventually(lambda: client.topics()[name] == 4)
    with pytest.raises(ClientError) as refused:
        client.grow(name, 2)
    assert refused.value.code == ErrorCode.invalid_partitions


def test_records_are_deleted(client: Client, topic: TopicFactory) -> None:
    name = topic()
    client.write(name, numbered(10))
    assert client.delete_records(name, 4) == 4
    assert client.ends(name) == (4, 10)
    assert [row.offset for row in client.read(name, 6, offset=4)] == [4, 5, 6, 7, 8, 9]


def test_cluster_lists_its_brokers(client: Client, bootstrap: str) -> None:
    assert sorted(client.brokers()) == sorted(bootstrap.split(","))


def test_commits_are_kept_per_group(
    client: Client, topic: TopicFactory, unique_name: NameFactory
) -> None:
    name, group, other = topic(), unique_name(), unique_name()
    assert client.committed(group, name) is None
    client.commit(group, name, 5, "five")
    client.commit(other, name, 7, "")
    client.commit(group, name, 6, "six")
    assert client.committed(group, name) == (6, "six")
    assert client.committed(other, name) == (7, "")
