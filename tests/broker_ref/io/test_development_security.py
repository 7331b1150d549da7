"""Tests of clusters that are secured automatically."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from cryptography import x509
from kafka import KafkaProducer

from broker_ref import Cluster, ClusterError, Security
from broker_ref.io.certificates import CertificateAuthority
from broker_ref.io.development_security import DevelopmentSecurity
from broker_ref.io.settings import BrokerStartError
from integration.raw import ConnectionClosedByBrokerError, RawConnection, encode_request, request

TIMEOUT_SECONDS = 60.0


def produces(client: dict[str, str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> bool:
    delivered: list[bool] = []  # confluent-kafka's errors cannot be compared with None.
    settings: dict[str, Any] = {**client, "acks": "all", "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    producer.produce("t", b"v", on_delivery=lambda error, _: delivered.append(error is None))
    producer.flush(timeout_seconds)
    producer.purge()
    return delivered == [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "security",
    [
        Security(mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), requires_certificate=True),
        Security(protocol="SASL_PLAINTEXT"),
        Security(protocol="SSL", requires_certificate=True),
    ],
)
def test_clients_of_a_secured_cluster(security: Security) -> None:
    with Cluster(brokers=2, security=security) as cluster:
        cluster.create_topic("t", replication_factor=2)
        mechanisms = security.mechanisms if security.uses_sasl else (None,)
        for mechanism in mechanisms:
            for user in ("client", "admin"):
                settings = cluster.client_settings(user=user, mechanism=mechanism)
                assert not settings.password or settings.password not in repr(settings)
                assert produces(settings.librdkafka())
        settings = cluster.client_settings()
        python = KafkaProducer(
            bootstrap_servers=settings.bootstrap_servers,
            security_protocol=settings.protocol,
            ssl_cafile=settings.ca or None,
            ssl_certfile=settings.certificate or None,
            sasl_mechanism=settings.mechanism or None,
            sasl_plain_username=settings.user,
            sasl_plain_password=settings.password,
        )
        assert python.send("t", b"v").get(TIMEOUT_SECONDS).topic == "t"
        python.close()
        client = settings.librdkafka()
        if security.uses_sasl:
            assert not produces({**client, "sasl.password": "wrong"}, timeout_seconds=0.5)
        if security.requires_certificate:
            del client["ssl.certificate.location"], client["ssl.key.location"]
            assert not produces(client, timeout_seconds=0.5)


def test_only_users_connect_to_the_controller() -> None:
    configs = {
        "connections.max.reauth.ms": "60000",
        "connection.failed.authentication.delay.ms": "0",
    }
    with Cluster(security=Security(), configs=configs) as cluster:
        assert cluster._controller is not None
        address = cluster._controller.address
        with RawConnection(address) as connection:
            connection.send_frame(encode_request(request("api_versions", 0), 1, "plaintext"))
            while not connection.closed_by_broker():
                pass  # A TLS alert may come first.
    plain = Security(protocol="SASL_PLAINTEXT", mechanisms=("PLAIN",))
    with Cluster(security=plain, configs=configs) as cluster:
        assert cluster._controller is not None
        address = cluster._controller.address
        with RawConnection(address) as connection:
            supported = connection.call("api_versions", 0).api_keys
            assert {17, 36} <= {each.api_key for each in supported}
            with pytest.raises(ConnectionClosedByBrokerError):
                connection.call("describe_cluster", 0)
        token = f"\0client\0{cluster.client_settings().password}".encode()
        with RawConnection(address) as connection:
            for password, expected in ((token, "none"), (token + b"x", None)):
                connection.call("sasl_handshake", 1, mechanism="PLAIN")
                response = connection.call("sasl_authenticate", 1, auth_bytes=password)
                name = response.error_code.name
                assert name == (expected or "sasl_authentication_failed")
                if expected:
                    assert connection.call("describe_cluster", 1, endpoint_type=2).brokers == ()
            assert connection.closed_by_broker()


def test_an_authorizer_applies_to_the_client_and_not_to_the_brokers() -> None:
    security = Security(protocol="SASL_PLAINTEXT", mechanisms=("PLAIN",))
    configs = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:other",
        "connection.failed.authentication.delay.ms": "0",
    }
    with Cluster(brokers=2, security=security, configs=configs) as cluster:
        cluster.create_topic("t", replication_factor=2)
        assert produces(cluster.client_settings(user="admin").librdkafka())
        assert not produces(cluster.client_settings().librdkafka())
        # The controller does not trust everyone who has a password.
        assert cluster._controller is not None
        with RawConnection(cluster._controller.address) as connection:
            token = f"\0client\0{cluster.client_settings().password}".encode()
            connection.call("sasl_handshake", 1, mechanism="PLAIN")
            connection.call("sasl_authenticate", 1, auth_bytes=token)
            for api, version, fields in (
                ("allocate_producer_ids", 0, {"broker_id": 1, "broker_epoch": 0}),
                ("describe_cluster", 1, {"endpoint_type": 2}),
            ):
                response = connection.call(api, version, **fields)
                assert response.error_code.name == "cluster_authorization_failed"


def test_a_restart_keeps_the_secrets(tmp_path: Path) -> None:
    with Cluster(data=tmp_path, security=Security()) as cluster:
        cluster.create_topic("t")
        port = int(cluster.bootstrap_servers.rpartition(":")[2])
        before = cluster.client_settings()
        password = before.password
    with Cluster(data=tmp_path, port=port, security=Security()) as cluster:
        assert cluster.client_settings() == before
        assert produces(before.librdkafka())
    for path in (tmp_path / "security").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert len(password) >= 32
    with Cluster(security=Security()) as other:
        assert other.client_settings().password != password


def test_what_cannot_be_secured(tmp_path: Path) -> None:
    with Cluster(data=tmp_path):
        pass
    with pytest.raises(BrokerStartError, match="without security"):
        Cluster(data=tmp_path, security=Security()).start()
    with pytest.raises(BrokerStartError, match="'listeners'"):
        Cluster(configs={"listeners": "SSL://127.0.0.1:0"}, security=Security()).start()
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with pytest.raises(BrokerStartError, match=r"authorizer\.class\.name"):
        Cluster(
            configs={"authorizer.class.name": authorizer}, security=Security(protocol="SSL")
        ).start()
    with pytest.raises(ValueError, match="GSSAPI"):
        Security(mechanisms=("GSSAPI",))
    with Cluster(security=Security(protocol="SASL_PLAINTEXT", mechanisms=("PLAIN",))) as cluster:
        for unknown in ({"user": "nobody"}, {"mechanism": "SCRAM-SHA-256"}):
            with pytest.raises(ClusterError):
                cluster.client_settings(**unknown)


def test_a_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "broker_ref.io.certificates", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(BrokerStartError, match="pip install") as raised:
        DevelopmentSecurity(tmp_path, Security(), is_new=True)
    assert "\n" not in str(raised.value)


def test_certificates_are_issued_again_when_needed(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    names = ("localhost", "::1")
    first = authority.issue("broker", "admin", names).read_text()
    again = CertificateAuthority(tmp_path)
    assert again.issue("broker", "admin", names).read_text() == first
    assert again.issue("broker", "admin", (*names, "kafka.test")).read_text() != first
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    expiring = again.issue("broker", "admin", names, not_after=soon).read_bytes()
    renewed = again.issue("broker", "admin", names).read_bytes()
    assert renewed != expiring
    certificate = x509.load_pem_x509_certificate(renewed)
    certificate.verify_directly_issued_by(
        x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    )
    (tmp_path / "ca.key").unlink()
    replaced = CertificateAuthority(tmp_path).issue("broker", "admin", names).read_bytes()
    x509.load_pem_x509_certificate(replaced).verify_directly_issued_by(
        x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    )
