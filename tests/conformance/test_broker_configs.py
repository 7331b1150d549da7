"""Tests of the configs of brokers: DescribeConfigs, and changes while the brokers run (KIP-226)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.clusters.features import finalize
from integration.raw import RawConnection
from tests.conformance.batches import Record, batch
from tests.conformance.eventually import eventually
from tests.conformance.topic_settings import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    TOPIC,
    UNKNOWN_OPERATION,
    change,
    changes,
    own_settings,
    replace_settings,
)
from tests.conformance.wire import only, produce

TopicFactory = Callable[..., str]

OF_TOPIC, OF_BROKER, OF_ALL_BROKERS, STATIC, DEFAULT = 1, 2, 3, 4, 5
LONG, PASSWORD = 5, 9
ALL_BROKERS = ""
MAX_LAG = "log.cleaner.max.compaction.lag.ms"


@pytest.fixture(scope="module")
def broker(cluster_with: Callable[..., Cluster]) -> Cluster:
    """Return a cluster of one broker with a rack and a static config."""
    return cluster_with({"group.max.size": "77"}, racks={1: "a"})


@pytest.fixture
def raw(broker: Cluster) -> Iterator[RawConnection]:
    """Return a connection to the broker, and remove its dynamic configs after the test."""
    with RawConnection(broker.address(1)) as connection:
        yield connection
        for name, source in (("1", OF_BROKER), (ALL_BROKERS, OF_ALL_BROKERS)):
            names = [
                c.name for c in described(connection, name).values() if c.config_source == source
            ]
            deletions = [(n, DELETE, None) for n in names if n != "min.insync.replicas"]
            change(connection, name, *deletions, resource_type=BROKER)


@pytest.fixture
def topic(broker: Cluster, unique_name: Callable[[], str]) -> TopicFactory:
    def create(**configs: str) -> str:
        name = unique_name()
        broker.create_topic(name, configs=configs)
        return name

    return create


def described(
    raw: RawConnection, name: str, *keys: str, resource_type: int = BROKER
) -> Mapping[str, Any]:
    """Return the configs `keys` of a resource, or all configs."""
    resource = {
        "resource_type": resource_type,
        "resource_name": name,
        "configuration_keys": keys or None,
    }
    fields = {"include_synonyms": True, "include_documentation": True}
    found = only(raw.call("describe_configs", 4, resources=[resource], **fields).results)
    assert found.error_code == ErrorCode.none, found
    return {config.name: config for config in found.configs}


def synonyms(config: Any) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in config.synonyms]


def await_value(raw: RawConnection, name: str, config: str, value: str | None) -> None:
    """Wait until a broker has applied a change, because the controller responds earlier."""

    def is_applied() -> bool:
        found = described(raw, name, config).get(config)  # only applied defaults are described
        return found is not None and found.value == value

    eventually(is_applied)


def test_all_configs_of_a_broker_are_described(raw: RawConnection, broker: Cluster) -> None:
    found = described(raw, "1")
    assert len(found) > 316
    assert all(config.documentation is not None for config in found.values())
    address = f"PLAINTEXT://{broker.address(1)}"
    for name, value, source, is_read_only in (
        ("node.id", "1", STATIC, True),
        ("broker.id", "1", STATIC, True),
        ("broker.rack", "a", STATIC, True),
        ("advertised.listeners", address, STATIC, True),
        ("listeners", address, STATIC, False),
        ("process.roles", "broker", STATIC, True),
        ("group.max.size", "77", STATIC, True),
        ("num.io.threads", "8", DEFAULT, False),
        ("log.retention.ms", None, DEFAULT, False),
        ("log.retention.hours", "168", DEFAULT, True),
        ("ssl.keystore.location", None, DEFAULT, False),
        ("authorizer.class.name", "", DEFAULT, True),
    ):
        config = found[name]
        seen = (config.value, config.config_source, config.read_only)
        assert seen == (value, source, is_read_only), name
        assert not config.is_sensitive, name
    password = found["ssl.key.password"]
    assert (password.value, password.is_sensitive, password.config_type) == (None, True, PASSWORD)
    assert synonyms(found["group.max.size"]) == [
        ("group.max.size", "77", STATIC),
        ("group.max.size", "2147483647", DEFAULT),
    ]


@pytest.mark.kafka_only
def test_the_tables_of_the_reference_cluster_are_those_of_kafka(raw: RawConnection) -> None:
    """Types, defaults, sensitivity and update modes. Some defaults differ, see SKIPPED.md."""
    from broker_ref.broker_configs import CONFIG_KEYS  # noqa: PLC0415
    from broker_ref.config_keys import UpdateMode  # noqa: PLC0415

    differs = {"listeners", "node.id"}
    for name, config in described(raw, "1").items():
        key = CONFIG_KEYS[name]
        is_read_only = key.update_mode is UpdateMode.READ_ONLY
        assert (key.type, key.is_sensitive, is_read_only) == (
            config.config_type,
            config.is_sensitive,
            config.read_only,
        ), name
        if config.config_source == DEFAULT and name not in differs:
            assert key.text(key.default) == config.value, name


def test_dynamic_configs_take_precedence_over_static_configs(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    for resource, value in ((ALL_BROKERS, "7000"), ("1", "6000")):
        result = change(raw, resource, ("log.retention.ms", SET, value), resource_type=BROKER)
        assert (result.error_code, result.resource_name) == (ErrorCode.none, resource)
        await_value(raw, "1", "log.retention.ms", value)
    of_broker = described(raw, "1", "log.retention.ms")["log.retention.ms"]
    levels = [
        ("log.retention.ms", "6000", OF_BROKER),
        ("log.retention.ms", "7000", OF_ALL_BROKERS),
        ("log.retention.hours", "168", DEFAULT),
    ]
    assert (of_broker.config_source, of_broker.config_type) == (OF_BROKER, LONG)
    assert synonyms(of_broker) == levels
    of_topic = described(raw, name, resource_type=TOPIC)["retention.ms"]
    assert (of_topic.value, of_topic.config_source) == ("6000", OF_BROKER)
    assert synonyms(of_topic) == levels
    of_all = described(raw, ALL_BROKERS, "log.retention.ms")
    assert synonyms(of_all["log.retention.ms"]) == levels[1:2]
    change(raw, "1", ("log.retention.ms", DELETE, None), resource_type=BROKER)
    await_value(raw, "1", "log.retention.ms", "7000")


def test_dynamic_configs_are_not_compared_with_those_of_topics(
    raw: RawConnection, topic: TopicFactory
) -> None:
    """Each value is valid, and brokers use a combination that is not."""
    changed = change(raw, ALL_BROKERS, (MAX_LAG, SET, "500"), resource_type=BROKER)
    assert changed.error_code == ErrorCode.none
    await_value(raw, ALL_BROKERS, MAX_LAG, "500")
    for configs in ({}, {"min.compaction.lag.ms": "1000"}):
        eventually(partial(is_written, raw, topic(**configs)))


def is_written(raw: RawConnection, topic: str) -> bool:
    return bool(produce(raw, topic, batch([Record()])).error_code == ErrorCode.none)


def test_static_configs_are_compared_with_those_of_topics(
    own: RawConnection, unique_name: Callable[[], str]
) -> None:
    name = unique_name()
    create = {"num_partitions": 1, "replication_factor": 1, "name": name}
    for lag, expected in (("501", ErrorCode.invalid_config), ("500", ErrorCode.none)):
        configs = [{"name": "min.compaction.lag.ms", "value": lag}]
        response = own.call("create_topics", 7, topics=[create | {"configs": configs}])
        assert only(response.topics).error_code == expected
    eventually(lambda: "min.compaction.lag.ms" in own_settings(own, name))
    changed = change(own, name, ("min.compaction.lag.ms", SET, "501"))
    assert changed.error_code == ErrorCode.invalid_config


def test_dynamic_configs_take_effect(raw: RawConnection, topic: TopicFactory) -> None:
    inherits, own = topic(), topic(**{"max.message.bytes": "5000"})
    large = batch([Record(value=b"x" * 3000)])
    change(raw, ALL_BROKERS, ("message.max.bytes", SET, "1000"), resource_type=BROKER)
    eventually(lambda: produce(raw, inherits, large).error_code == ErrorCode.message_too_large)
    assert produce(raw, own, large).error_code == ErrorCode.none
    change(raw, "1", ("message.max.bytes", SET, "4000"), resource_type=BROKER)
    eventually(lambda: produce(raw, inherits, large).error_code == ErrorCode.none)


@pytest.mark.parametrize("name", ["log.cleaner.min.cleanable.ratio", "log.cleanup.policy"])
def test_values_of_one_broker_are_printed_and_those_of_all_are_not(
    raw: RawConnection, name: str
) -> None:
    text, printed = {"log.cleanup.policy": ("compact, delete", "compact,delete")}.get(
        name, ("1", "1.0")
    )
    change(raw, ALL_BROKERS, (name, SET, text), resource_type=BROKER)
    await_value(raw, "1", name, printed)
    assert described(raw, ALL_BROKERS, name)[name].value == text


def test_append_adds_to_the_default(raw: RawConnection) -> None:
    change(raw, "1", ("log.cleanup.policy", APPEND, "compact"), resource_type=BROKER)
    await_value(raw, "1", "log.cleanup.policy", "delete,compact")


def test_alter_configs_replaces_the_dynamic_configs(raw: RawConnection) -> None:
    change(raw, "1", ("log.flush.interval.ms", SET, "1000"), resource_type=BROKER)
    await_value(raw, "1", "log.flush.interval.ms", "1000")
    result = replace_settings(raw, "1", {"log.retention.ms": "8000"}, resource_type=BROKER)
    assert result.error_code == ErrorCode.none
    await_value(raw, "1", "log.retention.ms", "8000")
    assert described(raw, "1", "log.flush.interval.ms")["log.flush.interval.ms"].value is None


def test_unknown_configs_are_stored_and_hidden(raw: RawConnection) -> None:
    result = change(raw, "1", ("no.such.config", SET, "secret?"), resource_type=BROKER)
    assert result.error_code == ErrorCode.none
    eventually(lambda: "no.such.config" in described(raw, "1", "no.such.config"))
    config = described(raw, "1", "no.such.config")["no.such.config"]
    assert (config.value, config.is_sensitive, config.config_source) == (None, True, OF_BROKER)


@pytest.mark.parametrize(
    ("resource", "config", "operation", "value", "error_code"),
    [
        ("1", "num.partitions", SET, "3", ErrorCode.invalid_request),
        (ALL_BROKERS, "num.partitions", SET, "3", ErrorCode.invalid_request),
        ("1", "log.retention.hours", SET, "3", ErrorCode.invalid_request),
        ("1", "log.retention.ms", SET, "soon", ErrorCode.invalid_request),
        (ALL_BROKERS, "log.retention.ms", SET, "0", ErrorCode.invalid_request),
        ("1", "message.max.bytes", SET, "-1", ErrorCode.invalid_request),
        ("1", "num.io.threads", SET, "0", ErrorCode.invalid_request),
        ("1", "max.connections", SET, "0", ErrorCode.invalid_request),
        ("1", "log.cleaner.threads", SET, "0", ErrorCode.invalid_request),
        ("1", "compression.gzip.level", SET, "0", ErrorCode.invalid_request),
        (ALL_BROKERS, "log.cleaner.io.buffer.size", SET, "-1", ErrorCode.invalid_request),
        (ALL_BROKERS, "cordoned.log.dirs", SET, "/x", ErrorCode.invalid_request),
        ("1", "ssl.keystore.location", SET, "/x", ErrorCode.invalid_request),
        (ALL_BROKERS, "listeners", SET, "PLAINTEXT://:1", ErrorCode.invalid_request),
        ("1", "leader.replication.throttled.rate", SET, "x", ErrorCode.invalid_request),
        ("1", "leader.replication.throttled.rate", SET, "1_0", ErrorCode.invalid_request),
        ("1", "log.cleaner.io.max.bytes.per.second", SET, "1_0.5", ErrorCode.invalid_request),
        ("1", "log.retention.ms", APPEND, "1", ErrorCode.invalid_config),
        ("1", "no.such.config", APPEND, "1", ErrorCode.invalid_config),
        ("1", "log.retention.ms", UNKNOWN_OPERATION, "1", ErrorCode.invalid_request),
        ("1", "log.retention.ms", SET, None, ErrorCode.invalid_request),
        ("2", "log.retention.ms", SET, "1", ErrorCode.invalid_request),
        ("one", "log.retention.ms", SET, "1", ErrorCode.invalid_request),
        ("2147483648", "log.retention.ms", SET, "1", ErrorCode.invalid_request),
        ("9" * 5_000, "log.retention.ms", SET, "1", ErrorCode.invalid_request),
    ],
)
def test_invalid_change_is_refused(  # noqa: PLR0917
    raw: RawConnection,
    resource: str,
    config: str,
    operation: int,
    value: str | None,
    error_code: ErrorCode,
) -> None:
    result = change(
        raw,
        resource,
        ("log.flush.interval.ms", SET, "5"),
        (config, operation, value),
        resource_type=BROKER,
    )
    assert result.error_code == error_code
    assert result.error_message
    assert described(raw, "1", "log.flush.interval.ms")["log.flush.interval.ms"].value is None


def test_read_only_config_can_be_deleted(raw: RawConnection) -> None:
    result = change(raw, "1", ("num.partitions", DELETE, None), resource_type=BROKER)
    assert result.error_code == ErrorCode.none


def test_one_refused_resource_does_not_affect_the_others(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    resources = [
        changes("2", ("log.retention.ms", SET, "1"), resource_type=BROKER),
        changes(name, ("flush.ms", SET, "5")),
        changes("1", ("log.retention.ms", SET, "9000"), resource_type=BROKER),
    ]
    response = raw.call("incremental_alter_configs", 1, resources=resources)
    assert {(r.resource_type, r.resource_name): r.error_code for r in response.responses} == {
        (BROKER, "2"): ErrorCode.invalid_request,
        (TOPIC, name): ErrorCode.none,
        (BROKER, "1"): ErrorCode.none,
    }
    await_value(raw, "1", "log.retention.ms", "9000")
    eventually(lambda: own_settings(raw, name) == {"flush.ms": "5"})


# min.insync.replicas with eligible leader replicas (KIP-966)

MIN_ISR, ELR = "min.insync.replicas", "eligible.leader.replicas.version"


@pytest.fixture
def own(cluster_with: Callable[..., Cluster]) -> Iterator[RawConnection]:
    """Return a connection to a cluster with static configs."""
    with RawConnection(cluster_with({MIN_ISR: "2", MAX_LAG: "500"}).address(1)) as connection:
        yield connection


def min_isr(raw: RawConnection, name: str) -> tuple[str | None, int] | None:
    found = described(raw, name, MIN_ISR).get(MIN_ISR)
    return None if found is None else (found.value, found.config_source)


def change_min_isr(raw: RawConnection, name: str, value: str | None) -> ErrorCode:
    operation = DELETE if value is None else SET
    code = change(raw, name, (MIN_ISR, operation, value), resource_type=BROKER).error_code
    assert isinstance(code, ErrorCode)
    return code


def test_min_insync_replicas_with_eligible_leader_replicas(own: RawConnection) -> None:
    """The static value becomes a dynamic value of all brokers, which stays while ELR is enabled."""
    none, refused = ErrorCode.none, ErrorCode.invalid_config
    assert min_isr(own, ALL_BROKERS) == ("2", OF_ALL_BROKERS)
    assert [change_min_isr(own, "1", value) for value in ("3", None)] == [refused, refused]
    of_broker = replace_settings(own, "1", {MIN_ISR: "3"}, resource_type=BROKER)
    assert (of_broker.error_code, change_min_isr(own, ALL_BROKERS, None)) == (refused, refused)
    cleared = replace_settings(own, ALL_BROKERS, {}, resource_type=BROKER)
    assert cleared.error_code == refused
    kept = replace_settings(own, ALL_BROKERS, {MIN_ISR: "3"}, resource_type=BROKER)
    assert kept.error_code == none
    eventually(lambda: min_isr(own, "1") == ("3", OF_ALL_BROKERS))
    finalize([own.address], {ELR: 0})
    assert change_min_isr(own, ALL_BROKERS, None) == none
    assert change_min_isr(own, "1", "4") == none
    eventually(lambda: (min_isr(own, ALL_BROKERS), min_isr(own, "1")) == (None, ("4", OF_BROKER)))
    finalize([own.address], {ELR: 1})
    eventually(lambda: min_isr(own, "1") == ("2", OF_ALL_BROKERS))
