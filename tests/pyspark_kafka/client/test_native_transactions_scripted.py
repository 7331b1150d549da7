"""What coordinators may answer that no cluster answers when it is asked to."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.factory import open_transactional
from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import (
    AccessError,
    BrokerUnreachableError,
    KafkaError,
    OptionError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from pyspark_kafka.kafka.transactions import EndTransaction
from tests.pyspark_kafka.client.records import options
from tests.pyspark_kafka.wire.coordinated import (
    PRODUCER,
    closes,
    coordinators,
    described,
    ended,
    find_all,
    garbage,
    initialised,
    state,
)
from tests.pyspark_kafka.wire.scripted import (
    ALL_VERSIONS,
    Answers,
    Peer,
    ReceivedRequest,
    ScriptedBroker,
    frame,
)
from tests.pyspark_kafka.wire.test_router import cluster

NONE = ErrorCode.none


@contextmanager
def opened(
    answers: Answers,
    *names: str,
    ranges: dict[int, tuple[int, int]] | None = None,
    features: dict[str, int] | None = None,
    api_timeout_ms: int = 20_000,
) -> Iterator[TransactionalClient]:
    """A client of a broker that answers so, and coordinates these ids."""

    def script(peer: Peer) -> None:
        peer.negotiate({**ALL_VERSIONS, **(ranges or {})}, features)
        answers.serve(peer)

    with ScriptedBroker(script) as broker:
        answers.answers.setdefault("metadata", [{**cluster(broker), "controller_id": 1}])
        if names:
            find_all(answers, *names)
        kafka = {"default_api_timeout_ms": str(api_timeout_ms), "retry_backoff_ms": "10"}
        wanted = options(broker.address, poll_timeout_ms=5_000, engine="native", **kafka)
        with open_transactional(wanted) as client:
            yield client


def ends(*names: str) -> list[EndTransaction]:
    return [
        EndTransaction(transactional_id=name, producer=PRODUCER, is_commit=True, version=2)
        for name in names
    ]


# --- versions ---


@pytest.mark.parametrize(
    ("features", "version"),
    [
        ({}, 1),
        ({"metadata.version": 25}, 1),
        ({"transaction.version": 0}, 1),
        ({"transaction.version": 1}, 1),
        ({"transaction.version": 2}, 2),
        ({"transaction.version": 3}, 2),
    ],
)
def test_the_version_of_transactions(features: dict[str, int], version: int) -> None:
    with opened(Answers(), features=features) as client:
        assert client.transaction_version() == version


def test_cluster_without_describe_transactions() -> None:
    ranges = {65: (1, 1), 66: (3, 4)}
    answers = Answers()
    with opened(answers, "x", ranges=ranges) as client:
        with pytest.raises(UnsupportedVersionError, match="DescribeTransactions"):
            client.describe_transactions(["x"])
        with pytest.raises(UnsupportedVersionError, match="ListTransactions"):
            client.list_transactions("x")


# --- InitProducerId ---


def test_markers_that_are_being_written_are_waited_for_in_short_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = Answers(init_producer_id=[*[initialised(51)] * 4, initialised()])
    with opened(answers, "x") as client, caplog.at_level(logging.WARNING):
        started = time.monotonic()
        assert client.init_producer_id("x", timeout_ms=1) == PRODUCER
        # 20, 30, 45 and 67 ms; what a plain retry takes is ten times that.
        assert time.monotonic() - started < 1.0
    assert answers.count("init_producer_id") == 5
    assert answers.count("find_coordinator") == 1
    assert not caplog.records  # it is an everyday thing


def test_markers_that_are_never_written() -> None:
    answers = Answers(init_producer_id=[initialised(51)])
    with (
        opened(answers, "x", api_timeout_ms=1_000) as client,
        pytest.raises(KafkaError, match=r"'x'.*CONCURRENT_TRANSACTIONS"),
    ):
        client.init_producer_id("x", timeout_ms=1)
    assert 3 < answers.count("init_producer_id") < 20


@pytest.mark.parametrize(
    ("code", "kind", "keyword"),
    [
        (90, ProducerFencedError, "'x'.* PRODUCER_FENCED"),
        (47, ProducerFencedError, "'x'.* INVALID_PRODUCER_EPOCH"),
        (50, OptionError, "1 ms.*'transactionTimeout'"),
        (53, AccessError, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ],
)
def test_final_error_is_raised_at_once(code: int, kind: type[Exception], keyword: str) -> None:
    answers = Answers(init_producer_id=[initialised(code)])
    with opened(answers, "x") as client, pytest.raises(kind, match=keyword):
        client.init_producer_id("x", timeout_ms=1)
    assert answers.count("init_producer_id") == 1


@pytest.mark.parametrize("code", [53, 48, 35])
def test_two_phase_commit_without_support(code: int) -> None:
    answers = Answers(init_producer_id=[initialised(code)])
    with (
        opened(answers, "x") as client,
        pytest.raises(OptionError, match="'twoPhaseCommit'"),
    ):
        client.init_producer_id("x", timeout_ms=1, two_phase_commit=True)


def test_a_coordinator_that_moves_is_followed() -> None:
    refusals = [closes, garbage, initialised(16), initialised(15), initialised(14)]
    answers = Answers(init_producer_id=[*refusals, initialised()])
    with opened(answers, "x") as client:
        assert client.init_producer_id("x", timeout_ms=1) == PRODUCER
    assert answers.count("find_coordinator") == 5


# --- EndTxn ---


def test_retriable_end_txn_is_retried_and_final_codes_are_returned() -> None:
    codes = {"x": [51, 16, 0], "y": [0], "z": [90], "w": [14, 48], "v": [-1, 0], "u": [105]}
    asked: list[str] = []

    def answer(peer: Peer, request: ReceivedRequest) -> None:
        name = next(name for name in codes if b"\x02" + name.encode() in request.rest)
        asked.append(name)
        peer.answer(request, "end_txn", error_code=codes[name].pop(0))

    answers = Answers(end_txn=[answer])
    with opened(answers, *codes) as client:
        assert client.end_transactions(ends(*codes)) == {
            "x": NONE,
            "y": NONE,
            "z": ErrorCode.producer_fenced,
            "w": ErrorCode.invalid_txn_state,
            "v": NONE,
            "u": ErrorCode.transactional_id_not_found,
        }
    assert sorted(asked) == sorted("xxxyzwwvvu")
    assert answers.count("find_coordinator") == 2  # for all, and for the one that has moved


@pytest.mark.parametrize("code", [51, -1], ids=["concurrent", "unknown-server-error"])
def test_without_a_final_answer_nothing_is_known(code: int) -> None:
    def answer(peer: Peer, request: ReceivedRequest) -> None:
        peer.answer(request, "end_txn", error_code=0 if b"\x02y" in request.rest else code)

    started = time.monotonic()
    with opened(Answers(end_txn=[answer]), "x", "y", api_timeout_ms=1_500) as client:
        assert client.end_transactions(ends("x", "y")) == {"x": None, "y": NONE}
    assert time.monotonic() - started < 10


def test_a_lost_answer_is_not_taken_for_one() -> None:
    """The second answer is about what the first has done, maybe: EndTxn may be repeated."""
    answers = Answers(end_txn=[closes, ended()])
    with opened(answers, "x") as client:
        assert client.end_transactions(ends("x")) == {"x": NONE}
    answers = Answers(end_txn=[closes])
    with opened(answers, "x", api_timeout_ms=1_000) as client:
        assert client.end_transactions(ends("x")) == {"x": None}


def test_missing_acl_is_raised_after_the_other_ids_are_ended() -> None:
    asked: list[bytes] = []

    def answer(peer: Peer, request: ReceivedRequest) -> None:
        is_ours = b"\x02y" in request.rest
        asked.append(b"y" if is_ours else b"x")
        code = (51 if asked.count(b"y") < 3 else 0) if is_ours else 53
        peer.answer(request, "end_txn", error_code=code)

    with (
        opened(Answers(end_txn=[answer]), "x", "y") as client,
        pytest.raises(AccessError, match=r"'x' failed .*TRANSACTIONAL_ID_AUTHORIZATION"),
    ):
        client.end_transactions(ends("x", "y"))
    assert asked.count(b"y") == 3


def test_end_txn_without_a_supported_version() -> None:
    answers = Answers(end_txn=[ended()])
    with (
        opened(answers, "x", ranges={26: (0, 4)}) as client,
        pytest.raises(UnsupportedVersionError, match="EndTxn"),
    ):
        client.end_transactions(ends("x"))
    assert answers.count("end_txn") == 0


# --- looking ---


def test_only_undescribed_ids_are_retried() -> None:
    requests: list[bytes] = []

    def answer(peer: Peer, asked: ReceivedRequest) -> None:
        requests.append(asked.rest)
        code = {1: 14, 2: 16}.get(len(requests), 105)
        states = [state("x")] if len(requests) == 1 else []
        states = [*states, state("y", error_code=code, state_name="")]
        peer.send(frame(asked.correlation_id.to_bytes(4) + b"\0" + described(*states)))

    answers = Answers(describe_transactions=[answer])
    with opened(answers, "x", "y") as client:
        assert client.describe_transactions(["x", "y"]).keys() == {"x"}
    assert [b"\x02x" in rest for rest in requests] == [True, False, False]
    assert answers.count("find_coordinator") == 2


def test_descriptions_that_are_refused() -> None:
    def answer(peer: Peer, asked: ReceivedRequest) -> None:
        states = described(state("x", error_code=53, state_name=""))
        peer.send(frame(asked.correlation_id.to_bytes(4) + b"\0" + states))

    with (
        opened(Answers(describe_transactions=[answer]), "x") as client,
        pytest.raises(AccessError, match=r"'x' failed .*TRANSACTIONAL_ID_AUTHORIZATION"),
    ):
        client.describe_transactions(["x"])


def listing(*names: str, state_name: str = "Ongoing") -> dict[str, Any]:
    found = {"producer_id": 5, "transaction_state": state_name}
    return {"transaction_states": [{"transactional_id": name, **found} for name in names]}


@contextmanager
def two_brokers(
    first: Answers, second: Answers, *, api_timeout_ms: int = 20_000
) -> Iterator[TransactionalClient]:
    with ScriptedBroker(first) as one, ScriptedBroker(second) as two:
        metadata = [{**cluster(one, two), "controller_id": 1}]
        first.answers["metadata"] = second.answers["metadata"] = metadata
        wanted = options(one.address, engine="native", default_api_timeout_ms=str(api_timeout_ms))
        with open_transactional(wanted) as client:
            yield client


def test_loading_coordinator_retries_all_brokers() -> None:
    """What one had may be the other's by then."""
    first = Answers(list_transactions=[listing("x/1"), listing("x/1", "x/2")])
    second = Answers(list_transactions=[{"error_code": 14}, listing("x/3")])
    with two_brokers(first, second) as client:
        found = client.list_transactions("x/")
    assert [one.transactional_id for one in found] == ["x/1", "x/2", "x/3"]


