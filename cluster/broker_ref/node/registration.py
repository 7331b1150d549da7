"""The lifecycle of a broker in its cluster: registration, heartbeats and controlled shutdown.

    STARTING --(cluster id known, registered)--> RECOVERY --(metadata caught up, logs open)-->
    UNFENCING --(the controller has unfenced the broker)--> RUNNING
    RUNNING --(shutdown begins)--> PENDING_CONTROLLED_SHUTDOWN --(leads nothing)--> SHUTTING_DOWN

`BrokerLifecycleManager` controls these states, and sends the DescribeCluster, BrokerRegistration
and BrokerHeartbeat requests. Invariants: a broker sends heartbeats after its registration, even
while it is fenced. The broker stops only after an error that a retry cannot resolve. For example,
the data directory belongs to another cluster, or the controller rejects the broker's id or address.
Source: KIP-631, `org.apache.kafka.server.BrokerLifecycleManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.k60_describe_cluster import (
    CONTROLLERS,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from broker_ref.config import BrokerConfig
from broker_ref.controller.client import ControllerClient
from broker_ref.controller_api.k62_broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Listener,
)
from broker_ref.controller_api.k63_broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from broker_ref.protocol.identifiers import Uuid
from broker_ref.schedule import Schedule
from broker_ref.security.listeners import Endpoint

RETRY_BACKOFF_MS: Final = 100
FAST_HEARTBEAT_INTERVAL_MS: Final = 100
"""The maximum heartbeat interval during unfencing and controlled shutdown.

As in Kafka, heartbeats are more frequent during a controlled shutdown.
"""

NO_EPOCH: Final = -1

logger = logging.getLogger(__name__)


class BrokerState(Enum):
    """The states of Kafka's `BrokerState`, and UNFENCING, which is part of RECOVERY in Kafka."""

    STARTING = "STARTING"
    RECOVERY = "RECOVERY"
    UNFENCING = "UNFENCING"
    RUNNING = "RUNNING"
    PENDING_CONTROLLED_SHUTDOWN = "PENDING_CONTROLLED_SHUTDOWN"
    SHUTTING_DOWN = "SHUTTING_DOWN"


