"""Produce (0), versions 3 to 13: append record batches.

With acks=0, the broker sends no response, but it closes the connection after an error. With acks=1,
it responds after the leader has appended the batch. With acks=-1 ("all"), it responds when the high
watermark has passed the batch. If the timeout expires first, the error is REQUEST_TIMED_OUT. Other
values of acks are rejected with INVALID_REQUIRED_ACKS. If the ISR is too small, the error is
NOT_ENOUGH_REPLICAS before the append and NOT_ENOUGH_REPLICAS_AFTER_APPEND after it. If the leader
has changed, the error is NOT_LEADER_OR_FOLLOWER.

The request contains one batch per partition, in message format v2. The log validates each batch.
Validation errors are INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP and
sequence errors. Before version 7, zstd is rejected with UNSUPPORTED_COMPRESSION_TYPE (KIP-110).
Error responses list the invalid records from version 8 on (KIP-467), and contain the current leader
from version 10 on (KIP-951). Topics are identified by topic id from version 13 on (KIP-516). Only
clients with the client id `__admin_client` can write to internal topics. Other clients receive
INVALID_TOPIC_EXCEPTION.

If a request with a transactional batch has no transactional id, the error is
TRANSACTIONAL_ID_AUTHORIZATION_FAILED. If the transactional batches in a request are from several
producers, the error is INVALID_PRODUCER_ID_MAPPING. If the producer has no open transaction in the
partition, the broker first asks the transaction coordinator whether the transaction contains the
partition. From version 12 on, the broker asks the coordinator to add the partition instead
(KIP-890, `verified_batches`).

As in Apache Kafka 4, ApiVersions responses contain 0 as the lowest version, because librdkafka
derives the supported codecs from the version range. Source:
`kafka.server.KafkaApis.handleProduceRequest`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import (
    NO_OP_RESPONSE,
    NO_THROTTLE_MS,
    Api,
    Broker,
    Call,
    CloseConnectionResponse,
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
from broker_ref.frozen import dataclass
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
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid, uuid_text
from broker_ref.replication.partition import PartitionKey, PendingReplication
from broker_ref.security.acls import AclOperation, ResourceType

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
ADMIN_CLIENT_ID: Final = "__admin_client"
"""The client id with which operators can repair internal topics (Kafka's `AdminUtils`)."""
FIRST_VERSION_OF_ZSTD: Final = 7
FIRST_VERSION_BY_TOPIC_ID: Final = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    """The record batch of a partition."""

    index: int
    records: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    """The batches of a topic. From version 13 on, requests contain topic ids."""

    partition_data: tuple[PartitionData, ...]
    name: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """A Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: tuple[TopicData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordErrorData:
    """The index and the error message of an invalid record."""

    batch_index: int
    batch_index_error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The offsets of an appended batch, or an error."""

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
    """The partition responses for a topic."""

    name: str
    topic_id: Uuid
    partition_responses: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """A Produce response."""

    responses: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@dataclass(slots=True, kw_only=True)
class ProducePartitionStatus:
    """The response for a partition. `appended` is set until the append has been replicated."""

    response: PartitionResponse
    appended: PendingReplication | None = None


@dataclass(slots=True, kw_only=True)
class DelayedProduce:
    """An acks=all request that is waiting for replication (Kafka's `DelayedProduce`).

    The response is sent when the outcome for every partition is known or the timeout expires.
    """

    broker: Broker
    listener: str
    request: ProduceRequest
    statuses: tuple[tuple[ProducePartitionStatus, ...], ...]

    def try_complete(self, now_ms: int) -> ProduceResponse | None:
        """Return the response if every append has an outcome."""
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
        return None if waiting else self._response()

    def expire(self, now_ms: int) -> ProduceResponse:
        """Return the response, with REQUEST_TIMED_OUT for appends with an unknown outcome."""
        done = self.try_complete(now_ms)
        if done is not None:
            return done
        for status in self._all_statuses():
            if status.appended is not None:
                status.response = self._failed(
                    status.response, status.appended, ErrorCode.request_timed_out
                )
        return self._response()

    def _response(self) -> ProduceResponse:
        responses = tuple(
            TopicResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(status.response for status in topic_slots),
            )
            for topic, topic_slots in zip(self.request.topic_data, self.statuses, strict=True)
        )
        leaders = [
            partition.current_leader
            for topic in responses
            for partition in topic.partition_responses
        ]
        return ProduceResponse(
            responses=responses,
            node_endpoints=endpoints_of(self.broker, leaders, listener=self.listener),
        )

    def keys(self) -> tuple[PartitionKey, ...]:
        """Return the keys of the partitions that the request is waiting for."""
        return tuple(
            status.appended.partition.key
            for status in self._all_statuses()
            if status.appended is not None
        )

    def _failed(
        self, response: PartitionResponse, appended: PendingReplication, error_code: ErrorCode
    ) -> PartitionResponse:
        """Return an error response for a batch that was appended but may be lost.

        The response contains the offsets of the batch.
        """
        key = appended.partition.key
        leader = _leader_elsewhere(self.broker, key.topic, key.partition, error_code)
        return replace(response, error_code=error_code, current_leader=leader)

    def _all_statuses(self) -> tuple[ProducePartitionStatus, ...]:
        return tuple(status for topic in self.statuses for status in topic)


