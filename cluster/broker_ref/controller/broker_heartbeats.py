"""Broker registrations, heartbeats and sessions.

`TRANSITIONS` defines the broker state that results from a heartbeat. A broker in SHUTDOWN_NOW is
fenced, and the heartbeat response instructs it to shut down. The controller fences an unfenced
broker that sends no heartbeat for `broker.session.timeout.ms`. When the controller restarts, the
sessions of unfenced brokers restart.

This module tracks heartbeats, because the metadata does not contain them. Invariant: a heartbeat is
rejected with STALE_BROKER_EPOCH if its broker epoch is not the registered epoch. A callback reports
whether a broker leads partitions. Source: `ClusterControlManager` and `BrokerHeartbeatManager`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import Broker, ClusterMetadata
from broker_ref.controller.records import RegisterBrokerRecord
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.listeners import Endpoint


class BrokerControlState(Enum):
    """The state of a broker in the controller (Kafka's `BrokerControlState`)."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()

    @property
    def is_fenced(self) -> bool:
        """Whether the broker is fenced in this state."""
        return self in {BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW}


class RequestedState(Enum):
    """The state that a broker requests with the heartbeat fields WantFence and WantShutDown."""

    UNFENCED = auto()
    FENCED = auto()
    SHUTDOWN = auto()
    FENCED_SHUTDOWN = auto()


class Condition(Enum):
    """The condition of a state transition."""

    ALWAYS = auto()
    IS_CAUGHT_UP = auto()
    """The broker has applied its own registration record and is not in controlled shutdown."""
    LEADS_NOTHING = auto()
    MAY_SHUT_DOWN = auto()
    """The broker leads no partition, and all active brokers have applied the leader changes."""


_FENCED = BrokerControlState.FENCED
_UNFENCED = BrokerControlState.UNFENCED
_SHUTTING_DOWN = BrokerControlState.CONTROLLED_SHUTDOWN
_SHUTDOWN_NOW = BrokerControlState.SHUTDOWN_NOW

_UNFENCE = RequestedState.UNFENCED
_FENCE = RequestedState.FENCED
_SHUT_DOWN = RequestedState.SHUTDOWN
_FENCE_AND_SHUT_DOWN = RequestedState.FENCED_SHUTDOWN

TRANSITIONS: Final = MappingProxyType(
    {
        # (state, requested state): (condition, next state if true, next state if false)
        (_FENCED, _UNFENCE): (Condition.IS_CAUGHT_UP, _UNFENCED, _FENCED),
        (_FENCED, _FENCE): (Condition.ALWAYS, _FENCED, _FENCED),
        (_FENCED, _SHUT_DOWN): (Condition.ALWAYS, _SHUTDOWN_NOW, _SHUTDOWN_NOW),
        (_FENCED, _FENCE_AND_SHUT_DOWN): (Condition.ALWAYS, _SHUTDOWN_NOW, _SHUTDOWN_NOW),
        (_UNFENCED, _UNFENCE): (Condition.ALWAYS, _UNFENCED, _UNFENCED),
        (_UNFENCED, _FENCE): (Condition.ALWAYS, _FENCED, _FENCED),
        (_UNFENCED, _SHUT_DOWN): (Condition.LEADS_NOTHING, _SHUTDOWN_NOW, _SHUTTING_DOWN),
        (_UNFENCED, _FENCE_AND_SHUT_DOWN): (Condition.ALWAYS, _SHUTDOWN_NOW, _SHUTDOWN_NOW),
    }
    | {
        (_SHUTTING_DOWN, requested): (Condition.MAY_SHUT_DOWN, _SHUTDOWN_NOW, _SHUTTING_DOWN)
        for requested in RequestedState
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A registration request from a broker.

    `host` and `port` form the address that other brokers use. `previous_broker_epoch` is the broker
    epoch at the last shutdown, or -1 if that shutdown was not clean.
    """

    broker_id: int
    cluster_id: str
    incarnation_id: Uuid
    host: str
    port: int
    rack: str | None
    listeners: tuple[Endpoint, ...] = ()
    previous_broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A heartbeat from a broker.

    `current_metadata_offset` is the offset of the last metadata record that the broker has applied.
    """

    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool = False
    want_shut_down: bool = False

    @property
    def requested_state(self) -> RequestedState:
        """The state that the broker requests."""
        if self.want_shut_down:
            return RequestedState.FENCED_SHUTDOWN if self.want_fence else RequestedState.SHUTDOWN
        return RequestedState.FENCED if self.want_fence else RequestedState.UNFENCED


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The result of a heartbeat."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


@dataclass(slots=True, kw_only=True)
class _BrokerHeartbeatState:
    """The last heartbeat of a broker and the state of its controlled shutdown.

    The broker can shut down when the metadata offsets of all active brokers have reached
    `controlled_shutdown_offset`.
    """

    last_contact_ms: int
    metadata_offset: int = -1
    controlled_shutdown_offset: int | None = None


class BrokerHeartbeatManager:
    """The heartbeats and sessions of the brokers in `metadata`."""

    def __init__(self, metadata: ClusterMetadata, *, timeout_ms: int, now_ms: int) -> None:
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._sessions = {
            broker_id: _BrokerHeartbeatState(last_contact_ms=now_ms)
            for broker_id in metadata.brokers
        }

    def register(self, broker_id: int, now_ms: int) -> None:
        """Start the session of a registered broker."""
        self._sessions[broker_id] = _BrokerHeartbeatState(last_contact_ms=now_ms)

    def remove(self, broker_id: int) -> None:
        """Remove the session of a broker that is no longer registered."""
        self._sessions.pop(broker_id, None)

    def has_valid_session(self, broker_id: int, now_ms: int) -> bool:
        """Return whether the broker is unfenced and its session has not expired."""
        broker = self._metadata.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced and not self._is_stale(broker, now_ms)

    def stale_brokers(self, now_ms: int) -> list[int]:
        """Return the unfenced brokers with expired sessions, sorted by their last heartbeat."""
        late = [broker.broker_id for broker in self._unfenced() if self._is_stale(broker, now_ms)]
        return sorted(late, key=lambda broker_id: self._sessions[broker_id].last_contact_ms)

    def next_expiry_ms(self) -> int | None:
        """Return the time at which the next session expires, or None if all brokers are fenced."""
        return min((self._expiry_ms(broker) for broker in self._unfenced()), default=None)

    def calculate_next_broker_state(
        self, heartbeat: Heartbeat, *, leads_partitions: Callable[[], bool]
    ) -> tuple[BrokerControlState, BrokerControlState]:
        """Return the current state of a broker and the state that results from its heartbeat."""
        broker = self.check_broker_epoch(heartbeat.broker_id, heartbeat.broker_epoch)
        state = _state(broker)
        condition, following, otherwise = TRANSITIONS[state, heartbeat.requested_state]
        holds = (
            condition is Condition.ALWAYS
            or (
                condition is Condition.IS_CAUGHT_UP
                and is_caught_up(broker, heartbeat)
                and not broker.in_controlled_shutdown
            )
            or (condition is Condition.LEADS_NOTHING and not leads_partitions())
            or (
                condition is Condition.MAY_SHUT_DOWN
                and not leads_partitions()
                and self._others_are_caught_up(broker.broker_id)
            )
        )
        return state, following if holds else otherwise

    def touch(self, heartbeat: Heartbeat, now_ms: int) -> None:
        """Store the time and the metadata offset of a heartbeat."""
        session = self._sessions[heartbeat.broker_id]
        session.last_contact_ms = now_ms
        session.metadata_offset = heartbeat.current_metadata_offset
        if self._metadata.brokers[heartbeat.broker_id].is_fenced:
            session.controlled_shutdown_offset = None

    def maybe_update_controlled_shutdown_offset(self, broker_id: int, offset: int) -> None:
        """Store the metadata offset that active brokers must reach before a broker can stop.

        Only the first call during a controlled shutdown has an effect.
        """
        session = self._sessions[broker_id]
        if session.controlled_shutdown_offset is None:
            session.controlled_shutdown_offset = offset

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> Broker:
        """Return the broker, or raise STALE_BROKER_EPOCH if the epoch does not match."""
        broker = self._metadata.brokers.get(broker_id)
        if broker is None:
            raise ApiError(
                ErrorCode.stale_broker_epoch,
                f"No broker with the id {broker_id} is registered.",
            )
        if broker.broker_epoch != broker_epoch:
            raise ApiError(
                ErrorCode.stale_broker_epoch,
                f"Expected broker epoch {broker.broker_epoch} for broker {broker_id}, but got "
                f"broker epoch {broker_epoch}.",
            )
        return broker

    def _others_are_caught_up(self, broker_id: int) -> bool:
        shutdown_offset = self._sessions[broker_id].controlled_shutdown_offset
        if shutdown_offset is None:  # The shutdown started before the controller was restarted.
            return True
        return all(
            self._sessions[other.broker_id].metadata_offset >= shutdown_offset
            for other in self._metadata.brokers.values()
            if other.is_active
        )

    def _unfenced(self) -> list[Broker]:
        return [broker for broker in self._metadata.brokers.values() if not broker.is_fenced]

    def _expiry_ms(self, broker: Broker) -> int:
        return self._sessions[broker.broker_id].last_contact_ms + self._timeout_ms

    def _is_stale(self, broker: Broker, now_ms: int) -> bool:
        return self._expiry_ms(broker) <= now_ms


def is_caught_up(broker: Broker, heartbeat: Heartbeat) -> bool:
    """Return whether a broker has applied its own registration record.

    The broker epoch is the offset of this record.
    """
    return heartbeat.current_metadata_offset >= broker.broker_epoch


def registration_record(
    registration: Registration,
    *,
    existing: Broker | None,
    has_valid_session: bool,
    cluster_id: str,
    next_offset: int,
) -> RegisterBrokerRecord:
    """Return the registration record to write at `next_offset`.

    A broker that registers again with the same incarnation id retains its broker epoch and its
    state.

    Raises: ApiError (INCONSISTENT_CLUSTER_ID, or DUPLICATE_BROKER_REGISTRATION if another
    incarnation of the broker has a valid session).
    """
    if registration.cluster_id != cluster_id:
        raise ApiError(
            ErrorCode.inconsistent_cluster_id,
            f"Expected cluster ID {cluster_id}, but got cluster ID {registration.cluster_id}.",
        )
    same = existing is not None and existing.incarnation_id == registration.incarnation_id
    if has_valid_session and not same:
        raise ApiError(
            ErrorCode.duplicate_broker_registration,
            f"A broker with the id {registration.broker_id} is already registered. If you "
            "restarted this broker, wait until its previous session expires.",
        )
    keeps = existing if same else None
    return RegisterBrokerRecord(
        broker_id=registration.broker_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=next_offset if keeps is None else keeps.broker_epoch,
        host=registration.host,
        port=registration.port,
        rack=registration.rack,
        fenced=keeps is None or keeps.is_fenced,
        in_controlled_shutdown=keeps is not None and keeps.in_controlled_shutdown,
        listeners=registration.listeners,
    )


def _state(broker: Broker) -> BrokerControlState:
    if broker.is_fenced:
        return BrokerControlState.FENCED
    if broker.in_controlled_shutdown:
        return BrokerControlState.CONTROLLED_SHUTDOWN
    return BrokerControlState.UNFENCED
