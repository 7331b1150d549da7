"""Tests of transaction requests, compared with kio's encoding and with scripted brokers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from integration import raw
from pyspark_kafka.errors import (
    BrokerUnreachableError,
    KafkaError,
    ProtocolError,
    UnsupportedVersionError,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from pyspark_kafka.wire.connection import Request
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.transaction_requests import (
    add_partitions_to_txn,
    describe_transactions,
    describe_transactions_request,
    end_transactions,
    end_txn_request,
    init_producer_id_request,
    init_producer_ids,
    list_transactions,
    list_transactions_request,
    send_offsets_to_transaction,
)
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api
from tests.pyspark_kafka.wire.coordinated import (
    PRODUCER,
    closes,
    coordinated,
    coordinators,
    described,
    ended,
    find_all,
    garbage,
    initialised,
    state,
    version_asked,
)
from tests.pyspark_kafka.wire.messages import entity_bytes
from tests.pyspark_kafka.wire.scripted import (
    Peer,
    ReceivedRequest,
    ScriptedBroker,
    ScriptedResponses,
    frame,
    refusing_address,
)
from tests.pyspark_kafka.wire.test_router import router, soon

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def supported_versions(api: Api) -> range:
    return range(SUPPORTED_VERSIONS[api].first, SUPPORTED_VERSIONS[api].last + 1)


def body(request: Request[Any]) -> bytes:
    return b"".join(bytes(part) for part in request.body)


def read(request: Request[Any], data: bytes) -> Any:
    reader = Reader(memoryview(data))
    found = request.read(reader)
    reader.end("the response")
    return found


def end(transactional_id: str = "x", *, is_commit: bool = True, version: int = 2) -> EndTransaction:
    return EndTransaction(
        transactional_id=transactional_id,
        producer=PRODUCER,
        is_commit=is_commit,
        version=2 if version == 2 else 1,
    )


# --- InitProducerId ---


@pytest.mark.parametrize("version", supported_versions(Api.INIT_PRODUCER_ID))
@pytest.mark.parametrize("expected", [None, PRODUCER], ids=["anybody", "expected"])
def test_init_producer_id_request_equals_kios(
    version: int, expected: ProducerIdAndEpoch | None
) -> None:
    fields: dict[str, Any] = {"transactional_id": "ü", "transaction_timeout": 12_345}
    if expected is not None and version >= 3:
        fields |= {"producer_id": expected.producer_id, "producer_epoch": expected.producer_epoch}
    request = init_producer_id_request(version, "ü", 12_345, expected)
    assert body(request) == entity_bytes(raw.request("init_producer_id", version, **fields))


@pytest.mark.parametrize("version", supported_versions(Api.INIT_PRODUCER_ID))
def test_init_producer_id_response_of_kio_is_read(version: int) -> None:
    fields = {"producer_id": PRODUCER.producer_id, "producer_epoch": 7, "error_code": 51}
    data = entity_bytes(raw.response("init_producer_id", version, throttle_time=9, **fields))
    found = read(init_producer_id_request(version, "x", 1), data)
    assert found == (9, ErrorCode.concurrent_transactions, PRODUCER)


# --- EndTxn ---


@pytest.mark.parametrize("version", supported_versions(Api.END_TXN))
@pytest.mark.parametrize("is_commit", [True, False])
def test_end_txn_request_equals_kios(version: int, *, is_commit: bool) -> None:
    expected = raw.request(
        "end_txn",
        version,
        transactional_id="ü",
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.producer_epoch,
        committed=is_commit,
    )
    request = end_txn_request(version, end("ü", is_commit=is_commit))
    assert body(request) == entity_bytes(expected)


@pytest.mark.parametrize("version", supported_versions(Api.END_TXN))
def test_end_txn_response_of_kio_is_read(version: int) -> None:
    fields = {"producer_id": PRODUCER.producer_id, "producer_epoch": 7} if version >= 5 else {}
    data = entity_bytes(raw.response("end_txn", version, throttle_time=9, error_code=48, **fields))
    found = read(end_txn_request(version, end()), data)
    assert (found.throttle_ms, found.error_code) == (9, ErrorCode.invalid_txn_state)


# --- DescribeTransactions ---


def description(**changed: Any) -> TransactionDescription:
    fields: dict[str, Any] = {
        "transactional_id": "x",
        "state": TransactionState.ONGOING,
        "producer": PRODUCER,
        "timeout_ms": 60_000,
        "started_ms": 5_000,
        "partitions": frozenset({T0, TopicPartition("t", 3)}),
    }
    return TransactionDescription(**{**fields, **changed})


def test_describe_transactions_request_equals_kios() -> None:
    expected = raw.request("describe_transactions", 0, transactional_ids=["x", "ü"])
    assert body(describe_transactions_request(["x", "ü"])) == entity_bytes(expected)


def test_describe_transactions_response_of_kio_is_read() -> None:
    one = {
        "transactional_id": "x",
        "transaction_state": "Ongoing",
        "transaction_timeout": 60_000,
        "transaction_start_time": datetime.fromtimestamp(5, UTC),
        "producer_id": PRODUCER.producer_id,
        "producer_epoch": PRODUCER.producer_epoch,
        "topics": [{"topic": "t", "partitions": [0, 3]}],
    }
    entity = raw.response("describe_transactions", 0, throttle_time=9, transaction_states=[one])
    assert entity_bytes(entity) == described(state())
    found = read(describe_transactions_request(["x"]), entity_bytes(entity))
    assert (found.throttle_ms, found.states) == (9, {"x": description()})


def test_a_transaction_that_never_began() -> None:
    data = described(state(started_ms=-1, state_name="Empty", partitions=()))
    found = read(describe_transactions_request(["x"]), data)
    empty = description(started_ms=None, state=TransactionState.EMPTY, partitions=frozenset())
    assert found.states == {"x": empty}


@pytest.mark.parametrize("name", [one.value for one in TransactionState])
def test_every_state_is_known(name: str) -> None:
    found = read(describe_transactions_request(["x"]), described(state(state_name=name)))
    assert found.states["x"].state.value == name


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([state("x")], "'y'"),
        ([state("x"), state("z")], "'z'"),
        ([state("x"), state("x")], "'x'"),
        ([state("x"), state("y", state_name="Odd")], "'Odd'"),
    ],
)
def test_descriptions_of_other_ids_are_malformed(states: list[bytes], expected: str) -> None:
    with pytest.raises(MalformedResponseError, match=expected):
        read(describe_transactions_request(["x", "y"]), described(*states))


# --- ListTransactions ---


@pytest.mark.parametrize("version", supported_versions(Api.LIST_TRANSACTIONS))
@pytest.mark.parametrize(
    "states",
    [[], [TransactionState.ONGOING], [TransactionState.EMPTY, TransactionState.PREPARE_ABORT]],
    ids=["any", "one", "two"],
)
def test_list_transactions_request_equals_kios(
    version: int, states: list[TransactionState]
) -> None:
    fields: dict[str, Any] = {"state_filters": [state.value for state in states]}
    if version >= 2:
        fields["transactional_id_pattern"] = r"x\.y\-1/.*"
    expected = raw.request("list_transactions", version, **fields)
    assert body(list_transactions_request(version, "x.y-1/", states)) == entity_bytes(expected)


@given(st.text(alphabet="abAB01._-/+*()[]{}^$|?\\ ", max_size=12), st.text(max_size=5))
def test_the_pattern_matches_the_prefix_only(prefix: str, rest: str) -> None:
    data = body(list_transactions_request(2, prefix))
    reader = Reader(memoryview(data))
    reader.view(10, "filters")
    pattern = reader.nullable_string("pattern", flexible=True)
    assert pattern is not None
    # The pattern uses only syntax that Python shares with RE2 of the brokers: escapes and `.*`.
    assert re.fullmatch(r"(?:[^\\.*+?()\[\]{}^$|]|\\[^a-zA-Z0-9])*\.\*", pattern)
    assert re.fullmatch(pattern, prefix + rest.replace("\n", ""))
    assert not prefix or not re.fullmatch(pattern, "Z" + prefix)


@pytest.mark.parametrize("version", supported_versions(Api.LIST_TRANSACTIONS))
def test_a_list_has_only_ids_with_the_prefix(version: int) -> None:
    """Brokers that do not support patterns return all ids, even in unknown states."""
    states = [
        {"transactional_id": name, "producer_id": 5, "transaction_state": known}
        for name, known in [("x/1", "Ongoing"), ("xy/1", "Novel"), ("x/2", "CompleteCommit")]
    ]
    entity = raw.response(
        "list_transactions",
        version,
        throttle_time=9,
        unknown_state_filters=["Odd"],
        transaction_states=states,
    )
    found = read(list_transactions_request(version, "x/"), entity_bytes(entity))
    assert found.throttle_ms == 9
    assert list(found.transactions) == [
        TransactionListing(transactional_id=name, producer_id=5, state=known)
        for name, known in [
            ("x/1", TransactionState.ONGOING),
            ("x/2", TransactionState.COMPLETE_COMMIT),
        ]
    ]


RESPONSES: list[tuple[Request[Any], bytes]] = [
    (describe_transactions_request(["x"]), described(state())),
    (
        end_txn_request(5, end()),
        entity_bytes(raw.response("end_txn", 5, producer_id=1, producer_epoch=2)),
    ),
    (
        init_producer_id_request(5, "x", 1),
        entity_bytes(raw.response("init_producer_id", 5, producer_id=1, producer_epoch=2)),
    ),
    (
        list_transactions_request(2, "x"),
        entity_bytes(
            raw.response(
                "list_transactions",
                2,
                transaction_states=[
                    {"transactional_id": "x", "producer_id": 5, "transaction_state": "Ongoing"}
                ],
            )
        ),
    ),
]


@given(st.data())
def test_corrupt_responses_are_malformed_or_read(data: st.DataObject) -> None:
    request, sound = data.draw(st.sampled_from(RESPONSES))
    found = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    del found[data.draw(st.integers(0, len(found))) :]
    try:
        read(request, bytes(found))
    except MalformedResponseError as error:
        assert str(error)  # noqa: PT017


# --- a single attempt ---


def init(
    one: Router, *, expected: ProducerIdAndEpoch | None = None
) -> ProducerIdAndEpoch | ApiError | KafkaError:
    found = init_producer_ids(one, ["x"], timeout_ms=60_000, expected=expected, deadline=soon())
    assert found.keys() == {"x"}
    return found["x"]


@pytest.mark.parametrize(
    ("expected", "theirs", "version"),
    [(None, (0, 6), 5), (None, (0, 1), 1), (PRODUCER, (0, 4), 4)],
)
def test_init_producer_id_has_a_version_with_the_required_fields(
    expected: ProducerIdAndEpoch | None, theirs: tuple[int, int], version: int
) -> None:
    responses = ScriptedResponses()
    responses.by_api["init_producer_id"] = [version_asked(responses, initialised())]
    with coordinated(responses, "x", ranges={22: theirs}) as one:
        assert init(one, expected=expected) == PRODUCER
    assert responses.received == ["find_coordinator", f"init_producer_id v{version}"]


def test_a_required_field_that_the_broker_does_not_support_is_an_error() -> None:
    responses = ScriptedResponses(init_producer_id=[initialised()])
    with coordinated(responses, "x", ranges={22: (0, 2)}) as one:
        found = init(one, expected=PRODUCER)
    assert isinstance(found, UnsupportedVersionError)
    assert "InitProducerId" in str(found)
    assert responses.count("init_producer_id") == 0


@pytest.mark.parametrize(("code", "lookups"), [(16, 2), (15, 2), (14, 1), (51, 1), (53, 1)])
def test_a_moved_coordinator_is_looked_up_again(code: int, lookups: int) -> None:
    responses = ScriptedResponses(init_producer_id=[initialised(code), initialised()])
    with coordinated(responses, "x") as one:
        found = init(one)
        assert isinstance(found, ApiError)
        assert "'x'" in str(found)
        assert found.code == code
        assert found.fields == {"transactional_id": "x"}
        assert init(one) == PRODUCER
        assert responses.count("find_coordinator") == lookups


@pytest.mark.parametrize(
    ("how", "kind"), [(closes, BrokerUnreachableError), (garbage, ProtocolError)]
)
def test_a_coordinator_that_does_not_respond_is_looked_up_again(
    how: Callable[[Peer, ReceivedRequest], None], kind: type[KafkaError]
) -> None:
    responses = ScriptedResponses(init_producer_id=[how, initialised()])
    with coordinated(responses, "x") as one:
        found = init(one)
        assert isinstance(found, kind)
        assert "InitProducerId" in str(found)
        assert init(one) == PRODUCER
        assert responses.count("find_coordinator") == 2


def test_end_txn_requests_are_sent_in_parallel() -> None:
    held: list[ReceivedRequest] = []

    def hold(peer: Peer, request: ReceivedRequest) -> None:
        held.append(request)
        if len(held) == 3:
            for one, code in zip(held, (0, 51, 48), strict=True):
                peer.respond(one, "end_txn", error_code=code)

    responses = ScriptedResponses(end_txn=[hold])
    find_all(responses, "x", "y", "z")
    with coordinated(responses) as one:
        found = end_transactions(one, [end("x"), end("y"), end("z")], deadline=soon())
    assert found == {
        "x": ErrorCode.none,
        "y": ErrorCode.concurrent_transactions,
        "z": ErrorCode.invalid_txn_state,
    }
    assert responses.received == ["find_coordinator", *["end_txn"] * 3]


@pytest.mark.parametrize(("version", "api_version"), [(1, 4), (2, 5)])
def test_end_txn_has_the_version_of_the_transaction(version: int, api_version: int) -> None:
    responses = ScriptedResponses()
    responses.by_api["end_txn"] = [version_asked(responses, ended())]
    with coordinated(responses, "x") as one:
        end_transactions(one, [end(version=version)], deadline=soon())
    assert responses.received[-1] == f"end_txn v{api_version}"


def test_end_txn_of_version_2_does_not_fall_back_to_version_1() -> None:
    """The coordinator would not bump the epoch, and a retry in version 5 would be rejected."""
    responses = ScriptedResponses(end_txn=[ended()])
    with coordinated(responses, "x", ranges={26: (0, 4)}) as one:
        found = end_transactions(one, [end()], deadline=soon())
    assert isinstance(found["x"], UnsupportedVersionError)
    assert responses.count("end_txn") == 0


def test_an_unreachable_coordinator_does_not_affect_others(dead: str) -> None:
    responses = ScriptedResponses(end_txn=[ended()])
    with ScriptedBroker(responses) as broker, router(broker) as one:
        alive = coordinators("x", port=broker.port)["coordinators"]
        gone = coordinators("y", port=Address.parse(dead).port)["coordinators"]
        gone = [{**gone[0], "node_id": 2}]
        nobody = [{**gone[0], "key": "z", "error_code": 15}]
        responses.by_api["find_coordinator"] = [{"coordinators": alive + gone + nobody}]
        found = end_transactions(one, [end("y"), end("x"), end("z")], deadline=soon())
        assert found["x"] is ErrorCode.none
        assert isinstance(found["y"], BrokerUnreachableError)
        assert isinstance(found["z"], ApiError)
        # Only the failed coordinators are looked up again.
        responses.by_api["find_coordinator"] = [coordinators("y", "z", port=broker.port)]
        again = end_transactions(one, [end("y"), end("x"), end("z")], deadline=soon())
        assert set(again.values()) == {ErrorCode.none}


def test_describe_transactions_of_several_coordinators(dead: str) -> None:
    def describe(peer: Peer, request: ReceivedRequest) -> None:
        missing = state("y", error_code=105, state_name="")
        refused = state("z", error_code=53, state_name="")
        data = described(state("x"), missing, refused)
        peer.send(frame(request.correlation_id.to_bytes(4) + b"\0" + data))

    responses = ScriptedResponses(describe_transactions=[describe])
    with ScriptedBroker(responses) as broker, router(broker) as one:
        alive = coordinators("x", "y", "z", port=broker.port)["coordinators"]
        gone = coordinators("w", port=Address.parse(dead).port)["coordinators"]
        gone = [{**gone[0], "node_id": 2}]
        responses.by_api["find_coordinator"] = [{"coordinators": alive + gone}]
        found = describe_transactions(one, ["w", "x", "y", "z"], deadline=soon())
    assert found["x"] == description()
    assert found["y"] is None
    assert isinstance(found["w"], BrokerUnreachableError)
    refused = found["z"]
    assert isinstance(refused, ApiError)
    assert refused.code is ErrorCode.transactional_id_authorization_failed
    assert responses.count("describe_transactions") == 1


def test_list_transactions_of_several_brokers(dead: str) -> None:
    states = [{"transactional_id": "x/1", "producer_id": 5, "transaction_state": "Ongoing"}]
    first = ScriptedResponses(list_transactions=[{"transaction_states": states}])
    second = ScriptedResponses(list_transactions=[{"error_code": 14}])
    with ScriptedBroker(first) as one, ScriptedBroker(second) as two, router(one) as found:
        brokers = [
            Broker(broker_id=index, address=Address.parse(address))
            for index, address in enumerate([one.address, two.address, dead])
        ]
        responses = list_transactions(found, "x/", [], brokers, deadline=soon())
    listed = responses[brokers[0]]
    assert not isinstance(listed, ApiError | KafkaError)
    assert [transaction.transactional_id for transaction in listed] == ["x/1"]
    loading = responses[brokers[1]]
    assert isinstance(loading, ApiError)
    assert loading.code is ErrorCode.coordinator_load_in_progress
    assert isinstance(responses[brokers[2]], BrokerUnreachableError)


# --- within a transaction ---


def added(*codes: int) -> dict[str, Any]:
    partitions = [
        {"partition_index": index, "partition_error_code": code} for index, code in enumerate(codes)
    ]
    return {"results_by_topic_v3_and_below": [{"name": "t", "results_by_partition": partitions}]}


def test_add_partitions_returns_error_codes_by_partition() -> None:
    responses = ScriptedResponses(add_partitions_to_txn=[added(0, 0), added(55, 29), added(16, 16)])
    with coordinated(responses, "x") as one:

        def add() -> Any:
            return add_partitions_to_txn(one, "x", PRODUCER, [T1, T0], deadline=soon())

        assert add() == {}
        refused = {T0: ErrorCode.operation_not_attempted, T1: ErrorCode.topic_authorization_failed}
        assert add() == refused
        assert responses.count("find_coordinator") == 1
        assert set(add().values()) == {ErrorCode.not_coordinator}
        add()
        assert responses.count("find_coordinator") == 2


def test_a_response_with_other_partitions_is_a_protocol_error() -> None:
    responses = ScriptedResponses(add_partitions_to_txn=[added(0), added(0, 0, 0)])
    with coordinated(responses, "x") as one:
        for wrong in ("'x'.*t-1", "'x'"):
            with pytest.raises(ProtocolError, match=wrong) as caught:
                add_partitions_to_txn(one, "x", PRODUCER, [T1, T0], deadline=soon())
            assert caught.value.transactional_id == "x"


def committed(error_code: int = 0) -> dict[str, Any]:
    partitions = [{"partition_index": 0, "error_code": error_code}]
    return {"topics": [{"name": "t", "partitions": partitions}]}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            1,
            [
                "find_coordinator",
                "add_offsets_to_txn",
                "find_coordinator",
                "txn_offset_commit v4",
            ],
        ),
        (2, ["find_coordinator", "txn_offset_commit v5"]),
    ],
)
def test_requests_of_offsets_depend_on_the_transaction_version(
    version: int, expected: list[str]
) -> None:
    responses = ScriptedResponses(add_offsets_to_txn=[{}])
    responses.by_api["txn_offset_commit"] = [version_asked(responses, committed())]
    with coordinated(responses, *(["x"] if version == 1 else []), "g") as one:
        send(one, version)
    assert responses.received == expected


def send(one: Router, version: int) -> None:
    send_offsets_to_transaction(
        one, "x", PRODUCER, "g", {T0: 5}, version=2 if version == 2 else 1, deadline=soon()
    )


def test_coordinators_are_looked_up_again_after_errors_of_offsets() -> None:
    responses = ScriptedResponses(
        add_offsets_to_txn=[{"error_code": 16}, {}],
        txn_offset_commit=[committed(16), committed(51), committed()],
    )
    with coordinated(responses, "x", "x", "g", "g") as one:
        with pytest.raises(ApiError, match="'g'") as caught:
            send(one, 1)
        assert caught.value.fields == {"transactional_id": "x"}
        with pytest.raises(ApiError, match="'x'") as caught:
            send(one, 1)
        assert caught.value.fields == {"topic": "t", "partition": 0, "group_id": "g"}
        assert caught.value.code is ErrorCode.not_coordinator
        with pytest.raises(ApiError) as caught:
            send(one, 1)
        assert caught.value.code is ErrorCode.concurrent_transactions
        send(one, 1)
    assert responses.count("find_coordinator") == 4


@pytest.fixture
def dead() -> Iterator[str]:
    with refusing_address() as address:
        yield address
