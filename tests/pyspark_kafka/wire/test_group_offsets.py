"""Tests of committed group offsets with scripted brokers; tests in `client` use clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import BrokerUnreachableError, KafkaError, ProtocolError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.group_offsets import commit_offsets, committed_offsets, committed_topics
from pyspark_kafka.wire.router import ApiError, Router
from tests.pyspark_kafka.wire.coordinated import closes, coordinated, garbage
from tests.pyspark_kafka.wire.scripted import Peer, ReceivedRequest, ScriptedResponses
from tests.pyspark_kafka.wire.test_router import soon

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def commit(one: Router) -> None:
    commit_offsets(one, "g", {T1: 6, U0: 0, T0: 5}, deadline=soon())


def read(one: Router) -> None:
    committed_offsets(one, "g", [T0], deadline=soon())


def committed(*codes: int) -> dict[str, Any]:
    of = [{"partition_index": p, "error_code": c} for p, c in zip((0, 1, 0), codes, strict=False)]
    return {"topics": [{"name": "t", "partitions": of[:2]}, {"name": "u", "partitions": of[2:]}]}


def test_offsets_are_grouped_by_topic() -> None:
    def one(partition: int, offset: int) -> dict[str, Any]:
        found = {"partition_index": partition, "committed_offset": offset}
        return {**found, "committed_metadata": ""}

    assert committed_topics({T1: 6, U0: 0, T0: 5}) == [
        {"name": "t", "partitions": [one(0, 5), one(1, 6)]},
        {"name": "u", "partitions": [one(0, 0)]},
    ]


def test_a_commit_has_no_member() -> None:
    seen: list[bytes] = []

    def answer(peer: Peer, request: ReceivedRequest) -> None:
        seen.append(request.rest)
        peer.respond(request, "offset_commit", **committed(0, 0, 0))

    responses = ScriptedResponses(offset_commit=[answer])
    with coordinated(responses, "g", ranges={8: (2, 7)}) as one:
        commit(one)
    (rest,) = seen
    header = b"\x00\x05tests"
    group, generation, member = b"\x00\x01g", b"\xff\xff\xff\xff", b"\x00\x00"
    assert rest.startswith(header + group + generation + member)


@pytest.mark.parametrize(
    ("codes", "code", "where", "lookups"),
    [
        ((0, 16, 0), 16, "t-1", 2),
        ((0, 0, 14), 14, "u-0", 1),
        ((25, 25, 25), 25, "t-0", 1),
        ((30, 30, 30), 30, "t-0", 1),
    ],
)
def test_errors_of_a_commit(codes: tuple[int, ...], code: int, where: str, lookups: int) -> None:
    responses = ScriptedResponses(offset_commit=[committed(*codes), committed(0, 0, 0)])
    with coordinated(responses, "g") as one:
        with pytest.raises(ApiError) as caught:
            commit(one)
        assert caught.value.code is ErrorCode(code)
        topic, partition = where.split("-")
        assert caught.value.fields == {
            "topic": topic,
            "partition": int(partition),
            "group_id": "g",
        }
        commit(one)
    assert responses.count("find_coordinator") == lookups


@pytest.mark.parametrize(("codes", "wrong"), [((0, 0), "u-0"), ((0, 0, 0), "")])
def test_a_response_with_other_partitions_is_a_protocol_error(
    codes: tuple[int, ...], wrong: str
) -> None:
    answer = committed(*codes)
    if len(codes) == 3:
        answer["topics"] += [{"name": "v", "partitions": [{"partition_index": 0}]}]
    with (
        coordinated(ScriptedResponses(offset_commit=[answer]), "g") as one,
        pytest.raises(ProtocolError, match=f"'g'.*{wrong}"),
    ):
        commit(one)


@pytest.mark.parametrize(
    ("how", "kind"), [(closes, BrokerUnreachableError), (garbage, ProtocolError)]
)
@pytest.mark.parametrize(("api", "call"), [("offset_commit", commit), ("offset_fetch", read)])
def test_a_coordinator_that_does_not_respond_is_looked_up_again(
    how: Callable[[Peer, ReceivedRequest], None],
    kind: type[KafkaError],
    api: str,
    call: Callable[[Router], None],
) -> None:
    responses = ScriptedResponses(**{api: [how]})
    with coordinated(responses, "g") as one:
        for _ in range(2):
            with pytest.raises(kind):
                call(one)
    assert responses.count("find_coordinator") == 2
