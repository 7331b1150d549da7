"""Tests of transactional producers on a cluster, with both versions of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from integration.clusters import Cluster
from pyspark_kafka.errors import DeliveryError, ProducerFencedError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionVersion
from tests.conformance.eventually import eventually
from tests.conftest import open_cluster
from tests.pyspark_kafka.client.records import rows
from tests.pyspark_kafka.client.transactional import (
    Transactions,
    await_seen,
    ends,
    seen,
    stored,
    transactions,
)

VERSIONS: tuple[TransactionVersion, ...] = (1, 2)
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
NameFactory = Callable[[], str]


@pytest.fixture(scope="module", params=VERSIONS, ids=["transactions-1", "transactions-2"])
def version(request: pytest.FixtureRequest) -> TransactionVersion:
    found: TransactionVersion = request.param
    return found


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, version: TransactionVersion) -> Iterator[Cluster]:
    features = {"transaction.version": 1} if version == 1 else None
    with open_cluster(request.config, brokers=1, configs=SETTINGS, features=features) as opened:
        yield opened


@pytest.fixture(scope="module")
def bootstrap(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture
def begun(bootstrap: str, version: TransactionVersion) -> Iterator[Transactions]:
    with transactions(bootstrap, version) as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster, unique_name: NameFactory) -> Callable[..., str]:
    def create(partitions: int = 1, **configs: str) -> str:
        name = unique_name()
        cluster.create_topic(name, partitions=partitions, configs=configs)
        return name

    return create


def test_the_cluster_has_the_version(begun: Transactions) -> None:
    assert begun.client.transaction_version() == begun.version


@pytest.mark.slow
def test_rows_are_seen_once_they_are_committed(
    begun: Transactions, bootstrap: str, topic: Callable[..., str], unique_name: NameFactory
) -> None:
    name, transactional_id = topic(partitions=3), unique_name()
    for turn in range(3):
        values = [b"%d.%d" % (turn, number) for number in range(600)]
        before = seen(bootstrap, name, partitions=3)
        one = begun.begin(transactional_id)
        one.producer.send(rows(name, values[:400], partition=[n % 2 * 2 for n in range(400)]))
        one.producer.send(rows(name, values[400:], partition=[n % 2 * 2 for n in range(200)]))
        one.producer.flush()
        assert seen(bootstrap, name, partitions=3) == before
        one.producer.close()
        assert one.producer.last_offsets == ends(bootstrap, name, partitions=3)
        one.commit()
        await_seen(bootstrap, name, [*before[0], *values[0::2]], [], [*before[2], *values[1::2]])


def test_aborted_rows_are_invisible(
    begun: Transactions, bootstrap: str, topic: Callable[..., str], unique_name: NameFactory
) -> None:
    name = topic()
    one = begun.begin(unique_name())
    one.producer.send(rows(name, [b"gone"]))
    one.producer.flush()
    one.producer.abort()
    with pytest.raises(DeliveryError):
        one.producer.send(rows(name, [b"x"]))
    one.abort()
    assert seen(bootstrap, name) == [[]]
    assert stored(bootstrap, name) == [[(0, b"gone")]]


def test_batches_that_are_split(
    begun: Transactions, bootstrap: str, topic: Callable[..., str], unique_name: NameFactory
) -> None:
    name = topic(partitions=2, **{"max.message.bytes": "3000"})
    values = [b"%04d" % number + b"x" * 200 for number in range(2_000)]
    one = begun.begin(unique_name())
    for half in (values[:1_000], values[1_000:]):
        one.producer.send(rows(name, half, partition=[n % 2 for n in range(1_000)]))
    one.producer.flush()
    assert one.producer.last_offsets == ends(bootstrap, name, partitions=2)
    one.commit()
    await_seen(bootstrap, name, values[0::2], values[1::2])


def test_a_transaction_takes_partitions_until_its_end(
    begun: Transactions, bootstrap: str, topic: Callable[..., str], unique_name: NameFactory
) -> None:
    """The producer writes to new partitions after it has flushed rows of other partitions."""
    names = [topic(partitions=2) for _ in range(2)]
    one = begun.begin(unique_name())
    for partition in (1, 0):
        for name in names:
            one.producer.send(rows(name, [b"x"] * 3, partition=[partition] * 3))
            one.producer.flush()
    every = {TopicPartition(name, partition) for name in names for partition in (0, 1)}
    found = begun.client.describe_transactions([one.transactional_id])
    assert found[one.transactional_id].partitions == every
    assert one.producer.last_offsets == dict.fromkeys(every, 2)
    one.commit()
    for name in names:
        await_seen(bootstrap, name, [b"x"] * 3, [b"x"] * 3)


@pytest.mark.parametrize("is_known", [True, False], ids=["written-to", "new"])
def test_new_owner_fences_the_old_producer(
    begun: Transactions,
    bootstrap: str,
    topic: Callable[..., str],
    unique_name: NameFactory,
    is_known: bool,
) -> None:
    """The old producer writes to a partition with its abort marker, or to a new partition."""
    name, transactional_id = topic(partitions=2), unique_name()
    one = begun.begin(transactional_id)
    one.producer.send(rows(name, [b"x"], partition=[0]))
    one.producer.flush()
    other = begun.begin(transactional_id)
    partition = 0 if is_known else 1
    one.producer.send(rows(name, [b"y"], partition=[partition]))
    with pytest.raises(ProducerFencedError) as fenced:
        one.producer.flush()
    assert (fenced.value.topic, fenced.value.partition) == (name, partition)
    assert fenced.value.transactional_id == transactional_id
    with pytest.raises(ProducerFencedError):
        one.producer.flush()
    other.producer.send(rows(name, [b"z"], partition=[partition]))
    other.producer.flush()
    other.commit()
    await_seen(bootstrap, name, *[[b"z"] if n == partition else [] for n in (0, 1)])


def test_transaction_timeout(
    begun: Transactions, bootstrap: str, topic: Callable[..., str], unique_name: NameFactory
) -> None:
    name = topic(partitions=2)
    one = begun.begin(unique_name(), timeout_ms=300)
    one.producer.send(rows(name, [b"x"], partition=[0]))
    one.producer.flush()

    def is_over() -> bool:
        found = begun.client.describe_transactions([one.transactional_id])
        return found[one.transactional_id].state.value == "CompleteAbort"

    eventually(is_over)
    one.producer.send(rows(name, [b"y"] * 2, partition=[0, 1]))
    with pytest.raises((ProducerFencedError, DeliveryError), match="'transactionTimeout'"):
        one.producer.flush()
    assert seen(bootstrap, name, partitions=2) == [[], []]


def test_offsets_are_committed_with_the_transaction(
    begun: Transactions, topic: Callable[..., str], unique_name: NameFactory
) -> None:
    name, group = topic(partitions=2), unique_name()
    source = {TopicPartition(name, 0): 7, TopicPartition(name, 1): 0}
    for is_commit, offsets in ((False, dict.fromkeys(source, 99)), (True, source)):
        one = begun.begin(unique_name())
        one.producer.send(rows(name, [b"x"]))
        one.producer.send_offsets(group, offsets)
        one.producer.flush()
        one.commit() if is_commit else one.abort()
        expected = offsets if is_commit else dict.fromkeys(source)
        assert begun.client.committed_offsets(group, list(source)) == expected


def test_offsets_of_a_fenced_producer(
    begun: Transactions, topic: Callable[..., str], unique_name: NameFactory
) -> None:
    name, group, transactional_id = topic(), unique_name(), unique_name()
    one = begun.begin(transactional_id)
    one.producer.send_offsets(group, {TopicPartition(name, 0): 7})
    begun.begin(transactional_id)
    with pytest.raises(ProducerFencedError) as caught:
        one.producer.send_offsets(group, {TopicPartition(name, 0): 8})
    assert (caught.value.group_id, caught.value.transactional_id) == (group, transactional_id)
    assert begun.client.committed_offsets(group, [TopicPartition(name, 0)]) == {
        TopicPartition(name, 0): None
    }
