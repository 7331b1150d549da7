"""Which broker to ask, and the one connection to each.

Purpose: a pool of connections, the cached metadata, and who leads or coordinates what. Invariant:
every call is one try that ends at its deadline with an answer or an error; a connection that failed
is never lent again, and what was found wrong is asked for anew before it is used. What it must not
know: which errors are worth another try (`questions`), and what requests mean.

Brokers that failed last are tried last, so that one that hangs does not take every try's time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import BrokerUnreachableError, KafkaError, ProtocolError, reason_of
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.connection import Connection, Pending, Request
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
IDLE_S_MAX: Final = 540.0
"""`connections.max.idle.ms`: what lies idle for longer may be gone without a word."""


class ApiError(Exception):
    """A broker answered with an error code, or the metadata has one; never leaves this package."""

    def __init__(self, code: ErrorCode, operation: str) -> None:
        super().__init__(code, operation)
        self.code = code
        self.operation = operation

    def __str__(self) -> str:
        return f"{self.operation}: {format_code(self.code)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The broker that leads a partition, and since which epoch (-1: unknown)."""

    broker: Broker
    leader_epoch: int


class BrokerRequest(NamedTuple, Generic[T]):
    """What to ask of whom; the connection says in which version."""

    broker: Broker
    make: Callable[[Connection], Request[T]]


