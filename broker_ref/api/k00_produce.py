"""Produce (0), versions 3 to 13: append record batches.

Behaviour: acks 0 expects no answer, and learns of a failure by its connection being closed; 1
answers after the leader's append; -1 ("all") once the high watermark has passed the batch, or
REQUEST_TIMED_OUT after the timeout; NOT_ENOUGH_REPLICAS where too few are in sync for the append,
NOT_ENOUGH_REPLICAS_AFTER_APPEND where they have become too few since, NOT_LEADER_OR_FOLLOWER where
leadership has moved. Any other acks: INVALID_REQUIRED_ACKS. One batch in format 2
per partition; the log checks and refuses it (INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE,
INVALID_TIMESTAMP, sequence errors). Before version 7, zstd is UNSUPPORTED_COMPRESSION_TYPE
(KIP-110). From version 8 single records at fault are named (KIP-467),
from 10 the present leader where another is meant (KIP-951), from 13 topics by id (KIP-516).
Internal topics are the broker's own: INVALID_TOPIC_EXCEPTION.

A transactional batch needs the request to have a transactional id, else all of it is refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and one producer, else INVALID_PRODUCER_ID_MAPPING. Where its
transaction is not open in the partition, the coordinator is asked first (KIP-890, see
`verified_batches`): whether the partition is part of it, from version 12 on to make it so.

ApiVersions names version 0 as the lowest, as Apache Kafka 4's does: clients (librdkafka) take the
range as a sign of the codecs that a broker has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import (
    NO_ANSWER,
    NO_THROTTLE_MS,
    Api,
    Broker,
    Call,
    Hangup,
    Wait,
)
from broker_ref.api.endpoints import (
    NO_LEADER,
    LeaderIdAndEpoch,
    NodeEndpoint,
    current_leader,
    endpoints_of,
)
from broker_ref.api.verified_batches import VerifiedBatch, verify_then
from broker_ref.log.batch import (
    ATTRIBUTES_POSITION,
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Compression,
    unpack_header,
)
from broker_ref.log.errors import LogError, RecordValidationError
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.replication.partition import Appended, PartitionKey

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
FIRST_VERSION_OF_ZSTD: Final = 7
FIRST_VERSION_BY_TOPIC_ID: Final = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    """A batch for a partition."""

    index: int
    records: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    """PendingAppends for a topic, by name or, from version 13, by id."""

    partition_data: tuple[PartitionData, ...]
    name: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """What to append, and when to answer."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: tuple[TopicData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordErrorData:
    """A record that is at fault."""

    batch_index: int
    batch_index_error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """Where the batch went, or why it did not."""

    index: int
    error_code: ErrorCode = ErrorCode.none
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[RecordErrorData, ...] = ()
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = NO_LEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The answers for a topic."""

    name: str
    topic_id: Uuid
    partition_responses: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """The answers for every topic."""

    responses: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@dataclass(slots=True, kw_only=True)
class ProducePartitionStatus:
    """The answer for one partition as it stands, and the append it waits for."""

    response: PartitionResponse
    appended: Appended | None = None


@dataclass(slots=True, kw_only=True)
class DelayedProduce:
    """An acks=all request whose batches are not yet on every in-sync replica.

    Each partition has its own outcome; the response goes out when all have one, or at the timeout.
    """

    broker: Broker
    request: ProduceRequest
    statuses: tuple[tuple[ProducePartitionStatus, ...], ...]

    def try_complete(self, now_ms: int) -> ProduceResponse | None:
        """The response once no batch waits."""
        del now_ms
        waiting = False
        for status in self._all_statuses():
            if status.appended is None:
                continue
            outcome = status.appended.outcome
            if outcome is None:
                waiting = True
                continue
            if outcome is not ErrorCode.none:
                status.response = self._failed(status.response, status.appended, outcome)
            status.appended = None
        return None if waiting else _response(self.broker, self.request, self.statuses)

    def expire(self, now_ms: int) -> ProduceResponse:
        """The response with REQUEST_TIMED_OUT for the batches that still wait."""
        done = self.try_complete(now_ms)
        if done is not None:
            return done
        for status in self._all_statuses():
            if status.appended is not None:
                status.response = self._failed(
                    status.response, status.appended, ErrorCode.request_timed_out
                )
        return _response(self.broker, self.request, self.statuses)

    def keys(self) -> tuple[PartitionKey, ...]:
        """The partitions whose high watermark matters."""
        return tuple(
            status.appended.partition.key
            for status in self._all_statuses()
            if status.appended is not None
        )

    def _failed(
        self, response: PartitionResponse, appended: Appended, error_code: ErrorCode
    ) -> PartitionResponse:
        """The answer for a batch that is in the log here, and may be lost: it says where."""
        key = appended.partition.key
        leader = _leader_elsewhere(self.broker, key.topic, key.partition, error_code)
        return replace(response, error_code=error_code, current_leader=leader)

    def _all_statuses(self) -> tuple[ProducePartitionStatus, ...]:
        return tuple(status for topic in self.statuses for status in topic)


@dataclass(slots=True, kw_only=True)
class PendingAppend:
    """What is to be appended to a partition, unless its answer is an error already.

    `header` is that of a transactional batch.
    """

    index: int
    records: bytes
    topic: str
    header: BatchHeader | None = None
    verified: VerifiedBatch | None = None
    error: PartitionResponse | None = None


PendingAppends = tuple[tuple[PendingAppend, ...], ...]
"""As in the request: topic by topic."""


def handle(broker: Broker, call: Call, request: ProduceRequest) -> object:
    """Append every batch, verified where it is to be, then answer as acks says."""
    batches: PendingAppends = tuple(
        tuple(_pending_append(broker, call, request, topic, data) for data in topic.partition_data)
        for topic in request.topic_data
    )
    transactional = [batch for topic in batches for batch in topic if batch.header is not None]
    if not transactional:
        return _append_all(broker, request, batches, call.now_ms)
    error = _transaction_error(request, transactional)
    if error is not None:
        for batch in (batch for topic in batches for batch in topic):
            batch.error = PartitionResponse(
                index=batch.index, error_code=error.error_code, error_message=str(error)
            )
        return _append_all(broker, request, batches, call.now_ms)
    for batch in transactional:
        if batch.error is None:
            assert batch.header is not None
            batch.verified = VerifiedBatch(
                key=PartitionKey(topic=batch.topic, partition=batch.index), header=batch.header
            )
    assert request.transactional_id is not None
    return verify_then(
        broker,
        call,
        request.transactional_id,
        [batch.verified for batch in transactional if batch.verified is not None],
        then=lambda now_ms: _append_all(broker, request, batches, now_ms),
    )


def _transaction_error(
    request: ProduceRequest, transactional: list[PendingAppend]
) -> ApiError | None:
    """Why a request with transactional batches is refused as a whole."""
    if request.transactional_id is None:
        return ApiError(
            ErrorCode.transactional_id_authorization_failed,
            "A transactional batch needs a transactional id, and the request has none.",
        )
    producers = {
        (batch.header.producer_id, batch.header.producer_epoch)
        for batch in transactional
        if batch.header is not None and batch.header.has_producer_id
    }
    if len(producers) > 1:
        return ApiError(
            ErrorCode.invalid_producer_id_mapping,
            f"Transactional records contained more than one producer ID: {sorted(producers)}.",
        )
    return None


def _append_all(
    broker: Broker, request: ProduceRequest, batches: PendingAppends, now_ms: int
) -> object:
    statuses = tuple(
        tuple(_append(broker, request, batch, now_ms) for batch in topic) for topic in batches
    )
    if request.acks == ACKS_NONE:
        errors = [
            status.response for topic in statuses for status in topic if status.response.error_code
        ]
        if errors:
            return Hangup(
                reason=f"a produce request with acks=0 failed: {errors[0].error_code.name} "
                f"for partition {errors[0].index}"
            )
        return NO_ANSWER
    delayed = DelayedProduce(broker=broker, request=request, statuses=statuses)
    done = delayed.try_complete(now_ms)
    if done is not None:
        return done
    deadline_ms = now_ms + max(request.timeout_ms, 0)
    return Wait(operation=delayed, keys=delayed.keys(), deadline_ms=deadline_ms)


def _pending_append(
    broker: Broker, call: Call, request: ProduceRequest, topic: TopicData, data: PartitionData
) -> PendingAppend:
    """A batch that is to be appended, as far as the request alone tells."""
    records = data.records or b""
    batch = PendingAppend(index=data.index, records=records, topic=topic.name)
    if len(records) >= HEADER_BYTES and records[ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_BIT:
        header = unpack_header(records)
        batch.header = header if header.magic == MAGIC else None
    try:
        batch.topic = _topic_name(broker, call, request, topic)
        _check_codec(call, records)
    except (ApiError, LogError) as error:
        batch.error = _refused(broker, batch.topic, data.index, error)
    return batch


def _append(
    broker: Broker, request: ProduceRequest, batch: PendingAppend, now_ms: int
) -> ProducePartitionStatus:
    if batch.error is not None:
        return ProducePartitionStatus(response=batch.error)
    log_start_offset = -1
    try:
        if batch.verified is not None and batch.verified.error is not None:
            raise batch.verified.error
        partition = broker.replicas.partition(batch.topic, batch.index)
        log_start_offset = partition.log.log_start_offset
        result = partition.append(
            batch.records,
            all_replicas=request.acks == ACKS_ALL,
            now_ms=now_ms,
            guard=None if batch.verified is None else batch.verified.guard,
        )
    except RecordValidationError as error:
        return ProducePartitionStatus(
            response=PartitionResponse(
                index=batch.index,
                error_code=error.error_code,
                log_start_offset=log_start_offset,
                record_errors=tuple(
                    RecordErrorData(
                        batch_index=record.batch_index, batch_index_error_message=record.message
                    )
                    for record in error.record_errors
                ),
                error_message=str(error),
            )
        )
    except (ApiError, LogError) as error:
        return ProducePartitionStatus(response=_refused(broker, batch.topic, batch.index, error))
    response = PartitionResponse(
        index=batch.index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
    if request.acks != ACKS_ALL:
        return ProducePartitionStatus(response=response)
    appended = Appended(partition=partition, required_offset=result.last_offset + 1)
    return ProducePartitionStatus(response=response, appended=appended)


def _refused(
    broker: Broker, topic: str, partition: int, error: ApiError | LogError
) -> PartitionResponse:
    return PartitionResponse(
        index=partition,
        error_code=error.error_code,
        error_message=str(error),
        current_leader=_leader_elsewhere(broker, topic, partition, error.error_code),
    )


def _leader_elsewhere(
    broker: Broker, topic: str, partition: int, error_code: ErrorCode
) -> LeaderIdAndEpoch:
    """The present leader, where the error says that it is another (KIP-951)."""
    if error_code is not ErrorCode.not_leader_or_follower:
        return NO_LEADER
    return current_leader(broker, topic, partition)


def _check_codec(call: Call, records: bytes) -> None:
    """Refuse what the client's own version cannot read again (ProduceRequest.validateRecords)."""
    if call.version >= FIRST_VERSION_OF_ZSTD or len(records) < HEADER_BYTES:
        return
    header = unpack_header(records)
    if header.magic == MAGIC and header.compression is Compression.ZSTD:
        raise ApiError(
            ErrorCode.unsupported_compression_type,
            f"Produce requests with version {call.version} are not allowed to use zstd; "
            f"it takes version {FIRST_VERSION_OF_ZSTD}.",
        )


