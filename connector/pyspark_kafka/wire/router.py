"""Choose the broker for each request, and keep one connection to each broker in a pool.

The router caches the coordinators and the metadata, including the leaders. Every call is one
attempt, which ends by its deadline with a response or an error. `cluster_queries` retries failed
attempts. A failed connection is not used again. Invalidated metadata is refreshed before its next
use.

Brokers that failed most recently are tried last, so that an unresponsive broker does not use up the
time of every attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import BrokerUnreachableError, KafkaError, ProtocolError, reason_of
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.connection import Connection, InFlightRequest, Request
from pyspark_kafka.wire.coordinators import (
    FIRST_OF_MANY,
    CoordinatorKey,
    CoordinatorKind,
    find_coordinators_request,
)
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction, format_code
from pyspark_kafka.wire.metadata import (
    NO_LEADER,
    Broker,
    ClusterMetadata,
    PartitionMetadata,
    cluster_metadata,
    metadata_request,
)
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import Api

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

METADATA_AGE_S_MAX: Final = 300.0
"""`metadata.max.age.ms`."""
MISCONFIGURED_TIMEOUT_S: Final = 10.0
"""The timeout if an option seems to be wrong (see `Router.misconfigured_since`)."""
IDLE_S_MAX: Final = 540.0
"""`connections.max.idle.ms`. Brokers can close connections that have been idle for longer."""


class ApiError(Exception):
    """An error code in a response or in the metadata.

    The native engine converts this exception to a `KafkaError`. `operation` describes the request,
    for example "listing offsets of t-0". `fields` are the fields of `PysparkKafkaError` that
    identify the affected object.
    """

    def __init__(self, code: ErrorCode, operation: str, **fields: Any) -> None:
        super().__init__(code, operation)
        self.code = code
        self.operation = operation
        self.fields = fields

    def __str__(self) -> str:
        return f"{self.operation}: {format_code(self.code)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leader of a partition and the leader epoch, which is -1 if it is unknown."""

    broker: Broker
    leader_epoch: int


class BrokerRequest(NamedTuple, Generic[T]):
    """A request to a broker. `make_request` builds it in a version that the broker supports."""

    broker: Broker
    make_request: Callable[[Connection], Request[T]]


