"""Tests of AlterConfigs, which replaces all configs of a topic (KIP-133)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import Record, batch
from tests.conformance.eventually import eventually
from tests.conformance.topic_settings import (
    BROKER,
    TOPIC,
    UNKNOWN_RESOURCE,
    own_settings,
    replace_settings,
    settings,
)
from tests.conformance.wire import append, produce, served

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]


def await_own(raw: RawConnection, name: str, expected: dict[str, str]) -> None:
    """Wait until all brokers show these configs, because the controller responds earlier."""
    eventually(lambda: own_settings(raw, name) == expected)


def test_configs_not_in_the_request_return_to_their_default(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic(**{"retention.ms": "1000", "segment.bytes": "2000000"})
    result = replace_settings(raw, name, {"retention.ms": "2000", "flush.ms": "5"})
    assert (result.error_code, result.resource_type) == (ErrorCode.none, TOPIC)
    assert result.resource_name == name
    await_own(raw, name, {"retention.ms": "2000", "flush.ms": "5"})
    assert settings(raw, name)["segment.bytes"] == "1073741824"


def test_empty_request_restores_all_defaults(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"retention.ms": "1000"})
    assert replace_settings(raw, name, {}).error_code == ErrorCode.none
    await_own(raw, name, {})


def test_every_version_changes_a_config(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    for version in served(raw, "alter_configs"):
        value = f"{1000 + version}"
        result = replace_settings(raw, name, {"retention.ms": value}, version=version)
        assert result.error_code == ErrorCode.none, version
        await_own(raw, name, {"retention.ms": value})


def test_validate_only_changes_nothing(raw: RawConnection, topic: TopicFactory) -> None:
    name, witness = topic(**{"retention.ms": "1000"}), topic()
    good = replace_settings(raw, name, {"retention.ms": "2000"}, validate_only=True)
    assert good.error_code == ErrorCode.none
    bad = replace_settings(raw, name, {"retention.ms": "soon"}, validate_only=True)
    assert bad.error_code == ErrorCode.invalid_config
    # Once a later change is effective, the validated change would be effective too.
    replace_settings(raw, witness, {"flush.ms": "5"})
    await_own(raw, witness, {"flush.ms": "5"})
    assert own_settings(raw, name) == {"retention.ms": "1000"}


@pytest.mark.parametrize(
    ("config", "value", "error_code"),
    [
        ("no.such.config", "1", ErrorCode.invalid_config),
        ("retention.ms", "soon", ErrorCode.invalid_config),
        ("cleanup.policy", "forget", ErrorCode.invalid_config),
        ("min.insync.replicas", "0", ErrorCode.invalid_config),
        ("retention.ms", None, ErrorCode.invalid_request),
    ],
)
def test_invalid_config_is_refused_and_nothing_changes(
    raw: RawConnection, topic: TopicFactory, config: str, value: str | None, error_code: ErrorCode
) -> None:
    name = topic(**{"segment.bytes": "2000000"})
    result = replace_settings(raw, name, {"flush.ms": "5", config: value})
    assert result.error_code == error_code
    assert result.error_message
    assert own_settings(raw, name) == {"segment.bytes": "2000000"}


def test_unknown_topic(raw: RawConnection, unique_name: NameFactory) -> None:
    result = replace_settings(raw, unique_name(), {"flush.ms": "5"})
    assert result.error_code == ErrorCode.unknown_topic_or_partition


def test_invalid_topic_name_is_refused(raw: RawConnection) -> None:
    result = replace_settings(raw, "a b", {"flush.ms": "5"})
    assert result.error_code == ErrorCode.invalid_topic_exception


@pytest.mark.parametrize(
    ("resource_type", "name"), [(UNKNOWN_RESOURCE, "x"), (BROKER, "77"), (BROKER, "one")]
)
def test_other_resource_types_and_brokers_are_refused(
    raw: RawConnection, resource_type: int, name: str
) -> None:
    result = replace_settings(raw, name, {"num.io.threads": "5"}, resource_type=resource_type)
    assert result.error_code == ErrorCode.invalid_request


def test_each_topic_has_one_result(
    raw: RawConnection, topic: TopicFactory, unique_name: NameFactory
) -> None:
    good, bad, unknown = topic(), topic(), unique_name()
    resources = [
        {
            "resource_type": TOPIC,
            "resource_name": name,
            "configs": [{"name": "flush.ms", "value": value}],
        }
        for name, value in ((good, "1"), (bad, "soon"), (unknown, "3"))
    ]
    response = raw.call("alter_configs", 2, resources=resources)
    assert {r.resource_name: r.error_code for r in response.responses} == {
        good: ErrorCode.none,
        bad: ErrorCode.invalid_config,
        unknown: ErrorCode.unknown_topic_or_partition,
    }
    await_own(raw, good, {"flush.ms": "1"})
    assert own_settings(raw, bad) == {}


def test_request_without_resources(raw: RawConnection) -> None:
    assert raw.call("alter_configs", 2, resources=[]).responses == ()


def test_configs_take_effect(raw: RawConnection, topic: TopicFactory) -> None:
    name, large, keyless = topic(), batch([Record(value=b"x" * 3000)]), batch([Record(key=None)])
    append(raw, name, large)
    replace_settings(raw, name, {"max.message.bytes": "1000", "cleanup.policy": "compact"})
    eventually(lambda: produce(raw, name, large).error_code == ErrorCode.message_too_large)
    eventually(lambda: produce(raw, name, keyless).error_code == ErrorCode.invalid_record)
    replace_settings(raw, name, {})
    eventually(lambda: produce(raw, name, large).error_code == ErrorCode.none)
    eventually(lambda: produce(raw, name, keyless).error_code == ErrorCode.none)
