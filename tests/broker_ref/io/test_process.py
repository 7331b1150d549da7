"""Tests of a broker process: start, kill and restart."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.io.admin import CreateTopicError, create_topic
from broker_ref.io.port import PortReservation
from broker_ref.io.process import BrokerProcess, BrokerProcessError

pytestmark = pytest.mark.slow  # Every test starts processes.


def test_a_broker_keeps_its_port_and_topics_across_restarts(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        address = broker.bootstrap_servers
        assert address == f"127.0.0.1:{broker.port}"
        create_topic(address, "before")
        assert broker.terminate() == 0
        assert not broker.is_running
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port))
        broker.start()
        create_topic(address, "between")
        first_pid = broker.pid
        broker.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(first_pid, 0)
        broker.start()
        assert broker.bootstrap_servers == address
        for topic in ("before", "between"):
            with pytest.raises(CreateTopicError, match=topic) as error:
                create_topic(address, topic)
            assert error.value.error_code is ErrorCode.topic_already_exists


def test_a_failed_start_contains_the_brokers_stderr(tmp_path: Path) -> None:
    with (
        pytest.raises(BrokerProcessError, match=r"(?s)\b1\b.*num\.partitions"),
        BrokerProcess(tmp_path, configs={"num.partitions": "0"}),
    ):
        pass


def test_a_broker_that_is_not_ready_in_time_is_killed(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    try:
        with pytest.raises(BrokerProcessError, match=r"\b0\.0 s\b"):
            broker.start(timeout_seconds=0.0)
        assert not broker.is_running
    finally:
        broker.close()


def test_start_and_stop_require_the_opposite_state(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path) as broker:
        with pytest.raises(BrokerProcessError, match=rf"\b{broker.pid}\b"):
            broker.start()
        broker.kill()
        broker.kill()
        with pytest.raises(BrokerProcessError):
            broker.terminate()


def test_a_reserved_port_refuses_clients_and_other_servers() -> None:
    held = PortReservation("127.0.0.1")
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", held.port))
        with (
            socket.socket() as other,
            pytest.raises(OSError, match="Address already in use"),
        ):
            other.bind(("127.0.0.1", held.port))
        with socket.create_server(("127.0.0.1", held.port)):  # `create_server` sets SO_REUSEADDR.
            socket.create_connection(("127.0.0.1", held.port)).close()
    finally:
        held.close()
