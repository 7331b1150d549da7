"""Tests of Metadata: brokers, topics by name and by id, automatic topic creation."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.eventually import eventually
from tests.conformance.wire import describe_topics, only, served, topic_id

TopicFactory = Callable[..., str]
NOT_COMPUTED = -(2**31)


def test_brokers_have_the_addresses_for_clients(raw: RawConnection, cluster: Cluster) -> None:
    response = raw.call("metadata", 12, topics=[])
    assert {b.node_id: f"{b.host}:{b.port}" for b in response.brokers} == {
        broker_id: cluster.address(broker_id) for broker_id in cluster.broker_ids
    }
    assert len(response.brokers) == len(cluster.broker_ids)
    assert all(broker.rack is None for broker in response.brokers)
    # Clients cannot connect to the controller, so the response names any broker (KIP-590).
    assert response.controller_id in cluster.broker_ids
    assert response.cluster_id
    assert response.topics == ()


def test_partitions_are_described_in_full(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    found = only(describe_topics(raw, name).topics)
    assert (found.error_code, found.name, found.is_internal) == (ErrorCode.none, name, False)
    assert sorted(p.partition_index for p in found.partitions) == [0, 1, 2]
    for partition in found.partitions:
        assert partition.error_code == ErrorCode.none
        assert partition.leader_id == 1
        assert partition.leader_epoch == 0
        assert partition.replica_nodes == (1,)
        assert partition.isr_nodes == (1,)
        assert partition.offline_replicas == ()


def test_every_version_describes_a_topic(
    raw: RawConnection, topic: TopicFactory, cluster: Cluster
) -> None:
    name = topic(partitions=2)
    for version in served(raw, "metadata"):
        response = raw.call("metadata", version, topics=[{"name": name}])
        found = only(response.topics)
        assert (found.error_code, found.name) == (ErrorCode.none, name), version
        assert len(found.partitions) == 2, version
        assert len(response.brokers) == len(cluster.broker_ids), version


def test_empty_and_null_topics(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    assert name in {t.name for t in raw.call("metadata", 0, topics=[]).topics}
    assert raw.call("metadata", 1, topics=[]).topics == ()
    for version in (1, 9, 12):
        assert name in {t.name for t in raw.call("metadata", version, topics=None).topics}


def test_topic_is_found_by_its_id(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    identifier = topic_id(raw, name)
    found = only(raw.call("metadata", 12, topics=[{"topic_id": identifier, "name": None}]).topics)
    assert (found.error_code, found.name, found.topic_id) == (ErrorCode.none, name, identifier)


@pytest.mark.parametrize("version", [10, 11])
def test_versions_without_topic_ids_refuse_the_whole_request(
    raw: RawConnection, topic: TopicFactory, version: int
) -> None:
    name = topic()
    for refused in ({"topic_id": topic_id(raw, name), "name": name}, {"name": None}):
        found = raw.call("metadata", version, topics=[{"name": name}, refused])
        codes = [one.error_code for one in found.topics]
        assert codes == [ErrorCode.invalid_request] * 2
        assert found.brokers == ()


def test_two_topics_have_two_ids(raw: RawConnection, topic: TopicFactory) -> None:
    assert topic_id(raw, topic()) != topic_id(raw, topic())


def test_names_are_ignored_if_a_request_contains_a_topic_id(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name, identifier = topic(), uuid.uuid4()
    requested = [{"topic_id": identifier, "name": name}, {"name": name}]
    found = only(raw.call("metadata", 12, topics=requested).topics)
    assert (found.error_code, found.topic_id) == (ErrorCode.unknown_topic_id, identifier)


def test_unknown_topic_id_has_an_error_and_no_name(raw: RawConnection) -> None:
    identifier = uuid.uuid4()
    found = only(raw.call("metadata", 12, topics=[{"topic_id": identifier, "name": None}]).topics)
    assert (found.error_code, found.topic_id) == (ErrorCode.unknown_topic_id, identifier)
    assert not found.name
    assert found.partitions == ()


def test_unknown_topic_without_auto_creation(
    raw: RawConnection, unique_name: Callable[[], str]
) -> None:
    name = unique_name()
    for _ in range(2):
        found = only(describe_topics(raw, name).topics)
        assert (found.error_code, found.name) == (ErrorCode.unknown_topic_or_partition, name)
        assert found.partitions == ()


def test_one_unknown_topic_does_not_affect_the_others(
    raw: RawConnection, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    known, unknown = topic(), unique_name()
    codes = {t.name: t.error_code for t in describe_topics(raw, known, unknown).topics}
    assert codes == {known: ErrorCode.none, unknown: ErrorCode.unknown_topic_or_partition}


@pytest.mark.parametrize("name", ["a b", "a/b", "ä", ".", "..", "x" * 250, ""])
@pytest.mark.parametrize("create", [False, True])
def test_invalid_name_is_refused(raw: RawConnection, name: str, *, create: bool) -> None:
    response = raw.call("metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=create)
    assert only(response.topics).error_code == ErrorCode.invalid_topic_exception


def _request_creation(raw: RawConnection, name: str) -> Any:
    response = raw.call("metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=True)
    return only(response.topics)


def test_unknown_topic_with_auto_creation(
    raw: RawConnection, unique_name: Callable[[], str]
) -> None:
    name = unique_name()
    first = _request_creation(raw, name)
    # The broker may respond before the topic exists; clients retry both errors.
    assert first.error_code in {
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
    }
    eventually(lambda: _request_creation(raw, name).error_code == ErrorCode.none)
    assert len(_request_creation(raw, name).partitions) == 1


def test_too_many_topics_in_a_request_are_not_created(
    raw: RawConnection, unique_name: Callable[[], str]
) -> None:
    """They would have more than 10,000 partitions together."""
    names = [unique_name() for _ in range(10_001)]
    topics = [{"name": name} for name in names]
    raw.call("metadata", 9, topics=topics, allow_auto_topic_creation=True)
    last = unique_name()
    eventually(lambda: _request_creation(raw, last).error_code == ErrorCode.none)
    for name in (names[0], names[-1]):
        found = only(describe_topics(raw, name).topics)
        assert found.error_code == ErrorCode.unknown_topic_or_partition


def test_versions_before_4_always_allow_auto_creation(
    raw: RawConnection, unique_name: Callable[[], str]
) -> None:
    name = unique_name()
    raw.call("metadata", 3, topics=[{"name": name}])
    eventually(lambda: only(describe_topics(raw, name).topics).error_code == ErrorCode.none)


def test_authorized_operations_are_returned_on_request(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    plain = raw.call("metadata", 12, topics=[{"name": name}])
    assert only(plain.topics).topic_authorized_operations == NOT_COMPUTED
    requested = raw.call(
        "metadata", 12, topics=[{"name": name}], include_topic_authorized_operations=True
    )
    read, write = 3, 4
    operations = only(requested.topics).topic_authorized_operations
    assert operations != NOT_COMPUTED
    assert operations & 1 << read
    assert operations & 1 << write


@pytest.fixture(scope="module")
def strict(
    cluster_with: Callable[[Mapping[str, str]], Cluster],
) -> Iterator[RawConnection]:
    """Return a connection to a cluster without automatic topic creation.

    The default number of partitions is three.
    """
    settings = {"auto.create.topics.enable": "false", "num.partitions": "3"}
    with RawConnection(cluster_with(settings).bootstrap_servers) as connection:
        yield connection


@pytest.mark.slow
def test_auto_creation_can_be_disabled(strict: RawConnection) -> None:
    for _ in range(3):
        found = _request_creation(strict, "never-made")
        assert found.error_code == ErrorCode.unknown_topic_or_partition
    assert "never-made" not in {t.name for t in strict.call("metadata", 9, topics=None).topics}


@pytest.mark.slow
def test_num_partitions_is_the_default_of_create_topics(strict: RawConnection) -> None:
    response = strict.call(
        "create_topics",
        7,
        topics=[{"name": "by-default", "num_partitions": -1, "replication_factor": -1}],
    )
    assert only(response.topics).num_partitions == 3