class BrokerLifecycleManager:
    """The lifecycle of one broker."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        controller: ControllerClient,
        schedule: Schedule,
        now_ms: Callable[[], int],
        metadata_offset: Callable[[], int],
        incarnation_id: Uuid,
        previous_broker_epoch: int,
    ) -> None:
        """Create the manager in the STARTING state.

        `metadata_offset` returns the offset of the last metadata record that the broker has
        applied. `previous_broker_epoch` is the broker epoch at the last shutdown, or -1 if that
        shutdown was not clean.
        """
        self.state = BrokerState.STARTING
        self.broker_epoch = NO_EPOCH
        self.cluster_id: str | None = None
        self.failure: str | None = None
        self._config = config
        self._controller = controller
        self._schedule = schedule
        self._now_ms = now_ms
        self._metadata_offset = metadata_offset
        self._incarnation_id = incarnation_id
        self._previous_broker_epoch = previous_broker_epoch
        self._endpoints: Sequence[Endpoint] = ()
        self._reported: str | None = None
        self._beats = 0

    def start(self, endpoints: Sequence[Endpoint]) -> None:
        """Join the cluster and advertise `endpoints`.

        The first endpoint is the inter-broker endpoint. If `cluster_id` is unknown, the broker
        first requests the cluster id from the controller.
        """
        self._endpoints = endpoints
        if self.cluster_id is None:
            self._describe_cluster()

    def set_ready_to_unfence(self) -> None:
        """Ask the controller to unfence the broker, now that the broker can serve clients."""
        self.state = BrokerState.UNFENCING
        self._send_heartbeat()

    def begin_shutdown(self) -> None:
        """Request a controlled shutdown, during which the controller elects other leaders."""
        if self.state in (BrokerState.UNFENCING, BrokerState.RUNNING):
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self._send_heartbeat()
        else:
            self.state = BrokerState.SHUTTING_DOWN

    def on_unfenced(self) -> None:
        """Set the state to RUNNING, because the broker is unfenced in the metadata."""
        if self.state is BrokerState.UNFENCING:
            self.state = BrokerState.RUNNING

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._schedule.at(self._now_ms() + delay_ms, lambda _: act())

    def _report(self, what: str) -> None:
        """Log a problem, unless it is the same as the last logged problem."""
        if what != self._reported:
            logger.warning("Broker %d: %s", self._config.node_id, what)
        self._reported = what

    # Cluster id

    def _describe_cluster(self) -> None:
        self._controller.send(
            purpose="registration",
            api_key=60,
            version=2,
            request=DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=CONTROLLERS
            ),
            response=DescribeClusterResponse,
            on_response=self._described,
            on_failure=self._not_described,
        )

    def _described(self, response: DescribeClusterResponse) -> None:
        if response.error_code is ErrorCode.cluster_authorization_failed:
            self._not_authorized()
            return
        if response.error_code is not ErrorCode.none:
            self._not_described(f"the error code is {response.error_code.name}")
            return
        self.cluster_id = response.cluster_id

    def _not_described(self, reason: str) -> None:
        self._report(
            f"The controller at {self._controller.host}:{self._controller.port} is not "
            f"available: {reason}. Retrying."
        )
        self._later(RETRY_BACKOFF_MS, self._describe_cluster)

    # BrokerLifecycleManager

    def register(self) -> None:
        """Register the broker in the cluster `cluster_id`."""
        assert self.cluster_id is not None
        self._controller.send(
            purpose="registration",
            api_key=62,
            version=4,
            request=BrokerRegistrationRequest(
                broker_id=self._config.node_id,
                cluster_id=self.cluster_id,
                incarnation_id=self._incarnation_id,
                listeners=tuple(
                    Listener(
                        name=endpoint.listener,
                        host=endpoint.host,
                        port=endpoint.port,
                        security_protocol=endpoint.protocol,
                    )
                    for endpoint in self._endpoints
                ),
                rack=self._config.rack,
                previous_broker_epoch=self._previous_broker_epoch,
            ),
            response=BrokerRegistrationResponse,
            on_response=self._registered,
            on_failure=self._not_registered,
        )

    def _registered(self, response: BrokerRegistrationResponse) -> None:
        match response.error_code:
            case ErrorCode.none:
                self.broker_epoch = response.broker_epoch
                self.state = BrokerState.RECOVERY
                self._reported = None
                self._send_heartbeat()
            case ErrorCode.duplicate_broker_registration:
                self._not_registered(
                    "another broker with this id is running or was stopped recently"
                )
            case ErrorCode.inconsistent_cluster_id:
                self.failure = (
                    f"The controller at {self._controller.host}:{self._controller.port} does not "
                    f"belong to this broker's cluster, {self.cluster_id}. Connect to the "
                    "controller of that cluster, or use another data directory."
                )
            case ErrorCode.cluster_authorization_failed:
                self._not_authorized()
            case ErrorCode.invalid_registration:
                self.failure = (
                    "The controller rejected this broker's registration (INVALID_REGISTRATION). "
                    "See the controller's log for the reason."
                )
            case other:
                self._not_registered(other.name.upper())

    def _not_authorized(self) -> None:
        self.failure = (
            f"The controller at {self._controller.host}:{self._controller.port} rejected this "
            "broker (CLUSTER_AUTHORIZATION_FAILED), because the broker's principal may not "
            "perform CLUSTER_ACTION on the cluster. Add the principal to super.users on the "
            "controller and the brokers."
        )

    def _not_registered(self, reason: str) -> None:
        self._report(f"The broker registration failed: {reason}. Retrying.")
        self._later(RETRY_BACKOFF_MS, self.register)

    # Heartbeats

    def _send_heartbeat(self) -> None:
        self._beats += 1
        beat = self._beats
        self._controller.send(
            purpose="heartbeat",
            api_key=63,
            version=1,
            request=BrokerHeartbeatRequest(
                broker_id=self._config.node_id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=self._metadata_offset(),
                want_fence=self.state is BrokerState.RECOVERY,
                want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            ),
            response=BrokerHeartbeatResponse,
            on_response=lambda response: self._handle_heartbeat_response(beat, response),
            on_failure=lambda reason: self._handle_heartbeat_failure(beat, reason),
            timeout_ms=self._config.broker_session_timeout_ms // 2,
        )

    def _handle_heartbeat_response(self, beat: int, response: BrokerHeartbeatResponse) -> None:
        if response.error_code is not ErrorCode.none:
            self._handle_heartbeat_failure(beat, f"the error code is {response.error_code.name}")
            return
        self._reported = None
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and response.should_shut_down:
            self.state = BrokerState.SHUTTING_DOWN
            return
        self._schedule_next_heartbeat(beat)

    def _handle_heartbeat_failure(self, beat: int, reason: str) -> None:
        self._report(f"A heartbeat to the controller failed: {reason}. Retrying.")
        self._schedule_next_heartbeat(beat)

    def _schedule_next_heartbeat(self, beat: int) -> None:
        if beat != self._beats or self.state is BrokerState.SHUTTING_DOWN:
            return  # A later heartbeat is in flight, or the broker is shutting down.
        uses_fast_interval = self.state in (
            BrokerState.UNFENCING,
            BrokerState.PENDING_CONTROLLED_SHUTDOWN,
        )
        interval_ms = self._config.broker_heartbeat_interval_ms
        if uses_fast_interval:
            interval_ms = min(interval_ms, FAST_HEARTBEAT_INTERVAL_MS)
        self._later(interval_ms, lambda: self._send_heartbeat() if beat == self._beats else None)
