"""Tests of admin requests with broker configs that a shared cluster does not have."""

from __future__ import annotations

import importlib
import re
from typing import Any
from unittest.mock import Mock

import pytest
from kio.index import load_request_schema
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

from broker_ref.api import k32_describe_configs
from broker_ref.api.broker_descriptions import describe_broker_configs
from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.controller.records import ConfigResourceType
from broker_ref.dynamic_configs import DynamicBrokerConfig
from broker_ref.events import FrameReceived
from integration.simulation.cluster import CONTROLLER
from tests.broker_ref.node.clients import SentRequest
from tests.broker_ref.node.driver import NodeDriver, only_response, request_frame
from tests.broker_ref.node.requests import batch, create_topic, ms, produce, produced, request
from tests.broker_ref.virtual import VirtualCluster

UNKNOWN = ErrorCode.unknown_topic_or_partition


def look_for(driver: NodeDriver, name: Any, *, allow: bool = True) -> Any:
    (topic,) = driver.call(
        MetadataRequest(
            topics=(MetadataRequestTopic(topic_id=None, name=name),),
            allow_auto_topic_creation=allow,
            include_topic_authorized_operations=False,
        )
    ).topics
    return topic


@pytest.mark.parametrize(("broker", "asks", "made"), [(True, True, True), (False, True, False)])
def test_topics_are_created_if_broker_and_request_allow(
    broker: bool, asks: bool, made: bool
) -> None:
    driver = NodeDriver(BrokerConfig(auto_create_topics_enable=broker, num_partitions=3))
    first = look_for(driver, "t", allow=asks)
    assert first.error_code is ErrorCode.unknown_topic_or_partition
    again = look_for(driver, "t", allow=False)
    assert (again.error_code is ErrorCode.none) == made
    assert len(again.partitions) == (3 if made else 0)


THREE_BY_TWO = {"num.partitions": "3", "default.replication.factor": "2"}


@pytest.mark.parametrize(
    ("of_controller", "of_broker", "replicas"),
    [
        ({}, THREE_BY_TWO, [2, 2, 2]),
        (THREE_BY_TWO, {}, [2, 2, 2]),
        (THREE_BY_TWO, {"num.partitions": "1"}, [2]),
    ],
)
def test_defaults_that_the_broker_does_not_set_are_those_of_the_controller(
    of_controller: dict[str, str], of_broker: dict[str, str], replicas: list[int]
) -> None:
    cluster = VirtualCluster(
        BrokerConfig.from_mapping(of_controller, node_id=1),
        BrokerConfig.from_mapping(of_broker, node_id=2),
    )
    cluster.start_all()
    name: Any = "t"
    wanted = MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=None, name=name),),
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    event = FrameReceived(connection_id=1, frame=request_frame(wanted))
    cluster.handle(2, event)
    effects = cluster.handle(2, event)
    (created,) = only_response(wanted, effects).topics
    assert [len(partition.replica_nodes) for partition in created.partitions] == replicas


def test_topics_are_not_created_if_the_request_forbids() -> None:
    driver = NodeDriver()
    for _ in range(2):
        found = look_for(driver, "t", allow=False)
        assert (found.error_code, found.is_internal) == (UNKNOWN, False)
    found = look_for(driver, "__transaction_state", allow=False)
    assert (found.error_code, found.is_internal) == (UNKNOWN, True)


@pytest.mark.parametrize("name", ["a b", "", ".."])
def test_invalid_topic_names_are_not_created(name: str) -> None:
    assert look_for(NodeDriver(), name).error_code is ErrorCode.invalid_topic_exception


def test_a_colliding_topic_name_is_not_created() -> None:
    driver = NodeDriver()
    create_topic(driver, "a.b")
    for _ in range(2):
        assert look_for(driver, "a_b").error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("version", "error"),
    [(2, ErrorCode.invalid_request), (3, ErrorCode.topic_deletion_disabled)],
)
def test_deletion_can_be_disabled(version: int, error: ErrorCode) -> None:
    driver = NodeDriver(BrokerConfig(delete_topic_enable=False))
    create_topic(driver, "t")
    response = driver.call(request(20, version, topic_names=("t",), timeout=ms(0)))
    assert response.responses[0].error_code is error
    assert look_for(driver, "t").error_code is ErrorCode.none


ALTER: Any = importlib.import_module("kio.schema.incremental_alter_configs.v1.request")


def config_change(name: str, value: str) -> Any:
    return ALTER.AlterableConfig(name=name, config_operation=0, value=value)


