"""AddOffsetsToTxn (25), versions 0 to 4: a transaction will commit offsets of a group.

Behaviour: the group's partition of `__consumer_offsets` becomes part of the transaction. The answer
comes when every in-sync replica of the coordinator's partition knows. PRODUCER_FENCED is
INVALID_PRODUCER_EPOCH before version 2. Whether there is such a group is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.api.coordinator_replies import answer
from broker_ref.api.fencing import producer_fenced_code
from broker_ref.controller.metadata import OFFSETS_TOPIC
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.decisions import ProducerIdAndEpoch

FIRST_VERSION_OF_PRODUCER_FENCED: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnRequest:
    """Whose transaction, and which group."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnResponse:
    """Whether they may come."""

    error_code: ErrorCode
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: AddOffsetsToTxnRequest) -> object:
    """Add the partition that has the group's offsets."""
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
        told = producer_fenced_code(
            error_code, version=call.version, first_version=FIRST_VERSION_OF_PRODUCER_FENCED
        )
        return AddOffsetsToTxnResponse(error_code=told)

    return answer(reply, respond)


API: Final = Api(key=25, versions=range(5), request=AddOffsetsToTxnRequest, handle=handle)
