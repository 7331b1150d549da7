"""Tests of the transactional client with responses that a cluster does not send on request."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.factory import open_transactional_client
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
from pyspark_kafka.wire.retry import Backoff
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
    Peer,
    ReceivedRequest,
    ScriptedBroker,
    ScriptedResponses,
    frame,
)
from tests.pyspark_kafka.wire.test_router import cluster

NONE = ErrorCode.none


@contextmanager
def opened(
    responses: ScriptedResponses,
    *names: str,
    ranges: dict[int, tuple[int, int]] | None = None,
    features: dict[str, int] | None = None,
    api_timeout_ms: int = 20_000,
) -> Iterator[TransactionalClient]:
    """Yield a client of a broker that sends these responses and coordinates these ids."""

    def script(peer: Peer) -> None:
        peer.negotiate({**ALL_VERSIONS, **(ranges or {})}, features)
        responses.serve(peer)

    with ScriptedBroker(script) as broker:
        responses.by_api.setdefault("metadata", [{**cluster(broker), "controller_id": 1}])
        if names:
            find_all(responses, *names)
        kafka = {"default_api_timeout_ms": str(api_timeout_ms), "retry_backoff_ms": "10"}
        wanted = options(broker.address, poll_timeout_ms=5_000, engine="native", **kafka)
        with open_transactional_client(wanted) as client:
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
    with opened(ScriptedResponses(), features=features) as client:
        assert client.transaction_version() == version


def test_cluster_without_describe_transactions() -> None:
    ranges = {65: (1, 1), 66: (3, 4)}
    responses = ScriptedResponses()
    with opened(responses, "x", ranges=ranges) as client:
        with pytest.raises(UnsupportedVersionError, match="DescribeTransactions"):
            client.describe_transactions(["x"])
        with pytest.raises(UnsupportedVersionError, match="ListTransactions"):
            client.list_transactions("x")


# --- InitProducerId ---


def test_markers_that_are_being_written_are_waited_for_in_short_pauses(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calculate, pauses_s = Backoff.backoff_s, []

    def record(self: Backoff, attempts: int, random_number: float) -> float:
        pauses_s.append(calculate(self, attempts, random_number))
        return pauses_s[-1]

    monkeypatch.setattr(Backoff, "backoff_s", record)
    responses = ScriptedResponses(init_producer_id=[*[initialised(51)] * 4, initialised()])
    with opened(responses, "x") as client, caplog.at_level(logging.WARNING):
        assert client.init_producer_id("x", timeout_ms=1) == PRODUCER
    # They are 20, 30, 45 and 67 ms, plus or minus 20 %. The usual delays are ten times as long.
    assert len(pauses_s) == 4
    assert sum(pauses_s) < 0.2
    assert responses.count("init_producer_id") == 5
    assert responses.count("find_coordinator") == 1
    assert not caplog.records  # the condition is common


def test_markers_that_are_never_written() -> None:
    responses = ScriptedResponses(init_producer_id=[initialised(51)])
    with (
        opened(responses, "x", api_timeout_ms=1_000) as client,
        pytest.raises(KafkaError, match=r"'x'.*CONCURRENT_TRANSACTIONS"),
    ):
        client.init_producer_id("x", timeout_ms=1)
    assert 3 < responses.count("init_producer_id") < 20


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
    responses = ScriptedResponses(init_producer_id=[initialised(code)])
    with opened(responses, "x") as client, pytest.raises(kind, match=keyword):
        client.init_producer_id("x", timeout_ms=1)
    assert responses.count("init_producer_id") == 1


def init_responses(codes: dict[str, list[int]], requested: list[str]) -> ScriptedResponses:
    """Return the next code of each id. The first responses wait until all ids are requested.

    The producer id in a response is the code point of the transactional id.
    """
    pending: list[tuple[str, ReceivedRequest]] = []

    def respond(peer: Peer, request: ReceivedRequest) -> None:
        name = next(name for name in codes if b"\x02" + name.encode() in request.rest)
        requested.append(name)
        pending.append((name, request))
        if len(requested) >= len(codes):
            for one, received in pending:
                fields = {**initialised(codes[one].pop(0)), "producer_id": ord(one)}
                peer.respond(received, "init_producer_id", **fields)
            pending.clear()

    return ScriptedResponses(init_producer_id=[respond])


def test_only_ids_without_a_producer_id_are_initialized_again() -> None:
    requested: list[str] = []
    responses = init_responses({"x": [0], "y": [51, 51, 0], "z": [0]}, requested)
    with opened(responses, "x", "y", "z") as client:
        found = client.init_producer_ids(["x", "y", "z"], timeout_ms=1)
    assert {name: owner.producer_id for name, owner in found.items()} == {
        name: ord(name) for name in "xyz"
    }
    assert sorted(requested) == ["x", "y", "y", "y", "z"]


def test_fenced_id_is_raised_at_once_although_others_are_retriable() -> None:
    requested: list[str] = []
    responses = init_responses({"x": [51], "y": [90], "z": [0]}, requested)
    with (
        opened(responses, "x", "y", "z") as client,
        pytest.raises(ProducerFencedError, match=r"'y'.* PRODUCER_FENCED"),
    ):
        client.init_producer_ids(["x", "y", "z"], timeout_ms=1)
    assert sorted(requested) == ["x", "y", "z"]


def test_a_coordinator_that_moves_is_followed() -> None:
    refusals = [closes, garbage, initialised(16), initialised(15), initialised(14)]
    responses = ScriptedResponses(init_producer_id=[*refusals, initialised()])
    with opened(responses, "x") as client:
        assert client.init_producer_id("x", timeout_ms=1) == PRODUCER
    assert responses.count("find_coordinator") == 5


# --- EndTxn ---


def test_retriable_end_txn_is_retried_and_final_codes_are_returned() -> None:
    codes = {"x": [51, 16, 0], "y": [0], "z": [90], "w": [14, 48], "v": [-1, 0], "u": [105]}
    requested: list[str] = []

    def respond(peer: Peer, request: ReceivedRequest) -> None:
        name = next(name for name in codes if b"\x02" + name.encode() in request.rest)
        requested.append(name)
        peer.respond(request, "end_txn", error_code=codes[name].pop(0))

    responses = ScriptedResponses(end_txn=[respond])
    with opened(responses, *codes) as client:
        assert client.end_transactions(ends(*codes)) == {
            "x": NONE,
            "y": NONE,
            "z": ErrorCode.producer_fenced,
            "w": ErrorCode.invalid_txn_state,
            "v": NONE,
            "u": ErrorCode.transactional_id_not_found,
        }
    assert sorted(requested) == sorted("xxxyzwwvvu")
    assert responses.count("find_coordinator") == 2  # for all ids, and for the id that moved


@pytest.mark.parametrize("code", [51, -1], ids=["concurrent", "unknown-server-error"])
def test_outcome_is_unknown_without_a_final_response(code: int) -> None:
    def respond(peer: Peer, request: ReceivedRequest) -> None:
        peer.respond(request, "end_txn", error_code=0 if b"\x02y" in request.rest else code)

    started = time.monotonic()
    with opened(ScriptedResponses(end_txn=[respond]), "x", "y", api_timeout_ms=1_500) as client:
        assert client.end_transactions(ends("x", "y")) == {"x": None, "y": NONE}
    assert time.monotonic() - started < 10


def test_end_txn_is_repeated_after_a_lost_response() -> None:
    """EndTxn can be repeated after a lost response. Without any response the result is None."""
    responses = ScriptedResponses(end_txn=[closes, ended()])
    with opened(responses, "x") as client:
        assert client.end_transactions(ends("x")) == {"x": NONE}
    responses = ScriptedResponses(end_txn=[closes])
    started = time.monotonic()
    with opened(responses, "x") as client:
        assert client.end_transactions(ends("x"), timeout_ms=200) == {"x": None}
    assert time.monotonic() - started < 10


def test_missing_acl_is_raised_after_the_other_ids_are_ended() -> None:
    requested: list[bytes] = []

    def respond(peer: Peer, request: ReceivedRequest) -> None:
        is_ours = b"\x02y" in request.rest
        requested.append(b"y" if is_ours else b"x")
        code = (51 if requested.count(b"y") < 3 else 0) if is_ours else 53
        peer.respond(request, "end_txn", error_code=code)

    with (
        opened(ScriptedResponses(end_txn=[respond]), "x", "y") as client,
        pytest.raises(AccessError, match=r"'x'.*TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ):
        client.end_transactions(ends("x", "y"))
    assert requested.count(b"y") == 3


def test_end_txn_without_a_supported_version() -> None:
    responses = ScriptedResponses(end_txn=[ended()])
    with (
        opened(responses, "x", ranges={26: (0, 4)}) as client,
        pytest.raises(UnsupportedVersionError, match="EndTxn"),
    ):
        client.end_transactions(ends("x"))
    assert responses.count("end_txn") == 0


# --- describe and list ---


def test_only_undescribed_ids_are_retried() -> None:
    requests: list[bytes] = []

    def respond(peer: Peer, received: ReceivedRequest) -> None:
        requests.append(received.rest)
        code = {1: 14, 2: 16}.get(len(requests), 105)
        states = [state("x")] if len(requests) == 1 else []
        states = [*states, state("y", error_code=code, state_name="")]
        peer.send(frame(received.correlation_id.to_bytes(4) + b"\0" + described(*states)))

    responses = ScriptedResponses(describe_transactions=[respond])
    with opened(responses, "x", "y") as client:
        assert client.describe_transactions(["x", "y"]).keys() == {"x"}
    assert [b"\x02x" in rest for rest in requests] == [True, False, False]
    assert responses.count("find_coordinator") == 2


def test_rejected_descriptions() -> None:
    def respond(peer: Peer, received: ReceivedRequest) -> None:
        states = described(state("x", error_code=53, state_name=""))
        peer.send(frame(received.correlation_id.to_bytes(4) + b"\0" + states))

    with (
        opened(ScriptedResponses(describe_transactions=[respond]), "x") as client,
        pytest.raises(AccessError, match=r"'x'.*TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ):
        client.describe_transactions(["x"])


def listing(*names: str, state_name: str = "Ongoing") -> dict[str, Any]:
    found = {"producer_id": 5, "transaction_state": state_name}
    return {"transaction_states": [{"transactional_id": name, **found} for name in names]}


@contextmanager
def two_brokers(
    first: ScriptedResponses, second: ScriptedResponses, *, api_timeout_ms: int = 20_000
) -> Iterator[TransactionalClient]:
    with ScriptedBroker(first) as one, ScriptedBroker(second) as two:
        metadata = [{**cluster(one, two), "controller_id": 1}]
        first.by_api["metadata"] = second.by_api["metadata"] = metadata
        wanted = options(one.address, engine="native", default_api_timeout_ms=str(api_timeout_ms))
        with open_transactional_client(wanted) as client:
            yield client


def test_loading_coordinator_retries_all_brokers() -> None:
    """A transactional id may move from one broker to another between the two requests."""
    first = ScriptedResponses(list_transactions=[listing("x/1"), listing("x/1", "x/2")])
    second = ScriptedResponses(list_transactions=[{"error_code": 14}, listing("x/3")])
    with two_brokers(first, second) as client:
        found = client.list_transactions("x/")
    assert [one.transactional_id for one in found] == ["x/1", "x/2", "x/3"]


@pytest.mark.parametrize("states", [("Ongoing", "Empty"), ("CompleteCommit", "Ongoing")])
def test_id_listed_by_two_brokers_is_open(states: tuple[str, str]) -> None:
    first, second = (
        ScriptedResponses(list_transactions=[listing("x/1", state_name=s)]) for s in states
    )
    with two_brokers(first, second) as client:
        (found,) = client.list_transactions("x/")
    assert found.state.value == "Ongoing"


def test_a_broker_that_does_not_answer_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = (
        ScriptedResponses(list_transactions=[listing("x/1")]),
        ScriptedResponses(list_transactions=[closes]),
    )
    with two_brokers(first, second) as client, caplog.at_level(logging.WARNING):
        found = client.list_transactions("x/")
        assert [one.transactional_id for one in found] == ["x/1"]
        assert second.count("list_transactions") == 3
    assert re.search(r"ListTransactions v2\b.*broker 2\b", caplog.text)


@pytest.mark.slow
def test_list_transactions_without_any_response_fails() -> None:
    first, second = (
        ScriptedResponses(list_transactions=[closes]),
        ScriptedResponses(list_transactions=[closes]),
    )
    with (
        two_brokers(first, second, api_timeout_ms=2_000) as client,
        pytest.raises(BrokerUnreachableError),
    ):
        client.list_transactions("x/")


# --- configs of brokers ---


def test_brokers_whose_settings_are_not_for_us() -> None:
    result = {"resource_type": 4, "resource_name": "1", "error_code": 31, "error_message": "no"}
    responses = ScriptedResponses(describe_configs=[{"results": [{**result, "configs": []}]}])
    with opened(responses) as client:
        assert client.broker_config() is None


def test_unknown_coordinator() -> None:
    responses = ScriptedResponses(find_coordinator=[coordinators("y", port=1)])
    with opened(responses, api_timeout_ms=1_000) as client, pytest.raises(KafkaError, match="'y'"):
        client.init_producer_id("x", timeout_ms=1)
