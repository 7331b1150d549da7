"""Tests of the choice of an engine, its settings, and its log messages."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka import records
from pyspark_kafka.client import factory
from pyspark_kafka.client.factory import choose_engine, open_client
from pyspark_kafka.client.librdkafka_names import BOTH, CONSUMER, PRODUCER
from pyspark_kafka.client.native.client import NativeClient, NativeReadClient
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.client.native.supported_properties import KNOWN
from pyspark_kafka.errors import OptionError
from tests.pyspark_kafka.client.records import options

NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "_logged", set())
    monkeypatch.setenv("PYSPARK_KAFKA_RECORDS", "cython")


@pytest.mark.parametrize(
    ("kafka", "reason"),
    [
        ({}, None),
        ({"client_id": "me", "fetch_max_wait_ms": "9", "security_protocol": "PLAINTEXT"}, None),
        ({"fetch_min_bytes": "9", "max_poll_interval_ms": "9", "session_timeout_ms": "9"}, None),
        ({"isolation_level": "read_committed", "group_id": "g"}, None),
        ({"metric_reporters": "no effect anywhere"}, None),
        ({"security_protocol": "SSL", "ssl_key_password": "hush"}, None),
        ({"security_protocol": "sasl_ssl", "sasl_mechanism": "PLAIN"}, None),
        ({"security_protocol": "SASL_SSL"}, r"'kafka\.sasl\.mechanism'.*Kerberos"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "'GSSAPI'.*mechanism"),
        ({"ssl_crl_location": "hush"}, r"'kafka\.ssl\.crl\.location'"),
        ({"ssl_cipher_suites": "hush"}, r"'kafka\.ssl\.cipher\.suites'"),
        ({"debug": "all"}, "'kafka.debug'"),
        ({"broker_address_family": "v5"}, "'v5'.*'kafka.broker.address.family'"),
    ],
)
def test_auto_is_native_if_all_settings_are_supported(
    kafka: dict[str, Any], reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pyspark_kafka")
    wanted = options(NOWHERE, **kafka)
    engine = choose_engine(wanted, "consumer")
    assert engine == ("librdkafka" if reason else "native")
    assert choose_engine(wanted, "consumer") == engine
    messages = [r.getMessage() for r in caplog.records if r.name == factory.__name__]
    assert len(messages) == 1, "once per process"
    assert f"'{engine}'" in messages[0]
    assert "hush" not in caplog.text
    native = replace(wanted, engine="native")
    if reason is None:
        assert choose_engine(native, "consumer") == "native"
    else:
        with pytest.raises(OptionError, match=reason) as caught:
            choose_engine(native, "consumer")
        assert caught.value.option == "engine"
    assert choose_engine(replace(wanted, engine="librdkafka"), "consumer") == "librdkafka"


@pytest.mark.parametrize(
    ("kafka", "reason"),
    [
        ({}, None),
        ({"compression.type": "zstd", "batch.size": "16384", "linger.ms": "5"}, None),
        ({"compression.type": "zstd", "compression.zstd.level": "22"}, None),
        ({"compression.type": "lz4", "compression.lz4.level": "17"}, None),
        ({"partitioner": "random"}, "'random'.*'kafka.partitioner'"),
        ({"compression.type": "gzip", "compression.level": "12"}, "'12'"),
        ({"security.protocol": "SSL"}, None),
        ({"fetch.max.bytes": "1"}, None),  # a consumer setting, without effect on this client
    ],
)
def test_the_engine_of_a_writer(kafka: dict[str, Any], reason: str | None) -> None:
    native = options(NOWHERE, engine="native", **kafka)
    engine = "native" if reason is None else "librdkafka"
    assert choose_engine(replace(native, engine="auto"), "producer") == engine
    if reason is None:
        with open_client(native, role="producer") as client:
            assert isinstance(client, NativeClient)
    else:
        with pytest.raises(OptionError, match=reason) as caught:
            choose_engine(native, "producer")
        assert caught.value.option == "engine"


def test_without_the_kernel_auto_is_librdkafka(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(factory, "_RECORDS", str(tmp_path))
    monkeypatch.delenv("PYSPARK_KAFKA_RECORDS", raising=False)
    assert choose_engine(options(NOWHERE), "consumer") == "librdkafka"
    assert choose_engine(options(NOWHERE, engine="native"), "consumer") == "native"
    monkeypatch.setenv("PYSPARK_KAFKA_RECORDS", "pure")
    assert choose_engine(options(NOWHERE), "consumer") == "native"


@pytest.mark.parametrize(
    ("implementation", "engine", "warnings"),
    [("cython", "auto", 0), ("pure", "native", 0), ("pure", "auto", 1)],
)
def test_kernel_that_does_not_load_is_logged_with_auto(
    implementation: str,
    engine: Any,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("PYSPARK_KAFKA_RECORDS")
    monkeypatch.setattr(records, "IMPLEMENTATION", implementation)
    for _ in range(2):
        with open_client(options(NOWHERE, engine=engine), is_checked=True) as client:
            assert isinstance(client, NativeReadClient)
    messages = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(messages) == warnings
    assert all("pyspark_kafka.records" in text for text in messages)


def test_the_table_has_names_of_librdkafka() -> None:
    assert KNOWN.keys() <= BOTH | CONSUMER | PRODUCER
    for name, known in KNOWN.items():
        assert "consumer" in known.roles or name not in CONSUMER, name


def test_settings_from_options() -> None:
    settings = NativeSettings.of(
        options(
            NOWHERE,
            broker_address_family="V6",
            client_id="me",
            client_rack="here",
            connections_max_idle_ms="-1",
            default_api_timeout_ms="7000",
            fetch_max_bytes="5000000",
            fetch_message_max_bytes="07640",
            fetch_max_wait_ms=" 0x14",
            metadata_max_age_ms="30000",
            receive_message_max_bytes="6000000",
            reconnect_backoff_ms="40",
            reconnect_backoff_max_ms="50",
            request_timeout_ms="60000",
            retry_backoff_ms="2000",
            retry_backoff_max_ms="200",
            socket_connection_setup_timeout_ms="8000",
        )
    )
    assert (settings.client_id, settings.rack, settings.address_family) == ("me", "here", "v6")
    assert settings.idle_s_max == float("inf")
    assert (settings.api_timeout_s, settings.request_timeout_s) == (7, 60)
    assert (settings.connect_timeout_s, settings.metadata_age_s_max) == (8, 30)
    assert (settings.fetch_bytes_max, settings.fetch_wait_ms_max) == (4000, 20)
    assert settings.response_bytes_max == 6_000_000
    assert (settings.retrying.first_s, settings.retrying.longest_s) == (0.2, 0.2)
    assert (settings.reconnecting.first_s, settings.reconnecting.longest_s) == (0.04, 0.05)


@pytest.mark.parametrize(("first_ms", "longest_ms"), [("0", "0"), ("0", "1000"), ("50", "0")])
def test_there_is_always_a_pause_between_tries(first_ms: str, longest_ms: str) -> None:
    wanted = options(NOWHERE, reconnect_backoff_ms=first_ms, reconnect_backoff_max_ms=longest_ms)
    backoff = NativeSettings.of(wanted).reconnecting
    assert all(0.005 < backoff.backoff_s(attempts, 0.0) <= 1.0 for attempts in (1, 2, 20))


@pytest.mark.parametrize("engine", ["auto", "native", "librdkafka"])
def test_invalid_value_is_the_same_error_for_every_engine(engine: Any) -> None:
    for value in ("-5", "soon"):
        with pytest.raises(OptionError, match=value) as caught:
            open_client(options(NOWHERE, engine=engine, fetch_max_wait_ms=value))
        assert caught.value.option == "kafka.fetch.max.wait.ms"


@pytest.mark.slow
def test_a_task_of_the_native_engine_does_not_load_librdkafka() -> None:
    script = """
import sys
import pyspark_kafka.source.task_reader as reader
from pyspark_kafka.options.values import ClientOptions
kafka = {"bootstrap.servers": "127.0.0.1:1", "client.id": "me"}
options = ClientOptions(bootstrap_servers="127.0.0.1:1", kafka=kafka, group_id="g", engine="native")
with reader._pool().lend(options) as client:
    print(type(client).__name__, "confluent_kafka" in sys.modules)
"""
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"{NativeReadClient.__name__} False\n"


def test_planning_a_write_loads_no_engine() -> None:
    """Spark plans and commits every micro-batch in new processes, which must start quickly."""
    script = """
import sys
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_kafka.options.parse import parse_sink_options
from pyspark_kafka.sink.writers import stream_writer
options = parse_sink_options(
    {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}, streaming=True
)
stream_writer(options, StructType([StructField("value", BinaryType())]))
print(*sys.modules.keys() & {"confluent_kafka", "kio", "pyspark_kafka.wire.router"})
"""
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []
