"""Tests of secured listeners: every protocol and mechanism, and wrong settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.clusters.security import MECHANISMS, SecuredListener, Security
from pyspark_kafka.__main__ import main
from pyspark_kafka.client.factory import open_client, open_transactional_client
from pyspark_kafka.client.native.client import NativeReadClient
from pyspark_kafka.client.native.oauth.unsecured import UnsecuredTokens
from pyspark_kafka.commands.arguments import FAILED
from pyspark_kafka.errors import (
    AuthenticationError,
    BrokerUnreachableError,
    PysparkKafkaError,
)
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import EndTransaction
from pyspark_kafka.options.values import ClientOptions
from pyspark_kafka.tokens import Token
from pyspark_kafka.wire.connection import Connection
from tests.conftest import ClusterFactory
from tests.pyspark_kafka.client.records import options, read_all, rows
from tests.pyspark_kafka.client.test_fetch import fetch_range
from tests.pyspark_kafka.wire.scripted import ScriptedBroker

pytestmark = [pytest.mark.timeout(240)]
RETRIED = pytest.mark.slow  # The client tries to connect for 10 seconds.

COMMITTED = IsolationLevel.READ_COMMITTED
USER, PASSWORD = "alice", "alice-secret"
SESSION_S = 5.0
SECURITY = Security(
    users={USER: PASSWORD},
    listeners=(
        SecuredListener(name="TLS", protocol="SSL"),
        SecuredListener(name="MTLS", protocol="SSL", requires_certificate=True),
        SecuredListener(name="SASL_TLS", protocol="SASL_SSL"),
        SecuredListener(name="SASL", protocol="SASL_PLAINTEXT"),
        SecuredListener(name="SCRAM", protocol="SASL_PLAINTEXT", mechanisms=("SCRAM-SHA-256",)),
        SecuredListener(name="SHORT", protocol="SASL_SSL", session_ms=int(SESSION_S * 1000)),
        SecuredListener(name="EXPIRED", protocol="SSL", is_expired=True),
        SecuredListener(name="ELSEWHERE", protocol="SSL", names=("elsewhere.example",)),
    ),
)


@pytest.fixture(scope="module")
def secured(cluster_with: ClusterFactory) -> Cluster:
    return cluster_with(security=SECURITY)


@pytest.fixture(params=["native", pytest.param("librdkafka", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


def jaas(mechanism: str, password: str = PASSWORD) -> str:
    if mechanism == "OAUTHBEARER":
        return f'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{USER}";'
    module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
    return f'{module} required username="{USER}" password="{password}";'


def trusting(cluster: Cluster) -> dict[str, Any]:
    return {
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(cluster.secured.certificates.ca),
    }


def login(mechanism: str, protocol: str = "SASL_SSL", **more: Any) -> dict[str, Any]:
    return {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_jaas_config": jaas(mechanism, **more),
    }


def client_certificate(cluster: Cluster) -> dict[str, Any]:
    pem = cluster.secured.certificates.issue("client", "client@example.org")
    return {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(pem)}


def client_store(cluster: Cluster) -> dict[str, Any]:
    pem = cluster.secured.certificates.issue("client", "client@example.org")
    return {
        "ssl_keystore_location": str(cluster.secured.certificates.pkcs12(pem, "changeit")),
        "ssl_keystore_type": "PKCS12",
        "ssl_keystore_password": "changeit",
    }


CASES = [
    "TLS",
    "MTLS",
    "MTLS with PKCS12",
    *(f"SASL_TLS with {mechanism}" for mechanism in MECHANISMS),
    *(f"SASL with {mechanism}" for mechanism in MECHANISMS),
]


def client_options(cluster: Cluster, case: str, **more: Any) -> ClientOptions:
    """Return the options for one of `CASES`, with the names of Java's settings."""
    listener, _, detail = case.partition(" with ")
    kafka: dict[str, Any] = {}
    if listener in ("SASL", "SASL_TLS", "SHORT"):
        protocol = "SASL_PLAINTEXT" if listener == "SASL" else "SASL_SSL"
        kafka |= login(detail, protocol)
    else:
        kafka["security_protocol"] = "SSL"
    if listener != "SASL":
        kafka |= trusting(cluster)
    if listener == "MTLS":
        kafka |= client_store(cluster) if detail else client_certificate(cluster)
    return options(cluster.secured.servers(listener), **kafka | more)


# --- reads and writes ---


@pytest.fixture
def topic_of_cluster(secured: Cluster, unique_name: Any) -> str:
    name = str(unique_name())
    secured.create_topic(name)
    return name


