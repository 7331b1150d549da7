"""Sends requests for transactions, without retries.

InitProducerId, EndTxn, DescribeTransactions and ListTransactions do not use kio, because loading
kio's schemas takes milliseconds in every process that Spark starts for a micro-batch.
AddPartitionsToTxn, AddOffsetsToTxn and TxnOffsetCommit use kio. If a response does not contain each
requested id exactly once, an error is raised. If a coordinator does not respond or has moved, the
next request looks up the coordinator again. Sources: KIP-98, KIP-360 (expected epochs), KIP-664
(describe, list), KIP-890 (transaction version 2), KIP-1152 (list by pattern).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import BrokerUnreachableError, KafkaError, ProtocolError, sentence
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

_NO_PRODUCER: Final = ProducerIdAndEpoch(producer_id=-1, producer_epoch=-1)
_NOT_STARTED: Final = -1
_FIRST_WITH_EXPECTED_EPOCH: Final = 3
_FIRST_OF_VERSION_2: Final = 5
"""The first version of EndTxn and TxnOffsetCommit for `transaction.version` 2."""
_FIRST_FLEXIBLE_INIT: Final = 2
_FIRST_FLEXIBLE_END: Final = 3
_FIRST_WITH_DURATION: Final = 1
_FIRST_WITH_PATTERN: Final = 2


class _ProducerResponse(NamedTuple):
    """A response with an error code and, in some versions, a producer id and epoch."""

    throttle_ms: int
    error_code: ErrorCode
    producer: ProducerIdAndEpoch = _NO_PRODUCER


class _DescribeResponse(NamedTuple):
    throttle_ms: int
    states: Mapping[str, TransactionDescription | ErrorCode]


class _ListResponse(NamedTuple):
    throttle_ms: int
    error_code: ErrorCode
    transactions: Sequence[TransactionListing]


def init_producer_ids(
    router: Router,
    transactional_ids: Collection[str],
    *,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None = None,
    deadline: float,
) -> Mapping[str, ProducerIdAndEpoch | ApiError | KafkaError]:
    """Send InitProducerId for all transactional ids in parallel.

    For each transactional id, returns its new producer id and epoch, or an error.
    """
    at_least = _FIRST_WITH_EXPECTED_EPOCH if expected else None

    def make_request(name: str, connection: Connection) -> Request[_ProducerResponse]:
        version = connection.versions.choose(Api.INIT_PRODUCER_ID, at_least=at_least)
        return init_producer_id_request(version, name, timeout_ms, expected)

    def read(name: str, response: _ProducerResponse) -> ProducerIdAndEpoch | ApiError:
        key = CoordinatorKey.transaction(name)
        if response.error_code is ErrorCode.none:
            return response.producer
        return ApiError(response.error_code, f"initializing {key}", **key.error_fields)

    return _call_each_coordinator(router, transactional_ids, make_request, read, deadline)


def end_transactions(
    router: Router, ends: Collection[EndTransaction], *, deadline: float
) -> Mapping[str, ErrorCode | ApiError | KafkaError]:
    """Send EndTxn for distinct transactional ids in parallel.

    For each transactional id, returns the error code in the response, or an error if there is no
    response. The error is an `ApiError` if no coordinator was found.
    """

    by_id = {end.transactional_id: end for end in ends}
    assert len(by_id) == len(ends), "each id once"

    def make_request(name: str, connection: Connection) -> Request[_ProducerResponse]:
        end = by_id[name]
        return end_txn_request(_version_of(connection, Api.END_TXN, end.version), end)

    return _call_each_coordinator(
        router, by_id, make_request, lambda _, response: response.error_code, deadline
    )


def describe_transactions(
    router: Router, transactional_ids: Collection[str], *, deadline: float
) -> Mapping[str, TransactionDescription | ApiError | KafkaError | None]:
    """Send DescribeTransactions to the coordinators of these transactional ids.

    For each id, returns its description, None if the id is unknown, or an error.
    """
    errors, brokers = _coordinators(router, transactional_ids, deadline)
    by_broker: dict[Broker, list[str]] = {}
    for name, broker in brokers.items():
        by_broker.setdefault(broker, []).append(name)
    requests = {
        broker: BrokerRequest(broker, partial(_describe, names))
        for broker, names in by_broker.items()
    }
    results: dict[str, TransactionDescription | ApiError | KafkaError | None] = dict(errors)
    for broker, result in router.call_each(requests, deadline=deadline).items():
        for name in by_broker[broker]:
            if isinstance(result, KafkaError):
                router.invalidate_coordinator(CoordinatorKey.transaction(name))
                results[name] = result
            else:
                results[name] = _description_of(router, name, result.states[name])
    return results


def list_transactions(
    router: Router,
    id_prefix: str,
    states: Sequence[TransactionState],
    brokers: Collection[Broker],
    *,
    deadline: float,
) -> Mapping[Broker, Sequence[TransactionListing] | ApiError | KafkaError]:
    """Send ListTransactions to these brokers.

    For each broker, returns the transactional ids with this prefix in one of these states (in any
    state if `states` is empty), or an error.
    """
    make_request = partial(_list, id_prefix, states)
    requests = {broker: BrokerRequest(broker, make_request) for broker in brokers}
    results: dict[Broker, Sequence[TransactionListing] | ApiError | KafkaError] = {}
    for broker, result in router.call_each(requests, deadline=deadline).items():
        if isinstance(result, KafkaError):
            results[broker] = result
        elif result.error_code is not ErrorCode.none:
            results[broker] = ApiError(result.error_code, f"listing the transactions of {broker}")
        else:
            results[broker] = result.transactions
    return results


def add_partitions_to_txn(
    router: Router,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    *,
    deadline: float,
) -> Mapping[TopicPartition, ErrorCode]:
    """Send AddPartitionsToTxn, which transaction version 1 requires before the first write.

    Returns the error codes of the partitions that were not added. The broker adds either all
    partitions or none. If it adds none, valid partitions have the code OPERATION_NOT_ATTEMPTED.
    Raises `ApiError` if no coordinator is found.
    """
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        by_topic.setdefault(partition.topic, []).append(partition.partition)

    def make_request(connection: Connection) -> Request[Any]:
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
    response = _call_coordinator(router, key, make_request, deadline)
    results = [
        (TopicPartition(topic.name, result.partition_index), result.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    ]
    operation = f"adding partitions to the transaction of {key}"
    if wrong := partition_mismatch([partition for partition, _ in results], partitions):
        raise ProtocolError(
            f"{sentence(operation)} failed: {wrong}.", transactional_id=transactional_id
        )
    errors = {partition: code for partition, code in results if code is not ErrorCode.none}
    for partition, code in errors.items():
        router.invalidate(code, topic=partition.topic, key=key)
    return errors


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
    """Add the offsets of a group to a transaction, to commit offsets and records atomically.

    Sends AddOffsetsToTxn (only for transaction version 1) and TxnOffsetCommit. Raises
    `ApiError`.
    """
    if version == 1:
        _add_offsets(router, transactional_id, producer, group_id, deadline)

    def make_request(connection: Connection) -> Request[Any]:
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
    response = _call_coordinator(router, key, make_request, deadline)
    operation = f"committing offsets of {key} in the transaction of {transactional_id!r}"
    check_commits(router, response, offsets, key=key, operation=operation)


def _add_offsets(
    router: Router,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    group_id: str,
    deadline: float,
) -> None:
    def make_request(connection: Connection) -> Request[Any]:
        return entity_request(
            Api.ADD_OFFSETS_TO_TXN,
            connection.versions.choose(Api.ADD_OFFSETS_TO_TXN),
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=group_id,
        )

    key = CoordinatorKey.transaction(transactional_id)
    response = _call_coordinator(router, key, make_request, deadline)
    operation = f"adding group {group_id!r} to the transaction of {key}"
    _check(router, response.error_code, operation, key)


# --- one attempt ---


def _call_coordinator(
    router: Router,
    key: CoordinatorKey,
    make_request: Callable[[Connection], Request[T]],
    deadline: float,
) -> T:
    broker = router.coordinator(key, deadline=deadline)
    try:
        connection = router.connection(broker, deadline=deadline)
        result: T = router.call(connection, make_request(connection), deadline=deadline)
    except (BrokerUnreachableError, ProtocolError):
        router.invalidate_coordinator(key)
        raise
    return result


def _call_each_coordinator(
    router: Router,
    transactional_ids: Collection[str],
    make_request: Callable[[str, Connection], Request[_ProducerResponse]],
    read: Callable[[str, _ProducerResponse], T],
    deadline: float,
) -> dict[str, T | ApiError | KafkaError]:
    """Send one request per id in parallel.

    Return the result of `read`, or an error, for each id.
    """
    errors, brokers = _coordinators(router, transactional_ids, deadline)
    requests = {
        name: BrokerRequest(broker, partial(make_request, name)) for name, broker in brokers.items()
    }
    results: dict[str, T | ApiError | KafkaError] = dict(errors)
    for name, result in router.call_each(requests, deadline=deadline).items():
        key = CoordinatorKey.transaction(name)
        if isinstance(result, KafkaError):
            router.invalidate_coordinator(key)
            results[name] = result
        else:
            router.invalidate(result.error_code, key=key)
            results[name] = read(name, result)
    return results


def _check(router: Router, code: ErrorCode, operation: str, key: CoordinatorKey) -> None:
    if code is not ErrorCode.none:
        router.invalidate(code, key=key)
        raise ApiError(code, operation, **key.error_fields)


def _coordinators(
    router: Router, transactional_ids: Collection[str], deadline: float
) -> tuple[dict[str, ApiError], dict[str, Broker]]:
    """Return the errors for ids without a coordinator, and the coordinators of all other ids."""
    found = router.coordinators(CoordinatorKind.TRANSACTION, transactional_ids, deadline=deadline)
    errors = {name: one for name, one in found.items() if isinstance(one, ApiError)}
    return errors, {name: one for name, one in found.items() if not isinstance(one, ApiError)}


def _version_of(connection: Connection, api: Api, version: TransactionVersion) -> int:
    """Choose the API version of EndTxn or TxnOffsetCommit for a transaction version."""
    if version == 1:
        return connection.versions.choose(api, at_most=_FIRST_OF_VERSION_2 - 1)
    return connection.versions.choose(api, at_least=_FIRST_OF_VERSION_2)


def _describe(names: Sequence[str], connection: Connection) -> Request[_DescribeResponse]:
    connection.versions.choose(Api.DESCRIBE_TRANSACTIONS)
    return describe_transactions_request(names)


def _list(
    id_prefix: str, states: Sequence[TransactionState], connection: Connection
) -> Request[_ListResponse]:
    version = connection.versions.choose(Api.LIST_TRANSACTIONS)
    return list_transactions_request(version, id_prefix, states)


def _description_of(
    router: Router, name: str, state: TransactionDescription | ErrorCode
) -> TransactionDescription | ApiError | None:
    if not isinstance(state, ErrorCode):
        return state
    if state is ErrorCode.transactional_id_not_found:
        return None
    key = CoordinatorKey.transaction(name)
    router.invalidate(state, key=key)
    return ApiError(state, f"describing the transaction of {key}", **key.error_fields)


# --- messages ---


def init_producer_id_request(
    version: int,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None = None,
) -> Request[_ProducerResponse]:
    """Build an InitProducerId request."""
    flexible = version >= _FIRST_FLEXIBLE_INIT
    body = string(transactional_id, flexible=flexible) + int32(timeout_ms)
    if version >= _FIRST_WITH_EXPECTED_EPOCH:
        producer = expected or _NO_PRODUCER
        body += int64(producer.producer_id) + int16(producer.producer_epoch)
    if flexible:
        body += NO_TAGGED_FIELDS

    def read(reader: Reader) -> _ProducerResponse:
        throttle_ms = reader.int32("throttle_time_ms")
        error_code = reader.error_code("error_code")
        producer = _read_producer(reader)
        if flexible:
            reader.skip_tagged_fields("the response")
        return _ProducerResponse(throttle_ms, error_code, producer)

    return _request(Api.INIT_PRODUCER_ID, version, body, read)


def end_txn_request(version: int, end: EndTransaction) -> Request[_ProducerResponse]:
    """Build an EndTxn request. `version` must match the transaction version."""
    flexible = version >= _FIRST_FLEXIBLE_END
    body = string(end.transactional_id, flexible=flexible)
    body += int64(end.producer.producer_id) + int16(end.producer.producer_epoch)
    body += int8(end.is_commit)
    if flexible:
        body += NO_TAGGED_FIELDS

    def read(reader: Reader) -> _ProducerResponse:
        throttle_ms = reader.int32("throttle_time_ms")
        error_code = reader.error_code("error_code")
        producer = _read_producer(reader) if version >= _FIRST_OF_VERSION_2 else _NO_PRODUCER
        if flexible:
            reader.skip_tagged_fields("the response")
        return _ProducerResponse(throttle_ms, error_code, producer)

    return _request(Api.END_TXN, version, body, read)


def describe_transactions_request(transactional_ids: Sequence[str]) -> Request[_DescribeResponse]:
    """Build a DescribeTransactions request in version 0, the only version."""
    names = b"".join(string(name, flexible=True) for name in transactional_ids)
    body = length(len(transactional_ids), flexible=True) + names + NO_TAGGED_FIELDS

    def read(reader: Reader) -> _DescribeResponse:
        throttle_ms = reader.int32("throttle_time_ms")
        states: dict[str, TransactionDescription | ErrorCode] = {}
        pending = set(transactional_ids)
        for name, state in reader.array(
            lambda: _read_state(reader), "transaction_states", flexible=True
        ):
            if name not in pending:
                raise MalformedResponseError(f"id {name!r} was not requested or occurs twice")
            pending.remove(name)
            states[name] = state
        if pending:
            raise MalformedResponseError(f"id {min(pending)!r} is missing from the response")
        reader.skip_tagged_fields("the response")
        return _DescribeResponse(throttle_ms, states)

    return _request(Api.DESCRIBE_TRANSACTIONS, 0, body, read)


def list_transactions_request(
    version: int, id_prefix: str, states: Sequence[TransactionState] = ()
) -> Request[_ListResponse]:
    """Build a ListTransactions request for the ids with this prefix.

    Before version 2 of the API, brokers return all ids, and the request's `read` function filters
    the ids.
    """
    body = length(len(states), flexible=True)
    body += b"".join(string(state.value, flexible=True) for state in states)
    body += length(0, flexible=True)  # any producer id
    if version >= _FIRST_WITH_DURATION:
        body += int64(-1)  # any duration
    if version >= _FIRST_WITH_PATTERN:
        body += nullable_string(f"{re.escape(id_prefix)}.*", flexible=True)
    body += NO_TAGGED_FIELDS

    def read(reader: Reader) -> _ListResponse:
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
        return _ListResponse(throttle_ms, error_code, found)

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
        started_ms=None if started_ms == _NOT_STARTED else started_ms,
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
        raise MalformedResponseError(f"{name!r} is not a transaction state") from None
