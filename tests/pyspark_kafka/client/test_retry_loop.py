"""Tests of retries and errors of queries, with the driver's long-lived admin client."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from pyspark_kafka.client.factory import open_client
from pyspark_kafka.client.librdkafka import admin as admin_module
from pyspark_kafka.client.port import KafkaClient
from pyspark_kafka.errors import (
    AccessError,
    BrokerUnreachableError,
    KafkaError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.offsets import LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from tests.pyspark_kafka.client.records import options

REFUSED = Code(Code._AUTHENTICATION, "no such user")


class FakeAdmin:
    """A fake of librdkafka's admin client; `poll` delivers `events`, requests get `responses`.

    After the last response, requests get no response.
    """

    def __init__(self, configuration: dict[str, Any], logger: object) -> None:
        self._error_cb = configuration["error_cb"]
        self.events: list[Code] = []
        self.events_with_request: list[Code] = []
        self.responses: list[object] = []
        self.request_count = 0
        self.metadata_requests = 0

    def poll(self, _timeout: float) -> int:
        events, self.events = self.events, []
        for event in events:
            self._error_cb(event)
        return len(events)

    def list_topics(self, **_options: object) -> object:
        self.metadata_requests += 1
        return SimpleNamespace(topics={})

    def describe_topics(self, topics: Any, **_options: object) -> dict[str, Future[Any]]:
        return {name: self._future() for name in topics.topic_names}

    def list_offsets(self, queries: Any, **_options: object) -> dict[Any, Future[Any]]:
        return {partition: self._future() for partition in queries}

    def _future(self) -> Future[Any]:
        self.request_count += 1
        self.events += self.events_with_request
        future: Future[Any] = Future()
        response = self.responses.pop(0) if self.responses else None
        if isinstance(response, Code):
            future.set_exception(KafkaException(response))
        elif response is not None:
            future.set_result(response)
        return future


class Topic:
    topic_id = None
    partitions = (SimpleNamespace(id=0),)
    is_internal = False


Opened = tuple[KafkaClient, FakeAdmin]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.setattr(admin_module, "AdminClient", FakeAdmin)
    settings = options("broker:9092", engine="librdkafka", default_api_timeout_ms="1000")
    settings = replace(settings, fetch_offset_num_retries=3, fetch_offset_retry_interval_ms=0)
    client: Any = open_client(settings)
    return client, client._admin


def list_offsets(client: KafkaClient) -> object:
    queries = {TopicPartition("t", 0): LATEST}
    return client.list_offsets(queries, IsolationLevel.READ_COMMITTED)


def test_old_login_error_does_not_fail_a_successful_request(opened: Opened) -> None:
    client, admin = opened
    admin.events = [REFUSED]
    admin.responses = [Topic()]
    assert client.describe_topics(["t"]).keys() == {"t"}
    admin.events = [REFUSED]
    with pytest.raises(BrokerUnreachableError):
        client.describe_topics(["t"])


def test_rejected_login_fails_before_the_timeout(opened: Opened) -> None:
    client, admin = opened
    admin.events_with_request = [REFUSED]
    with pytest.raises(AccessError, match=r"'t'.*no such user"):
        client.describe_topics(["t"])
    assert admin.request_count == 1


def test_response_takes_precedence_over_a_rejected_login(opened: Opened) -> None:
    client, admin = opened
    admin.events_with_request = [REFUSED]
    admin.responses = [Code(Code.UNKNOWN_TOPIC_OR_PART)]
    assert client.describe_topics(["t"]) == {}


PASSING = [
    Code._NOENT,
    Code._TRANSPORT,
    Code._TIMED_OUT,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.FENCED_LEADER_EPOCH,
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.NOT_LEADER_FOR_PARTITION,
    Code.OFFSET_NOT_AVAILABLE,
]


@pytest.mark.parametrize("code", PASSING)
def test_error_codes_of_moving_leaders_are_retried(opened: Opened, code: int) -> None:
    client, admin = opened
    more_than_retries = 5
    admin.responses = [Code(code)] * more_than_retries + [Topic()]
    assert client.describe_topics(["t"]).keys() == {"t"}
    assert admin.request_count == more_than_retries + 1
    assert admin.metadata_requests == more_than_retries


def test_a_leader_that_does_not_answer_while_others_do_is_no_offset(opened: Opened) -> None:
    client, admin = opened
    admin.responses = [SimpleNamespace(offset=offset) for offset in (-1001, -1001, 7)]
    assert list_offsets(client) == {TopicPartition("t", 0): 7}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.NOT_LEADER_FOR_PARTITION, LeaderNotAvailableError),
        (Code._TRANSPORT, BrokerUnreachableError),
        (Code.COORDINATOR_LOAD_IN_PROGRESS, KafkaError),
    ],
)
def test_timeout_error_names_the_option(opened: Opened, code: int, error: type[KafkaError]) -> None:
    client, admin = opened
    admin.responses = [Code(code) for _ in range(1_000)]
    with pytest.raises(
        error, match=r"t-0\b.*\b1 s\b.*'kafka\.default\.api\.timeout\.ms'"
    ) as caught:
        list_offsets(client)
    assert type(caught.value) is error


def test_missing_partition_fails_before_the_timeout(opened: Opened) -> None:
    client, admin = opened
    admin.responses = [*[Code(Code._NOENT)] * 3, Code(Code.UNKNOWN_TOPIC_OR_PART)]
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'t'"):
        list_offsets(client)


def test_leaderless_partition_is_retried(opened: Opened) -> None:
    client, admin = opened
    leaderless: object = Code(Code._NOENT)
    admin.responses = [*[leaderless] * 3, Topic(), *[leaderless] * 3, SimpleNamespace(offset=7)]
    assert list_offsets(client) == {TopicPartition("t", 0): 7}


def test_persistent_error_is_retried_num_retries_times(opened: Opened) -> None:
    client, admin = opened
    admin.responses = [Code(Code.UNKNOWN)] * 2 + [Topic()]
    assert client.describe_topics(["t"]).keys() == {"t"}
    admin.responses = [Code(Code.UNKNOWN)] * 3 + [Topic()]
    with pytest.raises(KafkaError, match="'t'") as caught:
        client.describe_topics(["t"])
    assert type(caught.value) is KafkaError


def test_final_error_is_not_retried(opened: Opened) -> None:
    client, admin = opened
    admin.responses = [Code(Code.TOPIC_AUTHORIZATION_FAILED)] * 2
    with pytest.raises(AccessError):
        client.describe_topics(["t"])
    assert admin.request_count == 1
