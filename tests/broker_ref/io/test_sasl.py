"""Tests of SASL listeners with independent clients, and with hostile ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from kafka import KafkaProducer

from broker_ref.controller.scram import parse_scram_argument
from broker_ref.io.cluster import Cluster
from integration.raw import RawConnection
from tests.broker_ref.io.certificates import authority_pem, client_tls, tls_configs

TIMEOUT_SECONDS = 60.0
CONFLUENT_ADMIN: Any = confluent_kafka.admin  # Its types do not export SCRAM.
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, EXPIRING = range(4)
DELAY_MS = 50
REAUTH_MS = 2500


def jaas(listener: str) -> dict[str, str]:
    prefix = f"listener.name.{listener}"
    users = 'username="broker" password="b" user_broker="b" user_alice="secret" user_bob="hunter2"'
    return {
        f"{prefix}.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        f"{prefix}.oauthbearer.sasl.jaas.config": (
            f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="broker";'
        ),
    }


CONFIGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,"
    "EXPIRING://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,"
    "SASL_SSL:SASL_SSL,EXPIRING:SASL_PLAINTEXT",
    "security.inter.broker.protocol": "SASL_SSL",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "connection.failed.authentication.delay.ms": str(DELAY_MS),
    "sasl.server.max.receive.size": "10000",
    "listener.name.expiring.connections.max.reauth.ms": str(REAUTH_MS),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    configs = {**CONFIGS, **tls_configs()}
    for listener in ("sasl_plaintext", "sasl_ssl", "expiring"):
        configs.update(jaas(listener))
    with Cluster(brokers=2, configs=configs) as running:
        running.create_topic("replicated", replication_factor=2)
        admin = CONFLUENT_ADMIN.AdminClient({"bootstrap.servers": running.bootstrap_servers})
        for mechanism in (
            CONFLUENT_ADMIN.ScramMechanism.SCRAM_SHA_256,
            CONFLUENT_ADMIN.ScramMechanism.SCRAM_SHA_512,
        ):
            info = CONFLUENT_ADMIN.ScramCredentialInfo(mechanism, 4096)
            upsertion = CONFLUENT_ADMIN.UserScramCredentialUpsertion("alice", info, b"secret")
            admin.alter_user_scram_credentials([upsertion])["alice"].result(TIMEOUT_SECONDS)
        yield running


def login(mechanism: str, *, user: str = "alice", password: str = "secret") -> dict[str, Any]:
    """Return the settings of a client of confluent-kafka."""
    client: dict[str, Any] = {"sasl.mechanism": mechanism, "log_level": 0}
    if mechanism == "OAUTHBEARER":
        client["enable.sasl.oauthbearer.unsecure.jwt"] = "true"
        client["sasl.oauthbearer.config"] = f"principal={user} lifeSeconds=60"
    else:
        client |= {"sasl.username": user, "sasl.password": password}
    return client


def settings(cluster: Cluster, listener: int, mechanism: str, **user: str) -> dict[str, Any]:
    client = {"bootstrap.servers": cluster.address(1, listener), **login(mechanism, **user)}
    if listener == SASL_SSL:
        return {**client, "security.protocol": "SASL_SSL", "ssl.ca.pem": authority_pem()}
    return {**client, "security.protocol": "SASL_PLAINTEXT"}


def produces(client: dict[str, Any]) -> None:
    delivered: list[object] = []
    producer = confluent_kafka.Producer({"acks": "all", **client})
    producer.produce("replicated", b"v", on_delivery=lambda e, _: delivered.append(e and str(e)))
    producer.flush(TIMEOUT_SECONDS)
    assert delivered == [None]


@pytest.mark.parametrize("listener", [SASL_PLAINTEXT, SASL_SSL])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_produces(cluster: Cluster, mechanism: str, listener: int) -> None:
    produces(settings(cluster, listener, mechanism))


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_kafka_python_produces(cluster: Cluster, mechanism: str, protocol: str) -> None:
    listener = SASL_SSL if protocol == "SASL_SSL" else SASL_PLAINTEXT
    producer = KafkaProducer(
        bootstrap_servers=cluster.address(2, listener),
        security_protocol=protocol,
        ssl_context=client_tls() if protocol == "SASL_SSL" else None,
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password="secret",
        acks="all",
    )
    assert producer.send("replicated", b"v").get(TIMEOUT_SECONDS).topic == "replicated"
    producer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_is_reported(cluster: Cluster, mechanism: str, user: str) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    client = settings(cluster, SASL_PLAINTEXT, mechanism, user=user, password="wrong")
    producer = confluent_kafka.Producer({**client, "error_cb": errors.append})
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    assert errors[0].name() == "_AUTHENTICATION"
    expected = (
        "Authentication failed: Invalid username or password"
        if mechanism == "PLAIN"
        else f"due to invalid credentials with SASL mechanism {mechanism}"
    )
    assert expected in errors[0].str()


def test_brokers_that_log_in_with_scram_and_oauthbearer() -> None:
    for mechanism in ("SCRAM-SHA-512", "OAUTHBEARER"):
        configs = {
            "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.enabled.mechanisms": mechanism,
            # The sessions of brokers expire too.
            "connections.max.reauth.ms": "3000",
            **jaas("sasl_plaintext"),
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": (
                f'{SCRAM_MODULE} required username="broker" password="b";'
            ),
        }
        scram = parse_scram_argument(
            "SCRAM-SHA-512=[name=broker,password=b]", random_bytes=lambda n: b"s" * n
        )
        with Cluster(brokers=2, configs=configs, scram_credentials=[scram]) as running:
            running.create_topic("replicated", replication_factor=2)
            produces({"bootstrap.servers": running.bootstrap_servers})


# Hostile clients -------------------------------------------------------------------------------


def raw(cluster: Cluster, listener: int = SASL_PLAINTEXT) -> RawConnection:
    return RawConnection(cluster.address(1, listener), timeout_s=TIMEOUT_SECONDS)


def test_a_request_during_the_login_gets_illegal_sasl_state(cluster: Cluster) -> None:
    with raw(cluster) as connection:
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        response = connection.call("metadata", 13, topics=())
        assert response.error_code.name == "illegal_sasl_state"
        assert connection.closed_by_broker()


def test_sasl_requests_after_the_login_get_illegal_sasl_state(cluster: Cluster) -> None:
    with raw(cluster) as connection:
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        response = connection.call("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
        assert response.error_code.name == "none"
        response = connection.call("sasl_handshake", 1, mechanism="PLAIN")
        assert response.error_code.name == "illegal_sasl_state"
        response = connection.call("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
        assert response.error_code.name == "illegal_sasl_state"
        assert response.error_message == (
            "SaslAuthenticate request received after successful authentication"
        )


def test_sasl_requests_on_a_plaintext_listener_get_illegal_sasl_state(cluster: Cluster) -> None:
    with raw(cluster, PLAINTEXT) as connection:
        response = connection.call("sasl_handshake", 1, mechanism="PLAIN")
        assert response.error_code.name == "illegal_sasl_state"


def test_an_unknown_mechanism_gets_the_enabled_ones(cluster: Cluster) -> None:
    with raw(cluster) as connection:
        response = connection.call("sasl_handshake", 1, mechanism="GSSAPI")
        assert response.error_code.name == "unsupported_sasl_mechanism"
        assert response.mechanisms == MECHANISMS
        assert connection.closed_by_broker()


def test_a_failed_login_is_delayed_and_closes_the_connection(cluster: Cluster) -> None:
    with raw(cluster) as connection:
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        start = time.monotonic()
        response = connection.call("sasl_authenticate", 2, auth_bytes=b"\0alice\0wrong")
        assert time.monotonic() - start >= 0.9 * DELAY_MS / 1000  # Timers may fire early.
        assert response.error_code.name == "sasl_authentication_failed"
        assert connection.closed_by_broker()


def test_larger_frames_are_accepted_after_the_login(cluster: Cluster) -> None:
    with raw(cluster) as connection:
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        connection.call("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
        topics = [{"name": f"{'x' * 200}{number}"} for number in range(100)]
        response = connection.call("metadata", 4, topics=topics, allow_auto_topic_creation=False)
        assert len(response.topics) == 100


# Sessions --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_confluent_kafka_authenticates_again(cluster: Cluster) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    client = settings(cluster, EXPIRING, "SCRAM-SHA-256")
    producer = confluent_kafka.Producer({**client, "acks": "all", "error_cb": errors.append})
    deadline = time.monotonic() + REAUTH_MS / 1000 * 2
    while time.monotonic() < deadline:
        producer.produce("replicated", b"v")
        assert producer.flush(TIMEOUT_SECONDS) == 0
        time.sleep(0.1)
    # On a busy machine, a session can expire before the client renews it, and it reconnects.
    assert all(error.code() != confluent_kafka.KafkaError._AUTHENTICATION for error in errors)


# SCRAM credentials -----------------------------------------------------------------------------


def alter(connection: RawConnection, **changes: Any) -> list[tuple[str, str]]:
    response = connection.call("alter_user_scram_credentials", 0, **changes)
    return [(each.user, each.error_code.name) for each in response.results]


def upsertion(name: str, **others: Any) -> dict[str, Any]:
    values = {"mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32}
    return {"name": name, **values, **others}


def test_altered_credentials_are_described_by_all_brokers(cluster: Cluster) -> None:
    with RawConnection(cluster.address(1)) as first, RawConnection(cluster.address(2)) as second:
        assert alter(first, upsertions=[upsertion("carol"), upsertion("dave", mechanism=2)]) == [
            ("carol", "none"),
            ("dave", "none"),
        ]

        def described(*names: str) -> dict[str, list[tuple[int, int]]]:
            users = [{"name": name} for name in names]
            response = second.call("describe_user_scram_credentials", 0, users=users)
            return {
                each.user: [(info.mechanism, info.iterations) for info in each.credential_infos]
                for each in response.results
            }

        deadline = time.monotonic() + TIMEOUT_SECONDS
        while described("dave") == {"dave": []} and time.monotonic() < deadline:
            pass
        assert described("carol", "dave") == {"carol": [(1, 4096)], "dave": [(2, 4096)]}
        assert described().keys() >= {"alice", "carol", "dave"}
        response = second.call(
            "describe_user_scram_credentials",
            0,
            users=[{"name": "carol"}, {"name": "carol"}, {"name": "nobody"}],
        )
        assert [(each.error_code.name, each.error_message) for each in response.results] == [
            (
                "duplicate_resource",
                (
                    "Cannot describe SCRAM credentials for the same user twice in a single "
                    "request: carol"
                ),
            ),
            (
                "resource_not_found",
                "Attempt to describe a user credential that does not exist: nobody",
            ),
        ]
        deletions = [{"name": "carol", "mechanism": 1}, {"name": "dave", "mechanism": 2}]
        assert alter(first, deletions=deletions) == [("carol", "none"), ("dave", "none")]


def test_invalid_changes_of_credentials(cluster: Cluster) -> None:
    with RawConnection(cluster.address(1)) as connection:
        assert alter(
            connection,
            deletions=[
                {"name": "nobody", "mechanism": 1},
                {"name": "alice", "mechanism": 9},
                {"name": "twice", "mechanism": 1},
            ],
            upsertions=[
                upsertion(""),
                upsertion("few", iterations=4095),
                upsertion("many", iterations=16385),
                upsertion("unknown", mechanism=0),
                upsertion("twice"),
                upsertion("again"),
                upsertion("again", mechanism=2),
            ],
        ) == [
            ("nobody", "resource_not_found"),
            ("alice", "unsupported_sasl_mechanism"),
            ("twice", "resource_not_found"),
            ("", "unacceptable_credential"),
            ("few", "unacceptable_credential"),
            ("many", "unacceptable_credential"),
            ("unknown", "unsupported_sasl_mechanism"),
            ("again", "duplicate_resource"),
        ]