@dataclass(slots=True, kw_only=True)
class PendingAppend:
    """A batch to append, or the error for a rejected batch.

    `header` is set only for transactional batches.
    """

    index: int
    records: bytes
    topic: str
    header: BatchHeader | None = None
    verified: VerifiedBatch | None = None
    error: PartitionResponse | None = None


PendingAppends = tuple[tuple[PendingAppend, ...], ...]
"""The appends of a request, grouped by topic."""


def handle(broker: Broker, call: Call, request: ProduceRequest) -> object:
    """Verify transactional batches, append all batches and respond according to acks."""
    batches: PendingAppends = tuple(
        tuple(_pending_append(broker, call, request, topic, data) for data in topic.partition_data)
        for topic in request.topic_data
    )
    transactional = [batch for topic in batches for batch in topic if batch.header is not None]
    if not transactional:
        return _append_all(broker, call, request, batches, call.now_ms)
    error = _transaction_error(call, request, transactional)
    if error is not None:
        for batch in (batch for topic in batches for batch in topic):
            batch.error = PartitionResponse(
                index=batch.index, error_code=error.error_code, error_message=str(error)
            )
        return _append_all(broker, call, request, batches, call.now_ms)
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
        then=lambda now_ms: _append_all(broker, call, request, batches, now_ms),
    )


