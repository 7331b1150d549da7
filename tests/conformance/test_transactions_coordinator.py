"""Tests of the coordinator of a transactional id (KIP-98, KIP-699)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.groups import find_coordinator
from tests.conformance.transaction_states import describe_transaction
from tests.conformance.transactions import (
    TRANSACTION,
    Connections,
    TransactionalProducer,
    code_of,
    coordinator_id,
)
from tests.conformance.wire import describe_topics, only, served

STATE_TOPIC = "__transaction_state"
NameFactory = Callable[[], str]


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` over UTF-16 code units, a signed 32-bit integer."""
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of(text: str, count: int) -> int:
    """Return the partition of the absolute hash; like Kafka, use 0 for Integer.MIN_VALUE."""
    value = java_hash(text)
    return 0 if value == -(1 << 31) else abs(value) % count


def test_coordinator_leads_the_partition_of_the_hash(
    raw: RawConnection, cluster: Cluster, unique_name: NameFactory
) -> None:
    names = ["a", "ünïcödé-𝄞", "x" * 500, *(unique_name() for _ in range(30))]
    coordinator_id(raw, names[0])
    partitions = only(describe_topics(raw, STATE_TOPIC).topics).partitions
    leaders = {p.partition_index: p.leader_id for p in partitions}
    for name in names:
        expected = leaders[partition_of(name, len(leaders))]
        assert coordinator_id(raw, name) == expected, name


def test_transaction_state_topic_is_internal(raw: RawConnection, unique_name: NameFactory) -> None:
    coordinator_id(raw, unique_name())
    found = only(describe_topics(raw, STATE_TOPIC).topics)
    assert (found.error_code, found.is_internal) == (ErrorCode.none, True)


def test_default_transaction_configs_are_those_of_kafka(
    raw: RawConnection, cluster: Cluster, unique_name: NameFactory
) -> None:
    coordinator_id(raw, unique_name())
    of_broker, of_topic = (4, str(cluster.broker_ids[0])), (2, STATE_TOPIC)
    expected = {
        of_broker: {
            "transaction.max.timeout.ms": "900000",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
            "transactional.id.expiration.ms": "604800000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "3600000",
            "transaction.partition.verification.enable": "true",
            "transaction.two.phase.commit.enable": "false",
            "producer.id.expiration.ms": "86400000",
            "add.partitions.to.txn.retry.backoff.ms": "20",
            "add.partitions.to.txn.retry.backoff.max.ms": "100",
            "transaction.state.log.segment.bytes": "104857600",
        },
        of_topic: {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"},
    }
    for (kind, name), values in expected.items():
        requested = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": [*values]}
        ]
        found = only(raw.call("describe_configs", 4, resources=requested).results)
        assert {config.name: config.value for config in found.configs} == values


def test_every_version_finds_the_coordinator(
    raw: RawConnection, cluster: Cluster, unique_name: NameFactory
) -> None:
    name = unique_name()
    broker_id = coordinator_id(raw, name)
    for version in served(raw, "find_coordinator"):
        if version < 1:
            continue
        response = find_coordinator(raw, name, version=version, key_type=TRANSACTION)
        found = only(response.coordinators) if version >= 4 else response
        assert (found.error_code, found.node_id) == (ErrorCode.none, broker_id), version
        assert f"{found.host}:{found.port}" == cluster.address(broker_id), version


def test_every_broker_returns_the_same_coordinator(
    brokers: Connections, cluster: Cluster, unique_name: NameFactory
) -> None:
    for _ in range(10):
        name = unique_name()
        coordinator_id(brokers.any(), name)
        assert len({coordinator_id(brokers.to(b), name) for b in cluster.broker_ids}) == 1, name


def test_other_brokers_refuse(
    brokers: Connections,
    cluster: Cluster,
    producer: TransactionalProducer,
    unique_name: NameFactory,
) -> None:
    others = [
        b
        for b in cluster.broker_ids
        if b != coordinator_id(brokers.any(), producer.transactional_id)
    ]
    assert others
    identity = {
        "transactional_id": producer.transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
    }
    for broker_id in others:
        raw = brokers.to(broker_id)
        again = raw.call(
            "init_producer_id",
            4,
            transactional_id=producer.transactional_id,
            transaction_timeout=60_000,
        )
        assert code_of(again) == ErrorCode.not_coordinator
        assert (again.producer_id, again.producer_epoch) == (-1, -1)
        responses = [
            raw.call("end_txn", 4, committed=True, **identity),
            raw.call("add_offsets_to_txn", 3, group_id=unique_name(), **identity),
            describe_transaction(raw, producer.transactional_id),
        ]
        assert {code_of(response) for response in responses} == {ErrorCode.not_coordinator}


def test_other_brokers_refuse_to_add_partitions(
    brokers: Connections,
    cluster: Cluster,
    producer: TransactionalProducer,
    topic: Callable[..., str],
) -> None:
    name = topic()
    coordinator = coordinator_id(brokers.any(), producer.transactional_id)
    for broker_id in set(cluster.broker_ids) - {coordinator}:
        response = brokers.to(broker_id).call(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[{"name": name, "partitions": [0]}],
        )
        result = only(only(response.results_by_topic_v3_and_below).results_by_partition)
        assert result.partition_error_code == ErrorCode.not_coordinator


@pytest.mark.parametrize("api", ["end_txn", "add_offsets_to_txn"])
def test_uninitialized_id_has_no_producer(
    brokers: Connections, unique_name: NameFactory, api: str
) -> None:
    name = unique_name()
    raw = brokers.to(coordinator_id(brokers.any(), name))
    extra = {"committed": True} if api == "end_txn" else {"group_id": "g"}
    response = raw.call(api, 3, transactional_id=name, producer_id=1, producer_epoch=0, **extra)
    assert code_of(response) == ErrorCode.invalid_producer_id_mapping