def described(
    driver: NodeDriver, kind: int, name: str
) -> dict[str, tuple[str | None, int, list[str]]]:
    """Return value, source and synonym names of each config."""
    resource_type: Any = kind
    response = driver.call(
        DescribeConfigsRequest(
            resources=(
                DescribeConfigsResource(
                    resource_type=resource_type, resource_name=name, configuration_keys=None
                ),
            ),
            include_synonyms=True,
            include_documentation=True,
        )
    )
    (result,) = response.results
    assert result.error_code is ErrorCode.none
    assert all(config.documentation for config in result.configs)
    return {
        config.name: (config.value, config.config_source, [s.name for s in config.synonyms])
        for config in result.configs
    }


def test_server_wide_defaults_are_described_and_applied() -> None:
    config = BrokerConfig.from_mapping(
        {"log.retention.hours": "1", "message.max.bytes": "200", "num.partitions": "1"}
    )
    driver = NodeDriver(config)
    create_topic(driver, "t")
    create_topic(driver, "own", retention_ms="5", max_message_bytes="1000")
    of_topic = described(driver, 2, "t")
    # As in Kafka, the source is the default: log.retention.hours precedes log.retention.ms.
    assert of_topic["retention.ms"] == ("3600000", 5, [])
    assert of_topic["max.message.bytes"][:2] == ("200", 4)
    assert of_topic["segment.ms"][:2] == ("604800000", 5)
    assert described(driver, 2, "own")["retention.ms"] == (
        "5",
        1,
        ["retention.ms"],
    )
    of_broker = described(driver, 4, "1")
    assert of_broker["message.max.bytes"] == ("200", 4, ["message.max.bytes"] * 2)
    assert of_broker["log.retention.ms"] == (None, 5, [])
    assert of_broker["log.retention.hours"] == ("1", 4, ["log.retention.hours"] * 2)
    assert of_broker["num.partitions"] == ("1", 4, ["num.partitions"] * 2)
    big = batch("x" * 300)
    assert produced(driver.call(produce(big))).error_code is ErrorCode.message_too_large
    assert produced(driver.call(produce(big, topic="own"))).error_code is ErrorCode.none


