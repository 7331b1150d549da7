"""Tests of TLS listeners: clients, mutual TLS, listeners of a cluster, and hostile clients."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import confluent_kafka
import confluent_kafka.admin
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from kafka import KafkaProducer
from kio.schema.errors import ErrorCode

from broker_ref.api import k03_metadata
from broker_ref.api.contract import Call
from broker_ref.events import ConnectionOpened
from broker_ref.io.cluster import Cluster
from broker_ref.io.server import ServerLimits
from broker_ref.io.settings import BrokerStartError
from broker_ref.io.tls import TlsAcceptor, server_context
from broker_ref.security.configs import SecurityConfigs
from broker_ref.security.listeners import Endpoint, SecurityProtocol
from broker_ref.security.settings import listener_settings
from integration.raw import RawConnection
from tests.broker_ref.io.certificates import (
    authority,
    authority_pem,
    broker_certificate,
    chain_of,
    client_certificate,
    client_tls,
    foreign_certificate,
    key_of,
    tls_configs,
    write,
)
from tests.broker_ref.io.scripted import (
    ScriptedServer,
    framed,
    is_closed,
    receive_frame,
    send_and_receive,
    serving,
)

TIMEOUT_SECONDS = 60.0
LISTENERS = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0"
PLAINTEXT, SSL, MUTUAL = range(3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    configs = {
        "listeners": LISTENERS,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL",
        "inter.broker.listener.name": "SSL",
        "listener.name.mutual.ssl.client.auth": "required",
        **tls_configs(),
    }
    with Cluster(brokers=2, configs=configs) as running:
        running.create_topic("replicated", replication_factor=2)
        yield running


def settings(
    certificate: trustme.LeafCert | None = None,
) -> dict[str, Any]:
    """Return the TLS settings of a client of confluent-kafka."""
    found: dict[str, Any] = {
        "security.protocol": "SSL",
        "ssl.ca.pem": authority_pem(),
        "log_level": 0,
    }
    if certificate is not None:
        found["ssl.key.pem"] = key_of(certificate)
        found["ssl.certificate.pem"] = chain_of(certificate)
    return found


def produces(address: str, client: dict[str, Any], *, timeout_seconds: float) -> bool:
    delivered: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "acks": "all", "reconnect.backoff.max.ms": 200, **client}
    )
    producer.produce("replicated", b"v", on_delivery=lambda e, _: delivered.append(e and str(e)))
    producer.flush(timeout_seconds)
    producer.purge()
    return delivered == [None]


def test_confluent_kafka_produces_to_replicas_that_replicate_over_tls(cluster: Cluster) -> None:
    assert produces(cluster.address(1, SSL), settings(), timeout_seconds=TIMEOUT_SECONDS)


def test_kafka_python_produces(cluster: Cluster) -> None:
    producer = KafkaProducer(
        bootstrap_servers=cluster.address(2, SSL),
        security_protocol="SSL",
        ssl_context=client_tls(),
        acks="all",
    )
    assert producer.send("replicated", b"v").get(TIMEOUT_SECONDS).topic == "replicated"
    producer.close()


@pytest.mark.parametrize("certificate", [None, "client", "foreign"])
def test_a_listener_that_requires_a_certificate(cluster: Cluster, certificate: str | None) -> None:
    known = {"client": client_certificate(), "foreign": foreign_certificate(), None: None}
    is_trusted = certificate == "client"
    assert (
        produces(
            cluster.address(1, MUTUAL),
            settings(known[certificate]),
            timeout_seconds=TIMEOUT_SECONDS if is_trusted else 1.0,
        )
        is is_trusted
    )


@pytest.mark.parametrize("listener", [PLAINTEXT, SSL])
def test_metadata_contains_the_addresses_of_the_client_s_listener(
    cluster: Cluster, listener: int
) -> None:
    client: dict[str, Any] = settings() if listener == SSL else {}
    client["bootstrap.servers"] = cluster.address(1, listener)
    admin = confluent_kafka.admin.AdminClient(client)
    expected = {cluster.address(broker_id, listener) for broker_id in (1, 2)}
    metadata = admin.list_topics(timeout=TIMEOUT_SECONDS)
    assert {f"{node.host}:{node.port}" for node in metadata.brokers.values()} == expected
    nodes = admin.describe_cluster(request_timeout=TIMEOUT_SECONDS).result().nodes
    assert {f"{node.host}:{node.port}" for node in nodes} == expected
    group = admin.describe_consumer_groups(["g"], request_timeout=TIMEOUT_SECONDS)["g"].result()
    assert f"{group.coordinator.host}:{group.coordinator.port}" in expected


def test_a_certificate_without_a_matching_rule_closes_the_connection() -> None:
    with Cluster(
        configs={
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(alice),.*$/$1/",
            **tls_configs(),
        }
    ) as running:
        running.create_topic("replicated")
        for certificate, seconds in ((client_certificate(), TIMEOUT_SECONDS), (other(), 1.0)):
            assert produces(
                running.address(1, SSL), settings(certificate), timeout_seconds=seconds
            ) is (seconds > 1)


def other() -> trustme.LeafCert:
    """Return a trusted certificate of another client."""
    return authority().issue_cert("bob@example.test", common_name="bob")


def test_a_broker_without_the_client_s_listener_is_not_returned(cluster: Cluster) -> None:
    """The leader of a partition is then reported as LISTENER_NOT_FOUND, from version 6 on."""
    node = cluster._brokers[1].node
    assert node.broker is not None
    call = Call(version=6, client_id=None, now_ms=0, listener="OTHER")
    request = k03_metadata.MetadataRequest(topics=(k03_metadata.RequestedTopic(name="replicated"),))
    for version, error_code in (
        (6, ErrorCode.listener_not_found),
        (5, ErrorCode.leader_not_available),
    ):
        call = dataclasses.replace(call, version=version)
        response = k03_metadata.handle(node.broker, call, request)
        assert response.brokers == ()
        (partition,) = response.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (error_code, -1)
        assert set(partition.offline_replicas) == {1, 2}


def test_secrets_are_not_described(cluster: Cluster) -> None:
    with RawConnection(cluster.address(1)) as connection:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        (result,) = connection.call("describe_configs", 4, resources=[resource]).results
    found = {config.name: config for config in result.configs}
    assert found["inter.broker.listener.name"].value == "SSL"
    for name in ("ssl.keystore.key", "ssl.truststore.certificates"):
        assert (found[name].value, found[name].is_sensitive) == (None, True)
        assert found[name].config_source == 4  # STATIC_BROKER_CONFIG
    assert not found["ssl.client.auth"].is_sensitive


def test_keys_in_files_and_with_a_password(tmp_path: Path) -> None:
    store = write(tmp_path, "broker.pem", encrypted_key("secret") + chain_of(broker_certificate()))
    configs = {
        "listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": store,
        "ssl.key.password": "secret",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": write(tmp_path, "authority.pem", authority_pem()),
    }
    with Cluster(configs=configs) as running:
        running.create_topic("replicated")
        assert produces(running.bootstrap_servers, settings(), timeout_seconds=TIMEOUT_SECONDS)
        running.stop_broker(1)
        running.start_broker(1)
        assert produces(running.bootstrap_servers, settings(), timeout_seconds=TIMEOUT_SECONDS)
    with (
        pytest.raises(BrokerStartError, match=r"\blistener SSL\b") as raised,
        Cluster(configs={**configs, "ssl.key.password": "wr0ng"}),
    ):
        pass
    assert "wr0ng" not in str(raised.value)


def encrypted_key(password: str) -> str:
    key = serialization.load_pem_private_key(key_of(broker_certificate()).encode(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    ).decode()


# The server ------------------------------------------------------------------------------------


def context(**configs: str) -> ssl.SSLContext:
    endpoint = Endpoint(listener="SSL", host="", port=0, protocol=SecurityProtocol.SSL)
    security = SecurityConfigs.from_mapping(tls_configs(**configs))
    found = listener_settings(security, endpoint).tls
    assert found is not None
    return server_context(found, listener="SSL")


def connected(served: ScriptedServer, certificate: trustme.LeafCert | None = None) -> ssl.SSLSocket:
    client = client_tls(certificate).wrap_socket(served.connect(), server_hostname="127.0.0.1")
    served.waits.append(client)
    return client


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 8187, 8188, 8189, 65_533, 300_000, 5_000_000])
def test_requests_and_responses_of_any_size(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    with serving(tls=context()) as served:
        client = connected(served)
        assert send_and_receive(client, data[:size]) == data[:size]
        assert send_and_receive(client, b"next") == b"next"
        assert served.read(lambda: served.server.memory.used_bytes) == 0


def test_pipelined_requests_get_responses_in_order() -> None:
    frames = [b"%d" % number * 100 for number in range(2000)]
    with serving(tls=context()) as served:
        client = connected(served)
        client.sendall(framed(*frames))
        assert [receive_frame(client) for _ in frames] == frames


def test_the_node_gets_the_client_s_certificate() -> None:
    with serving(tls=context(ssl_client_auth="requested")) as served:
        for certificate in (client_certificate(), None):
            client = connected(served, certificate)
            assert send_and_receive(client, b"hello") == b"hello"
        opened = served.read(
            lambda: [each for each in served.node.events if isinstance(each, ConnectionOpened)]
        )
        assert [each.certificate is not None for each in opened] == [True, False]
        assert opened[0].listener == "SSL"


def test_an_intermediate_ca_is_trusted_without_its_issuer() -> None:
    intermediate = authority().create_child_ca()
    trusted = intermediate.cert_pem.bytes().decode()
    with serving(
        tls=context(ssl_client_auth="required", ssl_truststore_certificates=trusted)
    ) as served:
        client = connected(served, intermediate.issue_cert("bob@example.test", common_name="bob"))
        assert send_and_receive(client, b"hello") == b"hello"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            send_and_receive(connected(served, client_certificate()), b"hello")


def test_a_client_that_closes_its_connection_is_forgotten() -> None:
    with serving(tls=context()) as served:
        client = connected(served)
        assert send_and_receive(client, b"hello") == b"hello"
        client.close()
        served.until(lambda: served.server.connection_count == 0)


def test_a_plaintext_client_of_a_tls_listener_gets_an_alert() -> None:
    with serving(tls=context()) as served:
        client = served.connect()
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        assert client.recv(1) == b"\x15"
        assert client.recv(100).endswith(b"\x02\x0a")  # fatal, unexpected_message
        assert is_closed(client)
        assert send_and_receive(connected(served), b"others") == b"others"


def test_a_tls_client_of_a_plaintext_listener_is_closed() -> None:
    with serving() as served:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connected(served)
        assert send_and_receive(served.connect(), b"others") == b"others"


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
def test_a_handshake_that_does_not_end_is_dropped(sent: bytes) -> None:
    with serving(ServerLimits(handshake_ms_max=100), tls=context()) as served:
        client = served.connect()
        client.sendall(sent)
        assert is_closed(client)


def test_stop_drops_unfinished_handshakes() -> None:
    with serving(tls=context()) as served:
        slow = served.connect()
        assert send_and_receive(connected(served), b"others") == b"others"
        served.run(served.server.stop())
        assert is_closed(slow)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(served.address)


def test_stop_closes_a_client_whose_handshake_has_not_begun() -> None:
    async def accept_and_stop(listener: socket.socket) -> None:
        acceptor = TlsAcceptor(
            listener, context(), asyncio.Protocol, handshake_seconds=10, failure_delay_seconds=0
        )
        acceptor._accept()  # Creates the task of the handshake, which has not run yet.
        acceptor.stop()
        await asyncio.sleep(0)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with socket.create_connection(listener.getsockname(), TIMEOUT_SECONDS) as client:
            asyncio.run(accept_and_stop(listener))
            assert client.recv(1) == b""


def test_stop_leaves_a_client_whose_handshake_has_just_completed_to_its_protocol() -> None:
    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.Transport", transport)
            acceptors[0].stop()

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)
            self.transport.close()

    acceptors: list[TlsAcceptor] = []

    def echoed(address: tuple[str, int]) -> bytes:
        with (
            socket.create_connection(address, TIMEOUT_SECONDS) as plain,
            client_tls().wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(b"hello")
            return client.recv(5)

    async def serve(listener: socket.socket) -> bytes:
        acceptors.append(
            TlsAcceptor(listener, context(), Echo, handshake_seconds=10, failure_delay_seconds=0)
        )
        received = await asyncio.to_thread(echoed, listener.getsockname())
        await acceptors[0].wait_closed()
        return received

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        assert asyncio.run(serve(listener)) == b"hello"


@pytest.mark.slow
def test_a_lack_of_descriptors_closes_only_the_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    failures: list[object] = []
    with serving(tls=context()) as served:
        served.read(
            lambda: asyncio.get_running_loop().set_exception_handler(
                lambda _, failure: failures.append(failure)
            )
        )
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "dup", fail)
            assert is_closed(served.connect())
        assert send_and_receive(connected(served), b"others") == b"others"
        gc.collect()
    assert failures == []


def test_an_idle_client_is_dropped() -> None:
    limits = ServerLimits(connection_idle_ms_max=50, sweep_interval_ms=20)
    with serving(limits, tls=context()) as served:
        client = connected(served)
        assert is_closed(client)


def test_a_client_that_does_not_read_its_responses_is_dropped() -> None:
    limits = ServerLimits(send_stall_ms_max=100, sweep_interval_ms=20)
    with serving(limits, tls=context()) as served:
        client = connected(served)
        client.sendall(framed(b"big 50000000"))
        served.until(lambda: served.server.connection_count == 0)


def test_tls_1_3_only() -> None:
    with serving(tls=context(ssl_enabled_protocols="TLSv1.3")) as served:
        old = client_tls()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            old.wrap_socket(served.connect(), server_hostname="127.0.0.1")
        assert connected(served).version() == "TLSv1.3"
