"""BrokerRegistration (62), versions 0 to 4: register a broker when it starts (KIP-631).

The broker receives a broker epoch. The broker is fenced until a heartbeat shows that it has applied
its registration record. If `previous_broker_epoch` (version 3) differs from the registered broker
epoch, the last shutdown was unclean, and the broker is removed from the eligible leader replicas.
The error is INCONSISTENT_CLUSTER_ID if the broker belongs to another cluster, and
INVALID_REGISTRATION if the broker has no listener, uses an unknown security protocol, or uses the
controller's id. If another incarnation of the broker has a valid session, the error is
DUPLICATE_BROKER_REGISTRATION, and the broker retries until the session has expired. Other brokers
connect to the first listener. Features and log directories in the request are ignored, because all
nodes run the same version and have one log directory. Source:
`kafka.server.ControllerApis.handleBrokerRegistration`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.broker_heartbeats import Registration
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.acls import AclOperation
from broker_ref.security.listeners import Endpoint, SecurityProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address on which the broker accepts connections."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature and the range of versions that the broker supports."""

    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationRequest:
    """A BrokerRegistration request."""

    broker_id: int
    cluster_id: str
    incarnation_id: Uuid
    listeners: tuple[Listener, ...]
    rack: str | None
    features: tuple[Feature, ...] = ()
    log_dirs: tuple[Uuid, ...] = ()
    previous_broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationResponse:
    """A BrokerRegistration response with the broker epoch."""

    error_code: ErrorCode = ErrorCode.none
    broker_epoch: int = -1
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    """Register the broker."""
    if not request.listeners or not 0 <= request.broker_id != CONTROLLER_ID:
        return BrokerRegistrationResponse(error_code=ErrorCode.invalid_registration)
    try:
        endpoints = tuple(_endpoint(listener) for listener in request.listeners)
    except ValueError:
        return BrokerRegistrationResponse(error_code=ErrorCode.invalid_registration)
    try:
        broker_epoch = context.controller.register_broker(
            Registration(
                broker_id=request.broker_id,
                cluster_id=request.cluster_id,
                incarnation_id=request.incarnation_id,
                host=endpoints[0].host,
                port=endpoints[0].port,
                rack=request.rack,
                listeners=endpoints,
                previous_broker_epoch=request.previous_broker_epoch,
            ),
            call.now_ms,
        )
    except ApiError as error:
        return BrokerRegistrationResponse(error_code=error.error_code)
    return BrokerRegistrationResponse(broker_epoch=broker_epoch)


def _endpoint(listener: Listener) -> Endpoint:
    return Endpoint(
        listener=listener.name,
        host=listener.host,
        port=listener.port,
        protocol=SecurityProtocol(listener.security_protocol),
    )


API: Final = Api(
    key=62,
    versions=range(5),
    request=BrokerRegistrationRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.CLUSTER_ACTION),),
)
