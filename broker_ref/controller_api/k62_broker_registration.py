"""BrokerRegistration (62), versions 0 to 4: a broker has started (KIP-631).

Behaviour: the broker gets its epoch, and is fenced until its heartbeats say that it has read of
its registration. INCONSISTENT_CLUSTER_ID; DUPLICATE_BROKER_REGISTRATION while another incarnation
of it may still be alive: the broker asks again until that one's session has expired. Without a
listener, or with the controller's id: INVALID_REGISTRATION. Clients are told the first listener. Features and directories are
not looked at: all nodes are of one version, and a broker has one directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller.registrations import Registration
from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Where the broker can be reached."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature and the versions of it that the broker has."""

    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationRequest:
    """Who has started."""

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
    """The broker's epoch."""

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
