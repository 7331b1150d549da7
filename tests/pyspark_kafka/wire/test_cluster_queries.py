"""Tests of retries and errors of queries."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from pyspark_kafka.errors import (
    AccessError,
    BrokerUnreachableError,
    KafkaError,
    LeaderNotAvailableError,
    ProtocolError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.offsets import LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.cluster_queries import ClusterQueries
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.metadata import Broker, ClusterMetadata
from pyspark_kafka.wire.retry import Backoff, Clock
from pyspark_kafka.wire.router import Router
from pyspark_kafka.wire.transport import Address, Transport, TransportError
from tests.pyspark_kafka.wire.scripted import (
    Fields,
    Peer,
    ReceivedRequest,
    ScriptedBroker,
    ScriptedResponses,
    frame,
)
from tests.pyspark_kafka.wire.test_router import cluster

T0 = TopicPartition("t", 0)
G = "group"


def cluster_queries(broker: ScriptedBroker, **options: Any) -> ClusterQueries:
    opening = Dialer(client_id="tests", clock=Clock())
    settings: dict[str, Any] = {
        "api_timeout_s": 20.0,
        "retry_interval_s": 0.01,
        "backoff": Backoff(first_s=0.01, longest_s=0.02),
        **options,
    }
    return ClusterQueries(
        router=Router([Address.parse(broker.address)], opening),
        bootstrap_servers=broker.address,
        **settings,
    )


def offsets(*found: tuple[int, int]) -> Fields:
    """Return a ListOffsets response for partitions 0, 1, and so on: (error code, offset) each."""
    partitions = [
        {"partition_index": i, "error_code": code, "offset": offset}
        for i, (code, offset) in enumerate(found)
    ]
    return {"topics": [{"name": "t", "partitions": partitions}]}


def commits(*, group_error: int = 0, error_code: int = 0, offset: int = 3) -> Fields:
    partition = {
        "partition_index": 0,
        "committed_offset": offset,
        "metadata": "",
        "error_code": error_code,
    }
    topics = [{"name": "t", "partitions": [partition]}] if not group_error else []
    return {"groups": [{"group_id": G, "error_code": group_error, "topics": topics}]}


def garbage(peer: Peer, request: ReceivedRequest) -> None:
    peer.send(frame(request.correlation_id.to_bytes(4) + b"\xff" * 9))


def silence(peer: Peer, _: ReceivedRequest) -> None:
    peer.hang()


Query = Callable[[ClusterQueries], Any]


def query_offsets(one: ClusterQueries) -> Any:
    return one.list_offsets({T0: LATEST}, IsolationLevel.READ_COMMITTED)[T0]


def query_commits(one: ClusterQueries) -> Any:
    return one.committed_offsets(G, [T0])[T0]


def run(query: Query, responses: ScriptedResponses, **options: Any) -> Any:
    """Query a broker with these responses that is the leader and coordinator of everything."""
    with ScriptedBroker(responses) as broker:
        responses.by_api.setdefault("metadata", [cluster(broker)])
        coordinator = {"key": G, "node_id": 1, "host": "127.0.0.1", "port": broker.port}
        responses.by_api.setdefault(
            "find_coordinator", [{"coordinators": [{**coordinator, "error_message": None}]}]
        )
        queries = cluster_queries(broker, **options)
        with closing(queries.router):
            return query(queries)


@pytest.mark.parametrize(
    ("code", "metadata_requests"), [(6, 2), (74, 2), (9, 2), (3, 2), (75, 1), (78, 1), (7, 1)]
)
def test_list_offsets_is_retried_while_the_leader_moves(code: int, metadata_requests: int) -> None:
    responses = ScriptedResponses(list_offsets=[offsets((code, -1)), offsets((0, 42))])
    assert run(query_offsets, responses) == 42
    assert responses.count("list_offsets") == 2
    assert responses.count("metadata") == metadata_requests


def test_only_failed_partitions_are_requested_again() -> None:
    with ScriptedBroker(responses := ScriptedResponses(metadata=[])) as broker:
        metadata = cluster(broker)
        one = metadata["topics"][0]["partitions"][0]
        metadata["topics"][0]["partitions"] = [{**one, "partition_index": i} for i in (0, 1)]
        second = {"partition_index": 1, "error_code": 0, "offset": 8}
        responses.by_api |= {
            "metadata": [metadata],
            "list_offsets": [
                offsets((0, 7), (6, -1)),
                {"topics": [{"name": "t", "partitions": [second]}]},
            ],
        }
        queries = cluster_queries(broker)
        with closing(queries.router):
            both = {T0: LATEST, TopicPartition("t", 1): LATEST}
            assert list(queries.list_offsets(both, IsolationLevel.READ_COMMITTED).values()) == [
                7,
                8,
            ]


@pytest.mark.parametrize("code", [14, 15, 16, 88])
def test_moving_coordinator_is_queried_again(code: int) -> None:
    responses = ScriptedResponses(offset_fetch=[commits(group_error=code), commits(offset=9)])
    assert run(query_commits, responses) == 9
    assert responses.count("find_coordinator") == (2 if code in (15, 16) else 1)


def test_no_commit_is_none() -> None:
    assert run(query_commits, ScriptedResponses(offset_fetch=[commits(offset=-1)])) is None


@pytest.mark.parametrize(
    ("query", "api", "answer"),
    [
        (query_offsets, "list_offsets", garbage),
        (query_offsets, "list_offsets", {"topics": []}),
        (query_offsets, "list_offsets", offsets((0, 1), (0, 2))),
        (query_commits, "offset_fetch", garbage),
        (query_commits, "offset_fetch", {"groups": []}),
        (query_commits, "offset_fetch", {"groups": [{"group_id": G}]}),
    ],
)
def test_malformed_responses_are_requested_three_times(query: Query, api: str, answer: Any) -> None:
    responses = ScriptedResponses(**{api: [answer]})
    with pytest.raises(ProtocolError, match=r"broker 1\b"):
        run(query, responses)
    assert responses.count(api) == 3


@pytest.mark.parametrize(
    ("code", "kind", "attempts"),
    [(-1, KafkaError, 3), (42, KafkaError, 3), (29, AccessError, 1)],
)
def test_permanent_errors(code: int, kind: type[KafkaError], attempts: int) -> None:
    responses = ScriptedResponses(list_offsets=[offsets((code, -1))])
    with pytest.raises(kind, match=rf"\({code}\)") as caught:
        run(query_offsets, responses)
    assert (caught.value.topic, caught.value.partition) == ("t", 0)
    assert responses.count("list_offsets") == attempts


@pytest.mark.parametrize("fields", [{"error_code": 3}, {}], ids=["topic", "partition"])
def test_unknown_topics_and_partitions_are_tried_three_times(fields: dict[str, Any]) -> None:
    partition = T0 if fields else TopicPartition("t", 1)
    with ScriptedBroker(responses := ScriptedResponses(metadata=[])) as broker:
        responses.by_api["metadata"] = [cluster(broker, **fields)]
        queries = cluster_queries(broker)
        with closing(queries.router), pytest.raises(UnknownTopicOrPartitionError) as caught:
            queries.list_offsets({partition: LATEST}, IsolationLevel.READ_COMMITTED)
        assert responses.count("metadata") == 4
    assert (caught.value.topic, caught.value.partition) == ("t", partition.partition)


def test_a_broker_that_does_not_know_a_new_topic_yet_is_retried() -> None:
    responses = ScriptedResponses(list_offsets=[*[offsets((3, -1))] * 5, offsets((0, 2))])
    assert run(query_offsets, responses) == 2


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (offsets((6, -1)), LeaderNotAvailableError, "NOT_LEADER_OR_FOLLOWER"),
        (offsets((7, -1)), BrokerUnreachableError, "REQUEST_TIMED_OUT"),
        (
            silence,
            BrokerUnreachableError,
            "ListOffsets",
        ),
        (lambda peer, _: peer.close(), BrokerUnreachableError, "ListOffsets"),
    ],
)
def test_retriable_errors_end_at_the_timeout(
    answer: Any, kind: type[KafkaError], text: str
) -> None:
    began = time.monotonic()
    with pytest.raises(kind, match=text) as caught:
        run(query_offsets, ScriptedResponses(list_offsets=[answer]), api_timeout_s=0.3)
    assert "'kafka.default.api.timeout.ms'" in caught.value.advice
    assert "0.3 s" in caught.value.what
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("is_known", [False, True], ids=["never-connected", "connected-before"])
@pytest.mark.parametrize("is_silent", [False, True], ids=["refuses", "silent"])
def test_servers_that_refuse_every_connection_are_tried_for_ten_seconds(
    is_known: bool, is_silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Silent servers, and servers that have responded before, are tried until the timeout."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def connect(_address: Address, timeout_s: float) -> Transport:
        sleep(timeout_s if is_silent else 0.001)
        raise TransportError("no connection")

    router = Router(
        [Address("one", 1), Address("two", 2)],
        Dialer(client_id="tests", clock=Clock(now=lambda: now_s, sleep=sleep), connect=connect),
    )
    if is_known:
        broker = Broker(broker_id=1, address=Address("one", 1))
        router.metadata = ClusterMetadata(brokers={1: broker})
    with pytest.raises(BrokerUnreachableError):
        ClusterQueries(router=router, bootstrap_servers="one:1,two:2").list_topics()
    assert now_s == pytest.approx(60.0 if is_known or is_silent else 10.0, abs=0.1)
    assert len(caplog.messages) <= 2  # the order of the servers changes once


def test_thousands_of_requests_need_one_attempt() -> None:
    """If an attempt ended earlier, its pending responses would be lost and requested again."""
    clock = Clock(now=lambda: 100.0)
    router = Router([Address("one", 1)], Dialer(client_id="tests", clock=clock))
    queries = ClusterQueries(router=router, bootstrap_servers="one:1")
    available_s = queries.retry(lambda deadline: deadline - 100.0, "test", request_count=10_000)
    assert 10 < available_s < 60
    assert queries.retry(lambda deadline: deadline - 100.0, "test", request_count=100_000) == 60


def test_describe_and_list_topics() -> None:
    topics = [
        {"name": "t", "partitions": [{"partition_index": i} for i in (1, 0)]},
        {"name": "__consumer_offsets", "is_internal": True},
        {"name": "gone", "error_code": 3},
    ]
    responses = ScriptedResponses(metadata=[{"topics": topics}])
    assert run(lambda one: one.list_topics(), responses) == ["t"]
    responses = ScriptedResponses(metadata=[{"topics": topics}])
    described = run(lambda one: one.describe_topics(["t", "gone"]), responses)
    assert described["t"].partitions == (0, 1)
    assert "gone" not in described


def test_empty_queries_send_no_request() -> None:
    responses = ScriptedResponses()
    with ScriptedBroker(responses) as broker:
        queries = cluster_queries(broker)
        assert queries.describe_topics([]) == {}
        assert queries.list_offsets({}, IsolationLevel.READ_COMMITTED) == {}
        assert queries.committed_offsets(G, []) == {}
        assert broker.connections == 0
