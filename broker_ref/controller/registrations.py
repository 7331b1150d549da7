"""Which brokers there are and which of them are alive: registration, heartbeats, sessions.

What a heartbeat leads to is in `TRANSITIONS`. A broker in SHUTDOWN_NOW is fenced, and told that it may go. An unfenced broker without a heartbeat
for `broker.session.timeout.ms` is fenced. After a start of the controller the sessions of unfenced
brokers begin anew.

Purpose: the heartbeats, which are not in the metadata, and what follows from them. Invariant: only
the incarnation of a broker that is registered is heard (STALE_BROKER_EPOCH otherwise). What it
must not know: partitions (it is told whether a broker leads any). Sources: ClusterControlManager,
BrokerHeartbeatManager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import Broker, ClusterMetadata
from broker_ref.controller.records import RegisterBrokerRecord
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid


class BrokerControlState(Enum):
    """How the controller sees a broker."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()

    @property
    def is_fenced(self) -> bool:
        """Whether the broker is fenced in this state."""
        return self in {BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW}


class Wish(Enum):
    """What a broker asks for with a heartbeat."""

    SERVE = auto()
    FENCE = auto()
    SHUT_DOWN = auto()
    FENCE_AND_SHUT_DOWN = auto()


class Condition(Enum):
    """What a transition may depend on."""

    ALWAYS = auto()
    MAY_SERVE = auto()
    """It has taken in the record of its own registration, and was not shutting down since."""
    LEADS_NOTHING = auto()
    MAY_GO = auto()
    """It leads nothing, and all others have taken in who leads in its place."""


_FENCED = BrokerControlState.FENCED
_UNFENCED = BrokerControlState.UNFENCED
_SHUTTING_DOWN = BrokerControlState.CONTROLLED_SHUTDOWN
_GONE = BrokerControlState.SHUTDOWN_NOW

