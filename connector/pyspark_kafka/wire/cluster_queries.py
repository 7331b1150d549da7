"""What the port asks about topics, offsets and groups, asked until it is answered.

Purpose: `list_topics`, `describe_topics`, `list_offsets`, `committed_offsets` and `commit_offsets`
of `KafkaReads` over the router. What a cluster says while leaders and coordinators move, and a
broker that has died, are no answers: the question is asked again, of whoever is named by then.
Invariant: every question ends within `api_timeout_s`, with an answer or an error of
`pyspark_kafka.errors`. What it must not know: sockets, and who asks.

What passes by itself is tried again after short, growing pauses until the time is over. What
mostly does not (an unknown topic, an error of the server, a malformed answer) is tried
`retries` times, `retry_interval_s` apart.
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
    LeaderNotAvailableError,
    ProtocolError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    reason_of,
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
"""A slow cluster gets longer and longer tries; the default timeout has eight of them."""
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
    """See `KafkaReads` for the first five. `bootstrap_servers` is for errors."""

    router: Router
    bootstrap_servers: str
    api_timeout_s: float = 60.0
    retries: int = 3
    retry_interval_s: float = 1.0
    backoff: Backoff = field(default=Backoff())
    reconnecting: Backoff = field(default=Backoff())

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

        def ask(deadline: float) -> ClusterMetadata:
            found = self.router.refresh(sorted(topics), deadline=deadline)
            for name, code in sorted(found.failed.items()):
                if code not in _UNKNOWN:
                    raise ApiError(code, f"describing topic {name}")
            return found

        found = self.retry(ask, f"describing topics {', '.join(sorted(topics))}")
        return {name: _description(topic) for name, topic in sorted(found.topics.items())}

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        asking = _ListingOffsets(self.router, queries, isolation_level)
        if queries:
            self.retry(asking, asking.operation(queries), about=queries)
        return {partition: asking.offsets[partition] for partition in queries}

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
            about=partitions,
        )

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return

        def ask(deadline: float) -> None:
            try:
                commit_offsets(self.router, group_id, offsets, deadline=deadline)
            except ApiError as refused:
                if refused.code in _HAS_MEMBERS:
                    raise KafkaError(
                        f"{refused.operation} failed: {format_code(refused.code)}: the group has members, and "
                        "offsets are theirs to commit; take another group id, or end the members"
                    ) from None
                raise

        self.retry(ask, committing(group_id), about=offsets)

    def retry(
        self,
        ask: Callable[[float], T],
        operation: str,
        *,
        about: Collection[TopicPartition] = (),
        timeout_s: float | None = None,
    ) -> T:
        """Call `ask` with the deadline of each try until it raises neither `ApiError` nor an error
        that may pass; all tries take `timeout_s`, or `api_timeout_s`, together.

        `about` are partitions that have to exist: where one is unknown after `retries` tries, the
        metadata decides whether to go on. Raises `KafkaError`s.
        """
        clock = self.router.clock
        timeout_s = self.api_timeout_s if timeout_s is None else timeout_s
        deadline = clock.now() + timeout_s
        try_s = _FIRST_TRY_S
        tries = lasting = 0
        told: ApiError | KafkaError | None = None
        while True:
            tries += 1
            failed: ApiError | KafkaError
            try:
                return ask(min(deadline, clock.now() + try_s))
            except (AccessError, UnsupportedVersionError):
                raise
            except (ApiError, BrokerUnreachableError, ProtocolError) as error:
                failed = error
            LOG.warning("%s, try %d: %s", operation, tries, failed)
            if (
                told is None or clock.now() < deadline
            ):  # The end of the time is no news of a broker.
                told = failed
            if is_retriable(failed):
                unreachable = isinstance(failed, BrokerUnreachableError)
                backoff = self.reconnecting if unreachable else self.backoff
                go_on = backoff.pause(tries, clock=clock, deadline=deadline)
            else:
                lasting += 1
                if lasting >= self.retries or _is_refusal_of_us(failed):
                    self._raise_lasting(failed, about, deadline)
                    lasting = 0
                clock.sleep(min(self.retry_interval_s, clock.left_s(deadline)))
                go_on = clock.now() < deadline
            if not go_on:
                raise self._out_of_time(told, operation, timeout_s)
            try_s *= _TRY_GROWTH

    def _raise_lasting(
        self, failed: ApiError | KafkaError, about: Collection[TopicPartition], deadline: float
    ) -> None:
        """Raise, unless a broker knows all partitions of what others call unknown."""
        if isinstance(failed, KafkaError):
            raise failed
        if failed.code in _UNKNOWN and about:
            topics = {partition.topic for partition in about}
            try:
                metadata = self.router.refresh(topics, deadline=deadline)
            except (ApiError, BrokerUnreachableError):
                return
            raise_if_missing(metadata, about, self.bootstrap_servers)
            return
        kind = error_class(failed.code)
        raise kind(
            f"{failed.operation} failed at {self.bootstrap_servers}: {format_code(failed.code)}."
        )

    def _out_of_time(
        self, failed: ApiError | KafkaError, operation: str, timeout_s: float
    ) -> KafkaError:
        longer = f"To wait longer, raise '{_TIMEOUT_OPTION}'."
        if isinstance(failed, BrokerUnreachableError):
            reason = reason_of(failed)
            return BrokerUnreachableError(
                f"{operation} failed: {self.bootstrap_servers} did not answer within {timeout_s:g} s "
                f"({reason}).",
                advice=f"{BrokerUnreachableError.remedy} {longer}",
            )
        if isinstance(failed, KafkaError):
            return failed
        kind = error_class(failed.code)
        if kind is LeaderNotAvailableError:
            return LeaderNotAvailableError(
                f"{failed.operation} failed: no leader answered for it within {timeout_s:g} s "
                f"({format_code(failed.code)}).",
                advice=f"{kind.remedy} {longer}",
            )
        return kind(
            f"{failed.operation} failed: {format_code(failed.code)} was all the answer within {timeout_s:g} "
            "s.",
            advice=f"See the brokers' logs. {longer}",
        )


def raise_if_missing(
    metadata: ClusterMetadata, partitions: Collection[TopicPartition], bootstrap_servers: str
) -> None:
    """Raises `UnknownTopicOrPartitionError` for the first one that `metadata` does not have, if any."""
    for partition in sorted(partitions):
        topic = metadata.topics.get(partition.topic)
        if topic is None:
            raise UnknownTopicOrPartitionError(
                f"topic {partition.topic!r} does not exist at {bootstrap_servers}, or may not be "
                "seen: create it, correct its name, or grant DESCRIBE"
            )
        if partition.partition not in topic.partitions:
            raise UnknownTopicOrPartitionError(
                f"topic {partition.topic!r} has {len(topic.partitions)} partitions, and no "
                f"partition {partition.partition}"
            )


def _description(topic: TopicMetadata) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        topic_id=None if topic.topic_id is None else topic_id_text(topic.topic_id),
        partitions=tuple(sorted(topic.partitions)),
        is_internal=topic.is_internal,
    )


def is_retriable(failed: ApiError | KafkaError) -> bool:
    """Whether it may be over in a while. "Unknown" may be too, but mostly is the truth."""
    if isinstance(failed, ApiError):
        return REACTIONS[failed.code] is not Reaction.FAIL and failed.code not in _UNKNOWN
    return isinstance(failed, BrokerUnreachableError)


def _is_refusal_of_us(failed: ApiError | KafkaError) -> bool:
    return isinstance(failed, ApiError) and issubclass(error_class(failed.code), AccessError)


class _ListingOffsets:
    """One `list_offsets`: each try asks the leaders of what is not known yet, all at once."""

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
        """The epochs of the partitions whose leader is known, by leader."""
        wanted = sorted(self._queries.keys() - self.offsets.keys())
        self._router.topics({partition.topic for partition in wanted}, deadline=deadline)
        found: dict[Broker, dict[TopicPartition, int]] = {}
        for partition in wanted:
            try:
                leader = self._router.leader(partition)
            except ApiError as refused:
                failures.append(ApiError(refused.code, self.operation([partition])))
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
            failures.append(ProtocolError(f"{Api.LIST_OFFSETS.title} to {broker} failed: {wrong}"))
            return
        for partition, answer in answers:
            if answer.error_code is not ErrorCode.none:
                self._router.invalidate(answer.error_code, topic=partition.topic)
                failures.append(ApiError(answer.error_code, self.operation([partition])))
            else:
                self.offsets[partition] = answer.offset if answer.offset >= 0 else None

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._router.forget_topic(partition.topic)
