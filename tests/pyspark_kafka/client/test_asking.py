"""What the driver's handle, which lives for days, does with one question: refusals and retries."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from pyspark_kafka.client.base import LATEST, IsolationLevel, KafkaClient, TopicPartition
from pyspark_kafka.client.factory import open_client
from pyspark_kafka.client.librdkafka import admin as admin_module
from pyspark_kafka.errors import AuthenticationFailed, BrokerUnreachable, KafkaError
from tests.pyspark_kafka.client.records import options

REFUSED = Code(Code._AUTHENTICATION, "no such user")


class FakeAdmin:
    """librdkafka's admin handle: events go out when it is polled, answers are those of `answers`.

    Without any more of those, a question stays unanswered.
    """

    def __init__(self, configuration: dict[str, Any], logger: object) -> None:
        self._error_cb = configuration["error_cb"]
        self.events: list[Code] = []
        self.events_with_question: list[Code] = []
        self.answers: list[object] = []
        self.asked = 0

    def poll(self, _timeout: float) -> int:
        events, self.events = self.events, []
        for event in events:
            self._error_cb(event)
        return len(events)

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
    settings = options("broker:9092", default_api_timeout_ms="1000")
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
    with pytest.raises(BrokerUnreachable):
        client.describe_topics(["t"])


def test_a_refusal_while_waiting_is_told_before_the_time_is_up(opened: Opened) -> None:
    client, admin = opened
    admin.events_with_question = [REFUSED]
    with pytest.raises(AuthenticationFailed, match=r"describing topic t .*no such user"):
        client.describe_topics(["t"])
    assert admin.asked == 1


def test_what_a_broker_answers_counts_more_than_what_another_refused(opened: Opened) -> None:
    client, admin = opened
    admin.events_with_question = [REFUSED]
    admin.answers = [Code(Code.UNKNOWN_TOPIC_OR_PART)]
    assert client.describe_topics(["t"]) == {}


@pytest.mark.parametrize("code", [Code.LEADER_NOT_AVAILABLE, Code.UNKNOWN, Code._NOENT])
def test_a_passing_error_is_asked_as_often_as_retries_say(opened: Opened, code: int) -> None:
    client, admin = opened
    admin.answers = [Code(code), Code(code), Topic()]
    assert client.describe_topics(["t"]).keys() == {"t"}
    assert admin.asked == 3


@pytest.mark.parametrize("code", [Code.LEADER_NOT_AVAILABLE, Code.UNKNOWN, Code._NOENT])
@pytest.mark.parametrize("ask", [lambda client: client.describe_topics(["t"]), list_offsets])
def test_the_last_try_fails_with_a_public_error(
    opened: Opened, code: int, ask: Callable[[KafkaClient], object]
) -> None:
    client, admin = opened
    admin.answers = [Code(code)] * 3 + [Topic()]
    with pytest.raises(KafkaError) as caught:
        ask(client)
    assert type(caught.value).__module__ == "pyspark_kafka.errors"


@pytest.mark.parametrize("code", [Code._TIMED_OUT, Code.TOPIC_AUTHORIZATION_FAILED])
def test_what_another_try_does_not_help_is_asked_once(opened: Opened, code: int) -> None:
    client, admin = opened
    admin.answers = [Code(code)] * 2
    with pytest.raises(KafkaError):
        client.describe_topics(["t"])
    assert admin.asked == 1
