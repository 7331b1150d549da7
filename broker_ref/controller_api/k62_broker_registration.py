"""BrokerRegistration (62), versions 0 to 4: register a broker that has started (KIP-631).

Behaviour: the broker gets a broker epoch and is fenced until its heartbeats show that it has
applied its registration. INCONSISTENT_CLUSTER_ID: another cluster; DUPLICATE_BROKER_REGISTRATION:
another incarnation may be alive; the broker retries until its session has expired;
INVALID_REGISTRATION: no listener, or the controller's id. Clients get the first listener. Features
and directories are ignored: all nodes have the same version and one directory. Source:
`kafka.server.ControllerApis.handleBrokerRegistration`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.broker_heartbeats import Registration
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address of the broker."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature and the versions that the broker supports."""

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
    """The broker epoch."""

    error_code: ErrorCode = ErrorCode.none
    broker_epoch: int = -1
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    """Register the broker."""
    if not request.listeners or not 0 <= request.broker_id != CONTROLLER_ID:
        return BrokerRegistrationResponse(error_code=ErrorCode.invalid_registration)
    listener = request.listeners[0]
    try:
        broker_epoch = context.controller.register_broker(
            Registration(
                broker_id=request.broker_id,
                cluster_id=request.cluster_id,
                incarnation_id=request.incarnation_id,
                host=listener.host,
                port=listener.port,
                rack=request.rack,
            ),
            call.now_ms,
        )
    except ApiError as error:
        return BrokerRegistrationResponse(error_code=error.error_code)
    return BrokerRegistrationResponse(broker_epoch=broker_epoch)


API: Final = Api(key=62, versions=range(5), request=BrokerRegistrationRequest, handle=handle)
