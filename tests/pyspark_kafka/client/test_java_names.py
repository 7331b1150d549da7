"""Tests of the translation of Java's setting names to librdkafka's."""

from __future__ import annotations

import logging
import re

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as RdProducer

from pyspark_kafka.client.java_names import Role, is_secret, librdkafka_properties
from pyspark_kafka.client.librdkafka_names import BOTH, CONSUMER, INTEGERS, PRODUCER
from pyspark_kafka.errors import OptionError
from pyspark_kafka.options.table import REJECTED_KAFKA


@pytest.mark.parametrize(
    ("role", "name", "value", "expected"),
    [
        ("consumer", "fetch.max.wait.ms", "7", {"fetch.wait.max.ms": "7"}),
        ("consumer", "max.partition.fetch.bytes", "7", {"max.partition.fetch.bytes": "7"}),
        ("consumer", "fetch.message.max.bytes", "7", {"max.partition.fetch.bytes": "7"}),
        ("consumer", "fetch.max.bytes", "8388608", {"fetch.max.bytes": "8388608"}),
        (
            "consumer",
            "fetch.max.bytes",
            "200000000",
            {"fetch.max.bytes": "200000000", "receive.message.max.bytes": "200000512"},
        ),
        ("consumer", "request.timeout.ms", "900", {"socket.timeout.ms": "900"}),
        ("consumer", "receive.buffer.bytes", "-1", {"socket.receive.buffer.bytes": "0"}),
        ("consumer", "queued.min.messages", "5", {"queued.min.messages": "5"}),
        ("producer", "max.request.size", "5", {"message.max.bytes": "5"}),
        ("producer", "buffer.memory", "33554432", {"queue.buffering.max.kbytes": "32768"}),
        ("producer", "max.block.ms", "5", {"topic.metadata.propagation.max.ms": "5"}),
        ("producer", "message.timeout.ms", "5", {"delivery.timeout.ms": "5"}),
        ("producer", "acks", "-1", {"acks": "all"}),
        ("producer", "enable.idempotence", "true", {"enable.idempotence": "true"}),
        ("producer", "batch.size", "16384", {"batch.size": "16384"}),
        (
            "consumer",
            "ssl.endpoint.identification.algorithm",
            "",
            {"ssl.endpoint.identification.algorithm": "none"},
        ),
        ("admin", "fetch.max.bytes", "5", {}),
        ("admin", "linger.ms", "5", {}),
        ("admin", "client.id", "me", {"client.id": "me"}),
    ],
)
def test_a_setting_becomes(role: Role, name: str, value: str, expected: dict[str, str]) -> None:
    assert librdkafka_properties({name: value}, role=role) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("buffer.memory", "0x200000", {"queue.buffering.max.kbytes": "2048"}),
        ("max.request.size", " 0200000", {"message.max.bytes": "65536"}),
        ("retries", "+5", {"retries": "5"}),
    ],
)
def test_integer_is_converted_to_decimal(name: str, value: str, expected: dict[str, str]) -> None:
    assert librdkafka_properties({name: value}, role="producer") == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request.timeout.ms", "60s"),
        ("buffer.memory", "64m"),
        ("batch.size", "1_000"),
        ("linger.ms", "08"),
        ("message.max.bytes", "9" * 5_000),
    ],
)
def test_value_that_is_not_an_integer_is_rejected(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        librdkafka_properties({name: value}, role="producer")
    assert caught.value.option == f"kafka.{name}"


def test_integers_are_those_of_librdkafka() -> None:
    rejected = set()
    for name in (BOTH | CONSUMER | PRODUCER) - {"max.in.flight"}:  # an alias
        with pytest.raises((KafkaException, TypeError)) as caught:
            RdProducer({name: "x", "no.such.property": "x"})
        if re.search(r'Invalid value for configuration property "[^"]+"$', _text(caught.value)):
            rejected.add(name)
    assert rejected - {"acks", "request.required.acks"} == INTEGERS


def _text(error: Exception) -> str:
    return str(error.args[0].str() if isinstance(error, KafkaException) else error)


def test_settings_with_fields_in_client_options_are_not_translated() -> None:
    given = {"bootstrap.servers": "a:1", "group.id": "g", "isolation.level": "read_committed"}
    assert librdkafka_properties(given, role="consumer") == {}


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_compression_level_applies_only_to_its_codec(codec: str) -> None:
    given = {
        "compression.type": codec,
        "compression.gzip.level": "1",
        "compression.lz4.level": "2",
        "compression.zstd.level": "3",
    }
    level = {"gzip": "1", "lz4": "2", "zstd": "3"}[codec]
    expected = {"compression.type": codec, "compression.level": level}
    assert librdkafka_properties(given, role="producer") == expected


@pytest.mark.parametrize(
    ("role", "settings", "keyword"),
    [
        ("producer", {"acks": "1"}, "'all'"),
        ("producer", {"request.required.acks": "0"}, "'0'"),
        ("producer", {"enable.idempotence": "false"}, "'true'"),
        ("producer", {"partitioner.class": "x.Y"}, "'partition'"),
        ("producer", {"transactional.id": "x"}, "'transactionalId'"),
        ("consumer", {"allow.auto.create.topics": "true"}, "'true'"),
        ("consumer", {"enable.partition.eof": "false"}, "'kafka.enable.partition.eof'"),
        ("consumer", {"auto.offset.reset": "latest"}, "'startingOffsets'"),
        ("consumer", {"fetch.max.byte": "1"}, "'kafka.fetch.max.bytes'"),
        ("consumer", {"qqqqqqqq": "1"}, "librdkafka"),
        ("consumer", {"ssl.engine.factory.class": "x"}, "Java"),
        ("consumer", {"sasl.oauthbearer.header.urlencode": "true"}, "'false'"),
    ],
)
def test_unsupported_setting_is_rejected(
    role: Role, settings: dict[str, str], keyword: str
) -> None:
    with pytest.raises(OptionError) as caught:
        librdkafka_properties(settings, role=role)
    assert caught.value.option == f"kafka.{next(iter(settings))}"
    assert keyword in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"fetch.max.wait.ms": "1"}, {"fetch.wait.max.ms": "2"}),
        ({"ssl.ca.location": "a.pem"}, {"ssl.truststore.location": "b.pem"}),
        (
            {"sasl.oauthbearer.token.provider": "azure"},
            {"sasl.login.callback.handler.class": "GcpLoginCallbackHandler"},
        ),
    ],
)
def test_contradicting_names_of_one_property_are_rejected(
    first: dict[str, str], second: dict[str, str]
) -> None:
    settings = {"security.protocol": "SASL_SSL", **first, **second}
    with pytest.raises(OptionError, match=re.escape(f"'kafka.{next(iter(first))}'")) as caught:
        librdkafka_properties(settings, role="consumer")
    assert caught.value.option == f"kafka.{next(iter(second))}"