def test_a_repeated_resource_is_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a small request would make the broker describe all its configs for minutes."""
    driver = NodeDriver()
    describe = Mock(wraps=describe_broker_configs)
    monkeypatch.setattr(k32_describe_configs, "describe_broker_configs", describe)
    broker: Any = 4
    resources = tuple(
        DescribeConfigsResource(
            resource_type=broker,
            resource_name=str(driver.config.node_id),
            configuration_keys=keys,
        )
        for keys in (None, ("num.partitions",), None)
    )
    request = DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False
    )
    (result,) = driver.call(request).results
    assert len(result.configs) > 1
    assert describe.call_count == 1


@pytest.mark.parametrize(
    ("configs", "name"),
    [
        ({"num.io.threads": "many"}, "num.io.threads"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "ssl.cipher.suites"),
        ({"num.partitions": "0"}, "num.partitions"),
        ({"num.partitions": "many"}, "num.partitions"),
        ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable"),
        ({"log.retention.ms": "0"}, "log.retention.ms"),
        ({"log.retention.minutes": "0"}, "log.retention.minutes"),
        ({"log.retention.hours": "x"}, "log.retention.hours"),
        ({"log.retention.hours": "1_0"}, "log.retention.hours"),
        ({"message.max.bytes": "45_000"}, "message.max.bytes"),
        ({"log.cleanup.policy": "burn"}, "log.cleanup.policy"),
    ],
)
def test_invalid_broker_configs_are_named(configs: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidBrokerConfigError, match=re.escape(name)) as error:
        BrokerConfig.from_mapping(configs)
    assert error.value.name == name


def test_dynamic_configs_survive_a_restart() -> None:
    driver = NodeDriver()
    for name, value in (("1", "200"), ("", "300")):
        changed = (config_change("message.max.bytes", value),)
        resource = ALTER.AlterConfigsResource(resource_type=4, resource_name=name, configs=changed)
        driver.call(request(44, 1, resources=(resource,), validate_only=False))
    create_topic(driver, "t")
    for _ in range(2):  # The second start reads the journal that the first start has rewritten.
        driver.restart()
        found = described(driver, 4, "1")["message.max.bytes"]
        assert found == ("200", 2, ["message.max.bytes"] * 3)
        refused = produced(driver.call(produce(batch("x" * 300))))
        assert refused.error_code is ErrorCode.message_too_large


def test_invalid_dynamic_configs_are_ignored() -> None:
    """The controller stores what another broker, with other static configs, has accepted."""
    configs = DynamicBrokerConfig(BrokerConfig())
    own = {"message.max.bytes": "x", "num.partitions": "9", "log.retention.ms": "5", "no.such": ""}
    assert configs.update(own=own, cluster={})
    assert configs.current == BrokerConfig(topic_defaults={"retention.ms": "5"})


def test_stored_configs_that_no_broker_can_use_are_ignored() -> None:
    """A client that sends its changes directly to the controller can store them."""
    driver = NodeDriver()
    cluster = driver.cluster
    unusable = {
        "num.partitions": "3",
        "ssl.keystore.location": "/x",
        "listener.name.a.listeners": "",
    }

    def changes(configs: dict[str, str]) -> Any:
        changed = tuple(config_change(*each) for each in configs.items())
        resource = ALTER.AlterConfigsResource(resource_type=4, resource_name="", configs=changed)
        return request(44, 1, resources=(resource,), validate_only=False)

    to_controller = SentRequest(request=changes(unusable))
    connection = cluster.network.connect("client", CONTROLLER, to_controller)
    frame = request_frame(to_controller.request, correlation_id=1)
    cluster.network.send(connection, 1, frame)
    cluster.deliver()
    assert to_controller.response.responses[0].error_code is ErrorCode.none
    assert unusable.items() <= driver.broker.metadata.configs(ConfigResourceType.BROKER, "").items()
    assert described(driver, 4, "1")["num.partitions"] == ("1", 5, ["num.partitions"])
    (changed,) = driver.call(changes({"log.retention.ms": "5"})).responses
    assert changed.error_code is ErrorCode.none
    assert described(driver, 4, "").keys() == {"log.retention.ms", "min.insync.replicas"}


def test_broker_configs_without_an_effect_are_named_in_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unknown = {"num.partition": "3", "num.io.threads": "4", "ssl.protocol": "TLSv1.3"}
    config = BrokerConfig.from_mapping({**unknown, "broker.rack": "a"})
    assert config.rack == "a"
    assert config.num_partitions == 1
    named = {name for name in unknown if any(name in line for line in caplog.messages)}
    assert named == {"num.partition", "num.io.threads"}, "ssl.protocol has its default value"


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"log.retention.ms": "7", "log.retention.hours": "1"}, "7"),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, "120000"),
        ({"log.retention.hours": "-1"}, "-1"),
    ],
)
def test_the_finest_time_unit_wins(configs: dict[str, str], expected: str) -> None:
    assert BrokerConfig.from_mapping(configs).topic_defaults["retention.ms"] == expected


def test_api_versions_are_readable_by_all_clients() -> None:
    driver = NodeDriver()
    responses = [
        driver.call(request(18, version, **({} if version < 3 else SOFTWARE)))
        for version in range(5)
    ]
    assert {response.error_code for response in responses} == {ErrorCode.none}
    assert (
        len({tuple((api.api_key, api.max_version) for api in a.api_keys) for a in responses}) == 1
    )


SOFTWARE = {"client_software_name": "a-b", "client_software_version": "1.0"}


@pytest.mark.parametrize("version", range(4))
def test_the_longest_topic_name_can_be_returned(version: int) -> None:
    # The error message repeats the name, and older versions limit the length of error messages.
    driver = NodeDriver()
    kio_version = load_request_schema(37, version).__module__.rpartition(".")[0]
    schemas = importlib.import_module(f"{kio_version}.request")
    topic = schemas.CreatePartitionsTopic(name="x" * 32_767, count=3, assignments=None)
    requested = schemas.CreatePartitionsRequest(topics=(topic,), timeout=ms(0), validate_only=False)
    (response,) = driver.call(requested).results
    assert response.error_code is ErrorCode.unknown_topic_or_partition
    assert response.error_message.endswith("...")


@pytest.mark.parametrize(
    ("counts", "error"),
    [
        ((6_000, 4_000), ErrorCode.none),
        ((6_000, 4_001), ErrorCode.policy_violation),
        ((9_998, -1), ErrorCode.policy_violation),
    ],
)
def test_the_partitions_of_all_topics_of_a_request_are_limited(
    counts: tuple[int, ...], error: ErrorCode
) -> None:
    driver = NodeDriver(BrokerConfig(num_partitions=3))
    schema: Any = importlib.import_module("kio.schema.create_topics.v7.request")
    topics = tuple(
        schema.CreatableTopic(
            name=f"t{count}", num_partitions=count, replication_factor=1, assignments=(), configs=()
        )
        for count in counts
    )
    response = driver.call(request(19, 7, topics=topics, timeout=ms(1000), validate_only=True))
    assert [made.error_code for made in response.topics] == [error, error]