def _transaction_error(
    call: Call, request: ProduceRequest, transactional: list[PendingAppend]
) -> ApiError | None:
    """Return the error if the transactional batches of the request are invalid, otherwise None."""
    if request.transactional_id is None:
        return ApiError(
            ErrorCode.transactional_id_authorization_failed,
            "The request contains a transactional batch but no transactional id. Set "
            "`transactional.id` on the producer.",
        )
    transactional_id = request.transactional_id
    if not call.auth.allows(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return call.auth.denial(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    producers = {
        (batch.header.producer_id, batch.header.producer_epoch)
        for batch in transactional
        if batch.header is not None and batch.header.has_producer_id
    }
    if len(producers) > 1:
        return ApiError(
            ErrorCode.invalid_producer_id_mapping,
            "The transactional batches of a request must have the same producer id and epoch, "
            f"but the request contains {sorted(producers)}.",
        )
    return None


def _append_all(
    broker: Broker, call: Call, request: ProduceRequest, batches: PendingAppends, now_ms: int
) -> object:
    statuses = tuple(
        tuple(_append(broker, request, batch, now_ms) for batch in topic) for topic in batches
    )
    if request.acks == ACKS_NONE:
        errors = [
            status.response for topic in statuses for status in topic if status.response.error_code
        ]
        if errors:
            return CloseConnectionResponse(
                reason=f"a Produce request with acks=0 failed for partition {errors[0].index} "
                f"with {errors[0].error_code.name}"
            )
        return NO_OP_RESPONSE
    delayed = DelayedProduce(
        broker=broker, listener=call.listener, request=request, statuses=statuses
    )
    done = delayed.try_complete(now_ms)
    if done is not None:
        return done
    deadline_ms = now_ms + max(request.timeout_ms, 0)
    return Wait(operation=delayed, keys=delayed.keys(), deadline_ms=deadline_ms)


def _pending_append(
    broker: Broker, call: Call, request: ProduceRequest, topic: TopicData, data: PartitionData
) -> PendingAppend:
    """Return the pending append of a batch, with an error if the batch is rejected."""
    records = data.records or b""
    batch = PendingAppend(index=data.index, records=records, topic=topic.name)
    if len(records) >= HEADER_BYTES and records[ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_BIT:
        header = unpack_header(records)
        batch.header = header if header.magic == MAGIC else None
    try:
        batch.topic = _topic_name(broker, call, request, topic)
        _check_codec(call, records)
    except (ApiError, LogError) as error:
        batch.error = _error_response(broker, batch.topic, data.index, error)
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
        return ProducePartitionStatus(
            response=_error_response(broker, batch.topic, batch.index, error)
        )
    response = PartitionResponse(
        index=batch.index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
    if request.acks != ACKS_ALL:
        return ProducePartitionStatus(response=response)
    appended = PendingReplication(partition=partition, required_offset=result.last_offset + 1)
    return ProducePartitionStatus(response=response, appended=appended)


def _error_response(
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
    """Return the current leader if the error code indicates a leader change (KIP-951)."""
    if error_code is not ErrorCode.not_leader_or_follower:
        return NO_LEADER
    return current_leader(broker, topic, partition)


def _check_codec(call: Call, records: bytes) -> None:
    """Reject a codec that the request version does not support.

    Source: `ProduceRequest.validateRecords`.
    """
    if call.version >= FIRST_VERSION_OF_ZSTD or len(records) < HEADER_BYTES:
        return
    header = unpack_header(records)
    if header.magic == MAGIC and header.compression is Compression.ZSTD:
        raise ApiError(
            ErrorCode.unsupported_compression_type,
            f"Produce version {call.version} does not support zstd. Use version "
            f"{FIRST_VERSION_OF_ZSTD} or later.",
        )


def _topic_name(broker: Broker, call: Call, request: ProduceRequest, topic: TopicData) -> str:
    name = topic.name
    if call.version >= FIRST_VERSION_BY_TOPIC_ID:
        found = broker.metadata.topics_by_id.get(topic.topic_id)
        if found is None:
            raise ApiError(
                ErrorCode.unknown_topic_id, f"There is no topic with the id {topic.topic_id}."
            )
        name = found.name
    if not call.auth.allows(AclOperation.WRITE, ResourceType.TOPIC, name):
        # The error must not contain the name of a topic that was requested by id.
        requested = topic.name or uuid_text(topic.topic_id)
        raise call.auth.denial(AclOperation.WRITE, ResourceType.TOPIC, requested)
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        raise ApiError(
            ErrorCode.invalid_required_acks,
            f"The acks value {request.acks} is invalid. Use 0, 1 or -1 (all).",
        )
    known = broker.metadata.topics.get(name)
    if known is not None and known.is_internal and call.client_id != ADMIN_CLIENT_ID:
        raise ApiError(
            ErrorCode.invalid_topic_exception,
            f"Only clients with the client id {ADMIN_CLIENT_ID!r} can write to the internal topic "
            f"{name!r}.",
        )
    return name


API: Final = Api(
    key=0, versions=range(3, 14), request=ProduceRequest, handle=handle, advertised_from=0
)
