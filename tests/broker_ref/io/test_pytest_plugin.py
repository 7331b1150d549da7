"""Tests of the package's pytest fixture."""

from __future__ import annotations

import pytest

from broker_ref.io.cluster import Cluster


def test_the_fixture_provides_a_running_cluster(kafka_cluster: Cluster) -> None:
    kafka_cluster.create_topic("from-the-fixture", partitions=2)
    assert kafka_cluster.bootstrap_servers.startswith("127.0.0.1:")


def test_the_fixture_of_a_secured_cluster(secured_kafka_cluster: Cluster) -> None:
    secured_kafka_cluster.create_topic("from-the-fixture")
    assert secured_kafka_cluster.client_settings().protocol == "SASL_SSL"


def test_pytest_lists_it_with_its_purpose(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.get_plugin("broker_ref") is not None
