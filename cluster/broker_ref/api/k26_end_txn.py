"""EndTxn (26), versions 0 to 5: commit or abort a transaction.

The broker responds when the decision to commit or abort has been replicated. The transaction
markers are written afterwards. Until all partitions have a marker, other requests for the
transactional id fail with CONCURRENT_TRANSACTIONS. A repeated EndTxn request returns NONE if it
requests the same result (commit or abort), and INVALID_TXN_STATE otherwise.

From version 5 on, each transaction has its own producer epoch and the response contains the next
epoch (KIP-890). In these versions, a transaction without partitions can also be aborted. Before
version 2, PRODUCER_FENCED is replaced with INVALID_PRODUCER_EPOCH. Source:
`kafka.server.KafkaApis.handleEndTxnRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_transactional_id
from broker_ref.api.coordinator_replies import respond_to
from broker_ref.api.fencing import producer_fenced_code
from broker_ref.frozen import dataclass
from broker_ref.security.acls import AclOperation
from broker_ref.transaction.coordinator import InitProducerIdResult
from broker_ref.transaction.request_validation import ProducerIdAndEpoch

FIRST_VERSION_OF_PRODUCER_FENCED: Final = 2
FIRST_VERSION_OF_EPOCH_BUMPS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnRequest:
    """An EndTxn request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnResponse:
    """An EndTxn response. It contains the producer id and epoch of the next transaction."""

    error_code: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: EndTxnRequest) -> object:
    """Pass the request to the transaction coordinator."""
    reply = broker.transactions.end_transaction(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        commit=request.committed,
        client_transaction_version=2 if call.version >= FIRST_VERSION_OF_EPOCH_BUMPS else 0,
        now_ms=call.now_ms,
    )

    def respond(result: InitProducerIdResult) -> EndTxnResponse:
        return EndTxnResponse(
            error_code=producer_fenced_code(
                result.error_code,
                version=call.version,
                first_version=FIRST_VERSION_OF_PRODUCER_FENCED,
            ),
            producer_id=result.producer_id,
            producer_epoch=result.producer_epoch,
        )

    return respond_to(reply, respond)


API: Final = Api(
    key=26,
    versions=range(6),
    request=EndTxnRequest,
    handle=handle,
    requires=(on_transactional_id(AclOperation.WRITE),),
)
