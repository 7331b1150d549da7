"""What a handler is, what it gets, and what it can answer.

Purpose: the frame that every `kNN_*.py` fills: it exports `API`, an `Api` whose `handle` takes the
broker, the call and the request message, and returns the response message, a `Wait`, `NO_ANSWER`
or `Hangup`. Invariant: handlers keep no state; what they change, they change through the parts
of `Broker`. What it must not know: frames, connections, and which handlers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.topics import NewTopic
from broker_ref.group.coordinator import GroupCoordinator
from broker_ref.log.log_dir import UNKNOWN_LOG_DIR, LogDir
from broker_ref.replication.fetch_sessions import FetchSessions
from broker_ref.replication.producer_ids import ProducerIds
from broker_ref.replication.purgatory import DelayedOperation
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.transaction.coordinator import TransactionCoordinator
from broker_ref.transaction.verification import Verifications

Context = TypeVar("Context")

NO_THROTTLE_MS: Final = 0
"""This broker has no quotas."""

OPERATIONS_NOT_ASKED_FOR: Final = -(2**31)
"""In place of authorized operations that the request did not ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request's circumstances; the host is where it came from, without the port."""

    version: int
    client_id: str | None
    now_ms: int
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The parts of the node that handlers use, and the APIs that it serves.

    `metadata` is the cluster as far as this broker has heard of it.
    """

    config: BrokerConfig
    cluster_id: str
    metadata: ClusterMetadata
    replicas: ReplicaManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifications: Verifications
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    request_topic: Callable[[NewTopic], None]
    apis: Callable[[], tuple[Api[Any], ...]]
    log_dir: LogDir = UNKNOWN_LOG_DIR


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The response comes when the operation completes, or at the deadline."""

    operation: DelayedOperation
    keys: tuple[Hashable, ...]
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The request is done, and its client expects no response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangup:
    """The connection is to be closed: the only way to tell a client that expects no response."""

    reason: str


NO_ANSWER: Final = NoAnswer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Generic[Context]):
    """One API key: the versions served, the message its requests are read as, and the handler.

    The handler gets the parts of its node first: a `Broker`, or the controller's.
    `advertised_from` is the lowest version that ApiVersions names where that is not the lowest that
    is served; `unstable_from` the first that is served only where `unstable.api.versions.enable`.
    """

    key: int
    versions: range
    request: type[Any]
    handle: Callable[[Context, Call, Any], object]
    advertised_from: int | None = None
    unstable_from: int | None = None
