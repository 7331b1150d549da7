"""AddOffsetsToTxn (25), versions 0 to 4: add the offsets of a group to a transaction.

The coordinator adds the group's partition of `__consumer_offsets` to the transaction. It does not
check whether the group exists. The broker responds when all in-sync replicas of the
`__transaction_state` partition have replicated the updated transaction. Before version 2,
PRODUCER_FENCED is replaced with INVALID_PRODUCER_EPOCH. Source:
`kafka.server.KafkaApis.handleAddOffsetsToTxnRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_group, on_transactional_id
from broker_ref.api.coordinator_replies import respond_to
from broker_ref.api.fencing import producer_fenced_code
from broker_ref.controller.metadata import OFFSETS_TOPIC
from broker_ref.frozen import dataclass
from broker_ref.replication.partition import PartitionKey
from broker_ref.security.acls import AclOperation
from broker_ref.transaction.request_validation import ProducerIdAndEpoch

FIRST_VERSION_OF_PRODUCER_FENCED: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnRequest:
    """An AddOffsetsToTxn request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnResponse:
    """An AddOffsetsToTxn response."""

    error_code: ErrorCode
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: AddOffsetsToTxnRequest) -> object:
    """Add the offsets partition of the group to the transaction."""
    partition = PartitionKey(
        topic=OFFSETS_TOPIC, partition=broker.groups.partition_for(request.group_id)
    )
    reply = broker.transactions.add_partitions(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        (partition,),
        client_transaction_version=0,
        now_ms=call.now_ms,
    )

    def respond(error_code: ErrorCode) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(
            error_code=producer_fenced_code(
                error_code, version=call.version, first_version=FIRST_VERSION_OF_PRODUCER_FENCED
            )
        )

    return respond_to(reply, respond)


API: Final = Api(
    key=25,
    versions=range(5),
    request=AddOffsetsToTxnRequest,
    handle=handle,
    requires=(
        on_transactional_id(AclOperation.WRITE),
        on_group(AclOperation.READ),
    ),
)