@pytest.mark.parametrize("case", CASES)
def test_rows_are_written_and_read(
    case: str, engine: Any, secured: Cluster, topic_of_cluster: str
) -> None:
    wanted = client_options(secured, case, engine=engine)
    values = [b"%05d" % number * 20 for number in range(10_000)]
    with open_client(wanted, role="producer") as client:
        producer = client.producer()
        producer.send(rows(topic_of_cluster, values))
        producer.flush()
        producer.abort()
    assert [r.value for r in read_all(secured.bootstrap_servers, topic_of_cluster)] == values
    partition = TopicPartition(topic_of_cluster, 0)
    with open_client(wanted) as reader:
        ends = reader.list_offsets({partition: LATEST}, COMMITTED)
        assert ends == {partition: len(values)}
        batches = reader.fetch(fetch_range(topic_of_cluster, 0, len(values)), ("value",), COMMITTED)
        assert [v for batch in batches for v in batch["value"].to_pylist()] == values


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_transaction(case: str, secured: Cluster, topic_of_cluster: str) -> None:
    with open_transactional_client(client_options(secured, case)) as client:
        for is_commit, value in ((False, b"aborted"), (True, b"committed")):
            version = client.transaction_version()
            owner = client.init_producer_id(topic_of_cluster, timeout_ms=60_000)
            producer = client.transactional_producer(topic_of_cluster, owner, version)
            producer.send(rows(topic_of_cluster, [value]))
            producer.flush()
            end = EndTransaction(
                transactional_id=topic_of_cluster,
                producer=owner,
                is_commit=is_commit,
                version=version,
            )
            assert client.end_transactions([end]) == {topic_of_cluster: ErrorCode.none}
            producer.abort()  # closes the connections of the producer
    written = [r.value for r in read_all(secured.bootstrap_servers, topic_of_cluster)]
    assert written == [b"committed"]


@pytest.mark.parametrize("case", CASES)
def test_auto_is_native(case: str, secured: Cluster) -> None:
    with open_client(client_options(secured, case)) as client:
        assert isinstance(client, NativeReadClient)
        client.list_topics()


# --- wrong settings ---


def failure(wanted: ClientOptions) -> PysparkKafkaError:
    """Return the error of a native client, which does not wait for the API timeout of 60 s."""
    started = time.monotonic()

    def attempt() -> None:
        with open_client(replace(wanted, engine="native")) as client:
            client.list_topics()

    with pytest.raises(PysparkKafkaError) as caught:
        attempt()
    assert time.monotonic() - started < 30
    assert PASSWORD not in str(caught.value)
    assert "wrong-secret" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_wrong_password(mechanism: str, secured: Cluster) -> None:
    kafka = login(mechanism, password="wrong-secret") | trusting(secured)
    error = failure(options(secured.secured.servers("SASL_TLS"), **kafka))
    assert isinstance(error, AuthenticationError)
    assert error.option == "kafka.sasl.jaas.config"
    for text in (mechanism, repr(USER), secured.secured.servers("SASL_TLS")):
        assert text in str(error)


def test_rejected_token(secured: Cluster) -> None:
    kafka: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "enable_sasl_oauthbearer_unsecure_jwt": "true",
        "sasl_oauthbearer_config": f"principal={USER} principalClaimName=other",
    }
    error = failure(options(secured.secured.servers("SASL"), **kafka))
    assert isinstance(error, AuthenticationError)
    assert "OAUTHBEARER" in str(error)


def test_mechanism_that_the_broker_does_not_support(secured: Cluster) -> None:
    kafka = login("PLAIN", "SASL_PLAINTEXT")
    error = failure(options(secured.secured.servers("SCRAM"), **kafka))
    assert isinstance(error, AuthenticationError)
    assert "does not support SASL mechanism PLAIN. It supports SCRAM-SHA-256" in str(error)
    assert error.option == "kafka.sasl.mechanism"


def test_untrusted_authority(secured: Cluster) -> None:
    error = failure(options(secured.secured.servers("TLS"), security_protocol="SSL"))
    assert isinstance(error, AuthenticationError)
    assert error.option == "kafka.ssl.truststore.location"


def test_expired_certificate(secured: Cluster) -> None:
    error = failure(client_options(secured, "EXPIRED"))
    assert isinstance(error, AuthenticationError)
    assert "has expired" in str(error)


def test_wrong_host_name(secured: Cluster) -> None:
    error = failure(client_options(secured, "ELSEWHERE"))
    assert isinstance(error, AuthenticationError)
    assert "valid for elsewhere.example, but not for 'localhost'" in str(error)
    lenient = client_options(secured, "ELSEWHERE", ssl_endpoint_identification_algorithm="")
    with open_client(lenient) as client:
        client.list_topics()


