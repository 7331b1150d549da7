"""Tests of the native producer's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pyspark_kafka.client.factory import open_client
from pyspark_kafka.client.java_names import librdkafka_properties
from pyspark_kafka.client.librdkafka_names import BOTH, PRODUCER
from pyspark_kafka.client.native.producer_settings import (
    PRODUCER_PROPERTIES,
    ProducerSettings,
    unsupported_reason,
)
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.client.native.supported_properties import KNOWN
from pyspark_kafka.errors import OptionError
from pyspark_kafka.records import Codec
from pyspark_kafka.wire.retry import Backoff
from tests.pyspark_kafka.client.records import options

JAVA = {
    "compression.type": "zstd",
    "compression.zstd.level": "7",
    "batch.size": "1000",
    "max.request.size": "2000000",
    "buffer.memory": "4096",
    "max.in.flight.requests.per.connection": "2",
    "delivery.timeout.ms": "5000",
    "linger.ms": "20",
    "request.timeout.ms": "700",
    "socket.connection.setup.timeout.ms": "7000",
    "max.block.ms": "800",
    "retry.backoff.ms": "20",
    "retry.backoff.max.ms": "300",
    "allow.auto.create.topics": "false",
}


def settings_of(kafka: Mapping[str, Any]) -> ProducerSettings:
    wanted = options("127.0.0.1:1", **kafka)
    return ProducerSettings.of(wanted.kafka, NativeSettings.of(wanted, "producer"))


def test_java_names_are_understood() -> None:
    properties = librdkafka_properties(JAVA, role="producer")
    assert properties.keys() <= PRODUCER_PROPERTIES | KNOWN.keys()
    assert unsupported_reason(properties) is None
    assert settings_of(JAVA) == ProducerSettings(
        codec=Codec.ZSTD,
        level=7,
        batch_bytes_max=1_000,
        request_bytes_max=2_000_000,
        buffer_bytes=4_096,
        in_flight_max=2,
        delivery_timeout_s=5.0,
        linger_s=0.02,
        request_timeout_s=0.7,
        connect_timeout_s=7.0,
        topic_wait_s=0.8,
        create_topics=False,
        backoff=Backoff(first_s=0.02, longest_s=0.3),
    )


def test_defaults_are_javas_except_the_batch_size() -> None:
    settings = settings_of({})
    assert settings == ProducerSettings()
    assert (settings.request_bytes_max, settings.buffer_bytes) == (1_048_576, 33_554_432)
    assert (settings.delivery_timeout_s, settings.request_timeout_s) == (120.0, 30.0)
    assert (settings.in_flight_max, settings.codec, settings.level) == (5, Codec.NONE, None)
    assert settings.backoff == Backoff()


def test_the_table_is_of_properties_that_there_are() -> None:
    assert PRODUCER_PROPERTIES <= PRODUCER | BOTH


def test_a_batch_fits_into_a_request_and_few_are_in_flight() -> None:
    found = settings_of(
        {
            "batch.size": "5000000",
            "message.max.bytes": "3000",
            "max.in.flight.requests.per.connection": "1000000",
        }
    )
    assert (found.batch_bytes_max, found.in_flight_max) == (3_000, 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch.size", "-1"),
        ("batch.size", "many"),
        ("max.request.size", "0x80000000"),
        ("buffer.memory", "-7"),
        ("delivery.timeout.ms", "0"),
        ("compression.type", "brotli"),
        ("allow.auto.create.topics", "perhaps"),
    ],
)
def test_invalid_value_is_rejected(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"'{value}'") as caught:
        settings_of({name: value})
    assert caught.value.option == f"kafka.{name}"


def test_values_are_read_as_librdkafka_reads_them() -> None:
    kafka: dict[str, Any] = {
        "batch.size": " 0x4000",
        "max.in.flight": "0x2",
        "allow.auto.create.topics": "0",
        "compression.type": "gzip",
        "compression.gzip.level": "0x3",
        "max.request.size": "0200000",
    }
    wanted = options("127.0.0.1:1", engine="librdkafka", **kafka)
    with open_client(wanted, role="producer") as client:
        assert type(client).__name__ == "LibrdkafkaClient", "librdkafka supports all these settings"
    found = settings_of(kafka)
    assert (found.batch_bytes_max, found.in_flight_max) == (16_384, 2)
    assert (found.create_topics, found.request_bytes_max) == (False, 65_536)
    assert (found.codec, found.level) == (Codec.GZIP, 3)


def test_a_level_that_the_codec_does_not_have() -> None:
    properties = {"compression.type": "gzip", "compression.level": "11"}
    assert "'11'" in str(unsupported_reason(properties))
    with pytest.raises(OptionError, match="1 to 9") as caught:
        settings_of(properties)
    assert caught.value.option == "kafka.compression.level"
    for level in ("-1", "9"):
        good = {**properties, "compression.level": level}
        assert unsupported_reason(good) is None
        assert settings_of(good).level == (None if level == "-1" else 9)


@pytest.mark.parametrize("partitioner", ["random", "consistent", "murmur2", "fnv1a_random"])
def test_other_partitioners_are_not_supported(partitioner: str) -> None:
    assert partitioner in str(unsupported_reason({"partitioner": partitioner}))
    assert unsupported_reason({"partitioner": "murmur2_random"}) is None