def _topic_name(broker: Broker, call: Call, request: ProduceRequest, topic: TopicData) -> str:
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        raise ApiError(
            ErrorCode.invalid_required_acks, f"acks is {request.acks}; it can be 0, 1 or -1 (all)."
        )
    name = topic.name
    if call.version >= FIRST_VERSION_BY_TOPIC_ID:
        found = broker.metadata.topics_by_id.get(topic.topic_id)
        if found is None:
            raise ApiError(ErrorCode.unknown_topic_id, f"There is no topic {topic.topic_id}.")
        name = found.name
    known = broker.metadata.topics.get(name)
    if known is not None and known.is_internal:
        raise ApiError(
            ErrorCode.invalid_topic_exception, f"Clients cannot write to internal topic {name!r}."
        )
    return name


def _response(
    broker: Broker,
    request: ProduceRequest,
    statuses: tuple[tuple[ProducePartitionStatus, ...], ...],
) -> ProduceResponse:
    responses = tuple(
        TopicResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=tuple(status.response for status in topic_slots),
        )
        for topic, topic_slots in zip(request.topic_data, statuses, strict=True)
    )
    leaders = [
        partition.current_leader for topic in responses for partition in topic.partition_responses
    ]
    return ProduceResponse(responses=responses, node_endpoints=endpoints_of(broker, leaders))


API: Final = Api(
    key=0, versions=range(3, 14), request=ProduceRequest, handle=handle, advertised_from=0
)