@pytest.mark.parametrize(
    "name", ["sasl.mechanism", "sasl.username", "ssl.truststore.certificates", "ssl.key.pem"]
)
@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_security_without_a_protocol_is_rejected(role: Role, name: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"'kafka.{name}'")) as caught:
        librdkafka_properties({name: "hush"}, role=role)
    assert caught.value.option == "kafka.security.protocol"
    assert "hush" not in str(caught.value)
    assert librdkafka_properties({"security.protocol": "PLAINTEXT", name: "x"}, role=role)


def test_settings_that_options_reject_have_the_same_advice() -> None:
    for name, remedy in REJECTED_KAFKA.items():
        with pytest.raises(OptionError, match=re.escape(remedy)):
            librdkafka_properties({name: "x"}, role="consumer")


def test_two_names_for_one_property_may_agree() -> None:
    given = {"fetch.max.wait.ms": "2", "fetch.wait.max.ms": "2"}
    assert librdkafka_properties(given, role="consumer") == {"fetch.wait.max.ms": "2"}


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("consumer", "max.poll.records"),
        ("consumer", "metric.reporters"),
        ("consumer", "statistics.interval.ms"),
        ("consumer", "linger.ms"),
        ("producer", "fetch.max.bytes"),
        ("producer", "partitioner.adaptive.partitioning.enable"),
        ("producer", "compression.zstd.level"),
    ],
)
def test_setting_without_effect_is_ignored_with_a_warning(
    role: Role, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert librdkafka_properties({name: "5"}, role=role) == {}
    assert f"'kafka.{name}'" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "sasl.jaas.config",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["sasl.username", "fetch.max.bytes", "ssl.key.location"])
def test_names_without_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("given", "value", "property_name", "nearest"),
    [
        ("request.timeout.ms", "305000", "socket.timeout.ms", "300000"),
        ("request.timeout.ms", "4294967296", "socket.timeout.ms", "300000"),
        ("max.block.ms", str(2**63 - 1), "topic.metadata.propagation.max.ms", "3600000"),
        ("retry.backoff.ms", "0", "retry.backoff.ms", "1"),
        ("batch.size", "0", "batch.size", "1"),
    ],
)
def test_value_outside_of_librdkafkas_range_is_replaced_with_a_warning(
    caplog: pytest.LogCaptureFixture, given: str, value: str, property_name: str, nearest: str
) -> None:
    assert librdkafka_properties({given: value}, role="producer") == {property_name: nearest}
    assert f"'kafka.{given}'" in caplog.text
    assert nearest in caplog.text


def test_never_closing_idle_connections_is_zero(caplog: pytest.LogCaptureFixture) -> None:
    given = {"connections.max.idle.ms": "-1"}
    assert librdkafka_properties(given, role="producer") == {"connections.max.idle.ms": "0"}
    assert caplog.text == ""
