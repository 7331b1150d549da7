"""FindCoordinator (10), versions 0 to 6: the coordinator of a group or transactional id.

The coordinator of a key is the leader of the key's partition of `__consumer_offsets` or
`__transaction_state`. If this topic does not exist, the broker requests its creation and returns
COORDINATOR_NOT_AVAILABLE. Clients then retry. If there are fewer brokers than the replication
factor requires, the topic is not created, as in Kafka, and the error message and the broker's log
contain the reason. From version 4 on, a request can contain several keys (KIP-699). Unknown key
types are rejected with INVALID_REQUEST. Source:
`kafka.server.KafkaApis.handleFindCoordinatorRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.api.endpoints import live_brokers
from broker_ref.controller.topics import NewTopic
from broker_ref.frozen import dataclass
from broker_ref.group.offsets import offsets_topic
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation, ResourceType
from broker_ref.transaction.state_topic import transaction_state_topic

GROUP: Final = 0
TRANSACTION: Final = 1
FIRST_VERSION_OF_KEYS: Final = 4

_RESOURCE_TYPES: Final = {
    GROUP: ResourceType.GROUP,
    TRANSACTION: ResourceType.TRANSACTIONAL_ID,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    """A FindCoordinator request.

    It contains `key` up to version 3, and `coordinator_keys` from version 4 on.
    """

    key: str = ""
    key_type: int = GROUP
    coordinator_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The coordinator of a key, or an error."""

    key: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    """A FindCoordinator response.

    It contains one coordinator up to version 3, and `coordinators` from version 4 on.
    """

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1
    coordinators: tuple[Coordinator, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Look up the coordinator of each key."""
    if call.version >= FIRST_VERSION_OF_KEYS:
        return FindCoordinatorResponse(
            coordinators=tuple(
                _find(broker, call, request.key_type, key) for key in request.coordinator_keys
            )
        )
    found = _find(broker, call, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(broker: Broker, call: Call, key_type: int, key: str) -> Coordinator:
    try:
        if key_type in _RESOURCE_TYPES:
            call.auth.check(AclOperation.DESCRIBE, _RESOURCE_TYPES[key_type], key)
        node = broker.metadata.brokers[_coordinator_id(broker, key_type, key)]
        endpoint = node.endpoint(call.listener)
        if endpoint is None:
            raise ApiError(
                ErrorCode.coordinator_not_available,
                f"Coordinator broker {node.broker_id} has no listener named {call.listener}.",
            )
    except ApiError as error:
        return Coordinator(key=key, error_code=error.error_code, error_message=error.message)
    return Coordinator(key=key, node_id=node.broker_id, host=endpoint.host, port=endpoint.port)


def _coordinator_id(broker: Broker, key_type: int, key: str) -> int:
    topic, coordinator = _coordinator_of(broker, key_type, key)
    alive = {node.broker_id for node in live_brokers(broker)}
    if topic.name not in broker.metadata.topics:
        broker.request_topics([topic], None)
        state = "does not exist yet. It is being created. Retry later."
        if len(alive) < topic.replication_factor:
            state = (
                f"cannot be created, because its replication factor is {topic.replication_factor} "
                f"and the number of live brokers is {len(alive)}."
            )
        raise ApiError(ErrorCode.coordinator_not_available, f"The topic {topic.name} {state}")
    if coordinator is None or coordinator not in alive:
        raise ApiError(
            ErrorCode.coordinator_not_available,
            f"The partition of {topic.name} for the key {key!r} has no leader. Retry later.",
        )
    return coordinator


def _coordinator_of(broker: Broker, key_type: int, key: str) -> tuple[NewTopic, int | None]:
    """Return the coordinator topic of the key type, and the leader of the key's partition."""
    if key_type == GROUP:
        return offsets_topic(broker.config), broker.groups.coordinator(key)
    if key_type == TRANSACTION:
        return transaction_state_topic(broker.config), broker.transactions.coordinator(key)
    raise ApiError(ErrorCode.invalid_request, f"Unknown coordinator key type {key_type}.")


API: Final = Api(key=10, versions=range(7), request=FindCoordinatorRequest, handle=handle)