def test_missing_client_certificate(secured: Cluster) -> None:
    kafka = trusting(secured) | {"security_protocol": "SSL"}
    error = failure(options(secured.secured.servers("MTLS"), **kafka))
    assert isinstance(error, AuthenticationError)
    assert "requires a client certificate" in str(error)
    assert error.option == "kafka.ssl.keystore.location"


@pytest.mark.parametrize(
    ("listener", "protocol", "expected"),
    [
        ("TLS", "PLAINTEXT", "TLS alert"),
        ("SASL_TLS", "SASL_PLAINTEXT", "TLS alert"),
        pytest.param(
            "SASL", "SASL_SSL", "closed the connection during the TLS handshake", marks=RETRIED
        ),
        ("TLS", "SASL_SSL", "does not use SASL"),
        pytest.param("SASL", "PLAINTEXT", "closed the connection", marks=RETRIED),
        pytest.param("SASL_TLS", "SSL", "closed the connection", marks=RETRIED),
    ],
)
def test_wrong_protocol(listener: str, protocol: str, expected: str, secured: Cluster) -> None:
    kafka = trusting(secured) | login("PLAIN") | {"security_protocol": protocol}
    error = failure(options(secured.secured.servers(listener), **kafka))
    assert isinstance(error, AuthenticationError | BrokerUnreachableError)
    assert expected in str(error)
    assert error.option == "kafka.security.protocol"
    assert "'kafka.security.protocol'" in error.advice


@RETRIED
def test_tls_to_a_listener_without_tls(secured: Cluster) -> None:
    kafka = trusting(secured) | {"security_protocol": "SSL"}
    error = failure(options(secured.bootstrap_servers, **kafka))
    assert isinstance(error, BrokerUnreachableError)
    assert error.option == "kafka.security.protocol"


@RETRIED
def test_broker_that_never_ends_the_handshake(secured: Cluster) -> None:
    kafka = trusting(secured) | {"security_protocol": "SSL"}
    with ScriptedBroker(lambda peer: peer.hang()) as broker:
        error = failure(options(broker.address, **kafka))
    assert isinstance(error, BrokerUnreachableError)
    assert "TLS handshake did not complete" in str(error)
    assert error.option == "kafka.security.protocol"


def test_a_failed_write_names_the_cause(secured: Cluster) -> None:
    kafka = login("PLAIN", password="wrong-secret") | trusting(secured)
    wanted = options(secured.secured.servers("SASL_TLS"), engine="native", **kafka)
    with open_client(wanted, role="producer") as client:
        producer = client.producer()
        with pytest.raises(AuthenticationError, match=f"user '{USER}' could not authenticate"):
            _write(producer)
        producer.abort()


def _write(producer: Any) -> None:
    producer.send(rows("any", [b"v"]))
    producer.flush()


# --- sessions ---


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """Return the connections that authenticated, once for each authentication."""
    found: list[Connection] = []
    start = Connection._start_authentication

    def counted(connection: Connection) -> None:
        found.append(connection)
        start(connection)

    monkeypatch.setattr(Connection, "_start_authentication", counted)
    return found


