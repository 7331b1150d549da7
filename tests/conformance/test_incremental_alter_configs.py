"""Tests of IncrementalAlterConfigs, which changes single configs (KIP-339)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.batches import Record, batch, values
from tests.conformance.eventually import eventually
from tests.conformance.topic_settings import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    UNKNOWN_OPERATION,
    UNKNOWN_RESOURCE,
    Operation,
    change,
    changes,
    own_settings,
    settings,
)
from tests.conformance.wire import EARLIEST, LATEST, append, list_offset, produce, served

TopicFactory = Callable[..., str]
ClusterFactory = Callable[[Mapping[str, str] | None], Cluster]
NameFactory = Callable[[], str]


def await_own(raw: RawConnection, name: str, expected: dict[str, str]) -> None:
    """Wait until all brokers show these configs, because the controller responds earlier."""
    eventually(lambda: own_settings(raw, name) == expected)


def test_set_changes_only_the_given_config(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"retention.ms": "1000", "segment.bytes": "2000000"})
    result = change(raw, name, ("retention.ms", SET, "2000"), ("flush.ms", SET, "5"))
    assert (result.error_code, result.resource_name) == (ErrorCode.none, name)
    await_own(raw, name, {"retention.ms": "2000", "segment.bytes": "2000000", "flush.ms": "5"})


def test_delete_restores_the_default(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"retention.ms": "1000", "segment.bytes": "2000000"})
    assert change(raw, name, ("retention.ms", DELETE, None)).error_code == ErrorCode.none
    await_own(raw, name, {"segment.bytes": "2000000"})
    assert settings(raw, name)["retention.ms"] == "604800000"


def test_deleting_an_unset_config_is_no_error(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"retention.ms": "1000"})
    assert change(raw, name, ("segment.bytes", DELETE, None)).error_code == ErrorCode.none
    assert change(raw, name, ("no.such.config", DELETE, None)).error_code == ErrorCode.none
    assert own_settings(raw, name) == {"retention.ms": "1000"}


def test_append_adds_to_a_list_and_starts_from_the_default(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    assert change(raw, name, ("cleanup.policy", APPEND, "compact")).error_code == ErrorCode.none
    await_own(raw, name, {"cleanup.policy": "delete,compact"})
    # Appending an element that is already in the list has no effect.
    assert change(raw, name, ("cleanup.policy", APPEND, "delete")).error_code == ErrorCode.none
    assert own_settings(raw, name) == {"cleanup.policy": "delete,compact"}


def test_empty_elements_at_the_end_are_not_appended(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic(**{"cleanup.policy": "compact"})
    assert change(raw, name, ("cleanup.policy", APPEND, "delete,,")).error_code == ErrorCode.none
    await_own(raw, name, {"cleanup.policy": "compact,delete"})


def test_subtract_removes_from_a_list(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"cleanup.policy": "compact,delete"})
    assert change(raw, name, ("cleanup.policy", SUBTRACT, "delete")).error_code == ErrorCode.none
    await_own(raw, name, {"cleanup.policy": "compact"})
    # Subtracting an element that is not in the list has no effect.
    assert change(raw, name, ("cleanup.policy", SUBTRACT, "delete")).error_code == ErrorCode.none
    assert own_settings(raw, name) == {"cleanup.policy": "compact"}
    assert change(raw, name, ("cleanup.policy", SUBTRACT, "compact")).error_code == ErrorCode.none
    await_own(raw, name, {"cleanup.policy": ""})


def test_subtract_removes_the_first_occurrence(raw: RawConnection, topic: TopicFactory) -> None:
    config = "follower.replication.throttled.replicas"
    name = topic(**{config: "1:1,2:1,1:1"})
    assert change(raw, name, (config, SUBTRACT, "1:1")).error_code == ErrorCode.none
    await_own(raw, name, {config: "2:1,1:1"})


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_only_lists_are_appended_to_and_subtracted_from(
    raw: RawConnection, topic: TopicFactory, operation: int
) -> None:
    name = topic()
    result = change(raw, name, ("retention.ms", operation, "1"))
    assert result.error_code == ErrorCode.invalid_config
    assert result.error_message


def test_every_version_changes_a_config(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    for version in served(raw, "incremental_alter_configs"):
        value = f"{1000 + version}"
        result = change(raw, name, ("retention.ms", SET, value), version=version)
        assert result.error_code == ErrorCode.none, version
        await_own(raw, name, {"retention.ms": value})


def test_validate_only_changes_nothing(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"retention.ms": "1000"})
    good = change(raw, name, ("retention.ms", SET, "2000"), validate_only=True)
    assert good.error_code == ErrorCode.none
    bad = change(raw, name, ("retention.ms", SET, "soon"), validate_only=True)
    assert bad.error_code == ErrorCode.invalid_config
    # Once a later change is effective, the first change would be effective too.
    assert change(raw, name, ("flush.ms", SET, "5")).error_code == ErrorCode.none
    await_own(raw, name, {"retention.ms": "1000", "flush.ms": "5"})


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ("no.such.config", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "forget"),
        ("max.message.bytes", "-1"),
        ("message.timestamp.type", "Yesterday"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "1_0"),
        ("segment.bytes", "2_000_000"),
        ("min.cleanable.dirty.ratio", "0.2_5"),
        ("segment.bytes", "1"),
        ("unclean.leader.election.enable", "maybe"),
    ],
)
def test_invalid_config_is_refused(
    raw: RawConnection, topic: TopicFactory, config: str, value: str
) -> None:
    name = topic()
    result = change(raw, name, (config, SET, value))
    assert result.error_code == ErrorCode.invalid_config
    assert result.error_message
    assert own_settings(raw, name) == {}


def test_one_invalid_config_refuses_all_of_its_topic(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name, other = topic(), topic()
    response = raw.call(
        "incremental_alter_configs",
        1,
        resources=[
            changes(name, ("flush.ms", SET, "5"), ("retention.ms", SET, "soon")),
            changes(other, ("flush.ms", SET, "5")),
        ],
    )
    assert {r.resource_name: r.error_code for r in response.responses} == {
        name: ErrorCode.invalid_config,
        other: ErrorCode.none,
    }
    await_own(raw, other, {"flush.ms": "5"})
    assert own_settings(raw, name) == {}


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([("retention.ms", SET, None)], id="null set"),
        pytest.param([("cleanup.policy", APPEND, None)], id="null appended"),
        pytest.param([("flush.ms", SET, "1"), ("flush.ms", SET, "2")], id="a config twice"),
        pytest.param([("flush.ms", SET, "1"), ("flush.ms", DELETE, None)], id="set and deleted"),
    ],
)
def test_request_that_contradicts_itself_is_refused(
    raw: RawConnection, topic: TopicFactory, operations: list[Operation]
) -> None:
    name = topic()
    assert change(raw, name, *operations).error_code == ErrorCode.invalid_request
    assert own_settings(raw, name) == {}


def test_unknown_operation_changes_nothing(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    result = change(raw, name, ("flush.ms", UNKNOWN_OPERATION, "1"))
    assert result.error_code != ErrorCode.none
    assert own_settings(raw, name) == {}


def test_topic_named_twice_is_refused(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    twice = [changes(name, ("flush.ms", SET, value)) for value in ("1", "2")]
    response = raw.call("incremental_alter_configs", 1, resources=twice)
    assert {r.error_code for r in response.responses} == {ErrorCode.invalid_request}
    assert own_settings(raw, name) == {}


def test_unknown_topic(raw: RawConnection, unique_name: NameFactory) -> None:
    result = change(raw, unique_name(), ("flush.ms", SET, "5"))
    assert result.error_code == ErrorCode.unknown_topic_or_partition


def test_invalid_topic_name_is_refused(raw: RawConnection) -> None:
    result = change(raw, "a b", ("flush.ms", SET, "5"))
    assert result.error_code == ErrorCode.invalid_topic_exception


def test_default_topic_resource_is_refused(raw: RawConnection) -> None:
    assert change(raw, "", ("flush.ms", SET, "5")).error_code == ErrorCode.invalid_request


def test_unknown_resource_type_is_refused(raw: RawConnection) -> None:
    result = change(raw, "x", ("flush.ms", SET, "5"), resource_type=UNKNOWN_RESOURCE)
    assert result.error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("broker", ["77", "one"])
def test_broker_does_not_change_other_brokers(raw: RawConnection, broker: str) -> None:
    result = change(raw, broker, ("num.io.threads", SET, "5"), resource_type=BROKER)
    assert result.error_code == ErrorCode.invalid_request


@pytest.mark.slow
def test_ten_thousand_changes_get_a_result_each(
    raw: RawConnection, unique_name: NameFactory
) -> None:
    missing = unique_name()
    requested = [changes(f"{missing}.{n}", ("flush.ms", SET, "5")) for n in range(10_000)]
    responses = raw.call("incremental_alter_configs", 1, resources=requested).responses
    assert len(responses) == 10_000
    assert {r.error_code for r in responses} == {ErrorCode.unknown_topic_or_partition}


@pytest.mark.slow
def test_more_than_ten_thousand_changes_are_refused(
    raw: RawConnection, unique_name: NameFactory
) -> None:
    group = unique_name()
    config = "consumer.session.timeout.ms"
    requested = [
        changes(f"{group}.{n}", (config, SET, "50000"), resource_type=GROUP) for n in range(10_001)
    ]
    responses = raw.call("incremental_alter_configs", 1, resources=requested).responses
    assert {r.error_code for r in responses} == {ErrorCode.policy_violation}


def test_max_message_bytes_takes_effect(raw: RawConnection, topic: TopicFactory) -> None:
    name, large = topic(), batch([Record(value=b"x" * 3000)])
    append(raw, name, large)
    change(raw, name, ("max.message.bytes", SET, "1000"))
    too_large = ErrorCode.message_too_large
    eventually(lambda: produce(raw, name, large).error_code == too_large)
    append(raw, name, batch(values("small")))
    change(raw, name, ("max.message.bytes", DELETE, None))
    eventually(lambda: produce(raw, name, large).error_code == ErrorCode.none)


def test_cleanup_policy_takes_effect(raw: RawConnection, topic: TopicFactory) -> None:
    # A compacted topic rejects records without a key.
    name, keyless = topic(), batch([Record(key=None)])
    append(raw, name, keyless)
    change(raw, name, ("cleanup.policy", SET, "compact"))
    eventually(lambda: produce(raw, name, keyless).error_code == ErrorCode.invalid_record)
    change(raw, name, ("cleanup.policy", SET, "delete"))
    eventually(lambda: produce(raw, name, keyless).error_code == ErrorCode.none)


def test_message_timestamp_type_takes_effect(raw: RawConnection, topic: TopicFactory) -> None:
    name, one = topic(), batch(values("a"))
    assert produce(raw, name, one).log_append_time is None
    change(raw, name, ("message.timestamp.type", SET, "LogAppendTime"))
    eventually(lambda: produce(raw, name, one).log_append_time is not None)


@pytest.fixture(scope="module")
def tidy(request: pytest.FixtureRequest, cluster_with: ClusterFactory) -> Cluster:
    """Return a cluster that checks retention continuously."""
    configs = {"log.retention.check.interval.ms": "100"}
    if not request.config.getoption("--cluster").startswith("reference"):
        configs["log.initial.task.delay.ms"] = "0"  # An internal config of Apache Kafka.
    return cluster_with(configs)


@pytest.mark.slow
@pytest.mark.parametrize("config", ["retention.bytes", "retention.ms"])
def test_retention_takes_effect(tidy: Cluster, unique_name: NameFactory, config: str) -> None:
    name = unique_name()
    tidy.create_topic(name, configs={"retention.ms": "-1"})
    with RawConnection(tidy.bootstrap_servers) as raw:
        for _ in range(3):
            append(raw, name, batch([Record(value=b"x" * 500_000)]))
        assert list_offset(raw, name, EARLIEST).offset == 0
        # Retention deletes whole segments, and the active segment only after it was rolled.
        little = {"segment.bytes": "1048576", config: "1"}
        change(raw, name, *((n, SET, v) for n, v in little.items()))
        await_own(raw, name, {"retention.ms": "-1"} | little)
        append(raw, name, batch([Record(value=b"x" * 500_000)]))
        append(raw, name, batch(values("in a new segment")))
        eventually(lambda: list_offset(raw, name, EARLIEST).offset >= 3)
        assert list_offset(raw, name, LATEST).offset == 5


def test_value_that_becomes_too_long_is_refused(raw: RawConnection, topic: TopicFactory) -> None:
    """A value has at most 32,767 bytes, like a string in a request."""
    name, config = topic(), "leader.replication.throttled.replicas"
    first, second = (
        ",".join(f"{n}:1" for n in range(start, start + 4_000)) for start in (10_000, 20_000)
    )
    assert len(first) < 2**15 < len(first) + len(second)
    assert change(raw, name, (config, SET, first)).error_code == ErrorCode.none
    assert change(raw, name, (config, APPEND, second)).error_code == ErrorCode.invalid_config
    await_own(raw, name, {config: first})
