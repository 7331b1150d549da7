"""Reads in progress when a user, an ACL or a broker's certificate changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)

from integration.clusters import Cluster, restricted_user
from integration.clusters.restricted_user import Prefixes
from integration.clusters.security import Certificates, SecuredListener, Security
from pyspark_kafka.client.factory import open_client
from pyspark_kafka.errors import AuthenticationError, AuthorizationError, PysparkKafkaError
from pyspark_kafka.kafka.offsets import IsolationLevel
from tests.conftest import ClusterFactory
from tests.pyspark_kafka.client.records import options, rows
from tests.pyspark_kafka.client.test_fetch import fetch_range

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

USER, OTHER = "alice", "bob"
SESSION_S = 3.0
NAMED_WITHIN_S = 15.0
ROWS = 5_000
SECURITY = Security(
    users={USER: "alice-secret", OTHER: "bob-secret"},
    listeners=(
        SecuredListener(
            name="SHORT",
            protocol="SASL_SSL",
            mechanisms=("SCRAM-SHA-512",),
            session_ms=int(SESSION_S * 1000),
        ),
    ),
)


@pytest.fixture(scope="module")
def secured(cluster_with: ClusterFactory) -> Cluster:
    cluster = cluster_with(restricted_user.CONFIGS, security=SECURITY)
    for user in (USER, OTHER):
        restricted_user.allow(cluster, Prefixes(sources="read-by-"), user=user)
    return cluster


@contextmanager
def reading(secured: Cluster, user: str) -> Iterator[Callable[[], None]]:
    """Yield a function that reads the rest of a topic slowly, after the first rows are read."""
    topic = f"read-by-{user}-{time.monotonic_ns()}"
    secured.create_topic(topic)
    small = options(secured.bootstrap_servers, engine="native", batch_size="20000")
    with open_client(small, role="producer") as writer:
        producer = writer.producer()
        producer.send(rows(topic, [b"%05d" % n * 200 for n in range(ROWS)]))
        producer.flush()
        producer.abort()
    settings = secured.secured.scram_options("SHORT", user)
    kafka: dict[str, Any] = {
        name.removeprefix("kafka.").replace(".", "_"): value for name, value in settings.items()
    }
    kafka |= {"max_partition_fetch_bytes": "20000"}
    servers = kafka.pop("bootstrap_servers")
    with open_client(options(servers, engine="native", **kafka)) as client:
        batches = client.fetch(
            fetch_range(topic, 0, ROWS), ("offset",), IsolationLevel.READ_COMMITTED
        )
        next(batches)

        def read_on() -> None:
            for _ in batches:
                time.sleep(0.1)

        yield read_on


def failure(read_on: Callable[[], None]) -> PysparkKafkaError:
    started = time.monotonic()
    with pytest.raises(PysparkKafkaError) as caught:
        read_on()
    assert time.monotonic() - started < NAMED_WITHIN_S
    return caught.value


@pytest.fixture
def admin(secured: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": secured.bootstrap_servers, "log_level": 2})


def test_a_user_is_removed(secured: Cluster, admin: AdminClient) -> None:
    """The session ends, and the client cannot authenticate again."""
    with reading(secured, OTHER) as read_on:
        deletion = UserScramCredentialDeletion(OTHER, ScramMechanism.SCRAM_SHA_512)
        for future in admin.alter_user_scram_credentials([deletion]).values():
            future.result(timeout=30)
        error = failure(read_on)
    assert isinstance(error, AuthenticationError)
    assert OTHER in str(error)
    assert "secret" not in str(error)


def test_an_acl_is_removed(secured: Cluster, admin: AdminClient) -> None:
    acl = AclBindingFilter(
        ResourceType.TOPIC,
        "read-by-",
        ResourcePatternType.PREFIXED,
        f"User:{USER}",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    with reading(secured, USER) as read_on:
        for future in admin.delete_acls([acl]).values():
            assert future.result(timeout=30)
        error = failure(read_on)
    restricted_user.allow(secured, Prefixes(sources="read-by-"), user=USER)
    assert isinstance(error, AuthorizationError)
    assert error.topic is not None


def test_a_broker_gets_a_certificate_of_another_authority(secured: Cluster, tmp_path: Path) -> None:
    (listener,) = SECURITY.listeners
    with reading(secured, USER) as read_on:
        secured.stop_broker(1)
        others = Certificates(tmp_path).server(listener).read_bytes()
        secured.secured.certificates.server(listener).write_bytes(others)
        secured.start_broker(1)
        error = failure(read_on)
    assert isinstance(error, AuthenticationError)
    assert error.option == "kafka.ssl.truststore.location"
