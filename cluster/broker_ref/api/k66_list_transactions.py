"""ListTransactions (66), versions 0 to 2: the transactional ids that this broker coordinates.

Requests can filter by state and by producer id. From version 1 on, they can also filter by the
duration of the transaction (KIP-994). From version 2 on, they can filter by a pattern that must
match the whole transactional id (KIP-1152). Patterns use RE2 syntax. An invalid pattern is
rejected with INVALID_REGULAR_EXPRESSION. Unknown states in the filter are returned in the response.
The error is COORDINATOR_LOAD_IN_PROGRESS while transactional ids are being loaded. Source:
`kafka.server.KafkaApis.handleListTransactionsRequest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.frozen import dataclass
from broker_ref.group.consumer.regular_expressions import compile_regex
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation, ResourceType
from broker_ref.transaction.states import STATE_TITLES
from broker_ref.transaction.transitions import Transaction

NO_DURATION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsRequest:
    """A ListTransactions request. An empty filter matches all transactional ids."""

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[int, ...] = ()
    duration_filter: int = NO_DURATION
    transactional_id_pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """A transactional id with its producer id and state."""

    transactional_id: str
    producer_id: int
    transaction_state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsResponse:
    """A ListTransactions response."""

    error_code: ErrorCode = ErrorCode.none
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListedTransaction, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """List the transactional ids that match all filters and that the client may describe."""
    try:
        transactions = broker.transactions.transactions()
        passes = _filter(request, call.now_ms)
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.error_code)
    states = dict.fromkeys(request.state_filters)
    return ListTransactionsResponse(
        unknown_state_filters=tuple(state for state in states if state not in STATE_TITLES),
        transaction_states=tuple(
            ListedTransaction(
                transactional_id=name,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.title,
            )
            for name, transaction in transactions.items()
            if passes(name, transaction)
            and call.auth.allows(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
        ),
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[str, Transaction], bool]:
    """Return the filter for a request. Raises: ApiError (INVALID_REGULAR_EXPRESSION)."""
    states, producer_ids = frozenset(request.state_filters), frozenset(request.producer_id_filters)
    regex = request.transactional_id_pattern
    pattern = compile_regex(regex) if regex else None

    def passes(name: str, transaction: Transaction) -> bool:
        open_for_ms = now_ms - transaction.start_timestamp_ms
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not states or transaction.state.title in states)
            and (request.duration_filter < 0 or open_for_ms > request.duration_filter)
            and (pattern is None or pattern.fullmatch(name) is not None)
        )

    return passes


API: Final = Api(key=66, versions=range(3), request=ListTransactionsRequest, handle=handle)
