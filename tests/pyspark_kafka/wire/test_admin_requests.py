"""Tests of admin requests; DescribeConfigs is compared with kio's encoding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from integration import raw
from pyspark_kafka.errors import KafkaError, ProtocolError
from pyspark_kafka.wire.admin_requests import (
    broker_config,
    brokers,
    check_leaders,
    create_topic,
    describe_configs_request,
    replication_of,
    topic_config,
)
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api
from tests.pyspark_kafka.wire.messages import entity_bytes
from tests.pyspark_kafka.wire.scripted import ScriptedBroker, ScriptedResponses
from tests.pyspark_kafka.wire.test_router import cluster, router, soon

CONFIGS = SUPPORTED_VERSIONS[Api.DESCRIBE_CONFIGS]
VERSIONS = range(CONFIGS.first, CONFIGS.last + 1)


def settings(version: int) -> dict[str, Any]:
    """Return the fields of a DescribeConfigs response for topic `t`, optional fields included."""
    since_3 = {"config_type": 2, "documentation": "of what"} if version >= 3 else {}
    synonym = {"name": "log.cleanup.policy", "value": None, "source": 5}
    values = {"cleanup.policy": "compact", "min.insync.replicas": "2", "secret": None}
    configs = [
        {"name": name, "value": value, "synonyms": [synonym, synonym], **since_3}
        for name, value in values.items()
    ]
    result = {"resource_type": 2, "resource_name": "t", "error_message": None, "configs": configs}
    return {"throttle_time": 9, "results": [result]}


def read(version: int, data: bytes) -> Any:
    reader = Reader(memoryview(data))
    found = describe_configs_request(version, 2, "t").read(reader)
    reader.end("the response")
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_equals_kios(version: int) -> None:
    resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
    (body,) = describe_configs_request(version, 2, "t").body
    # kio writes no null arrays, so replace the length of the keys, the last field before the flags.
    expected = entity_bytes(
        raw.request("describe_configs", version, resources=[{**resource, "configuration_keys": ()}])
    )
    flexible = version >= 4
    tail = (b"\0" if flexible else b"") + b"\0" * (1 + (version >= 3)) + b"\0" * flexible
    no_keys, all_keys = (b"\1", b"\0") if flexible else (b"\0" * 4, b"\xff" * 4)
    assert expected.endswith(no_keys + tail)
    assert bytes(body) == expected.removesuffix(no_keys + tail) + all_keys + tail


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_of_kio_is_read(version: int) -> None:
    data = entity_bytes(raw.response("describe_configs", version, **settings(version)))
    found = read(version, data)
    assert (found.throttle_ms, found.error_code) == (9, ErrorCode.none)
    assert found.config == {"cleanup.policy": "compact", "min.insync.replicas": "2"}


@pytest.mark.parametrize("changed", [{"resource_type": 4}, {"resource_name": "u"}])
def test_a_response_about_another_resource_is_malformed(changed: dict[str, Any]) -> None:
    answer = settings(4)
    (result,) = answer["results"]
    data = entity_bytes(raw.response("describe_configs", 4, results=[result | changed]))
    with pytest.raises(MalformedResponseError, match=r"\(2, 't'\)"):
        read(4, data)
    none = entity_bytes(raw.response("describe_configs", 4, results=[]))
    with pytest.raises(MalformedResponseError, match=r"\b0\b"):
        read(4, none)


@given(st.data())
def test_corrupt_responses_are_malformed_or_read(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS))
    found = bytearray(entity_bytes(raw.response("describe_configs", version, **settings(version))))
    for _ in range(data.draw(st.integers(1, 3))):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    del found[data.draw(st.integers(0, len(found))) :]
    try:
        read(version, bytes(found))
    except MalformedResponseError as error:
        assert str(error)  # noqa: PT017


def test_the_settings_of_a_topic_and_of_a_broker() -> None:
    (of_topic,) = settings(4)["results"]
    of_broker = {**of_topic, "resource_type": 4, "resource_name": "7"}
    responses = ScriptedResponses(
        describe_configs=[{"results": [of_topic]}, {"results": [of_broker]}]
    )
    with ScriptedBroker(responses) as one, router(one) as found:
        assert topic_config(found, "t", deadline=soon())["cleanup.policy"] == "compact"
        seven = Broker(broker_id=7, address=Address.parse(one.address))
        assert broker_config(found, seven, deadline=soon())["min.insync.replicas"] == "2"


@pytest.mark.parametrize(
    ("code", "message", "kind", "code_name"),
    [
        (3, "of another cluster", ApiError, "UNKNOWN_TOPIC_OR_PARTITION"),
        (29, "denied", ApiError, "TOPIC_AUTHORIZATION_FAILED"),
        (7, "too slow", ApiError, "REQUEST_TIMED_OUT"),
        (42, "no such thing", KafkaError, "INVALID_REQUEST.*no such thing"),
    ],
)
def test_errors_of_describe_configs(
    code: int, message: str, kind: type[Exception], code_name: str
) -> None:
    result = {"resource_type": 2, "resource_name": "t", "error_code": code, "configs": []}
    responses = ScriptedResponses(
        describe_configs=[{"results": [{**result, "error_message": message}]}]
    )
    with (
        ScriptedBroker(responses) as one,
        router(one) as found,
        pytest.raises(kind, match=f"(?s)'t'.*{code_name}"),
    ):
        topic_config(found, "t", deadline=soon())


# --- topics ---


def create(one: Router, **options: Any) -> bool:
    fields: dict[str, Any] = {"partition_count": 1, "replication_factor": 3, "config": {}}
    return create_topic(one, "t", **{**fields, **options}, deadline=soon())


def made(error_code: int = 0, message: str | None = None, name: str = "t") -> dict[str, Any]:
    return {"topics": [{"name": name, "error_code": error_code, "error_message": message}]}


def controlled(
    responses: ScriptedResponses, *all_brokers: ScriptedBroker, controller_id: int = 1
) -> None:
    metadata = {**cluster(*all_brokers), "controller_id": controller_id, "topics": []}
    responses.by_api.setdefault("metadata", [metadata])


def test_the_controller_creates_topics() -> None:
    first, second = ScriptedResponses(), ScriptedResponses(create_topics=[made()])
    with ScriptedBroker(first) as one, ScriptedBroker(second) as two, router(one) as found:
        controlled(first, one, two, controller_id=2)
        assert create(found, config={"cleanup.policy": "compact"})
    assert second.received == ["create_topics"]


def test_a_topic_that_exists_is_not_created() -> None:
    responses = ScriptedResponses(create_topics=[made(36, "Topic 't' already exists.")])
    with ScriptedBroker(responses) as one, router(one) as found:
        controlled(responses, one)
        assert not create(found)


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (made(38, "only 1 broker"), KafkaError, "INVALID_REPLICATION_FACTOR.*only 1"),
        (made(44, "no commits here"), KafkaError, "POLICY_VIOLATION.*no commits here"),
        (made(41, "elsewhere"), ApiError, "NOT_CONTROLLER"),
        (made(31), ApiError, "CLUSTER_AUTHORIZATION_FAILED"),
        (made(89, "slower"), ApiError, "THROTTLING_QUOTA_EXCEEDED"),
        (made(name="u"), ProtocolError, ""),
    ],
)
def test_errors_of_create_topics(answer: dict[str, Any], kind: type[Exception], text: str) -> None:
    responses = ScriptedResponses(create_topics=[answer])
    with ScriptedBroker(responses) as one, router(one) as found:
        controlled(responses, one)
        with pytest.raises(kind, match=f"'t'.*{text}"):
            create(found)


def test_a_missing_controller_is_an_error() -> None:
    responses = ScriptedResponses()
    with ScriptedBroker(responses) as one, router(one) as found:
        controlled(responses, one, controller_id=-1)
        with pytest.raises(ApiError) as caught:
            create(found)
    assert caught.value.code is ErrorCode.not_controller


def topic_of(*partitions: dict[str, Any], error_code: int = 0) -> dict[str, Any]:
    ones = [{"partition_index": i, **one} for i, one in enumerate(partitions)]
    return {"topics": [{"name": "t", "error_code": error_code, "partitions": ones}]}


def run(answer: dict[str, Any], call: Any) -> Any:
    responses = ScriptedResponses()
    with ScriptedBroker(responses) as one, router(one) as found:
        responses.by_api["metadata"] = [{**cluster(one), **answer}]
        return call(found, "t", deadline=soon())


def test_leaders() -> None:
    run(topic_of({"leader_id": 1}, {"leader_id": 1}), check_leaders)
    for answer in (
        topic_of({"leader_id": 1}, {"leader_id": -1}),
        topic_of(error_code=3),
        topic_of({"leader_id": -1}, error_code=5),
    ):
        with pytest.raises(ApiError) as caught:
            run(answer, check_leaders)
        assert caught.value.code is ErrorCode.leader_not_available
    with pytest.raises(ApiError) as caught:
        run(topic_of(error_code=29), check_leaders)
    assert caught.value.code is ErrorCode.topic_authorization_failed


def test_replication_is_the_smallest_replica_count() -> None:
    assert run(topic_of({"replica_nodes": [1, 2, 3]}), replication_of) == 3
    assert run(topic_of({"replica_nodes": [1, 2]}, {"replica_nodes": [4]}), replication_of) == 1
    for answer, code in (
        (topic_of(error_code=3), ErrorCode.unknown_topic_or_partition),
        (topic_of(), ErrorCode.leader_not_available),
        ({"topics": []}, ErrorCode.unknown_topic_or_partition),
    ):
        with pytest.raises(ApiError) as caught:
            run(answer, replication_of)
        assert caught.value.code is code


def test_brokers() -> None:
    responses = ScriptedResponses()
    with ScriptedBroker(responses) as one, router(one) as found:
        responses.by_api["metadata"] = [{**cluster(one), "topics": []}, {"brokers": []}]
        (only,) = brokers(found, deadline=soon())
        assert only.broker_id == 1
        with pytest.raises(ApiError) as caught:
            brokers(found, deadline=soon())
        assert caught.value.code is ErrorCode.broker_not_available