class Router:
    """The connections to one cluster, starting from its `bootstrap` servers. Not thread-safe."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        dialer: Dialer,
        *,
        metadata_age_s_max: float = METADATA_AGE_S_MAX,
        idle_s_max: float = IDLE_S_MAX,
    ) -> None:
        self.clock: Clock = dialer.clock
        self.metadata = ClusterMetadata()
        self._bootstrap = _rotated(bootstrap, dialer.clock.random())
        self._dialer = dialer
        self._metadata_age_s_max = metadata_age_s_max
        self.idle_s_max = idle_s_max
        self._refreshed_at: dict[str, float] = {}
        self._coordinators: dict[CoordinatorKey, Broker] = {}
        self._pool: dict[Address, Connection] = {}
        self._failed_at: dict[Address, float] = {}
        self._suspected_since: float | None = None

    @property
    def misconfigured_since(self) -> float | None:
        """Return the time of the first failure that an invalid option may have caused, or None.

        An invalid option may be the cause if the error names an option, or if all brokers failed
        before their timeouts, for example because they refused or closed the connections. Such
        failures can also be temporary, for example while the cluster restarts or while a load
        balancer has no available broker. After the first Metadata response, all failures are
        treated as temporary, and the result is None.
        """
        return None if self.metadata.brokers else self._suspected_since

    def extend_deadlines(self, by_s: float) -> None:
        """Move `misconfigured_since` forward by `by_s` seconds, like all deadlines."""
        if self._suspected_since is not None:
            # Another producer of this router may have failed during the last `by_s` seconds.
            self._suspected_since = min(self._suspected_since + by_s, self.clock.now())

    # --- connections ---

    def connection(self, broker: Broker, *, deadline: float) -> Connection:
        """Return the connection to this broker. Opens a new connection if necessary."""
        found = self._connection(broker.address, str(broker), deadline)
        found.broker = str(broker)  # the connection may have the name of a bootstrap server
        return found

    def dedicated_connection(self, broker: Broker, *, deadline: float) -> Connection:
        """Open an unpooled connection to this broker.

        The caller must close the connection.
        """
        return self._open(broker.address, str(broker), deadline)

    def any_connection(self, *, deadline: float) -> Connection:
        """Return an open connection, or connect to a known broker or to a bootstrap server.

        Raises `BrokerUnreachableError` with the failure of each broker that was tried.
        """
        usable = [c for c in self._pool.values() if self.is_usable(c)]
        if usable:
            return min(usable, key=lambda c: (self.clock.left_s(c.throttled_until), c.in_flight))
        names = {b.address: str(b) for b in self.metadata.brokers.values()}
        candidates = dict.fromkeys([*names, *self._bootstrap])
        failures: list[str] = []
        advice: dict[str, None] = {}
        options: set[str | None] = set()
        early = 0
        left = sorted(candidates, key=lambda address: self._failed_at.get(address, 0.0))
        for index, address in enumerate(left):
            share_s = self.clock.left_s(deadline) / (len(left) - index)
            name = names.get(address, f"bootstrap server {address}")
            until = self.clock.now() + min(share_s, self._dialer.connect_timeout_s)
            try:
                return self._connection(address, name, until)
            except (BrokerUnreachableError, ProtocolError) as error:
                early += self.clock.now() < until
                failures.append(reason_of(error))
                advice[error.advice] = None
                options.add(error.option)
        option = options.pop() if len(options) == 1 else None
        self._note_failure(is_suspicious=early == len(left) or option is not None)
        raise BrokerUnreachableError(
            f"No broker is reachable ({'; '.join(failures)}).",
            advice=" ".join(advice) or None,
            option=option,
        )

    def _note_failure(self, *, is_suspicious: bool) -> None:
        """Update `misconfigured_since` after a failure.

        `is_suspicious` is true if an invalid option may have caused the failure.
        """
        if not is_suspicious:
            self._suspected_since = None
        elif self._suspected_since is None:
            self._suspected_since = self.clock.now()

    def _connection(self, address: Address, name: str, deadline: float) -> Connection:
        pooled = self._pool.pop(address, None)
        if pooled is not None:
            if self.is_usable(pooled):
                self._pool[address] = pooled
                return pooled
            pooled.close()
        opened = self._open(address, name, deadline)
        self._pool[address] = opened
        return opened

    def _open(self, address: Address, name: str, deadline: float) -> Connection:
        try:
            opened = self._dialer.open(address, broker=name, deadline=deadline)
        except KafkaError:
            self._failed_at[address] = self.clock.now()
            raise
        self._failed_at.pop(address, None)
        return opened

    def is_usable(self, connection: Connection) -> bool:
        """Return whether a connection is open and has not exceeded `connections.max.idle.ms`."""
        idle_s = self.clock.now() - connection.used_at if connection.is_idle else 0.0
        return connection.is_usable and idle_s <= self.idle_s_max

    def discard(self, connection: Connection) -> None:
        """Close a failed connection. From then on, its broker is tried last."""
        for address, pooled in list(self._pool.items()):
            if pooled is connection:
                self._failed_at[address] = self.clock.now()
                del self._pool[address]
        connection.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._pool.values():
            connection.close()
        self._pool.clear()

    def call_any(self, make_request: Any, *, deadline: float) -> Any:
        """Send `make_request(connection)` to any broker and wait for the response."""
        connection = self.any_connection(deadline=deadline)
        return self.call(connection, make_request(connection), deadline=deadline)

    def call(self, connection: Connection, request: Request[Any], *, deadline: float) -> Any:
        """Send a request and wait for its response. Discards the connection if it has failed."""
        try:
            response = connection.call(request, deadline=deadline)
        except (BrokerUnreachableError, ProtocolError) as error:
            if not connection.is_usable:
                self.discard(connection)
            self._note_failure(is_suspicious=error.option is not None)
            raise
        self._suspected_since = None
        return response

    def call_each(
        self, requests: Mapping[K, BrokerRequest[T]], *, deadline: float
    ) -> Mapping[K, T | KafkaError]:
        """Send all requests before waiting for the first response.

        Returns the responses by key. The value of a failed request is its error.
        """
        by_broker: dict[Broker, list[K]] = {}
        for key, broker_request in requests.items():
            by_broker.setdefault(broker_request.broker, []).append(key)
        responses: dict[K, T | KafkaError] = {}
        sent: list[tuple[K, InFlightRequest[T]]] = []
        left = sorted(by_broker, key=lambda broker: self._failed_at.get(broker.address, 0.0))
        for index, broker in enumerate(left):
            share_s = self.clock.left_s(deadline) / (len(left) - index)
            keys = by_broker[broker]
            try:
                connection = self.connection(broker, deadline=self.clock.now() + share_s)
                for key in keys:
                    request = requests[key].make_request(connection)
                    sent.append((key, connection.send(request, deadline=deadline)))
            except KafkaError as error:
                responses.update(dict.fromkeys(keys, error))
        for key, pending in sent:
            try:
                responses[key] = pending.connection.receive(pending, deadline=deadline)
            except KafkaError as error:
                self.discard(pending.connection)
                responses[key] = error
        return responses

    # --- metadata ---

    def refresh(
        self, topics: Collection[str] | None, *, deadline: float, create: bool = False
    ) -> ClusterMetadata:
        """Request the metadata of these topics, or of all topics if `topics` is None.

        Merges the metadata in the response into `metadata`, and returns the metadata in the
        response. For `create`, see `metadata_request`.
        """

        def make_request(connection: Connection) -> Request[Any]:
            version = connection.versions.choose(Api.METADATA)
            return metadata_request(version, topics, create=create)

        response = self.call_any(make_request, deadline=deadline)
        code = getattr(response, "error_code", ErrorCode.none)
        if code is not ErrorCode.none:
            if code is ErrorCode.rebootstrap_required:  # KIP-1102: the known brokers are stale
                self.metadata = replace(self.metadata, brokers={})
                self.close()
            raise ApiError(code, "requesting metadata")
        update = cluster_metadata(response)
        self._merge(update, is_all=topics is None)
        return update

    def topics(
        self, names: Collection[str], *, deadline: float, create: bool = False
    ) -> ClusterMetadata:
        """Refresh missing, expired and invalidated metadata of topics, and return the metadata."""
        stale = self.stale(names)
        if stale:
            self.refresh(stale, deadline=deadline, create=create)
        return self.metadata

    def stale(self, names: Collection[str]) -> list[str]:
        """Return the topics whose metadata must be refreshed before it is used."""
        oldest = self.clock.now() - self._metadata_age_s_max
        return sorted(name for name in names if self._refreshed_at.get(name, oldest) <= oldest)

    def invalidate_topic(self, topic: str) -> None:
        """Invalidate the metadata of this topic, so that it is refreshed before its next use."""
        self._refreshed_at.pop(topic, None)

    def leader(self, topic_partition: TopicPartition) -> Leader:
        """Return the leader of a partition from the metadata. Call `topics` first.

        If no leader is known, invalidates the metadata of the topic and raises `ApiError`.
        """
        metadata = self.metadata
        operation = f"finding the leader of {topic_partition}"
        partition = metadata.partition(topic_partition)
        code = _leader_error(metadata, topic_partition, partition)
        if partition is None or code is not ErrorCode.none:
            self.invalidate_topic(topic_partition.topic)
            raise ApiError(
                code,
                operation,
                topic=topic_partition.topic,
                partition=topic_partition.partition,
            )
        broker = metadata.brokers[partition.leader_id]
        return Leader(broker=broker, leader_epoch=partition.leader_epoch)

    def update_leader(
        self,
        topic_partition: TopicPartition,
        *,
        leader_id: int,
        leader_epoch: int,
        endpoints: Sequence[Broker] = (),
    ) -> None:
        """Set the leader of a partition from an error response, without a Metadata request.

        If the leader epoch is not newer than the known leader epoch, the metadata of the topic is
        invalidated (KIP-951).
        """
        brokers = {**self.metadata.brokers, **{b.broker_id: b for b in endpoints}}
        known = replace(self.metadata, brokers=brokers)
        moved = known.with_leader(topic_partition, leader_id, leader_epoch)
        if moved is known:
            self.invalidate_topic(topic_partition.topic)
        self.metadata = moved

    def _merge(self, update: ClusterMetadata, *, is_all: bool) -> None:
        if is_all:
            gone = self.metadata.topics.keys() - update.topics.keys() - update.failed.keys()
            kept = {n: t for n, t in self.metadata.topics.items() if n not in gone}
            self.metadata = replace(self.metadata, topics=kept)
            self._refreshed_at = {n: at for n, at in self._refreshed_at.items() if n not in gone}
        self.metadata = self.metadata.merged(update)
        now = self.clock.now()
        self._refreshed_at.update(dict.fromkeys(update.topics, now))
        for name in update.failed:  # the failure may be temporary: refresh before the next use
            self._refreshed_at.pop(name, None)
        self._drop_unknown_brokers()

    def _drop_unknown_brokers(self) -> None:
        known = {broker.address for broker in self.metadata.brokers.values()}
        known.update(self._bootstrap, (b.address for b in self._coordinators.values()))
        for address, connection in list(self._pool.items()):
            if address not in known and not connection.in_flight:
                self._pool.pop(address).close()
        self._failed_at = {a: at for a, at in self._failed_at.items() if a in known}

    # --- coordinators ---

    def coordinator(self, key: CoordinatorKey, *, deadline: float) -> Broker:
        """Return the coordinator of a group or of a transactional id. Raises `ApiError`."""
        found = self.coordinators(key.kind, [key.name], deadline=deadline)[key.name]
        if isinstance(found, ApiError):
            raise found
        return found

    def coordinators(
        self, kind: CoordinatorKind, names: Collection[str], *, deadline: float
    ) -> Mapping[str, Broker | ApiError]:
        """Return the coordinator of each group id or transactional id, or an error.

        Coordinators that are not cached are looked up in one request if the broker supports
        requests with several keys.
        """
        keys = {name: CoordinatorKey(kind, name) for name in names}
        found: dict[str, Broker | ApiError] = {
            name: self._coordinators[key] for name, key in keys.items() if key in self._coordinators
        }
        unknown = [name for name in keys if name not in found]
        if not unknown:
            return found
        connection = self.any_connection(deadline=deadline)
        version = connection.versions.choose(Api.FIND_COORDINATOR)
        parts = [unknown] if version >= FIRST_OF_MANY else [[name] for name in unknown]
        requests = [find_coordinators_request(version, kind, part) for part in parts]
        for request in requests:
            response = self.call(connection, request, deadline=deadline)
            for name, (error_code, broker) in response.found.items():
                if broker is None:
                    found[name] = ApiError(
                        error_code,
                        f"finding the coordinator of {keys[name]}",
                        **keys[name].error_fields,
                    )
                else:
                    found[name] = self._coordinators[keys[name]] = broker
        return found

    def invalidate_coordinator(self, key: CoordinatorKey) -> None:
        """Invalidate the cached coordinator of `key`, so that it is looked up again when needed."""
        self._coordinators.pop(key, None)

    def invalidate(
        self, code: ErrorCode, *, topic: str | None = None, key: CoordinatorKey | None = None
    ) -> None:
        """Invalidate the metadata or the coordinator if the error code shows that it is stale."""
        reaction = REACTIONS[code]
        if reaction is Reaction.REFRESH_METADATA and topic is not None:
            self.invalidate_topic(topic)
        elif reaction is Reaction.FIND_COORDINATOR and key is not None:
            self.invalidate_coordinator(key)


def _leader_error(
    metadata: ClusterMetadata, topic_partition: TopicPartition, partition: PartitionMetadata | None
) -> ErrorCode:
    if partition is None:
        return metadata.failed.get(topic_partition.topic, ErrorCode.unknown_topic_or_partition)
    if partition.leader_id == NO_LEADER or partition.leader_id not in metadata.brokers:
        return ErrorCode.leader_not_available
    return ErrorCode.none


def _rotated(bootstrap: Sequence[Address], random_number: float) -> tuple[Address, ...]:
    """Rotate the list of bootstrap servers, so that clients start with different servers."""
    start = int(random_number * len(bootstrap))
    return (*bootstrap[start:], *bootstrap[:start])