def renewed(logins: list[Connection]) -> int:
    """Return how many authentications were not the first of their connection."""
    return len(logins) - len(set(map(id, logins)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    ["SCRAM-SHA-256", *(pytest.param(m, marks=pytest.mark.full) for m in ("PLAIN", "OAUTHBEARER"))],
)
def test_a_long_read_outlives_its_sessions(
    mechanism: str, secured: Cluster, topic_of_cluster: str, logins: list[Connection]
) -> None:
    wanted = client_options(
        secured,
        f"SHORT with {mechanism}",
        engine="native",
        batch_size="20000",
        max_partition_fetch_bytes="20000",
    )
    count = 3_000
    with open_client(wanted, role="producer") as writer:
        producer = writer.producer()
        producer.send(rows(topic_of_cluster, [b"%05d" % n * 200 for n in range(count)]))
        producer.flush()
        producer.abort()
    logins.clear()
    with open_client(wanted) as client:
        started = time.monotonic()
        found: list[int] = []
        for batch in client.fetch(fetch_range(topic_of_cluster, 0, count), ("offset",), COMMITTED):
            found += batch["offset"].to_pylist()
            left = 3 * SESSION_S * len(found) / count - (time.monotonic() - started)
            time.sleep(max(left, 0))
        assert found == list(range(count))
    assert time.monotonic() - started >= 3 * SESSION_S * 0.9
    assert renewed(logins) >= 2


@pytest.mark.slow
def test_an_open_transaction_outlives_its_sessions(
    secured: Cluster, topic_of_cluster: str, logins: list[Connection]
) -> None:
    wanted = client_options(secured, "SHORT with SCRAM-SHA-256")
    with open_transactional_client(wanted) as client:
        version = client.transaction_version()
        owner = client.init_producer_id(topic_of_cluster, timeout_ms=60_000)
        producer = client.transactional_producer(topic_of_cluster, owner, version)
        started = time.monotonic()
        sent = 0
        while time.monotonic() - started < 3 * SESSION_S:
            producer.send(rows(topic_of_cluster, [b"%d" % n for n in range(sent, sent + 100)]))
            producer.flush()
            sent += 100
            time.sleep(0.2)
        end = EndTransaction(
            transactional_id=topic_of_cluster, producer=owner, is_commit=True, version=version
        )
        assert client.end_transactions([end]) == {topic_of_cluster: ErrorCode.none}
        producer.abort()  # closes the connections of the producer
    written = [r.value for r in read_all(secured.bootstrap_servers, topic_of_cluster)]
    assert written == [b"%d" % n for n in range(sent)]
    assert renewed(logins) >= 2


@pytest.mark.slow
def test_an_idle_client_connects_again(
    secured: Cluster, topic_of_cluster: str, logins: list[Connection]
) -> None:
    wanted = client_options(secured, "SHORT with PLAIN", engine="native")
    partition = TopicPartition(topic_of_cluster, 0)
    with open_client(wanted) as client:
        client.list_offsets({partition: EARLIEST}, COMMITTED)
        first = len(logins)
        time.sleep(SESSION_S + 1)
        client.list_offsets({partition: EARLIEST}, COMMITTED)
    assert len(logins) > first
    assert renewed(logins) == 0


def test_certificate_files_are_not_read_again(
    secured: Cluster, tmp_path: Path, topic_of_cluster: str
) -> None:
    """A query keeps its certificate until its client is closed, as Kafka's clients do."""
    pem = tmp_path / "client.pem"
    pem.write_text(secured.secured.certificates.issue("client", "client@example.org").read_text())
    wanted = client_options(secured, "MTLS", ssl_keystore_location=str(pem), engine="native")
    with open_client(wanted) as client:
        pem.unlink()
        client.describe_topics([topic_of_cluster])


# --- tokens and references to secrets ---


def unsecured_token(settings: Mapping[str, str]) -> Token:
    """A token provider for the tests, which names it."""
    return UnsecuredTokens(principal=settings["user"])()


def test_tokens_of_a_provider_and_of_a_file(secured: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(unsecured_token({"user": USER}).value)
    provider = "sasl.oauthbearer.token.provider"
    name = f"{__name__}:unsecured_token"
    sources = [
        {provider: name, f"{provider}.user": USER},
        {"sasl.oauthbearer.token.endpoint.url": path.as_uri()},
    ]
    for source in sources:
        kafka = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **source}
        given = options(secured.secured.servers("SASL"))
        with open_client(replace(given, kafka={**given.kafka, **kafka})) as client:
            client.list_topics()


@pytest.mark.parametrize("engine", ["native", "librdkafka"])
def test_references_to_secrets(
    engine: Any, secured: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = "${env:PASSWORD_OF_THE_TEST}"
    kafka = login("SCRAM-SHA-256", "SASL_PLAINTEXT", password=reference)
    given = options(secured.secured.servers("SASL"), engine=engine, **kafka)
    monkeypatch.setenv("PASSWORD_OF_THE_TEST", PASSWORD)
    with open_client(given) as client:
        client.list_topics()
    monkeypatch.setenv("PASSWORD_OF_THE_TEST", "wrong")
    with open_client(given) as client, pytest.raises(AuthenticationError):
        client.list_topics()


# --- the command for operators ---


def test_the_command_for_operators(
    secured: Cluster,
    topic_of_cluster: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = client_options(secured, "SASL_TLS with SCRAM-SHA-512")
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in wanted.kafka.items()))
    arguments = ["transactions", "--id", "nobody", "--bootstrap-servers", wanted.bootstrap_servers]
    arguments += ["--command-config", str(path), "--commit-topic", topic_of_cluster]
    assert main(arguments) == FAILED
    assert "The transactionalId 'nobody' is unknown" in capsys.readouterr().err
    path.write_text(path.read_text().replace(PASSWORD, "wrong-secret"))
    assert main(arguments) == FAILED
    said = capsys.readouterr().err
    assert "user 'alice' could not authenticate with SCRAM-SHA-512" in said
    assert "wrong-secret" not in said