@pytest.mark.parametrize("states", [("Ongoing", "Empty"), ("CompleteCommit", "Ongoing")])
def test_id_listed_by_two_brokers_is_open(states: tuple[str, str]) -> None:
    first, second = (Answers(list_transactions=[listing("x/1", state_name=s)]) for s in states)
    with two_brokers(first, second) as client:
        (found,) = client.list_transactions("x/")
    assert found.state.value == "Ongoing"


def test_a_broker_that_does_not_answer_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = Answers(list_transactions=[listing("x/1")]), Answers(list_transactions=[closes])
    with two_brokers(first, second) as client, caplog.at_level(logging.WARNING):
        found = client.list_transactions("x/")
        assert [one.transactional_id for one in found] == ["x/1"]
        assert second.count("list_transactions") == 3
    assert "ListTransactions v2 to broker 2" in caplog.text


def test_list_transactions_without_any_answer_fails() -> None:
    first, second = Answers(list_transactions=[closes]), Answers(list_transactions=[closes])
    with (
        two_brokers(first, second, api_timeout_ms=2_000) as client,
        pytest.raises(BrokerUnreachableError),
    ):
        client.list_transactions("x/")


# --- settings of brokers ---


def test_brokers_whose_settings_are_not_for_us() -> None:
    result = {"resource_type": 4, "resource_name": "1", "error_code": 31, "error_message": "no"}
    answers = Answers(describe_configs=[{"results": [{**result, "configs": []}]}])
    with opened(answers) as client:
        assert client.broker_config() is None


def test_unknown_coordinator() -> None:
    answers = Answers(find_coordinator=[coordinators("y", port=1)])
    with opened(answers, api_timeout_ms=1_000) as client, pytest.raises(KafkaError, match="'y'"):
        client.init_producer_id("x", timeout_ms=1)
