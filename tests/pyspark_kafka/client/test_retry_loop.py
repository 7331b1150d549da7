"""What the driver's handle, which lives for days, does with one question: refusals and retries."""

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
    """librdkafka's admin handle: events go out when it is polled, answers are those of `answers`.

    After the last one, a request stays unanswered.
    """

    def __init__(self, configuration: dict[str, Any], logger: object) -> None:
        self._error_cb = configuration["error_cb"]
        self.events: list[Code] = []
        self.events_with_question: list[Code] = []
        self.answers: list[object] = []
        self.asked = 0
        self.looked_around = 0

    def poll(self, _timeout: float) -> int:
        events, self.events = self.events, []
        for event in events:
            self._error_cb(event)
        return len(events)

    def list_topics(self, **_options: object) -> object:
        self.looked_around += 1
        return SimpleNamespace(topics={})

    def describe_topics(self, topics: Any, **_options: object) -> dict[str, Future[Any]]:
        return {name: self._future() for name in topics.topic_names}

    def list_offsets(self, queries: Any, **_options: object) -> dict[Any, Future[Any]]:
        return {partition: self._future() for partition in queries}

    def _future(self) -> Future[Any]:
        self.asked += 1
        self.events += self.events_with_question
        future: Future[Any] = Future()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Code):
            future.set_exception(KafkaException(answer))
        elif answer is not None:
            future.set_result(answer)
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


def test_a_refusal_of_hours_ago_is_not_held_against_an_answer(opened: Opened) -> None:
    client, admin = opened
    admin.events = [REFUSED]
    admin.answers = [Topic()]
    assert client.describe_topics(["t"]).keys() == {"t"}
    admin.events = [REFUSED]
    with pytest.raises(BrokerUnreachableError):
        client.describe_topics(["t"])


def test_refused_login_fails_before_the_timeout(opened: Opened) -> None:
    client, admin = opened
    admin.events_with_question = [REFUSED]
    with pytest.raises(AccessError, match=r"topic 't' .*no such user"):
        client.describe_topics(["t"])
    assert admin.asked == 1


def test_answer_takes_precedence_over_a_refused_login(opened: Opened) -> None:
    client, admin = opened
    admin.events_with_question = [REFUSED]
    admin.answers = [Code(Code.UNKNOWN_TOPIC_OR_PART)]
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
    admin.answers = [Code(code)] * more_than_retries + [Topic()]
    assert client.describe_topics(["t"]).keys() == {"t"}
    assert admin.asked == more_than_retries + 1
    assert admin.looked_around == more_than_retries


def test_a_leader_that_does_not_answer_while_others_do_is_no_offset(opened: Opened) -> None:
    client, admin = opened
    admin.answers = [SimpleNamespace(offset=offset) for offset in (-1001, -1001, 7)]
    assert list_offsets(client) == {TopicPartition("t", 0): 7}


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
    admin.answers = [Code(code) for _ in range(1_000)]
    with pytest.raises(error, match=r"t-0 .*within 1 s.*'kafka.default.api.timeout.ms'") as caught:
        list_offsets(client)
    assert type(caught.value) is error


def test_missing_partition_fails_before_the_timeout(opened: Opened) -> None:
    client, admin = opened
    admin.answers = [*[Code(Code._NOENT)] * 3, Code(Code.UNKNOWN_TOPIC_OR_PART)]
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'t'"):
        list_offsets(client)


def test_leaderless_partition_is_retried(opened: Opened) -> None:
    client, admin = opened
    leaderless: object = Code(Code._NOENT)
    admin.answers = [*[leaderless] * 3, Topic(), *[leaderless] * 3, SimpleNamespace(offset=7)]
    assert list_offsets(client) == {TopicPartition("t", 0): 7}


def test_persistent_error_is_retried_num_retries_times(opened: Opened) -> None:
    client, admin = opened
    admin.answers = [Code(Code.UNKNOWN)] * 2 + [Topic()]
    assert client.describe_topics(["t"]).keys() == {"t"}
    admin.answers = [Code(Code.UNKNOWN)] * 3 + [Topic()]
    with pytest.raises(KafkaError, match="topic 't' failed") as caught:
        client.describe_topics(["t"])
    assert type(caught.value) is KafkaError


def test_final_error_is_not_retried(opened: Opened) -> None:
    client, admin = opened
    admin.answers = [Code(Code.TOPIC_AUTHORIZATION_FAILED)] * 2
    with pytest.raises(AccessError):
        client.describe_topics(["t"])
    assert admin.asked == 1
