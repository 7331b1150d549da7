"""Tests of the configs of groups, client metrics and loggers, and of ListConfigResources.

Sources: KIP-848, KIP-714, KIP-412 and KIP-1142.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.consumer_members import SETTINGS, ConsumerMember, settle
from tests.conformance.consumer_members import describe as describe_group
from tests.conformance.eventually import eventually
from tests.conformance.topic_settings import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    SET,
    TOPIC,
    change,
    changes,
    replace_settings,
)
from tests.conformance.transaction_versions import LATEST_TRANSACTION_VERSION
from tests.conformance.wire import only

OF_BROKER, OF_ALL_BROKERS, STATIC, DEFAULT = 2, 3, 4, 5
OF_LOGGER, OF_CLIENT_METRICS, OF_GROUP = 6, 7, 8
UNKNOWN_TYPE, INT, LIST = 0, 3, 7
NONE, INVALID_REQUEST, INVALID_CONFIG = (
    ErrorCode.none,
    ErrorCode.invalid_request,
    ErrorCode.invalid_config,
)
TIMEOUT, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.fixture(scope="package")
def cluster(clusters_of_package: Callable[..., Cluster]) -> Cluster:
    return clusters_of_package(transaction_version=LATEST_TRANSACTION_VERSION, configs=SETTINGS)


@pytest.fixture
def raw(cluster: Cluster) -> Iterator[RawConnection]:
    with RawConnection(cluster.bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def topic(cluster: Cluster, unique_name: Callable[[], str]) -> str:
    name = unique_name()
    cluster.create_topic(name, partitions=2)
    return name


def describe(raw: RawConnection, resource_type: int, name: str, *keys: str) -> Any:
    resource = {
        "resource_type": resource_type,
        "resource_name": name,
        "configuration_keys": keys or None,
    }
    return only(
        raw.call("describe_configs", 4, resources=[resource], include_synonyms=True).results
    )


def described(
    raw: RawConnection, resource_type: int, name: str, *keys: str
) -> Mapping[str, tuple[str | None, int, int, list[tuple[str, str | None, int]]]]:
    """Return the value, the source, the type and the synonyms of each config."""
    found = describe(raw, resource_type, name, *keys)
    assert found.error_code == NONE, found
    assert not any(config.read_only or config.is_sensitive for config in found.configs)
    return {
        config.name: (
            config.value,
            config.config_source,
            config.config_type,
            [(one.name, one.value, one.source) for one in config.synonyms],
        )
        for config in found.configs
    }


def listed(raw: RawConnection, *types: int) -> set[tuple[int, str]]:
    response = raw.call("list_config_resources", 1, resource_types=list(types))
    assert response.error_code == NONE
    return {(one.resource_type, one.resource_name) for one in response.config_resources}


def code(raw: RawConnection, resource_type: int, name: str, *operations: Any) -> ErrorCode:
    result = change(raw, name, *operations, resource_type=resource_type)
    assert (result.error_message is None) == (result.error_code == NONE)
    found = result.error_code
    assert isinstance(found, ErrorCode)
    return found


# Groups


def test_configs_of_a_group(raw: RawConnection, group: str) -> None:
    """A group without configs has those of the broker, and need not exist."""
    inherited = described(raw, GROUP, group)
    assert len(inherited) == 17
    of_broker = [
        ("group.consumer.session.timeout.ms", "6000", STATIC),
        ("group.consumer.session.timeout.ms", "45000", DEFAULT),
    ]
    assert inherited[TIMEOUT] == ("6000", STATIC, INT, of_broker)
    assert inherited["share.isolation.level"][0] == "read_uncommitted"
    assert code(raw, GROUP, group, (TIMEOUT, SET, "7000"), (INTERVAL, SET, "200")) == NONE
    eventually(lambda: (GROUP, group) in listed(raw, GROUP))
    found = described(raw, GROUP, group, TIMEOUT, "no.such.config")
    assert found == {TIMEOUT: ("7000", OF_GROUP, INT, [(TIMEOUT, "7000", OF_GROUP), *of_broker])}
    replaced = replace_settings(raw, group, {TIMEOUT: "8000"}, resource_type=GROUP)
    assert replaced.error_code == NONE
    eventually(lambda: described(raw, GROUP, group)[TIMEOUT][0] == "8000")
    assert described(raw, GROUP, group)[INTERVAL][:2] == ("100", STATIC)
    assert code(raw, GROUP, group, (TIMEOUT, DELETE, None), ("no.such", DELETE, None)) == NONE
    eventually(lambda: (GROUP, group) not in listed(raw, GROUP))


def test_configs_of_a_group_take_effect(
    raw: RawConnection, new_group: Callable[[], str], topic: str
) -> None:
    group, other_group = new_group(), new_group()
    member, unaffected = ConsumerMember(raw, group, topic), ConsumerMember(raw, other_group, topic)
    assert member.join().heartbeat_interval.total_seconds() == 0.1
    interval = ("consumer.assignment.interval.ms", SET, "15000")
    assert code(raw, GROUP, group, (INTERVAL, SET, "200"), (TIMEOUT, SET, "1000"), interval) == NONE
    eventually(lambda: member.heartbeat().heartbeat_interval.total_seconds() == 0.2)
    # The next assignment waits until 15 s after the first one.
    other = ConsumerMember(raw, group, topic)
    other.join()
    member.heartbeat()
    assert (member.epoch, other.epoch, other.owned) == (2, 2, {})
    unaffected.join()
    eventually(lambda: not describe_group(raw, group).members)
    assert describe_group(raw, other_group).members


def test_dynamic_config_of_brokers_takes_effect(
    raw: RawConnection, cluster: Cluster, group: str, topic: str
) -> None:
    name = "group.consumer.assignment.interval.ms"
    member = ConsumerMember(raw, group, topic)
    member.join()
    assert change(raw, "", (name, SET, "15000"), resource_type=BROKER).error_code == NONE
    try:

        def source() -> int:
            return described(raw, GROUP, group)[name.removeprefix("group.")][1]

        eventually(lambda: source() == OF_ALL_BROKERS)
        other = ConsumerMember(raw, group, topic)
        other.join()
        assert (other.epoch, other.owned) == (2, {})
    finally:
        change(raw, "", (name, DELETE, None), resource_type=BROKER)
    settle(member, other)
    assert (member.epoch, other.epoch) == (3, 3)


# Client metrics


def test_subscription_to_client_metrics(raw: RawConnection, unique_name: Callable[[], str]) -> None:
    name = unique_name()
    assert described(raw, CLIENT_METRICS, name) == {
        "interval.ms": ("300000", DEFAULT, INT, []),
        "match": ("", DEFAULT, LIST, []),
        "metrics": ("", DEFAULT, LIST, []),
    }
    pattern = "client_id=a.*,client_software_name=b"
    settings = [("interval.ms", SET, "1000"), ("match", SET, pattern), ("metrics", SET, "*")]
    assert code(raw, CLIENT_METRICS, name, *settings) == NONE
    eventually(lambda: (CLIENT_METRICS, name) in listed(raw, CLIENT_METRICS))
    found = described(raw, CLIENT_METRICS, name, "interval.ms", "match")
    synonym = [("interval.ms", "1000", OF_CLIENT_METRICS)]
    assert found["interval.ms"] == ("1000", OF_CLIENT_METRICS, INT, synonym)
    assert found["match"][0] == pattern
    older = raw.call("list_config_resources", 0)
    assert name in [one.resource_name for one in older.config_resources]
    assert replace_settings(raw, name, {}, resource_type=CLIENT_METRICS).error_code == NONE
    eventually(lambda: (CLIENT_METRICS, name) not in listed(raw))


# Loggers


def test_log_levels(raw: RawConnection, cluster: Cluster) -> None:
    """A logger without a level has that of its parent. Levels are not part of the metadata."""
    broker = str(cluster.broker_ids[0])

    def levels() -> dict[str, str | None]:
        found = described(raw, BROKER_LOGGER, broker)
        assert {(one[1:3], *one[3]) for one in found.values()} == {((OF_LOGGER, UNKNOWN_TYPE),)}
        return {name: one[0] for name, one in found.items()}

    before = levels()
    name = next(name for name, level in before.items() if name != "root" and "." in name)
    try:
        assert code(raw, BROKER_LOGGER, broker, ("root", SET, "FATAL"), (name, SET, "WARN")) == NONE
        assert (levels()["root"], levels()[name]) == ("FATAL", "WARN")
        assert code(raw, BROKER_LOGGER, broker, (name, DELETE, None)) == NONE
        assert levels()[name] == "FATAL"
        validated = change(
            raw, broker, ("root", SET, "INFO"), resource_type=BROKER_LOGGER, validate_only=True
        )
        assert (validated.error_code, levels()["root"]) == (NONE, "FATAL")
    finally:
        change(raw, broker, ("root", SET, str(before["root"])), resource_type=BROKER_LOGGER)
        # The brokers of the reference cluster share this process and its loggers.
        logging.getLogger("broker_ref").setLevel(logging.NOTSET)


def test_loggers_and_other_resources_in_one_request(
    raw: RawConnection, cluster: Cluster, group: str
) -> None:
    broker = str(cluster.broker_ids[0])
    resources = [
        changes(broker, ("root", DELETE, None), resource_type=BROKER_LOGGER),
        changes(group, (TIMEOUT, SET, "7000"), resource_type=GROUP),
        changes("no-such-topic", ("flush.ms", SET, "5")),
    ]
    response = raw.call("incremental_alter_configs", 1, resources=resources)
    assert {(one.resource_type, one.error_code) for one in response.responses} == {
        (BROKER_LOGGER, INVALID_REQUEST),
        (GROUP, NONE),
        (TOPIC, ErrorCode.unknown_topic_or_partition),
    }


def test_repeated_logger_is_refused(raw: RawConnection, cluster: Cluster) -> None:
    broker = str(cluster.broker_ids[0])
    resource = changes(broker, ("root", SET, "INFO"), resource_type=BROKER_LOGGER)
    response = raw.call("incremental_alter_configs", 1, resources=[resource, resource])
    assert {one.error_code for one in response.responses} == {INVALID_REQUEST}


def test_repeated_broker_is_refused(raw: RawConnection, cluster: Cluster, group: str) -> None:
    """Neither of its changes is applied, although one of them is valid."""
    broker, name = str(cluster.broker_ids[0]), "log.retention.ms"
    resources = [
        changes(broker, (name, SET, "5000000"), resource_type=BROKER),
        changes(group, (TIMEOUT, SET, "7000"), resource_type=GROUP),
        changes(broker, (name, SET, "soon"), resource_type=BROKER),
    ]
    response = raw.call("incremental_alter_configs", 1, resources=resources)
    codes = sorted((one.resource_type, one.error_code) for one in response.responses)
    assert codes == [(BROKER, INVALID_REQUEST), (BROKER, INVALID_REQUEST), (GROUP, NONE)]
    eventually(lambda: (GROUP, group) in listed(raw, GROUP))
    assert described(raw, BROKER, broker, name)[name][1] != OF_BROKER


# Invalid requests

OF_GROUP_CONFIGS = [
    (TIMEOUT, SET, "999"),
    (TIMEOUT, SET, "60001"),
    (TIMEOUT, SET, "soon"),
    (TIMEOUT, SET, "7_000"),
    (TIMEOUT, APPEND, "7000"),
    (INTERVAL, SET, "6000"),  # Not less than the session timeout.
    ("consumer.assignment.interval.ms", SET, "15001"),
    ("share.record.lock.duration.ms", SET, "1"),
    ("share.delivery.count.limit", SET, "11"),
    ("share.isolation.level", SET, "none"),
    ("share.auto.offset.reset", SET, "by_duration:1h"),
    ("share.renew.acknowledge.enable", SET, "maybe"),
    ("streams.num.standby.replicas", SET, "3"),
    ("streams.initial.rebalance.delay.ms", SET, "-1"),
    ("no.such.config", SET, "1"),
]
OF_SUBSCRIPTION = [
    ("interval.ms", "99", INVALID_REQUEST),
    ("interval.ms", "3600001", INVALID_REQUEST),
    ("no.such.config", "1", INVALID_REQUEST),
    ("interval.ms", "soon", INVALID_CONFIG),
    ("match", "client_id", INVALID_CONFIG),
    ("match", "client_id=", INVALID_CONFIG),
    ("match", "client_id=[", INVALID_CONFIG),
    ("match", "client=a", INVALID_CONFIG),
    ("match", "client_id=a,b", INVALID_CONFIG),
    ("match", "client_id=a=b", INVALID_CONFIG),
]
OF_LOGGERS = [
    ("no.such.logger", SET, "INFO", INVALID_CONFIG),
    ("no.such.logger", DELETE, None, INVALID_CONFIG),
    ("root", SET, "info", INVALID_CONFIG),
    ("root", SET, "OFF", INVALID_CONFIG),
    ("root", SET, None, INVALID_REQUEST),
    ("root", DELETE, None, INVALID_REQUEST),
    ("root", APPEND, "INFO", INVALID_REQUEST),
]


def test_invalid_configs_are_refused(raw: RawConnection, cluster: Cluster, group: str) -> None:
    broker = str(cluster.broker_ids[0])
    for operation in OF_GROUP_CONFIGS:
        assert code(raw, GROUP, group, operation) == INVALID_CONFIG, operation
    assert code(raw, GROUP, group, (TIMEOUT, SET, None)) == INVALID_REQUEST
    assert code(raw, GROUP, group, (TIMEOUT, SET, "7000"), ("no", SET, "1")) == INVALID_CONFIG
    assert (GROUP, group) not in listed(raw)
    for name, value, expected in OF_SUBSCRIPTION:
        assert code(raw, CLIENT_METRICS, group, (name, SET, value)) == expected, (name, value)
    appended = code(raw, CLIENT_METRICS, group, ("metrics", APPEND, "a"))
    assert (appended, (CLIENT_METRICS, group) in listed(raw)) == (INVALID_CONFIG, False)
    for *change_, expected in OF_LOGGERS:
        assert code(raw, BROKER_LOGGER, broker, tuple(change_)) == expected, change_


def test_invalid_names_are_refused(raw: RawConnection) -> None:
    for resource_type, name in (
        (GROUP, ""),
        (CLIENT_METRICS, ""),
        (BROKER_LOGGER, ""),
        (BROKER_LOGGER, "99"),
        (BROKER_LOGGER, "one"),
    ):
        assert code(raw, resource_type, name, ("root", SET, "INFO")) == INVALID_REQUEST
        assert describe(raw, resource_type, name).error_code == INVALID_REQUEST
    replaced = replace_settings(raw, "1", {"root": "INFO"}, resource_type=BROKER_LOGGER)
    assert replaced.error_code == INVALID_REQUEST


# ListConfigResources


def test_resources_are_listed(raw: RawConnection, cluster: Cluster, group: str, topic: str) -> None:
    """All topics and brokers are listed, but only groups that have configs."""
    assert code(raw, GROUP, group, (TIMEOUT, SET, "7000")) == NONE
    eventually(lambda: (GROUP, group) in listed(raw))
    of_brokers = {(t, str(b)) for t in (BROKER, BROKER_LOGGER) for b in cluster.broker_ids}
    assert listed(raw, BROKER, BROKER_LOGGER) == of_brokers
    assert listed(raw) >= of_brokers | {(GROUP, group), (TOPIC, topic)}
    unknown = raw.call("list_config_resources", 1, resource_types=[TOPIC, 99])
    assert (unknown.error_code, unknown.config_resources) == (ErrorCode.unsupported_version, ())
