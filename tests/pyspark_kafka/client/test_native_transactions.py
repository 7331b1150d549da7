"""Tests of the transactional client on clusters with both versions of transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from pyspark_kafka.client.factory import check_transactional_settings, open_transactional_client
from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import (
    KafkaError,
    OptionError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.offsets import LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionResult,
    TransactionState,
    TransactionVersion,
)
from tests.conformance.eventually import eventually
from tests.conftest import ClusterFactory, open_cluster
from tests.pyspark_kafka.client.records import options, read_all, rows

VERSIONS: tuple[TransactionVersion, ...] = (1, 2)
TIMEOUT_MS = 60_000
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "transaction.max.timeout.ms": "120000",
}
SESSIONS = {"broker.session.timeout.ms": "2500", "broker.heartbeat.interval.ms": "250"}
NameFactory = Callable[[], str]
NONE = ErrorCode.none


@pytest.fixture(scope="module", params=VERSIONS, ids=["transactions-1", "transactions-2"])
def version(request: pytest.FixtureRequest) -> TransactionVersion:
    found: TransactionVersion = request.param
    return found


def features(version: TransactionVersion) -> dict[str, int] | None:
    """Return the features to set; version 2 tests the default of the cluster."""
    return {"transaction.version": 1} if version == 1 else None


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, version: TransactionVersion) -> Iterator[Cluster]:
    with open_cluster(
        request.config, brokers=1, configs=SETTINGS, features=features(version)
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def bootstrap(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


def opened(bootstrap: str) -> TransactionalClient:
    return open_transactional_client(options(bootstrap, engine="native"))


@pytest.fixture
def client(bootstrap: str) -> Iterator[TransactionalClient]:
    with opened(bootstrap) as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster, unique_name: NameFactory) -> str:
    name = unique_name()
    cluster.create_topic(name, partitions=2)
    return name


def init(
    client: TransactionalClient, name: str, *, expected: ProducerIdAndEpoch | None = None
) -> ProducerIdAndEpoch:
    return client.init_producer_id(name, timeout_ms=TIMEOUT_MS, expected=expected)


def write(
    client: TransactionalClient, name: str, owner: ProducerIdAndEpoch, topic: str, *values: bytes
) -> None:
    """Write rows to the open transaction of an id and wait until they are acknowledged."""
    producer = client.transactional_producer(name, owner, client.transaction_version())
    producer.send(rows(topic, values, partition=[0] * len(values)))
    producer.flush()
    producer.close()


def end(
    name: str, owner: ProducerIdAndEpoch, version: TransactionVersion, *, is_commit: bool = True
) -> EndTransaction:
    return EndTransaction(
        transactional_id=name, producer=owner, is_commit=is_commit, version=version
    )


def log(client: TransactionalClient, topic: str) -> list[LogBatch]:
    partition = TopicPartition(topic, 0)
    latest = client.list_offsets({partition: LATEST}, IsolationLevel.READ_UNCOMMITTED)[partition]
    assert latest is not None
    return list(client.read_log(partition, 0, latest))


def verdicts(client: TransactionalClient, topic: str) -> list[TransactionResult]:
    return [batch.ends_with for batch in log(client, topic) if batch.ends_with is not None]


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_all(bootstrap, topic, partitions=2)]


def state_of(client: TransactionalClient, name: str) -> TransactionState:
    return client.describe_transactions([name])[name].state


def test_the_version_is_the_clusters(
    client: TransactionalClient, version: TransactionVersion
) -> None:
    assert client.transaction_version() == version


# --- InitProducerId ---


def test_init_producer_id_fences_the_owner_and_ends_its_transaction(
    client: TransactionalClient,
    bootstrap: str,
    topic: str,
    version: TransactionVersion,
    unique_name: NameFactory,
) -> None:
    name = unique_name()
    first = init(client, name)
    write(client, name, first, topic, b"first")
    second = init(client, name)
    assert second.producer_id == first.producer_id
    assert second.producer_epoch > first.producer_epoch
    # InitProducerId returned after the marker was written, so consumers are not blocked.
    assert verdicts(client, topic) == [TransactionResult.ABORT]
    assert state_of(client, name) is TransactionState.EMPTY
    fenced = {ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced}
    assert client.end_transactions([end(name, first, version)])[name] in fenced
    write(client, name, second, topic, b"second")
    assert client.end_transactions([end(name, second, version)])[name] is NONE
    init(client, name)
    assert values(bootstrap, topic) == [b"second"]


def test_init_producer_ids_fences_all_owners_and_ends_their_transactions(
    client: TransactionalClient,
    topic: str,
    version: TransactionVersion,
    unique_name: NameFactory,
) -> None:
    names = [unique_name() for _ in range(5)]
    first = client.init_producer_ids(names, timeout_ms=TIMEOUT_MS)
    assert len({owner.producer_id for owner in first.values()}) == len(names)
    for name, owner in first.items():
        write(client, name, owner, topic, b"open")
    second = client.init_producer_ids(names, timeout_ms=TIMEOUT_MS)
    assert second.keys() == first.keys() == set(names)
    for name in names:
        assert second[name].producer_id == first[name].producer_id
        assert second[name].producer_epoch > first[name].producer_epoch
    assert verdicts(client, topic) == [TransactionResult.ABORT] * len(names)
    refused = client.end_transactions([end(name, first[name], version) for name in names])
    fenced = {ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced}
    assert set(refused.values()) <= fenced
    assert client.init_producer_ids([], timeout_ms=TIMEOUT_MS) == {}


def test_init_producer_id_with_the_expected_owner(
    client: TransactionalClient, unique_name: NameFactory
) -> None:
    name = unique_name()
    first = init(client, name)
    second = init(client, name, expected=first)
    assert second.producer_id == first.producer_id
    assert second.producer_epoch > first.producer_epoch
    third = init(client, name)
    for stale in (first, second):
        with pytest.raises(ProducerFencedError, match=name):
            init(client, name, expected=stale)
    assert init(client, name, expected=third).producer_epoch > third.producer_epoch


def test_init_producer_id_with_the_expected_owner_and_open_transaction(
    client: TransactionalClient,
    topic: str,
    version: TransactionVersion,
    unique_name: NameFactory,
) -> None:
    """The request aborts the transaction. In version 1 this bumps the epoch and fences us."""
    name = unique_name()
    owner = init(client, name)
    write(client, name, owner, topic, b"open")
    if version == 1:
        with pytest.raises(ProducerFencedError):
            init(client, name, expected=owner)
    else:
        assert init(client, name, expected=owner).producer_epoch > owner.producer_epoch
    assert verdicts(client, topic) == [TransactionResult.ABORT]


@pytest.mark.parametrize("is_commit", [True, False])
def test_init_producer_id_waits_for_markers(
    client: TransactionalClient,
    topic: str,
    version: TransactionVersion,
    unique_name: NameFactory,
    *,
    is_commit: bool,
) -> None:
    reaction = TransactionResult.COMMIT if is_commit else TransactionResult.ABORT
    name = unique_name()
    for round_ in range(1, 6):
        owner = init(client, name)
        assert verdicts(client, topic) == [reaction] * (round_ - 1)
        write(client, name, owner, topic, b"%d" % round_)
        ended = client.end_transactions([end(name, owner, version, is_commit=is_commit)])
        assert ended == {name: NONE}


def test_a_timeout_above_the_brokers_limit(
    client: TransactionalClient, unique_name: NameFactory
) -> None:
    name = unique_name()
    with pytest.raises(OptionError, match=r"120001 ms.*'transactionTimeout'"):
        client.init_producer_id(name, timeout_ms=120_001)
    client.init_producer_id(name, timeout_ms=120_000)


def test_empty_transactional_id(bootstrap: str) -> None:
    with opened(bootstrap) as client, pytest.raises(KafkaError, match=r"INVALID_REQUEST"):
        init(client, "")


# --- EndTxn ---


def test_many_are_ended_at_once(
    client: TransactionalClient,
    bootstrap: str,
    topic: str,
    version: TransactionVersion,
    unique_name: NameFactory,
) -> None:
    names = [unique_name() for _ in range(20)]
    owners = {name: init(client, name) for name in names}
    for index, name in enumerate(names):
        write(client, name, owners[name], topic, b"%02d" % index)
    committed, aborted = names[:15], names[15:]
    ends = [end(name, owners[name], version) for name in committed]
    ends += [end(name, owners[name], version, is_commit=False) for name in aborted]
    assert client.end_transactions(ends) == dict.fromkeys(names, NONE)
    # Repeating the request gives the same result; the opposite outcome is rejected.
    assert client.end_transactions(ends) == dict.fromkeys(names, NONE)
    opposite = [end(name, owners[name], version, is_commit=name in aborted) for name in names]
    refused = client.end_transactions(opposite)
    assert set(refused.values()) <= {ErrorCode.invalid_txn_state, ErrorCode.producer_fenced}
    assert sorted(values(bootstrap, topic), key=str) == [b"%02d" % index for index in range(15)]


def test_rejected_ends(
    client: TransactionalClient, version: TransactionVersion, unique_name: NameFactory
) -> None:
    unknown, other = unique_name(), unique_name()
    owner = init(client, other)
    elsewhere = ProducerIdAndEpoch(producer_id=owner.producer_id + 10_000, producer_epoch=0)
    ends = [end(unknown, owner, version), end(other, elsewhere, version)]
    assert client.end_transactions(ends) == {
        unknown: ErrorCode.invalid_producer_id_mapping,
        other: ErrorCode.invalid_producer_id_mapping,
    }
    nothing_open = client.end_transactions([end(other, owner, version)])
    assert nothing_open[other] is ErrorCode.invalid_txn_state
    assert client.end_transactions([]) == {}


# --- describe, list and read ---


def test_descriptions(
    client: TransactionalClient,
    topic: str,
    version: TransactionVersion,
    unique_name: NameFactory,
) -> None:
    name, unknown = unique_name(), unique_name()
    assert client.describe_transactions([unknown]) == {}
    assert client.describe_transactions([]) == {}
    owner = init(client, name)
    found = client.describe_transactions([name, unknown])
    assert found.keys() == {name}
    empty = found[name]
    assert (empty.state, empty.producer) == (TransactionState.EMPTY, owner)
    assert (empty.timeout_ms, empty.started_ms, empty.partitions) == (TIMEOUT_MS, None, frozenset())
    before_ms = time.time() * 1000
    write(client, name, owner, topic, b"v")
    ongoing = client.describe_transactions([name])[name]
    assert ongoing.state is TransactionState.ONGOING
    assert ongoing.partitions == {TopicPartition(topic, 0)}
    assert ongoing.started_ms is not None
    assert abs(ongoing.started_ms - before_ms) < 30_000
    client.end_transactions([end(name, owner, version)])
    eventually(lambda: state_of(client, name) is TransactionState.COMPLETE_COMMIT)
    complete = client.describe_transactions([name])[name]
    bumped = owner.producer_epoch + (version == 2)
    assert complete.producer == ProducerIdAndEpoch(
        producer_id=owner.producer_id, producer_epoch=bumped
    )


def test_list_transactions_by_prefix(
    client: TransactionalClient, topic: str, unique_name: NameFactory
) -> None:
    x = unique_name() + ".a-b"
    under = {f"{x}/1", f"{x}/2", f"{x}/(2)+[x]"}
    others = {x, f"{x}x/1", f"{x.replace('.a', 'Za')}/1", f"y{x}/1"}
    owners = {name: init(client, name) for name in under | others}
    write(client, f"{x}/1", owners[f"{x}/1"], topic, b"v")
    found = {one.transactional_id: one for one in client.list_transactions(f"{x}/")}
    assert found.keys() == under
    assert found[f"{x}/1"].state is TransactionState.ONGOING
    assert found[f"{x}/2"].state is TransactionState.EMPTY
    assert found[f"{x}/2"].producer_id == owners[f"{x}/2"].producer_id
    assert [one.transactional_id for one in client.list_transactions(f"{x}/(")] == [f"{x}/(2)+[x]"]


def test_list_transactions_by_state(
    client: TransactionalClient, topic: str, unique_name: NameFactory
) -> None:
    prefix = unique_name()
    ongoing, empty = f"{prefix}/1", f"{prefix}/2"
    owners = client.init_producer_ids([ongoing, empty], timeout_ms=TIMEOUT_MS)
    write(client, ongoing, owners[ongoing], topic, b"v")

    def found(*states: TransactionState) -> dict[str, TransactionState]:
        listings = client.list_transactions(prefix, *states)
        return {one.transactional_id: one.state for one in listings}

    states = {ongoing: TransactionState.ONGOING, empty: TransactionState.EMPTY}
    for name, state in states.items():
        assert found(state) == {name: state}
    assert found(*states.values()) == found() == states
    assert found(TransactionState.COMPLETE_COMMIT) == {}


# --- topics and brokers ---


def test_topic_is_created_once_and_described(
    client: TransactionalClient, unique_name: NameFactory
) -> None:
    name = unique_name()
    config = {"cleanup.policy": "compact", "max.message.bytes": "123456"}

    def create() -> bool:
        return client.create_topic(name, partition_count=1, replication_factor=1, config=config)

    assert create()
    # The topic is immediately writable, and its metadata is available.
    owner = init(client, name)
    producer = client.transactional_producer(name, owner, client.transaction_version())
    producer.send(rows(name, [b"v"], key=[b"k"]))
    producer.flush()
    producer.close()
    assert not create()
    found = client.topic_config(name)
    assert found.items() >= config.items()
    assert found["min.insync.replicas"] == "1"
    assert found["unclean.leader.election.enable"] == "false"
    assert client.replication_of(name) == 1
    assert client.broker_count() == 1
    of_broker = client.broker_config()
    assert of_broker is not None
    assert of_broker["transaction.max.timeout.ms"] == "120000"


def test_topics_that_cannot_be_created_or_described(
    client: TransactionalClient, unique_name: NameFactory
) -> None:
    name = unique_name()
    with pytest.raises(KafkaError, match=rf"'{name}'.*INVALID_REPLICATION_FACTOR"):
        client.create_topic(name, partition_count=1, replication_factor=9, config={})
    with pytest.raises(KafkaError, match=rf"'{name}'.*INVALID_CONFIG"):
        client.create_topic(
            name, partition_count=1, replication_factor=1, config={"cleanup.policy": "sweep"}
        )
    for look in (client.topic_config, client.replication_of):
        with pytest.raises(UnknownTopicOrPartitionError, match=name):
            look(name)


def test_offsets_of_a_group_are_committed_with_the_transaction(
    client: TransactionalClient,
    topic: str,
    version: TransactionVersion,
    unique_name: NameFactory,
) -> None:
    group, name, partition = unique_name(), unique_name(), TopicPartition(topic, 0)
    client.commit_offsets(group, {partition: 3})
    for is_commit, expected in ((False, 3), (True, 9)):
        owner = init(client, name)
        producer = client.transactional_producer(name, owner, version)
        producer.send_offsets(group, {partition: 9})
        producer.close()
        ended = client.end_transactions([end(name, owner, version, is_commit=is_commit)])
        assert ended == {name: NONE}
        assert client.committed_offsets(group, [partition]) == {partition: expected}


# --- options ---


@pytest.mark.parametrize(
    ("kafka", "engine", "reason"),
    [
        ({}, "librdkafka", "'engine'"),
        ({"ssl_crl_location": "x"}, "auto", "'kafka.ssl.crl.location'"),
        ({"debug": "all"}, "native", "'kafka.debug'"),
    ],
)
def test_unsupported_settings_are_rejected(kafka: dict[str, str], engine: str, reason: str) -> None:
    wanted = options("localhost:1", engine=engine, **kafka)  # type: ignore[arg-type]
    for check in (check_transactional_settings, open_transactional_client):
        with pytest.raises(OptionError, match=f"'transactionalId'.*{reason}"):
            check(wanted)


def test_settings_are_checked_before_a_client_is_opened() -> None:
    check_transactional_settings(options("localhost:1", linger_ms="5"))
    with pytest.raises(OptionError, match=r"kafka.batch.size"):
        check_transactional_settings(options("localhost:1", batch_size="-7"))


# --- failing brokers ---


@pytest.fixture(scope="module")
def three(cluster_with: ClusterFactory, version: TransactionVersion) -> Cluster:
    return cluster_with(SESSIONS, brokers=3, features=features(version))


def coordinated_by(
    client: TransactionalClient, broker_id: int, names: NameFactory, count: int
) -> dict[str, ProducerIdAndEpoch]:
    """Create `count` ids that this broker coordinates, and return their producers."""
    from pyspark_kafka.client.native.transactional_client import (  # noqa: PLC0415
        NativeTransactionalClient,
    )
    from pyspark_kafka.wire.coordinators import CoordinatorKey  # noqa: PLC0415

    assert isinstance(client, NativeTransactionalClient)
    found: dict[str, ProducerIdAndEpoch] = {}
    while len(found) < count:
        name = names()
        owner = init(client, name)
        key = CoordinatorKey.transaction(name)
        coordinator = client.router.coordinator(key, deadline=time.monotonic() + 30)
        if coordinator.broker_id == broker_id:
            found[name] = owner
    return found


def listed(client: TransactionalClient, names: Collection[str]) -> set[str]:
    prefix = min(names).rpartition(".")[0]
    return {one.transactional_id for one in client.list_transactions(prefix)} & set(names)


@pytest.mark.slow
def test_transaction_requests_succeed_while_coordinators_die(
    three: Cluster, version: TransactionVersion, unique_name: NameFactory
) -> None:
    topic = unique_name()
    three.create_topic(topic, partitions=2, replication_factor=3)
    with opened(three.bootstrap_servers) as client:
        assert client.broker_count() == 3
        owners = {
            **coordinated_by(client, 2, unique_name, 3),
            **coordinated_by(client, 1, unique_name, 2),
        }
        for name, owner in owners.items():
            write(client, name, owner, topic, name.encode())
        three.kill_broker(2)
        with ExitStack() as restarting:
            restarting.callback(three.start_broker, 2)
            found = client.describe_transactions(owners)
            assert {one.state for one in found.values()} == {TransactionState.ONGOING}
            assert {name: one.producer for name, one in found.items()} == owners
            assert listed(client, owners) == owners.keys()
            ends = [end(name, owner, version) for name, owner in owners.items()]
            assert client.end_transactions(ends) == dict.fromkeys(owners, NONE)
            taken = {name: init(client, name) for name in owners}
            assert all(taken[n].producer_epoch > o.producer_epoch for n, o in owners.items())
    assert sorted(values(three.bootstrap_servers, topic), key=str) == sorted(
        name.encode() for name in owners
    )


@pytest.mark.slow
def test_hanging_broker_does_not_delay_requests_to_others(
    three: Cluster, version: TransactionVersion, unique_name: NameFactory
) -> None:
    with opened(three.bootstrap_servers) as client:
        owners = {
            **coordinated_by(client, 3, unique_name, 2),
            **coordinated_by(client, 1, unique_name, 2),
        }
        three.pause_broker(3)
        try:
            assert client.describe_transactions(owners).keys() == owners.keys()
            assert listed(client, owners) == owners.keys()
            assert {init(client, name).producer_id for name in owners} == {
                owner.producer_id for owner in owners.values()
            }
        finally:
            three.resume_broker(3)