TRANSITIONS: Final = MappingProxyType(
    {
        # state, wish: condition, next state where it holds, next state where not
        (_FENCED, Wish.SERVE): (Condition.MAY_SERVE, _UNFENCED, _FENCED),
        (_FENCED, Wish.FENCE): (Condition.ALWAYS, _FENCED, _FENCED),
        (_FENCED, Wish.SHUT_DOWN): (Condition.ALWAYS, _GONE, _GONE),
        (_FENCED, Wish.FENCE_AND_SHUT_DOWN): (Condition.ALWAYS, _GONE, _GONE),
        (_UNFENCED, Wish.SERVE): (Condition.ALWAYS, _UNFENCED, _UNFENCED),
        (_UNFENCED, Wish.FENCE): (Condition.ALWAYS, _FENCED, _FENCED),
        (_UNFENCED, Wish.SHUT_DOWN): (Condition.LEADS_NOTHING, _GONE, _SHUTTING_DOWN),
        (_UNFENCED, Wish.FENCE_AND_SHUT_DOWN): (Condition.ALWAYS, _GONE, _GONE),
    }
    | {(_SHUTTING_DOWN, wish): (Condition.MAY_GO, _GONE, _SHUTTING_DOWN) for wish in Wish}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A broker that has started: who it is, and where clients reach it."""

    broker_id: int
    cluster_id: str
    incarnation_id: Uuid
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker says that it is there.

    `current_metadata_offset` is the offset of the last metadata record that it has taken in.
    """

    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool = False
    want_shut_down: bool = False

    @property
    def wish(self) -> Wish:
        """What it asks for."""
        if self.want_shut_down:
            return Wish.FENCE_AND_SHUT_DOWN if self.want_fence else Wish.SHUT_DOWN
        return Wish.FENCE if self.want_fence else Wish.SERVE


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """What the broker is told."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


@dataclass(slots=True, kw_only=True)
class _Session:
    """`shutdown_offset` is what all others must have read before the broker may go."""

    last_contact_ms: int
    metadata_offset: int = -1
    shutdown_offset: int | None = None


class Sessions:
    """The sessions of the brokers of `metadata`."""

    def __init__(self, metadata: ClusterMetadata, *, timeout_ms: int, now_ms: int) -> None:
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._sessions = {
            broker_id: _Session(last_contact_ms=now_ms) for broker_id in metadata.brokers
        }

    def begin(self, broker_id: int, now_ms: int) -> None:
        """A broker has registered."""
        self._sessions[broker_id] = _Session(last_contact_ms=now_ms)

    def end(self, broker_id: int) -> None:
        """A broker is not registered any more."""
        self._sessions.pop(broker_id, None)

    def has_valid(self, broker_id: int, now_ms: int) -> bool:
        """Whether a broker is unfenced and was heard of in time."""
        broker = self._metadata.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced and not self._is_stale(broker, now_ms)

    def stale(self, now_ms: int) -> list[int]:
        """The unfenced brokers that were not heard of in time, longest silent first."""
        late = [broker.broker_id for broker in self._unfenced() if self._is_stale(broker, now_ms)]
        return sorted(late, key=lambda broker_id: self._sessions[broker_id].last_contact_ms)

    def next_expiry_ms(self) -> int | None:
        """When the next session runs out."""
        return min((self._expiry_ms(broker) for broker in self._unfenced()), default=None)

    def next_state(
        self, heartbeat: Heartbeat, *, leads_partitions: Callable[[], bool]
    ) -> tuple[BrokerControlState, BrokerControlState]:
        """The state of a broker and the one that its heartbeat leads to."""
        broker = self.check_epoch(heartbeat.broker_id, heartbeat.broker_epoch)
        state = _state(broker)
        condition, following, otherwise = TRANSITIONS[state, heartbeat.wish]
        holds = (
            condition is Condition.ALWAYS
            or (
                condition is Condition.MAY_SERVE
                and is_caught_up(broker, heartbeat)
                and not broker.in_controlled_shutdown
            )
            or (condition is Condition.LEADS_NOTHING and not leads_partitions())
            or (
                condition is Condition.MAY_GO
                and not leads_partitions()
                and self._others_know(broker.broker_id)
            )
        )
        return state, following if holds else otherwise

    def touch(self, heartbeat: Heartbeat, now_ms: int) -> None:
        """Note that a broker was heard of."""
        session = self._sessions[heartbeat.broker_id]
        session.last_contact_ms = now_ms
        session.metadata_offset = heartbeat.current_metadata_offset
        if self._metadata.brokers[heartbeat.broker_id].is_fenced:
            session.shutdown_offset = None

    def note_shutdown(self, broker_id: int, offset: int) -> None:
        """A broker in controlled shutdown may go once the others have read up to `offset`."""
        session = self._sessions[broker_id]
        if session.shutdown_offset is None:
            session.shutdown_offset = offset

    def check_epoch(self, broker_id: int, broker_epoch: int) -> Broker:
        """The broker; STALE_BROKER_EPOCH where it is not the incarnation that is registered."""
        broker = self._metadata.brokers.get(broker_id)
        if broker is None:
            raise ApiError(
                ErrorCode.stale_broker_epoch,
                f"No broker registration found for broker id {broker_id}.",
            )
        if broker.broker_epoch != broker_epoch:
            raise ApiError(
                ErrorCode.stale_broker_epoch,
                f"Expected broker epoch {broker.broker_epoch} of broker {broker_id}, but got "
                f"broker epoch {broker_epoch}.",
            )
        return broker

    def _others_know(self, broker_id: int) -> bool:
        shutdown_offset = self._sessions[broker_id].shutdown_offset
        if shutdown_offset is None:  # from before a start of the controller
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
    """Whether a broker has read of its own registration, whose offset is its epoch."""
    return heartbeat.current_metadata_offset >= broker.broker_epoch


def registration_record(
    registration: Registration,
    *,
    existing: Broker | None,
    has_valid_session: bool,
    cluster_id: str,
    next_offset: int,
) -> RegisterBrokerRecord:
    """The record of a registration, which is to be written at `next_offset`.

    The same incarnation keeps its epoch and its state. INCONSISTENT_CLUSTER_ID;
    DUPLICATE_BROKER_REGISTRATION while another incarnation's session is valid.
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
            f"Another broker is registered with the id {registration.broker_id}. If the broker was "
            "restarted, register again until the session before has expired.",
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
    )


def _state(broker: Broker) -> BrokerControlState:
    if broker.is_fenced:
        return BrokerControlState.FENCED
    if broker.in_controlled_shutdown:
        return BrokerControlState.CONTROLLED_SHUTDOWN
    return BrokerControlState.UNFENCED
