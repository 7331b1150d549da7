"""Queries of topics, offsets and groups, with retries.

Purpose: `list_topics`, `describe_topics`, `list_offsets`, `committed_offsets` and `commit_offsets`
of `KafkaReads` over the router. While leaders and coordinators move, or a broker is down, the
request is sent again to the broker that the refreshed metadata names. Invariant: every query ends
within `api_timeout_s`, with a result or an error of `pyspark_kafka.errors`. What it must not know:
sockets, and the callers.

Retriable errors are retried after short, growing pauses until the timeout. Errors that are mostly
permanent (an unknown topic, a server error, a malformed response) are tried `retries` times,
`retry_interval_s` apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import (
    AccessError,
    BrokerUnreachableError,
    KafkaError,
    ProtocolError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    reason_of,
    sentence,
)
from pyspark_kafka.kafka.offsets import AtTimestamp, IsolationLevel, OffsetQuery
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition
from pyspark_kafka.wire.connection import Connection, Pending, entity_request
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction, error_class, format_code
from pyspark_kafka.wire.group_offsets import (
    commit_offsets,
    committed_offsets,
    committing,
    partition_mismatch,
    reading_commits,
)
from pyspark_kafka.wire.metadata import Broker, ClusterMetadata, TopicMetadata, topic_id_text
from pyspark_kafka.wire.retry import Backoff
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.versions import Api

T = TypeVar("T")

LOG: Final = logging.getLogger("pyspark_kafka.wire")
LOG.addHandler(logging.NullHandler())  # else warnings without a configured handler go to stderr
_FIRST_TRY_S: Final = 2.0
_TRY_GROWTH: Final = 1.5
"""Each try is longer, for slow clusters; the default timeout has room for eight."""
_TIMEOUT_OPTION: Final = "kafka.default.api.timeout.ms"
_CONSUMER: Final = -1
_HAS_MEMBERS: Final = frozenset(
    {
        ErrorCode.fenced_instance_id,
        ErrorCode.illegal_generation,
        ErrorCode.stale_member_epoch,
        ErrorCode.unknown_member_id,
    }
)
_UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})


@dataclass(slots=True, kw_only=True)
class ClusterQueries:
    """The first five methods are those of `KafkaReads`. `bootstrap_servers` is for errors."""

    router: Router
    bootstrap_servers: str
    api_timeout_s: float = 60.0
    retries: int = 3
    retry_interval_s: float = 1.0
    backoff: Backoff = field(default=Backoff())
    reconnect_backoff: Backoff = field(default=Backoff())

    def list_topics(self) -> Collection[str]:
        found = self.retry(
            lambda deadline: self.router.refresh(None, deadline=deadline), "listing topics"
        )
        names = {name for name, topic in found.topics.items() if not topic.is_internal}
        unseen = {name for name, code in found.failed.items() if code not in _UNKNOWN}
        return sorted(names | unseen)

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        if not topics:
            return {}

        def describe(deadline: float) -> ClusterMetadata:
            found = self.router.refresh(sorted(topics), deadline=deadline)
            for name, code in sorted(found.failed.items()):
                if code not in _UNKNOWN:
                    raise ApiError(code, f"describing topic {name!r}", topic=name)
            return found

        found = self.retry(describe, f"describing topics {', '.join(sorted(topics))}")
        return {name: _description(topic) for name, topic in sorted(found.topics.items())}

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        listing = _ListOffsets(self.router, queries, isolation_level)
        if queries:
            self.retry(listing, listing.operation(queries), partitions=queries)
        return {partition: listing.offsets[partition] for partition in queries}

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        if not partitions:
            return {}
        return self.retry(
            lambda deadline: committed_offsets(
                self.router, group_id, partitions, deadline=deadline
            ),
            reading_commits(group_id),
            partitions=partitions,
        )

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return

        def commit(deadline: float) -> None:
            try:
                commit_offsets(self.router, group_id, offsets, deadline=deadline)
            except ApiError as error:
                if error.code in _HAS_MEMBERS:
                    raise KafkaError(
                        f"{sentence(error.operation)} failed: {format_code(error.code)}. The group "
                        "has members, and only they can commit its offsets.",
                        advice="Use another group id, or stop the members of the group.",
                        group_id=group_id,
                    ) from None
                raise

        self.retry(commit, committing(group_id), partitions=offsets)

    def retry(
        self,
        call: Callable[[float], T],
        operation: str,
        *,
        partitions: Collection[TopicPartition] = (),
        timeout_s: float | None = None,
    ) -> T:
        """Call `call` with the deadline of each try until it succeeds or its error is permanent.

        All tries together take at most `timeout_s`, by default `api_timeout_s`. `partitions` must
        exist: if one is unknown after `retries` tries, the metadata decides whether to continue.
        Raises `KafkaError`.
        """
        clock = self.router.clock
        timeout_s = self.api_timeout_s if timeout_s is None else timeout_s
        deadline = clock.now() + timeout_s
        try_s = _FIRST_TRY_S
        tries = permanent_failures = 0
        last_failure: ApiError | KafkaError | None = None
        while True:
            tries += 1
            failed: ApiError | KafkaError
            try:
                return call(min(deadline, clock.now() + try_s))
            except (AccessError, UnsupportedVersionError):
                raise
            except (ApiError, BrokerUnreachableError, ProtocolError) as error:
                failed = error
            LOG.warning("%s failed (try %d): %s.", sentence(operation), tries, reason_of(failed))
            # The last try is cut short by the timeout: keep the previous error.
            if last_failure is None or clock.now() < deadline:
                last_failure = failed
            if is_retriable(failed):
                unreachable = isinstance(failed, BrokerUnreachableError)
                backoff = self.reconnect_backoff if unreachable else self.backoff
                go_on = backoff.pause(tries, clock=clock, deadline=deadline)
            else:
                permanent_failures += 1
                if permanent_failures >= self.retries or _is_access_error(failed):
                    self._raise_permanent(failed, partitions, deadline)
                    permanent_failures = 0
                clock.sleep(min(self.retry_interval_s, clock.left_s(deadline)))
                go_on = clock.now() < deadline
            if not go_on:
                raise self._timeout_error(last_failure, operation, timeout_s)
            try_s *= _TRY_GROWTH

    def _raise_permanent(
        self,
        failed: ApiError | KafkaError,
        partitions: Collection[TopicPartition],
        deadline: float,
    ) -> None:
        """Raise, unless unknown partitions are in the metadata of a broker."""
        if isinstance(failed, KafkaError):
            raise failed
        if failed.code in _UNKNOWN and partitions:
            topics = {partition.topic for partition in partitions}
            try:
                metadata = self.router.refresh(topics, deadline=deadline)
            except (ApiError, BrokerUnreachableError):
                return
            raise_if_missing(metadata, partitions, self.bootstrap_servers)
            return
        kind = error_class(failed.code)
        raise kind(
            f"{sentence(failed.operation)} failed at {self.bootstrap_servers}: "
            f"{format_code(failed.code)}.",
            **failed.fields,
        )

    def _timeout_error(
        self, failed: ApiError | KafkaError, operation: str, timeout_s: float
    ) -> KafkaError:
        longer = f"To wait longer, raise '{_TIMEOUT_OPTION}'."
        if isinstance(failed, BrokerUnreachableError):
            return BrokerUnreachableError(
                f"{sentence(operation)} failed: {self.bootstrap_servers} did not respond within "
                f"{timeout_s:g} s ({reason_of(failed)}).",
                advice=f"{failed.advice} {longer}",
            )
        if isinstance(failed, KafkaError):
            return failed
        kind = error_class(failed.code)
        # The brokers answer, so the remedy of an unreachable broker would mislead.
        remedy = KafkaError.remedy if kind is BrokerUnreachableError else kind.remedy
        return kind(
            f"{sentence(failed.operation)} failed: {self.bootstrap_servers} returned "
            f"{format_code(failed.code)} for {timeout_s:g} s.",
            advice=f"{remedy} {longer}",
            **failed.fields,
        )


def raise_if_missing(
    metadata: ClusterMetadata, partitions: Collection[TopicPartition], bootstrap_servers: str
) -> None:
    """Raise `UnknownTopicOrPartitionError` if `metadata` does not have one of the partitions."""
    for partition in sorted(partitions):
        topic = metadata.topics.get(partition.topic)
        if topic is None:
            raise UnknownTopicOrPartitionError(
                f"Topic {partition.topic!r} does not exist at {bootstrap_servers}, or the "
                "principal may not describe it.",
                topic=partition.topic,
                partition=partition.partition,
            )
        if partition.partition not in topic.partitions:
            raise UnknownTopicOrPartitionError(
                f"Topic {partition.topic!r} has {len(topic.partitions)} partitions, and no "
                f"partition {partition.partition}.",
                advice="Correct the partition, or add partitions to the topic.",
                topic=partition.topic,
                partition=partition.partition,
            )


def _description(topic: TopicMetadata) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        topic_id=None if topic.topic_id is None else topic_id_text(topic.topic_id),
        partitions=tuple(sorted(topic.partitions)),
        is_internal=topic.is_internal,
    )


def is_retriable(failed: ApiError | KafkaError) -> bool:
    """Return whether the error is retriable; "unknown" errors are not, though they may pass."""
    if isinstance(failed, ApiError):
        return REACTIONS[failed.code] is not Reaction.FAIL and failed.code not in _UNKNOWN
    return isinstance(failed, BrokerUnreachableError)


def _is_access_error(failed: ApiError | KafkaError) -> bool:
    return isinstance(failed, ApiError) and issubclass(error_class(failed.code), AccessError)


class _ListOffsets:
    """One `list_offsets`: each try sends requests to all leaders of the partitions still open."""

    def __init__(
        self,
        router: Router,
        queries: Mapping[TopicPartition, OffsetQuery],
        isolation_level: IsolationLevel,
    ) -> None:
        self.offsets: dict[TopicPartition, int | None] = {}
        self._router = router
        self._queries = queries
        self._isolation_level = isolation_level

    @staticmethod
    def operation(partitions: Collection[TopicPartition]) -> str:
        first = min(partitions)
        more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
        return f"listing offsets of {first}{more}"

    def __call__(self, deadline: float) -> None:
        failures: list[ApiError | KafkaError] = []
        sent: list[tuple[list[TopicPartition], Connection, Pending[Any]]] = []
        for leader, epochs in self._by_leader(failures, deadline).items():
            partitions = list(epochs)
            try:
                sent.append((partitions, *self._send(leader, epochs, deadline)))
            except (BrokerUnreachableError, ProtocolError) as error:
                self._forget(partitions)
                failures.append(error)
        for partitions, connection, pending in sent:
            try:
                response = connection.receive(pending, deadline=deadline)
            except (BrokerUnreachableError, ProtocolError) as error:
                self._router.discard(connection)
                self._forget(partitions)
                failures.append(error)
            else:
                self._take(response, partitions, failures, connection.broker)
        if failures:
            raise max(failures, key=lambda failure: not is_retriable(failure))

    def _by_leader(
        self, failures: list[ApiError | KafkaError], deadline: float
    ) -> dict[Broker, dict[TopicPartition, int]]:
        """Return the partitions with a known leader, by leader, with their leader epochs."""
        partitions = sorted(self._queries.keys() - self.offsets.keys())
        self._router.topics({partition.topic for partition in partitions}, deadline=deadline)
        found: dict[Broker, dict[TopicPartition, int]] = {}
        for partition in partitions:
            try:
                leader = self._router.leader(partition)
            except ApiError as error:
                failures.append(self._error(error.code, partition))
            else:
                found.setdefault(leader.broker, {})[partition] = leader.leader_epoch
        return found

    def _send(
        self, leader: Broker, epochs: Mapping[TopicPartition, int], deadline: float
    ) -> tuple[Connection, Pending[Any]]:
        connection = self._router.connection(leader, deadline=deadline)
        topics: dict[str, list[dict[str, int]]] = {}
        for partition, leader_epoch in epochs.items():
            query = self._queries[partition]
            topics.setdefault(partition.topic, []).append(
                {
                    "partition_index": partition.partition,
                    "current_leader_epoch": leader_epoch,
                    "timestamp": query.timestamp_ms if isinstance(query, AtTimestamp) else query,
                }
            )
        request = entity_request(
            Api.LIST_OFFSETS,
            connection.versions.choose(Api.LIST_OFFSETS),
            replica_id=_CONSUMER,
            isolation_level=self._isolation_level.value,
            topics=[{"name": name, "partitions": queries} for name, queries in topics.items()],
            timeout=int(self._router.clock.left_s(deadline) * 1000),
        )
        return connection, connection.send(request, deadline=deadline)

    def _take(
        self,
        response: Any,
        partitions: list[TopicPartition],
        failures: list[ApiError | KafkaError],
        broker: str,
    ) -> None:
        answers = [
            (TopicPartition(topic.name, answer.partition_index), answer)
            for topic in response.topics
            for answer in topic.partitions
        ]
        if wrong := partition_mismatch([partition for partition, _ in answers], partitions):
            failures.append(ProtocolError(f"{Api.LIST_OFFSETS.title} to {broker} failed: {wrong}."))
            return
        for partition, answer in answers:
            if answer.error_code is not ErrorCode.none:
                self._router.invalidate(answer.error_code, topic=partition.topic)
                failures.append(self._error(answer.error_code, partition))
            else:
                self.offsets[partition] = answer.offset if answer.offset >= 0 else None

    def _error(self, code: ErrorCode, partition: TopicPartition) -> ApiError:
        return ApiError(
            code,
            self.operation([partition]),
            topic=partition.topic,
            partition=partition.partition,
        )

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._router.forget_topic(partition.topic)
