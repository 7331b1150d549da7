"""Transactions: what their coordinators are asked, one try each.

Purpose: InitProducerId, EndTxn, DescribeTransactions and ListTransactions by hand, since every
micro-batch asks them in a new process and kio takes milliseconds to load each; AddPartitionsToTxn,
AddOffsetsToTxn and TxnOffsetCommit by kio. Invariant: an answer is about what was asked for, each
once; a coordinator that does not answer, or says that it is none, is found anew by the next try.
What it must not know: which answers are worth another try, and what the transactions are for.
Sources: KIP-98, KIP-360 (expected epochs), KIP-664 (describe, list), KIP-890 (version 2), KIP-939
(two phases), KIP-1152 (a pattern to list by).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import BrokerUnreachableError, KafkaError, ProtocolError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
)
from pyspark_kafka.wire.connection import Connection, Request, entity_request
from pyspark_kafka.wire.coordinators import CoordinatorKey, CoordinatorKind
from pyspark_kafka.wire.group_offsets import check_commits, committed_topics, partition_mismatch
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.router import ApiError, BrokerRequest, Router
from pyspark_kafka.wire.versions import Api
from pyspark_kafka.wire.writer import (
    NO_TAGGED_FIELDS,
    int8,
    int16,
    int32,
    int64,
    length,
    nullable_string,
    string,
)

T = TypeVar("T")

_NOBODY: Final = ProducerIdAndEpoch(producer_id=-1, producer_epoch=-1)
_NEVER: Final = -1
_FIRST_EXPECTING: Final = 3
FIRST_TWO_PHASE: Final = 6
"""Of InitProducerId; brokers have it where `unstable.api.versions.enable` is on."""
_FIRST_BUMPING: Final = 5
"""EndTxn and TxnOffsetCommit of version 2; earlier ones are of version 1."""
_FIRST_FLEXIBLE_INIT: Final = 2
_FIRST_FLEXIBLE_END: Final = 3
_FIRST_WITH_DURATION: Final = 1
_FIRST_WITH_PATTERN: Final = 2


class _Coded(NamedTuple):
    """An answer that is an error code and what goes with it."""

    throttle_ms: int
    error_code: ErrorCode
    producer: ProducerIdAndEpoch = _NOBODY


class _Described(NamedTuple):
    throttle_ms: int
    states: Mapping[str, TransactionDescription | ErrorCode]


class _Listed(NamedTuple):
    throttle_ms: int
    error_code: ErrorCode
    transactions: Sequence[TransactionListing]


def init_producer_id(
    router: Router,
    transactional_id: str,
    *,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None = None,
    two_phase_commit: bool = False,
    deadline: float,
) -> ProducerIdAndEpoch:
    """InitProducerId of a transactional id. Raises `ApiError` with whatever code the answer has."""
    at_least = FIRST_TWO_PHASE if two_phase_commit else _FIRST_EXPECTING if expected else None
    at_most = None if two_phase_commit else FIRST_TWO_PHASE - 1

    def make(connection: Connection) -> Request[_Coded]:
        version = connection.versions.choose(
            Api.INIT_PRODUCER_ID, at_least=at_least, at_most=at_most
        )
        return init_producer_id_request(version, transactional_id, timeout_ms, expected)

    key = CoordinatorKey.transaction(transactional_id)
    answer = _ask_coordinator(router, key, make, deadline)
    _check(router, answer.error_code, "taking", key)
    return answer.producer


def end_transactions(
    router: Router, ends: Collection[EndTransaction], *, deadline: float
) -> Mapping[str, ErrorCode | ApiError | KafkaError]:
    """EndTxn of all of these, of different ids, side by side.

    By transactional id: the answer's code, or why none came (`ApiError` where no coordinator was
    found).
    """

    def question(end: EndTransaction) -> Callable[[Connection], Request[_Coded]]:
        return lambda connection: end_txn_request(_end_version(connection, end), end)

    by_id = {end.transactional_id: end for end in ends}
    assert len(by_id) == len(ends), "each id once"
    found, brokers = _coordinators(router, by_id, deadline)
    asked = {name: BrokerRequest(brokers[name], question(by_id[name])) for name in brokers}
    answers: dict[str, ErrorCode | ApiError | KafkaError] = dict(found)
    for name, answer in router.call_each(asked, deadline=deadline).items():
        key = CoordinatorKey.transaction(name)
        if isinstance(answer, KafkaError):
            router.forget_coordinator(key)
            answers[name] = answer
        else:
            router.invalidate(answer.error_code, key=key)
            answers[name] = answer.error_code
    return answers


def describe_transactions(
    router: Router, transactional_ids: Collection[str], *, deadline: float
) -> Mapping[str, TransactionDescription | ApiError | KafkaError | None]:
    """DescribeTransactions: what there is of each id (None: nothing), or why no answer came."""
    found, brokers = _coordinators(router, transactional_ids, deadline)
    by_broker: dict[Broker, list[str]] = {}
    for name, broker in brokers.items():
        by_broker.setdefault(broker, []).append(name)
    asked = {
        broker: BrokerRequest(broker, partial(_describe, names))
        for broker, names in by_broker.items()
    }
    answers: dict[str, TransactionDescription | ApiError | KafkaError | None] = dict(found)
    for broker, answer in router.call_each(asked, deadline=deadline).items():
        for name in by_broker[broker]:
            if isinstance(answer, KafkaError):
                router.forget_coordinator(CoordinatorKey.transaction(name))
                answers[name] = answer
            else:
                answers[name] = _description_of(router, name, answer.states[name])
    return answers


def list_transactions(
    router: Router, id_prefix: str, brokers: Collection[Broker], *, deadline: float
) -> Mapping[Broker, Sequence[TransactionListing] | ApiError | KafkaError]:
    """ListTransactions of these brokers: the ids that begin so, or why no answer came."""
    asked = {broker: BrokerRequest(broker, partial(_list, id_prefix)) for broker in brokers}
    answers: dict[Broker, Sequence[TransactionListing] | ApiError | KafkaError] = {}
    for broker, answer in router.call_each(asked, deadline=deadline).items():
        if isinstance(answer, KafkaError):
            answers[broker] = answer
        elif answer.error_code is not ErrorCode.none:
            answers[broker] = ApiError(answer.error_code, f"listing the transactions of {broker}")
        else:
            answers[broker] = answer.transactions
    return answers


def add_partitions_to_txn(
    router: Router,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    *,
    deadline: float,
) -> Mapping[TopicPartition, ErrorCode]:
    """AddPartitionsToTxn, which goes before writing in transactions of version 1.

    Returns what was refused, with the codes: nothing where all are in the transaction. Brokers add
    all or none; those that are not at fault have OPERATION_NOT_ATTEMPTED. Raises `ApiError` where no
    coordinator is found.
    """
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        by_topic.setdefault(partition.topic, []).append(partition.partition)

    def make(connection: Connection) -> Request[Any]:
        return entity_request(
            Api.ADD_PARTITIONS_TO_TXN,
            connection.versions.choose(Api.ADD_PARTITIONS_TO_TXN),
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[
                {"name": name, "partitions": indexes} for name, indexes in by_topic.items()
            ],
        )

    key = CoordinatorKey.transaction(transactional_id)
    response = _ask_coordinator(router, key, make, deadline)
    answers = [
        (TopicPartition(topic.name, answer.partition_index), answer.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for answer in topic.results_by_partition
    ]
    operation = f"adding partitions to the transaction of {key}"
    if wrong := partition_mismatch([partition for partition, _ in answers], partitions):
        raise ProtocolError(f"{operation} failed: {wrong}")
    refused = {partition: code for partition, code in answers if code is not ErrorCode.none}
    for partition, code in refused.items():
        router.invalidate(code, topic=partition.topic, key=key)
    return refused


def send_offsets_to_transaction(
    router: Router,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    version: TransactionVersion,
    deadline: float,
) -> None:
    """Commit a group's offsets within a transaction: they hold when it is committed.

    AddOffsetsToTxn (of version 1 alone) and TxnOffsetCommit. Raises `ApiError`.
    """
    if version == 1:
        _add_offsets(router, transactional_id, producer, group_id, deadline)

    def make(connection: Connection) -> Request[Any]:
        api = Api.TXN_OFFSET_COMMIT
        return entity_request(
            api,
            _version_of(connection, api, version),
            transactional_id=transactional_id,
            group_id=group_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=committed_topics(offsets),
        )

    key = CoordinatorKey.group(group_id)
    response = _ask_coordinator(router, key, make, deadline)
    operation = f"committing offsets of {key} in the transaction of {transactional_id!r}"
    check_commits(router, response, offsets, key=key, operation=operation)


def _add_offsets(
    router: Router,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    group_id: str,
    deadline: float,
) -> None:
    def make(connection: Connection) -> Request[Any]:
        return entity_request(
            Api.ADD_OFFSETS_TO_TXN,
            connection.versions.choose(Api.ADD_OFFSETS_TO_TXN),
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=group_id,
        )

    key = CoordinatorKey.transaction(transactional_id)
    response = _ask_coordinator(router, key, make, deadline)
    _check(router, response.error_code, f"adding group {group_id!r} to the transaction of", key)


# --- asking ---


def _ask_coordinator(
    router: Router,
    key: CoordinatorKey,
    make: Callable[[Connection], Request[T]],
    deadline: float,
) -> T:
    broker = router.coordinator(key, deadline=deadline)
    try:
        connection = router.connection(broker, deadline=deadline)
        answer: T = router.call(connection, make(connection), deadline=deadline)
    except (BrokerUnreachableError, ProtocolError):
        router.forget_coordinator(key)
        raise
    return answer


def _check(router: Router, code: ErrorCode, operation: str, key: CoordinatorKey) -> None:
    if code is not ErrorCode.none:
        router.invalidate(code, key=key)
        raise ApiError(code, f"{operation} {key}")


def _coordinators(
    router: Router, transactional_ids: Collection[str], deadline: float
) -> tuple[dict[str, ApiError], dict[str, Broker]]:
    """Why no coordinator is known, or who it is."""
    found = router.coordinators(CoordinatorKind.TRANSACTION, transactional_ids, deadline=deadline)
    refused = {name: one for name, one in found.items() if isinstance(one, ApiError)}
    return refused, {name: one for name, one in found.items() if not isinstance(one, ApiError)}


def _version_of(connection: Connection, api: Api, version: TransactionVersion) -> int:
    """Which version of EndTxn or TxnOffsetCommit transactions of this version are spoken of in."""
    if version == 1:
        return connection.versions.choose(api, at_most=_FIRST_BUMPING - 1)
    return connection.versions.choose(api, at_least=_FIRST_BUMPING)


def _end_version(connection: Connection, end: EndTransaction) -> int:
    return _version_of(connection, Api.END_TXN, end.version)


def _describe(names: Sequence[str], connection: Connection) -> Request[_Described]:
    connection.versions.choose(Api.DESCRIBE_TRANSACTIONS)
    return describe_transactions_request(names)


def _list(id_prefix: str, connection: Connection) -> Request[_Listed]:
    version = connection.versions.choose(Api.LIST_TRANSACTIONS)
    return list_transactions_request(version, id_prefix)


def _description_of(
    router: Router, name: str, state: TransactionDescription | ErrorCode
) -> TransactionDescription | ApiError | None:
    if not isinstance(state, ErrorCode):
        return state
    if state is ErrorCode.transactional_id_not_found:
        return None
    key = CoordinatorKey.transaction(name)
    router.invalidate(state, key=key)
    return ApiError(state, f"describing the transaction of {key}")


# --- messages ---


def init_producer_id_request(
    version: int,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None = None,
) -> Request[_Coded]:
    """Of version `FIRST_TWO_PHASE` for transactions of two phases, and of earlier ones else."""
    flexible = version >= _FIRST_FLEXIBLE_INIT
    body = string(transactional_id, flexible=flexible) + int32(timeout_ms)
    if version >= _FIRST_EXPECTING:
        known = expected or _NOBODY
        body += int64(known.producer_id) + int16(known.producer_epoch)
    if version >= FIRST_TWO_PHASE:
        body += int8(1) + int8(0)  # two phases; do not keep what is prepared
    if flexible:
        body += NO_TAGGED_FIELDS

    def read(reader: Reader) -> _Coded:
        throttle_ms = reader.int32("throttle_time_ms")
        error_code = reader.error_code("error_code")
        producer = _read_producer(reader)
        if version >= FIRST_TWO_PHASE:
            reader.int64("ongoing_txn_producer_id")
            reader.int16("ongoing_txn_producer_epoch")
        if flexible:
            reader.skip_tagged_fields("the response")
        return _Coded(throttle_ms, error_code, producer)

    return _request(Api.INIT_PRODUCER_ID, version, body, read)


def end_txn_request(version: int, end: EndTransaction) -> Request[_Coded]:
    """`version` has to be one of those of the transaction."""
    flexible = version >= _FIRST_FLEXIBLE_END
    body = string(end.transactional_id, flexible=flexible)
    body += int64(end.producer.producer_id) + int16(end.producer.producer_epoch)
    body += int8(end.is_commit)
    if flexible:
        body += NO_TAGGED_FIELDS

    def read(reader: Reader) -> _Coded:
        throttle_ms = reader.int32("throttle_time_ms")
        error_code = reader.error_code("error_code")
        producer = _read_producer(reader) if version >= _FIRST_BUMPING else _NOBODY
        if flexible:
            reader.skip_tagged_fields("the response")
        return _Coded(throttle_ms, error_code, producer)

    return _request(Api.END_TXN, version, body, read)


def describe_transactions_request(transactional_ids: Sequence[str]) -> Request[_Described]:
    """Version 0, the only one."""
    names = b"".join(string(name, flexible=True) for name in transactional_ids)
    body = length(len(transactional_ids), flexible=True) + names + NO_TAGGED_FIELDS

    def read(reader: Reader) -> _Described:
        throttle_ms = reader.int32("throttle_time_ms")
        states: dict[str, TransactionDescription | ErrorCode] = {}
        due = set(transactional_ids)
        for name, state in reader.array(
            lambda: _read_state(reader), "transaction_states", flexible=True
        ):
            if name not in due:
                raise MalformedResponseError(f"id {name!r} was not asked for, or twice")
            due.remove(name)
            states[name] = state
        if due:
            raise MalformedResponseError(f"id {min(due)!r} is left out")
        reader.skip_tagged_fields("the response")
        return _Described(throttle_ms, states)

    return _request(Api.DESCRIBE_TRANSACTIONS, 0, body, read)


def list_transactions_request(version: int, id_prefix: str) -> Request[_Listed]:
    """Brokers before version 2 answer for all ids, and what does not begin so is left out here."""
    body = length(0, flexible=True)  # of any state
    body += length(0, flexible=True)  # of any producer id
    if version >= _FIRST_WITH_DURATION:
        body += int64(-1)  # however long
    if version >= _FIRST_WITH_PATTERN:
        body += nullable_string(f"{re.escape(id_prefix)}.*", flexible=True)
    body += NO_TAGGED_FIELDS

    def read(reader: Reader) -> _Listed:
        throttle_ms = reader.int32("throttle_time_ms")
        error_code = reader.error_code("error_code")
        reader.array(
            lambda: reader.string("a state", flexible=True), "unknown_state_filters", flexible=True
        )
        transactions = reader.array(
            lambda: _read_listing(reader, id_prefix), "transaction_states", flexible=True
        )
        reader.skip_tagged_fields("the response")
        found = [transaction for transaction in transactions if transaction is not None]
        return _Listed(throttle_ms, error_code, found)

    return _request(Api.LIST_TRANSACTIONS, version, body, read)


def _request(api: Api, version: int, body: bytes, read: Callable[[Reader], T]) -> Request[T]:
    return Request(
        api=api,
        version=version,
        body=(body,),
        read=read,
        throttle_ms=_throttle_ms,
    )


def _throttle_ms(response: Any) -> int:
    throttle_ms: int = response.throttle_ms
    return throttle_ms


def _read_producer(reader: Reader) -> ProducerIdAndEpoch:
    producer_id = reader.int64("producer_id")
    return ProducerIdAndEpoch(
        producer_id=producer_id, producer_epoch=reader.int16("producer_epoch")
    )


def _read_state(reader: Reader) -> tuple[str, TransactionDescription | ErrorCode]:
    error_code = reader.error_code("error_code")
    name = reader.string("transactional_id", flexible=True)
    state = reader.string("transaction_state", flexible=True)
    timeout_ms = reader.int32("transaction_timeout_ms")
    started_ms = reader.int64("transaction_start_time_ms")
    producer = _read_producer(reader)
    topics = reader.array(lambda: _read_topic(reader), "topics", flexible=True)
    reader.skip_tagged_fields("a transaction")
    if error_code is not ErrorCode.none:
        return name, error_code
    return name, TransactionDescription(
        transactional_id=name,
        state=_state(state),
        producer=producer,
        timeout_ms=timeout_ms,
        started_ms=None if started_ms == _NEVER else started_ms,
        partitions=frozenset(partition for topic in topics for partition in topic),
    )


def _read_topic(reader: Reader) -> tuple[TopicPartition, ...]:
    topic = reader.string("topic", flexible=True)
    partitions = reader.array(
        lambda: TopicPartition(topic, reader.int32("a partition")), "partitions", flexible=True
    )
    reader.skip_tagged_fields("a topic")
    return partitions


def _read_listing(reader: Reader, id_prefix: str) -> TransactionListing | None:
    name = reader.string("transactional_id", flexible=True)
    producer_id = reader.int64("producer_id")
    state = reader.string("transaction_state", flexible=True)
    reader.skip_tagged_fields("a transaction")
    if not name.startswith(id_prefix):
        return None
    return TransactionListing(transactional_id=name, producer_id=producer_id, state=_state(state))


def _state(name: str) -> TransactionState:
    try:
        return TransactionState(name)
    except ValueError:
        raise MalformedResponseError(f"{name!r} is no state of a transaction") from None
