"""Tests of DescribeConfigs for topics and brokers (KIP-133, KIP-569)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.wire import only, served

TopicFactory = Callable[..., str]
TOPIC, BROKER, UNKNOWN_RESOURCE = 2, 4, 99
DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG = 1, 4, 5
STRING, INT, LONG, LIST = 2, 3, 5, 7


def describe(
    raw: RawConnection,
    resource_type: int,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    version: int = 4,
    **options: Any,
) -> Any:
    resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": keys}
    return only(raw.call("describe_configs", version, resources=[resource], **options).results)


def configs(result: Any) -> dict[str, Any]:
    assert result.error_code == ErrorCode.none, result
    return {config.name: config for config in result.configs}


def test_topic_has_its_own_configs_and_the_defaults(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic(**{"retention.ms": "1234", "cleanup.policy": "compact"})
    result = describe(raw, TOPIC, name)
    assert (result.resource_type, result.resource_name) == (TOPIC, name)
    found = configs(result)
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == (
        "1234",
        DYNAMIC_TOPIC_CONFIG,
    )
    assert found["cleanup.policy"].value == "compact"
    assert found["min.insync.replicas"].value == "1"
    for config, value in (
        ("max.message.bytes", "1048588"),
        ("message.timestamp.type", "CreateTime"),
        ("segment.bytes", "1073741824"),
        ("retention.bytes", "-1"),
        ("compression.type", "producer"),
        ("unclean.leader.election.enable", "false"),
    ):
        assert (found[config].value, found[config].config_source) == (value, DEFAULT_CONFIG), config
        assert not found[config].read_only
        assert not found[config].is_sensitive


def test_configs_have_types(raw: RawConnection, topic: TopicFactory) -> None:
    found = configs(describe(raw, TOPIC, topic()))
    types = {
        name: found[name].config_type
        for name in ("retention.ms", "max.message.bytes", "cleanup.policy", "compression.type")
    }
    assert types == {
        "retention.ms": LONG,
        "max.message.bytes": INT,
        "cleanup.policy": LIST,
        "compression.type": STRING,
    }


def test_only_requested_configs_are_returned(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    keys = ["retention.ms", "no.such.config"]
    assert configs(describe(raw, TOPIC, name, keys)).keys() == {"retention.ms"}
    assert configs(describe(raw, TOPIC, name, [])) == configs(describe(raw, TOPIC, name, None))


def test_every_version_describes_a_topic(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"retention.ms": "1234"})
    for version in served(raw, "describe_configs"):
        result = describe(raw, TOPIC, name, ["retention.ms"], version=version)
        assert configs(result)["retention.ms"].value == "1234", version


def test_synonyms_are_returned_on_request(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"retention.ms": "1234"})
    assert configs(describe(raw, TOPIC, name))["retention.ms"].synonyms == ()
    requested = configs(describe(raw, TOPIC, name, ["retention.ms"], include_synonyms=True))
    first = requested["retention.ms"].synonyms[0]
    assert (first.name, first.value, first.source) == (
        "retention.ms",
        "1234",
        DYNAMIC_TOPIC_CONFIG,
    )


def test_documentation_is_returned_on_request(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    assert configs(describe(raw, TOPIC, name))["retention.ms"].documentation is None
    requested = configs(describe(raw, TOPIC, name, ["retention.ms"], include_documentation=True))
    assert requested["retention.ms"].documentation


def test_unknown_topic(raw: RawConnection, unique_name: Callable[[], str]) -> None:
    result = describe(raw, TOPIC, unique_name())
    assert result.error_code == ErrorCode.unknown_topic_or_partition
    assert result.configs == ()


def test_invalid_topic_name_is_refused(raw: RawConnection) -> None:
    assert describe(raw, TOPIC, "a b").error_code == ErrorCode.invalid_topic_exception


def test_broker_describes_itself(raw: RawConnection) -> None:
    found = configs(describe(raw, BROKER, "1"))
    assert found["num.partitions"].value == "1"
    assert found["auto.create.topics.enable"].value == "true"
    assert found["default.replication.factor"].value == "1"


@pytest.mark.parametrize("name", ["7", "one"])
def test_another_broker_is_refused(raw: RawConnection, name: str) -> None:
    assert describe(raw, BROKER, name).error_code == ErrorCode.invalid_request


def test_unknown_resource_type_fails_the_whole_request(
    raw: RawConnection, topic: TopicFactory
) -> None:
    resources = [
        {"resource_type": of_type, "resource_name": topic(), "configuration_keys": None}
        for of_type in (TOPIC, UNKNOWN_RESOURCE)
    ]
    results = raw.call("describe_configs", 4, resources=resources).results
    assert [result.error_code for result in results] == [ErrorCode.invalid_request] * 2


def test_values_are_printed_as_they_were_parsed(raw: RawConnection, topic: TopicFactory) -> None:
    set_to = {
        "unclean.leader.election.enable": ("True", "true"),
        "min.cleanable.dirty.ratio": ("1", "1.0"),
        "cleanup.policy": ("compact, delete", "compact,delete"),
        "retention.ms": (" 7", "7"),
        "message.timestamp.type": ("LogAppendTime ", "LogAppendTime"),
    }
    name = topic(**{config: text for config, (text, _) in set_to.items()})
    found = configs(describe(raw, TOPIC, name, list(set_to), include_synonyms=True))
    for config, (_, printed) in set_to.items():
        assert (found[config].value, found[config].synonyms[0].value) == (printed, printed)


def test_several_resources_have_one_result_each(
    raw: RawConnection, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    known, unknown = topic(), unique_name()
    resources = [
        {"resource_type": TOPIC, "resource_name": known, "configuration_keys": None},
        {"resource_type": TOPIC, "resource_name": unknown, "configuration_keys": None},
        {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None},
    ]
    results = raw.call("describe_configs", 4, resources=resources).results
    assert {r.resource_name: r.error_code for r in results} == {
        known: ErrorCode.none,
        unknown: ErrorCode.unknown_topic_or_partition,
        "1": ErrorCode.none,
    }
