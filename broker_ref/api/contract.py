"""The interface of API handlers: their arguments and results.

Purpose: each `kNN_*.py` exports `API`, an `Api` whose `handle` takes the broker, the call and the
request message, and returns the response message, a `Wait`, `NO_ANSWER` or `Hangup`. Invariant:
handlers have no state; they change state through the components of `Broker`. Must not know: frames,
connections, or which handlers exist.
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
from broker_ref.replication.fetch_session_cache import FetchSessionCache
from broker_ref.replication.producer_id_manager import ProducerIdManager
from broker_ref.replication.purgatory import DelayedOperation
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.transaction.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from broker_ref.transaction.coordinator import TransactionCoordinator

Context = TypeVar("Context")

NO_THROTTLE_MS: Final = 0
"""The throttle time of every response; there are no quotas."""

OPERATIONS_NOT_REQUESTED: Final = -(2**31)
"""Value of authorized operations that were not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The context of a request (Kafka's `RequestContext`); `client_host` has no port."""

    version: int
    client_id: str | None
    now_ms: int
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The components of the node that handlers use, and its APIs.

    `metadata` is the cluster metadata that this broker has applied.
    """

    config: BrokerConfig
    cluster_id: str
    metadata: ClusterMetadata
    replicas: ReplicaManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifications: AddPartitionsToTxnManager
    fetch_sessions: FetchSessionCache
    producer_ids: ProducerIdManager
    request_topic: Callable[[NewTopic], None]
    apis: Callable[[], tuple[Api[Any], ...]]
    log_dir: LogDir = UNKNOWN_LOG_DIR


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Send the response when the operation completes, or at the deadline."""

    operation: DelayedOperation
    keys: tuple[Hashable, ...]
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The request is complete and the client expects no response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangup:
    """Close the connection: the only way to report an error if no response is expected."""

    reason: str


NO_ANSWER: Final = NoAnswer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Generic[Context]):
    """An API key: the served versions, the request's message class and the handler.

    The handler's first argument is a `Broker`, or a `ControllerContext` at the controller.
    `advertised_from` is the lowest version in ApiVersions if it differs from the lowest served
    version. `unstable_from` is the first version that requires `unstable.api.versions.enable`.
    """

    key: int
    versions: range
    request: type[Any]
    handle: Callable[[Context, Call, Any], object]
    advertised_from: int | None = None
    unstable_from: int | None = None
