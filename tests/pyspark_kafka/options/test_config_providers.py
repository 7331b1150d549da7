"""Tests of config provider references: the providers, and where options keep references."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from pyspark_kafka.client.factory import check_settings, open_client, open_transactional_client
from pyspark_kafka.client.native.client import NativeReadClient
from pyspark_kafka.client.pool import ClientPool
from pyspark_kafka.errors import OptionError
from pyspark_kafka.options.config_providers import resolve
from pyspark_kafka.options.parse import parse_sink_options, parse_source_options
from pyspark_kafka.wire.sasl import PlainCredentials

SECRET = "correct horse's \\battery"
SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
LOGIN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "alice",
}


@pytest.fixture(autouse=True)
def _secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", SECRET)
    monkeypatch.setenv("NESTED", "${env:PASSWORD}")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.properties").write_text(f"a.b = {SECRET.replace(chr(92), chr(92) * 2)}\nü=ü\n")
    (tmp_path / "password").write_text(f"{SECRET}\n")
    (tmp_path / "broken").write_bytes(b"a=\\u00zz")
    (tmp_path / "latin").write_bytes(b"a=\xe4")


def resolved(text: str) -> str:
    return resolve({"x": text}).values["x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${env:PASSWORD}", SECRET),
        ("${file:p.properties:a.b}", SECRET),
        ("${file:p.properties:ü}", "ü"),
        ("${dir:.:password}", f"{SECRET}\n"),
        ('password="${env:PASSWORD}"${env:EMPTY};', f'password="{SECRET}";'),
        ("${env:NESTED}", "${env:PASSWORD}"),
        ("$${env:PASSWORD}", f"${SECRET}"),
        ("${vault:a:b} ${} ${PASSWORD} $", "${vault:a:b} ${} ${PASSWORD} $"),
    ],
)
def test_values_are_those_of_kafka(text: str, expected: str) -> None:
    assert resolved(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "${env:MISSING}",
        "${env:a:PASSWORD}",
        "${file:p.properties}",
        "${file:p.properties:b}",
        "${file:missing:a.b}",
        "${file:.:a.b}",
        "${file:broken:a}",
        "${file:latin:a}",
        "${dir:.:missing}",
        "${dir:.:../password}",
        "${dir:password:x}",
        "${dir:.:}",
        "${dir:password}",
    ],
)
def test_a_reference_without_a_value(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        resolve({"sasl.password": f"${{env:PASSWORD}}{text}"}, prefix="kafka.")
    assert raised.value.option == "kafka.sasl.password"
    assert text in raised.value.what
    assert SECRET not in str(raised.value)


def test_tasks_receive_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPIC", "rows")
    monkeypatch.setenv("SERVERS", "localhost:1,localhost:2")
    options = parse_sink_options(
        {
            **LOGIN,
            "kafka.bootstrap.servers": "${env:SERVERS}",
            "kafka.sasl.password": "${env:PASSWORD}",
            "topic": "${env:TOPIC}",
        },
        streaming=False,
    )
    assert options.topic == "rows"
    assert options.client.bootstrap_servers == "localhost:1,localhost:2"
    monkeypatch.delenv("SERVERS")  # the driver has resolved it
    assert SECRET.encode() not in pickle.dumps(options)
    monkeypatch.setenv("PASSWORD", "of this executor")
    with open_client(pickle.loads(pickle.dumps(options)).client, is_checked=True) as client:
        assert password_of(client) == "of this executor"
    with open_transactional_client(options.client) as transactional:
        assert password_of(transactional) == "of this executor"


def password_of(client: object) -> str:
    assert isinstance(client, NativeReadClient)
    assert client.settings.security is not None
    credentials = client.settings.security.credentials
    assert isinstance(credentials, PlainCredentials)
    return credentials.password


def test_the_pool_opens_a_new_client_after_a_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**SERVERS, **LOGIN, "kafka.sasl.password": "${env:PASSWORD}", "subscribe": "t"}
    options = parse_source_options(given, streaming=False).client
    pool = ClientPool(open_client)
    with pool.lend(options) as first:
        pass
    with pool.lend(options) as again:
        assert again is first
    monkeypatch.setenv("PASSWORD", "rotated")
    with pool.lend(options) as second:
        assert password_of(second) == "rotated"
    first.close()
    second.close()


@pytest.mark.parametrize("engine", ["native", "librdkafka"])
@pytest.mark.parametrize(
    ("role", "given"),
    [
        ("producer", {"topic": "${env:PASSWORD}"}),
        ("producer", {"topic": "t", "kafka.linger.ms": "${env:PASSWORD}"}),
        ("producer", {"topic": "t", "kafka.acks": "${env:PASSWORD}"}),
        ("producer", {"topic": "t", "kafka.compression.type": "${env:PASSWORD}"}),
        ("producer", {"topic": "t", "kafka.security.protocol": "${env:PASSWORD}"}),
        ("producer", {"topic": "t", "kafka.sasl.jaas.config": "${env:PASSWORD}"}),
        ("producer", {"topic": "t", "transactionalId": "${env:PASSWORD}"}),
        ("consumer", {"subscribe": "${env:PASSWORD}"}),
        ("consumer", {"subscribe": "t", "startingOffsets": "${env:PASSWORD}"}),
        ("consumer", {"subscribe": "t", "minPartitions": "${env:PASSWORD}"}),
        ("consumer", {"subscribe": "t", "kafka.default.api.timeout.ms": "${env:PASSWORD}"}),
        ("consumer", {"subscribe": "t", "kafka.bootstrap.servers": "${env:PASSWORD}"}),
    ],
)
def test_errors_show_references(role: str, given: Mapping[str, str], engine: str) -> None:
    options = {**SERVERS, "engine": engine, **given}
    with pytest.raises(OptionError) as raised:
        check(role, options)
    assert raised.value.option is not None
    for part in (*SECRET.split(), repr(SECRET)[1:-1]):
        assert part not in f"{raised.value}{raised.value.__dict__}"


@pytest.mark.parametrize(
    ("name", "password", "given"),
    [
        ("kafka.sasl.mechanism", "hunter2-S3cret", "${env:PASSWORD}"),  # shown in upper case
        ("kafka.sasl.mechanism", " hunter2-S3cret\n", "${env:PASSWORD}"),
        ("kafka.bootstrap.servers", "hunter2-S3cret", "localhostX${env:PASSWORD}"),
    ],
)
def test_changed_and_embedded_values_are_masked(
    name: str, password: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", password)
    options = {**SERVERS, "subscribe": "t", "kafka.security.protocol": "SASL_SSL", name: given}
    with pytest.raises(OptionError) as raised:
        check("consumer", options)
    assert "hunter2" not in f"{raised.value}{raised.value.__dict__}".lower()
    assert "${env:PASSWORD}" in str(raised.value)


def test_the_choice_of_the_engine_is_logged_without_values(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2-S3cret")
    options = {**SERVERS, "subscribe": "t", "kafka.broker.address.family": "${env:PASSWORD}"}
    with caplog.at_level("INFO"), pytest.raises(OptionError):
        check("consumer", options)
    assert "${env:PASSWORD}" in caplog.text
    assert "hunter2" not in caplog.text


def test_masks_do_not_change_the_names_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUSER", "kafka")
    options = {
        **SERVERS,
        "subscribe": "t",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "${env:KUSER}",
    }
    with pytest.raises(OptionError) as raised:
        check("consumer", options)
    assert f"'{raised.value.option}'" in str(raised.value)


def check(role: str, options: Mapping[str, str]) -> None:
    if role == "consumer":
        check_settings(parse_source_options(options, streaming=False).client, role="consumer")
    else:
        check_settings(parse_sink_options(options, streaming=False).client, role="producer")
