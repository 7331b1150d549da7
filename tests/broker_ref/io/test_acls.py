"""Tests of ACLs in whole clusters: restarts, traffic between brokers, and a stock admin client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from kio.schema.errors import ErrorCode

from broker_ref.io.cluster import Cluster
from broker_ref.io.controller import controller_security
from broker_ref.io.settings import BrokerStartError, ControllerSettings, parse_configs
from broker_ref.security.authorizer import STANDARD_AUTHORIZER
from integration.clusters.topics import create_topic
from integration.raw import RawConnection
from tests.conformance.acls import (
    ALL,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    READ,
    Acl,
    delete_acls,
    describe_acls,
    grant,
)
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.wire import describe_topics, only, produce

ADMIN: Any = confluent_kafka.admin
TIMEOUT_SECONDS = 30.0
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
CONFIGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
SECURED_CONTROLLER = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": (
        f'{PLAIN} required username="broker" password="b" user_broker="b";'
    ),
    "sasl.mechanism.controller.protocol": "PLAIN",
}
BROKER_IS_A_USER = {
    **CONFIGS,
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{PLAIN} required username="broker" password="b" user_broker="b";'
    ),
    "replica.fetch.backoff.ms": "20",
}


@contextlib.contextmanager
def admin_of(cluster: Cluster) -> Iterator[RawConnection]:
    with RawConnection(cluster.address(1)) as raw:
        yield raw


def test_acls_survive_restarts(tmp_path: Path) -> None:
    kept = Acl(principal="alice", operation=READ, resource_name="t")
    deleted = Acl(principal="bob", operation=ALL, resource_name="*")
    with Cluster(data=tmp_path, configs=CONFIGS) as cluster:
        with admin_of(cluster) as raw:
            grant(raw, [kept, deleted])
            assert len(delete_acls(raw, principal_filter="User:bob")) == 1
        cluster.stop_broker(1)
        cluster.stop_controller()
        cluster.start_controller()
        cluster.start_broker(1)
        with admin_of(cluster) as raw:
            assert describe_acls(raw) == {kept}
    with Cluster(data=tmp_path, configs=CONFIGS) as again, admin_of(again) as raw:
        assert describe_acls(raw) == {kept}


def test_brokers_need_cluster_action() -> None:
    with Cluster(brokers=2, configs=BROKER_IS_A_USER) as cluster:
        # `Cluster.create_topic` is a request of the broker's user, which may not create topics.
        create_topic(cluster.address(1), "t", replication_factor=2)
        with admin_of(cluster) as raw:
            found = describe_topics(raw, "t").topics[0].partitions[0]
        with RawConnection(cluster.address(found.leader_id)) as leader:

            def error_code() -> ErrorCode:
                response = produce(leader, "t", batch(values("v")), timeout_ms=100)
                assert isinstance(response.error_code, ErrorCode)
                return response.error_code

            assert error_code() == ErrorCode.request_timed_out
            grant(
                leader,
                [
                    Acl(
                        principal="broker",
                        operation=CLUSTER_ACTION,
                        resource_type=CLUSTER,
                        resource_name=CLUSTER_NAME,
                    )
                ],
            )
            eventually(lambda: error_code() == ErrorCode.none)


@pytest.mark.parametrize(
    ("configs", "is_reported"),
    [
        ({}, False),
        (CONFIGS, True),
        ({"listeners": "PLAINTEXT://:1,SSL://:2"}, True),
        ({"listeners": "PLAINTEXT://:1"}, False),
        ({**CONFIGS, **SECURED_CONTROLLER}, False),
    ],
)
def test_an_unsecured_controller_is_reported(
    *,
    configs: dict[str, str],
    is_reported: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller_security(parse_configs(configs), ControllerSettings(data=tmp_path))
    assert [each.levelname for each in caplog.records] == ["WARNING"] * is_reported


def test_a_broker_that_is_not_a_super_user_of_the_controller_does_not_start() -> None:
    with pytest.raises(BrokerStartError, match=r"super\.users"):
        Cluster(configs={**SECURED_CONTROLLER, **CONFIGS}).start()
    with Cluster(configs={**SECURED_CONTROLLER, **CONFIGS, "super.users": "User:broker"}):
        pass


def test_topics_are_auto_created_with_the_permissions_of_the_client(tmp_path: Path) -> None:
    configs = {**SECURED_CONTROLLER, **CONFIGS}
    of_all = {**configs, "super.users": "User:ANONYMOUS;User:broker"}
    with Cluster(data=tmp_path, configs=of_all) as cluster, admin_of(cluster) as raw:
        grant(
            raw,
            [
                Acl(
                    principal="broker",
                    operation=CLUSTER_ACTION,
                    resource_type=CLUSTER,
                    resource_name=CLUSTER_NAME,
                )
            ],
        )
    with Cluster(data=tmp_path, configs=configs) as cluster, admin_of(cluster) as raw:
        topics = [{"name": "t"}]

        def is_created() -> bool:
            found = raw.call("metadata", 12, topics=topics, allow_auto_topic_creation=True).topics
            return bool(only(found).error_code == ErrorCode.none)

        eventually(is_created)


def test_confluent_kafka_manages_acls() -> None:
    with Cluster(configs=CONFIGS) as cluster:
        admin = ADMIN.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        binding = ADMIN.AclBinding(
            ADMIN.ResourceType.TOPIC,
            "orders-",
            ADMIN.ResourcePatternType.PREFIXED,
            "User:alice",
            "*",
            ADMIN.AclOperation.READ,
            ADMIN.AclPermissionType.ALLOW,
        )
        anything = ADMIN.AclBindingFilter(
            ADMIN.ResourceType.ANY,
            None,
            ADMIN.ResourcePatternType.ANY,
            None,
            None,
            ADMIN.AclOperation.ANY,
            ADMIN.AclPermissionType.ANY,
        )

        def described() -> list[Any]:
            return list(admin.describe_acls(anything).result(TIMEOUT_SECONDS))

        assert admin.create_acls([binding])[binding].result(TIMEOUT_SECONDS) is None
        eventually(lambda: described() == [binding])
        deleted = admin.delete_acls([anything])[anything].result(TIMEOUT_SECONDS)
        assert deleted == [binding]
        eventually(lambda: described() == [])
