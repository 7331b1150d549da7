"""Queries topics, offsets and consumer groups, with retries.

`ClusterQueries` implements `list_topics`, `describe_topics`, `list_offsets`, `committed_offsets`
and `commit_offsets` of `KafkaReadClient`. If a leader or coordinator moves or a broker fails, the
metadata is refreshed and the request is sent to the new broker. Every query ends within
`api_timeout_s` with a result or an error from `pyspark_kafka.errors`.

Retriable errors are retried with exponential backoff until the timeout. After errors that are
usually permanent (an unknown topic, a server error, a malformed response), there are at most
`retries` attempts, with a backoff of `retry_interval_s` between them.
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
    counted,
    reason_of,
    sentence,
)
from pyspark_kafka.kafka.offsets import AtTimestamp, IsolationLevel, OffsetQuery
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition
from pyspark_kafka.wire.connection import Connection, InFlightRequest, entity_request
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction, error_class, format_code
from pyspark_kafka.wire.group_offsets import (
    commit_offsets,
    committed_offsets,
    offset_commit_operation,
    offset_fetch_operation,
    partition_mismatch,
)
from pyspark_kafka.wire.metadata import Broker, ClusterMetadata, TopicMetadata, topic_id_text
from pyspark_kafka.wire.retry import Backoff
from pyspark_kafka.wire.router import MISCONFIGURED_TIMEOUT_S, ApiError, Router
from pyspark_kafka.wire.versions import Api

T = TypeVar("T")

LOG: Final = logging.getLogger("pyspark_kafka.wire")
LOG.addHandler(logging.NullHandler())  # without a handler, Python prints warnings to stderr
_FIRST_TRY_S: Final = 2.0
_EACH_REQUEST_S: Final = 0.002
"""The additional timeout per request. A coordinator needs less time for each InitProducerId or
EndTxn request, even if thousands of requests are waiting."""
_TRY_GROWTH: Final = 1.5
"""Each attempt has a longer timeout than the previous attempt, because a cluster may be slow."""
_COMMON_S: Final = 2.0
"""The time during which CONCURRENT_TRANSACTIONS is logged at DEBUG level. This error code is common
while the coordinator writes markers."""
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
    """Sends queries with retries. The first five methods implement `KafkaReadClient`.

    `bootstrap_servers` is used in error messages.
    """

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
            offset_fetch_operation(group_id),
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
                        "has members, and only its members can commit offsets.",
                        advice="Use another group id, or stop the members of the group.",
                        group_id=group_id,
                    ) from None
                raise

        self.retry(commit, offset_commit_operation(group_id), partitions=offsets)

    def retry(
        self,
        call: Callable[[float], T],
        operation: str,
        *,
        partitions: Collection[TopicPartition] = (),
        timeout_s: float | None = None,
        request_count: int = 1,
    ) -> T:
        """Call `call` repeatedly until it succeeds or fails permanently. Raises `KafkaError`.

        `call` receives the deadline of the attempt. The deadline depends on `request_count`, the
        number of requests that `call` sends at the same time. All attempts together take at most
        `timeout_s` (default: `api_timeout_s`). If a broker still reports after `retries` attempts
        that one of `partitions` is unknown, the method refreshes the metadata. It raises an error
        if the metadata does not contain all of `partitions`.
        """
        clock = self.router.clock
        timeout_s = self.api_timeout_s if timeout_s is None else timeout_s
        started = clock.now()
        deadline = started + timeout_s
        try_s = _FIRST_TRY_S + _EACH_REQUEST_S * request_count
        attempts = permanent_failures = 0
        last_failure: ApiError | KafkaError | None = None
        logged = ""
        while True:
            attempts += 1
            failed: ApiError | KafkaError
            try:
                return call(min(deadline, clock.now() + try_s))
            except (AccessError, UnsupportedVersionError):
                raise
            except (ApiError, BrokerUnreachableError, ProtocolError) as error:
                failed = error
            if self.router.misconfigured_since is not None:
                timeout_s = min(timeout_s, MISCONFIGURED_TIMEOUT_S)
                deadline = min(deadline, started + timeout_s)
            is_common = _is_concurrent(failed) and clock.now() - started < _COMMON_S
            reason = reason_of(failed)
            LOG.log(
                logging.DEBUG if is_common or reason == logged else logging.WARNING,
                "%s failed (attempt %d): %s.",
                sentence(operation),
                attempts,
                reason,
            )
            logged = logged if is_common else reason
            # The timeout shortens the last attempt, so the previous error is more informative.
            if last_failure is None or clock.now() < deadline:
                last_failure = failed
            if is_retriable(failed):
                unreachable = isinstance(failed, BrokerUnreachableError)
                backoff = self.reconnect_backoff if unreachable else self.backoff
                go_on = backoff.sleep(attempts, clock=clock, deadline=deadline)
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
        """Raise the error, unless it is temporary because some brokers have outdated metadata."""
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
            is_limit = failed.option is None and self.router.misconfigured_since is None
            return BrokerUnreachableError(
                f"{sentence(operation)} failed at {self.bootstrap_servers}: no attempt succeeded "
                f"within {timeout_s:g} s. {failed.what}",
                advice=f"{failed.advice} {longer}" if is_limit else failed.advice,
                option=failed.option,
            )
        if isinstance(failed, KafkaError):
            return failed
        kind = error_class(failed.code)
        # The brokers responded, so the advice for an unreachable broker would be misleading.
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
    """Raise `UnknownTopicOrPartitionError` if the metadata does not contain all partitions."""
    for partition in sorted(partitions):
        topic = metadata.topics.get(partition.topic)
        if topic is None:
            raise UnknownTopicOrPartitionError(
                f"Topic {partition.topic!r} does not exist on {bootstrap_servers}, or the "
                "principal lacks the DESCRIBE ACL.",
                topic=partition.topic,
                partition=partition.partition,
            )
        if partition.partition not in topic.partitions:
            raise UnknownTopicOrPartitionError(
                f"Topic {partition.topic!r} does not have partition {partition.partition}. It has "
                f"{counted(len(topic.partitions), 'partition')}.",
                advice="Correct the partition number, or add partitions to the topic.",
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
    """Return whether the error is retriable.

    Errors for unknown topics and partitions are not retriable, although they can be temporary.
    """
    if isinstance(failed, ApiError):
        return REACTIONS[failed.code] is not Reaction.FAIL and failed.code not in _UNKNOWN
    return isinstance(failed, BrokerUnreachableError)


def _is_concurrent(failed: ApiError | KafkaError) -> bool:
    return isinstance(failed, ApiError) and failed.code is ErrorCode.concurrent_transactions


def _is_access_error(failed: ApiError | KafkaError) -> bool:
    return isinstance(failed, ApiError) and issubclass(error_class(failed.code), AccessError)


class _ListOffsets:
    """One call to `list_offsets`.

    Each attempt sends requests to the leaders of all partitions that have no result yet.
    """

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
        sent: list[tuple[list[TopicPartition], Connection, InFlightRequest[Any]]] = []
        for leader, epochs in self._by_leader(failures, deadline).items():
            partitions = list(epochs)
            try:
                sent.append((partitions, *self._send(leader, epochs, deadline)))
            except (BrokerUnreachableError, ProtocolError) as error:
                self._invalidate(partitions)
                failures.append(error)
        for partitions, connection, pending in sent:
            try:
                response = connection.receive(pending, deadline=deadline)
            except (BrokerUnreachableError, ProtocolError) as error:
                self._router.discard(connection)
                self._invalidate(partitions)
                failures.append(error)
            else:
                self._take(response, partitions, failures, connection.broker)
        if failures:
            raise max(failures, key=lambda failure: not is_retriable(failure))

    def _by_leader(
        self, failures: list[ApiError | KafkaError], deadline: float
    ) -> dict[Broker, dict[TopicPartition, int]]:
        """Return the leader epochs of the partitions with a known leader, grouped by leader."""
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
    ) -> tuple[Connection, InFlightRequest[Any]]:
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
        results = [
            (TopicPartition(topic.name, result.partition_index), result)
            for topic in response.topics
            for result in topic.partitions
        ]
        if wrong := partition_mismatch([partition for partition, _ in results], partitions):
            failures.append(ProtocolError(f"{Api.LIST_OFFSETS.title} to {broker} failed: {wrong}."))
            return
        for partition, result in results:
            if result.error_code is not ErrorCode.none:
                self._router.invalidate(result.error_code, topic=partition.topic)
                failures.append(self._error(result.error_code, partition))
            else:
                self.offsets[partition] = result.offset if result.offset >= 0 else None

    def _error(self, code: ErrorCode, partition: TopicPartition) -> ApiError:
        return ApiError(
            code,
            self.operation([partition]),
            topic=partition.topic,
            partition=partition.partition,
        )

    def _invalidate(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._router.invalidate_topic(partition.topic)