class Router:
    """Connections to one cluster, found by its `bootstrap` servers. One thread, one process."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        opening: Dialer,
        *,
        metadata_age_s_max: float = METADATA_AGE_S_MAX,
        idle_s_max: float = IDLE_S_MAX,
    ) -> None:
        self.clock: Clock = opening.clock
        self.metadata = ClusterMetadata()
        self._bootstrap = _rotated(bootstrap, opening.clock.random())
        self._opening = opening
        self._metadata_age_s_max = metadata_age_s_max
        self.idle_s_max = idle_s_max
        self._learnt_at: dict[str, float] = {}
        self._coordinators: dict[CoordinatorKey, Broker] = {}
        self._pool: dict[Address, Connection] = {}
        self._failed_at: dict[Address, float] = {}

    # --- connections ---

    def connection(self, broker: Broker, *, deadline: float) -> Connection:
        """The connection to this broker, opened where there is none that works."""
        found = self._connection(broker.address, str(broker), deadline)
        found.broker = str(broker)  # it may have been met as a bootstrap server
        return found

    def dedicated_connection(self, broker: Broker, *, deadline: float) -> Connection:
        """One more connection to this broker, for the caller alone, who closes it."""
        return self._open(broker.address, str(broker), deadline)

    def any_connection(self, *, deadline: float) -> Connection:
        """A connection to whichever broker is there: an open one, a known one, a bootstrap server.

        Raises `BrokerUnreachableError` with what was met at each.
        """
        usable = [c for c in self._pool.values() if self._is_usable(c)]
        if usable:
            return min(usable, key=lambda c: (self.clock.left_s(c.throttled_until), c.in_flight))
        names = {b.address: str(b) for b in self.metadata.brokers.values()}
        candidates = dict.fromkeys([*names, *self._bootstrap])
        failures: list[str] = []
        left = sorted(candidates, key=lambda address: self._failed_at.get(address, 0.0))
        for index, address in enumerate(left):
            share_s = self.clock.left_s(deadline) / (len(left) - index)
            name = names.get(address, f"bootstrap server {address}")
            try:
                return self._connection(address, name, self.clock.now() + share_s)
            except (BrokerUnreachableError, ProtocolError) as error:
                failures.append(reason_of(error))
        raise BrokerUnreachableError(f"no broker can be asked ({'; '.join(failures)}).")

    def _connection(self, address: Address, name: str, deadline: float) -> Connection:
        pooled = self._pool.pop(address, None)
        if pooled is not None:
            if self._is_usable(pooled):
                self._pool[address] = pooled
                return pooled
            pooled.close()
        opened = self._open(address, name, deadline)
        self._pool[address] = opened
        return opened

    def _open(self, address: Address, name: str, deadline: float) -> Connection:
        try:
            opened = self._opening.open(address, broker=name, deadline=deadline)
        except KafkaError:
            self._failed_at[address] = self.clock.now()
            raise
        self._failed_at.pop(address, None)
        return opened

    def _is_usable(self, connection: Connection) -> bool:
        idle_s = self.clock.now() - connection.used_at if connection.is_idle else 0.0
        return connection.is_usable and idle_s <= self.idle_s_max

    def discard(self, connection: Connection) -> None:
        """Say that this connection failed in use, so that its broker is not the next one tried."""
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

    def call_any(self, make: Any, *, deadline: float) -> Any:
        """Send `make(connection)` to any broker and wait for the answer."""
        connection = self.any_connection(deadline=deadline)
        return self.call(connection, make(connection), deadline=deadline)

    def call(self, connection: Connection, request: Request[Any], *, deadline: float) -> Any:
        """`connection.call`, which notes a failure."""
        try:
            return connection.call(request, deadline=deadline)
        except (BrokerUnreachableError, ProtocolError):
            if not connection.is_usable:
                self.discard(connection)
            raise

    def call_each(
        self, questions: Mapping[K, BrokerRequest[T]], *, deadline: float
    ) -> Mapping[K, T | KafkaError]:
        """Ask many brokers side by side: all is sent before the first answer is waited for.

        Where no answer came there is the error instead.
        """
        by_broker: dict[Broker, list[K]] = {}
        for key, question in questions.items():
            by_broker.setdefault(question.broker, []).append(key)
        answers: dict[K, T | KafkaError] = {}
        sent: list[tuple[K, Pending[T]]] = []
        left = sorted(by_broker, key=lambda broker: self._failed_at.get(broker.address, 0.0))
        for index, broker in enumerate(left):
            share_s = self.clock.left_s(deadline) / (len(left) - index)
            keys = by_broker[broker]
            try:
                connection = self.connection(broker, deadline=self.clock.now() + share_s)
                for key in keys:
                    request = questions[key].make(connection)
                    sent.append((key, connection.send(request, deadline=deadline)))
            except KafkaError as error:
                answers.update(dict.fromkeys(keys, error))
        for key, pending in sent:
            try:
                answers[key] = pending.connection.receive(pending, deadline=deadline)
            except KafkaError as error:
                self.discard(pending.connection)
                answers[key] = error
        return answers

    # --- metadata ---

    def refresh(
        self, topics: Collection[str] | None, *, deadline: float, create: bool = False
    ) -> ClusterMetadata:
        """Ask for these topics, or for all with None, and return just what was answered.

        `create` is for `metadata_request`.
        """

        def make(connection: Connection) -> Request[Any]:
            version = connection.versions.choose(Api.METADATA)
            return metadata_request(version, topics, create=create)

        response = self.call_any(make, deadline=deadline)
        code = getattr(response, "error_code", ErrorCode.none)
        if code is not ErrorCode.none:
            if code is ErrorCode.rebootstrap_required:  # KIP-1102: what we know is of no use
                self.metadata = replace(self.metadata, brokers={})
                self.close()
            raise ApiError(code, "asking for metadata")
        news = cluster_metadata(response)
        self._take(news, is_all=topics is None)
        return news

    def topics(
        self, names: Collection[str], *, deadline: float, create: bool = False
    ) -> ClusterMetadata:
        """Metadata in which each of these topics is fresh: known, or known to have failed now."""
        stale = self.stale(names)
        if stale:
            self.refresh(stale, deadline=deadline, create=create)
        return self.metadata

    def stale(self, names: Collection[str]) -> list[str]:
        """Those of these topics that are to be asked for before they are used."""
        oldest = self.clock.now() - self._metadata_age_s_max
        return sorted(name for name in names if self._learnt_at.get(name, oldest) <= oldest)

    def forget_topic(self, topic: str) -> None:
        """What is known of this topic was found wrong: ask before it is used again."""
        self._learnt_at.pop(topic, None)

    def leader(self, topic_partition: TopicPartition) -> Leader:
        """Who leads a partition, as far as is known: ask for its `topics` first.

        Raises `ApiError` with the code that says why nobody is known; the topic is then asked for
        when it is wanted next.
        """
        metadata = self.metadata
        operation = f"finding the leader of {topic_partition}"
        partition = metadata.partition(topic_partition)
        code = _why_unusable(metadata, topic_partition, partition)
        if partition is None or code is not ErrorCode.none:
            self.forget_topic(topic_partition.topic)
            raise ApiError(code, operation)
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
        """What a broker said of the leader while refusing (KIP-951): saves asking for metadata.

        Where it says nothing new, the topic is to be asked for.
        """
        brokers = {**self.metadata.brokers, **{b.broker_id: b for b in endpoints}}
        known = replace(self.metadata, brokers=brokers)
        moved = known.with_leader(topic_partition, leader_id, leader_epoch)
        if moved is known:
            self.forget_topic(topic_partition.topic)
        self.metadata = moved

    def _take(self, news: ClusterMetadata, *, is_all: bool) -> None:
        if is_all:
            gone = self.metadata.topics.keys() - news.topics.keys() - news.failed.keys()
            kept = {n: t for n, t in self.metadata.topics.items() if n not in gone}
            self.metadata = replace(self.metadata, topics=kept)
            self._learnt_at = {n: at for n, at in self._learnt_at.items() if n not in gone}
        self.metadata = self.metadata.merged(news)
        now = self.clock.now()
        self._learnt_at.update(dict.fromkeys(news.topics, now))
        for name in news.failed:  # may pass: ask again next time
            self._learnt_at.pop(name, None)
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
        """The broker that coordinates a group or a transactional id; raises `ApiError`."""
        found = self.coordinators(key.kind, [key.name], deadline=deadline)[key.name]
        if isinstance(found, ApiError):
            raise found
        return found

    def coordinators(
        self, kind: CoordinatorKind, names: Collection[str], *, deadline: float
    ) -> Mapping[str, Broker | ApiError]:
        """The same of many at once: what is not known yet is asked for together."""
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
                    found[name] = ApiError(error_code, f"finding the coordinator of {keys[name]}")
                else:
                    found[name] = self._coordinators[keys[name]] = broker
        return found

    def forget_coordinator(self, key: CoordinatorKey) -> None:
        """It was found to be another one, or not to answer."""
        self._coordinators.pop(key, None)

    def invalidate(
        self, code: ErrorCode, *, topic: str | None = None, key: CoordinatorKey | None = None
    ) -> None:
        """Forget what this code of a response says is wrong."""
        reaction = REACTIONS[code]
        if reaction is Reaction.REFRESH_METADATA and topic is not None:
            self.forget_topic(topic)
        elif reaction is Reaction.FIND_COORDINATOR and key is not None:
            self.forget_coordinator(key)


def _why_unusable(
    metadata: ClusterMetadata, wanted: TopicPartition, partition: PartitionMetadata | None
) -> ErrorCode:
    if partition is None:
        return metadata.failed.get(wanted.topic, ErrorCode.unknown_topic_or_partition)
    if partition.leader_id == NO_LEADER or partition.leader_id not in metadata.brokers:
        return ErrorCode.leader_not_available
    return ErrorCode.none


def _rotated(bootstrap: Sequence[Address], random_number: float) -> tuple[Address, ...]:
    """In the order given, begun anywhere, so that many clients do not all ask the first one."""
    start = int(random_number * len(bootstrap))
    return (*bootstrap[start:], *bootstrap[:start])
