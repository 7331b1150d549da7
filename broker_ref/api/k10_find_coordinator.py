"""FindCoordinator (10), versions 0 to 6: which broker coordinates a group or transactional id.

Behaviour: the leader of the key's partition of `__consumer_offsets` or `__transaction_state`. Where
that topic does not exist yet it is made, and the answer is COORDINATOR_NOT_AVAILABLE, on which
clients ask again, as with Kafka: for ever where there are fewer brokers than it has replicas, which
the message and the broker's log say. Several keys from version 4 on (KIP-699). Other key types are
INVALID_REQUEST.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.api.endpoints import live_brokers
from broker_ref.controller.topics import NewTopic
from broker_ref.group.offsets import offsets_topic
from broker_ref.protocol.errors import ApiError
from broker_ref.transaction.state_topic import transaction_state_topic

GROUP: Final = 0
TRANSACTION: Final = 1
FIRST_VERSION_OF_KEYS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    """Whose coordinator: one key, or several from version 4 on."""

    key: str = ""
    key_type: int = GROUP
    coordinator_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The broker, or why there is none."""

    key: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    """One answer up to version 3, `coordinators` from 4 on."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1
    coordinators: tuple[Coordinator, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Name each key's coordinator."""
    if call.version >= FIRST_VERSION_OF_KEYS:
        return FindCoordinatorResponse(
            coordinators=tuple(
                _find(broker, request.key_type, key) for key in request.coordinator_keys
            )
        )
    found = _find(broker, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(broker: Broker, key_type: int, key: str) -> Coordinator:
    try:
        node = broker.metadata.brokers[_coordinator_id(broker, key_type, key)]
    except ApiError as error:
        return Coordinator(key=key, error_code=error.error_code, error_message=error.message)
    return Coordinator(key=key, node_id=node.broker_id, host=node.host, port=node.port)


def _coordinator_id(broker: Broker, key_type: int, key: str) -> int:
    topic, coordinator = _coordinator_of(broker, key_type, key)
    alive = {node.broker_id for node in live_brokers(broker)}
    if topic.name not in broker.metadata.topics:
        broker.request_topic(topic)
        state = "is being made."
        if len(alive) < topic.replication_factor:
            state = f"needs {topic.replication_factor} brokers; alive: {len(alive)}."
        raise ApiError(ErrorCode.coordinator_not_available, f"{topic.name} {state}")
    if coordinator is None or coordinator not in alive:
        raise ApiError(
            ErrorCode.coordinator_not_available,
            f"No broker leads the partition of {topic.name} that {key!r} belongs to.",
        )
    return coordinator


def _coordinator_of(broker: Broker, key_type: int, key: str) -> tuple[NewTopic, int | None]:
    """The topic that has what is known of the key, and the broker that leads its partition."""
    if key_type == GROUP:
        return offsets_topic(broker.config), broker.groups.coordinator(key)
    if key_type == TRANSACTION:
        return transaction_state_topic(broker.config), broker.transactions.coordinator(key)
    raise ApiError(ErrorCode.invalid_request, f"There are no coordinators of key type {key_type}.")


API: Final = Api(key=10, versions=range(7), request=FindCoordinatorRequest, handle=handle)
