"""The interface of API handlers: their arguments and results.

Each `kNN_*.py` module exports `API`. Its `handle` function takes a `Broker`, a `Call` and the
request message, and returns the response message, a `Wait`, `NO_OP_RESPONSE` or a
`CloseConnectionResponse`. Handlers have no state. They change the state of the components in
`Broker`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.topics import NewTopic
from broker_ref.dynamic_configs import DynamicBrokerConfig
from broker_ref.frozen import dataclass
from broker_ref.group.coordinator import GroupCoordinator
from broker_ref.log.log_dir import UNKNOWN_LOG_DIR, LogDir
from broker_ref.replication.fetch_session_cache import FetchSessionCache
from broker_ref.replication.producer_id_manager import ProducerIdManager
from broker_ref.replication.purgatory import DelayedOperation
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker_ref.security.authorizer import UNRESTRICTED, AuthHelper, StandardAuthorizer
from broker_ref.security.principals import ANONYMOUS, Principal
from broker_ref.transaction.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from broker_ref.transaction.coordinator import TransactionCoordinator

Context = TypeVar("Context")

NO_THROTTLE_MS: Final = 0
"""The throttle time in every response, because there are no quotas."""

OPERATIONS_NOT_REQUESTED: Final = -(2**31)
"""The value of an authorized operations field that the client did not request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The context of a request (Kafka's `RequestContext`).

    `client_host` is an address without a port. `listener` is the name of the listener to which the
    client is connected. `principal` is the authenticated principal. `auth` checks which operations
    the client is authorized to perform.
    """

    version: int
    client_id: str | None
    now_ms: int
    client_host: str = ""
    listener: str = "PLAINTEXT"
    principal: Principal = ANONYMOUS
    auth: AuthHelper = UNRESTRICTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The components of the broker that handlers use.

    `metadata` is the cluster metadata that this broker has applied. `apis` returns all APIs that
    the broker serves. `request_topics` requests the creation of topics for the client of a call, or
    for the broker if the call is None. `authorizer` is None if no authorizer is configured.
    """

    configs: DynamicBrokerConfig
    cluster_id: str
    metadata: ClusterMetadata
    replicas: ReplicaManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifications: AddPartitionsToTxnManager
    fetch_sessions: FetchSessionCache
    producer_ids: ProducerIdManager
    request_topics: Callable[[Iterable[NewTopic], Call | None], None]
    apis: Callable[[], tuple[Api[Any], ...]]
    log_dir: LogDir = UNKNOWN_LOG_DIR
    authorizer: StandardAuthorizer | None = None

    @property
    def config(self) -> BrokerConfig:
        """The effective config, which includes the dynamic configs of this broker."""
        return self.configs.current


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A delayed response, which is sent when the operation completes or the deadline expires."""

    operation: DelayedOperation
    keys: tuple[Hashable, ...]
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class NoOpResponse:
    """A result for which no response is sent, because the client expects none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnectionResponse:
    """A result that closes the connection, because the client expects no error response."""

    reason: str


NO_OP_RESPONSE: Final = NoOpResponse()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """An operation for which the client must be authorized.

    If access is denied, the whole request fails. `name` returns the name of the resource in the
    request. If `alternative` is set, authorization for the alternative operation
    is also sufficient.
    """

    operation: AclOperation
    resource_type: ResourceType
    name: Callable[[Any], str]
    alternative: AclOperation | None = None

    def check(self, auth: AuthHelper, request: object) -> None:
        """Raise ApiError, with the error code of the resource type, if access is denied."""
        name = self.name(request)
        if self.alternative is None or not auth.allows(self.alternative, self.resource_type, name):
            auth.check(self.operation, self.resource_type, name)


def on_cluster(operation: AclOperation, *, alternative: AclOperation | None = None) -> Requirement:
    """Return the requirement for an operation on the cluster."""
    return Requirement(
        operation=operation,
        resource_type=ResourceType.CLUSTER,
        name=lambda _: CLUSTER_NAME,
        alternative=alternative,
    )


def on_group(operation: AclOperation) -> Requirement:
    """Return a `Requirement` for an operation on the group in the request's `group_id` field."""
    return Requirement(
        operation=operation, resource_type=ResourceType.GROUP, name=attrgetter("group_id")
    )


def on_transactional_id(operation: AclOperation) -> Requirement:
    """Return a `Requirement` for an operation on the request's `transactional_id`."""
    return Requirement(
        operation=operation,
        resource_type=ResourceType.TRANSACTIONAL_ID,
        name=attrgetter("transactional_id"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Generic[Context]):
    """An API key with its supported versions, its request class and its handler.

    The handler's first argument is a `Broker`, or a `ControllerContext` on the controller.
    `requires` contains the required permissions in the order in which Kafka checks them. Handlers
    check all other permissions. `validate` raises MalformedRequestError for a message that Kafka
    cannot decode. The node then closes the connection. `advertised_from` is set if the lowest
    version in ApiVersions responses differs from the lowest supported version. `unstable_from` is
    the first version that requires `unstable.api.versions.enable`.
    """

    key: int
    versions: range
    request: type[Any]
    handle: Callable[[Context, Call, Any], object]
    requires: tuple[Requirement, ...] = ()
    validate: Callable[[Any], None] | None = None
    advertised_from: int | None = None
    unstable_from: int | None = None
