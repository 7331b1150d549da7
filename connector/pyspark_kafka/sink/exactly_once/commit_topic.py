"""Manages the commit topic, which contains the decisions of all exactly-once queries.

Creates and checks the topic, registers a sink, reads the sink's decisions, and marks decisions as
finished. All records of a sink are in one partition, which is determined by the hash of its
transactional id. Invariants: open transactions of other queries do not prevent `read` from
returning a decision. If the records of a sink were lost, the sink is not registered again, and an
error is raised.

A read_committed consumer would stop at the first open transaction of any query, and would not
return later decisions of this sink. Therefore, the partition is read up to the high watermark. The
result is complete if the caller has already fenced the sink's transactional id, because
InitProducerId succeeds only after all markers for this id have been written.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Final

import pyarrow as pa

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.columns import PRODUCE_SCHEMA
from pyspark_kafka.errors import (
    AccessError,
    CommitTopicError,
    counted,
    reason_of,
)
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.records.partitioning import partition_of_key
from pyspark_kafka.sink.exactly_once.commit_log import KEPT_MS_MIN, read_commit_log
from pyspark_kafka.sink.exactly_once.decisions import (
    QueryState,
    SinkState,
    deletion,
    finishing_records,
    key_prefix,
    last_number_in,
    registration,
    sink_state,
    tombstones,
)
from pyspark_kafka.sink.exactly_once.operator_command import operator_command

log = logging.getLogger(__name__)

PARTITIONS: Final = 16
"""The number of partitions of a new commit topic. It must not change later."""
REPLICAS: Final = 3
IN_SYNC_REPLICAS_MIN: Final = 2
CHUNK_BYTES_MAX: Final = 48 * 1024
MESSAGE_BYTES_MIN: Final = 64 * 1024
"""The smallest allowed `max.message.bytes`: room for a chunk, its key and the batch overhead."""

CONFIG: Final = {
    "cleanup.policy": "compact",
    "unclean.leader.election.enable": "false",
    # Each time a query starts, it reads the whole partition of its sink, so compaction should
    # remove superseded records soon. The log cleaner does not clean the active segment. It removes
    # markers and tombstones after `delete.retention.ms`.
    "segment.bytes": str(1024 * 1024),
    "max.message.bytes": str(512 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(KEPT_MS_MIN),
}
"""The configuration of a new commit topic. `min.insync.replicas` depends on the broker count."""

_CHECKED: Final[set[str | None]] = set()
"""The ids of the topics that this process has checked. Each topic is checked only once."""
_REGISTERED: Final[set[tuple[str, str]]] = set()
"""Pairs of a topic id and a sink id. This process knows that these sinks are registered."""

_LEADER_CHECK_KEY: Final = b'["leader"]'
"""The key of the tombstones that `_find_current_leader` writes. No sink's records have this key."""

_SCHEMA: Final = pa.schema(
    [PRODUCE_SCHEMA.field(name) for name in ("key", "value", "topic", "partition")]
)


class SinkNotRegisteredError(CommitTopicError):
    """The sink is not registered in the commit topic, or the topic does not exist."""


class CommitTopic:
    """The partition of a commit topic that contains the records of one sink.

    `partition` is set if planning has already determined it.
    """

    chunk_bytes_max: ClassVar[int] = CHUNK_BYTES_MAX
    """The maximum size of a record's value; `ensure` checks that the topic accepts it."""

    def __init__(
        self,
        client: TransactionalClient,
        name: str,
        sink_id: str,
        *,
        partition: int | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._sink_id = sink_id
        self._partition_count = 0
        self._topic_id: str | None = None
        if partition is not None:
            self.partition = TopicPartition(name, partition)

    @property
    def topic_id(self) -> str | None:
        """Return the topic id, or None if it is unknown or the brokers do not support topic ids."""
        return self._topic_id

    @cached_property
    def partition(self) -> TopicPartition:
        """Return the partition that contains the records of the sink."""
        if not self._partition_count and not self._is_described():
            raise SinkNotRegisteredError(
                f"The commit topic '{self._name}' does not exist, so the commit decisions of "
                f"transactionalId '{self._sink_id}' are unknown.",
                advice="If the sink uses another commit topic (option 'commitTopic'), pass that "
                f"topic to the command. {self._advice_to_register}",
                topic=self._name,
                transactional_id=self._sink_id,
            )
        index = partition_of_key(self._sink_id.encode(), self._partition_count)
        return TopicPartition(self._name, index)

    # --- create and check ---

    def ensure(self) -> bool:
        """Create the topic if it does not exist, or check the configuration of the existing topic.

        A new topic has three replicas, or one per broker if there are fewer than three brokers. An
        existing topic is checked once per process. Returns False if the existing topic was already
        checked. Raises `CommitTopicError` for a topic that could lose decisions or whose size
        limits are too low.
        """
        if not self._is_described():
            is_new = self._create()
            self._is_described()
            if is_new:
                return True
        if self._topic_id in _CHECKED:
            return False
        config = self._config()
        problems = [*_problems(config)]
        if problems:
            raise CommitTopicError(
                f"Topic '{self._name}' cannot be used as the commit topic: {'; '.join(problems)}. "
                "Nothing was written.",
                advice="Correct the topic's configuration with kafka-configs.sh --alter, or set "
                "the option 'commitTopic' to a topic that does not exist yet. The sink creates it "
                "with the required configuration. Change 'commitTopic' only when every batch is "
                "finished, because the commit decisions stay in the old topic.",
                option="commitTopic",
                topic=self._name,
            )
        self._warn_of_few_replicas(config)
        if self._topic_id is not None:
            _CHECKED.add(self._topic_id)
        return True

    def _is_described(self) -> bool:
        """Describe the topic. Returns False if it does not exist."""
        description = self._client.describe_topics([self._name]).get(self._name)
        if description is None:
            return False
        self._topic_id = description.topic_id
        self._partition_count = len(description.partitions)
        return True

    def _create(self) -> bool:
        """Create the topic. Returns False if another query has just created it."""
        brokers = self._client.broker_count()
        replicas = min(REPLICAS, brokers)
        config = CONFIG | {"min.insync.replicas": str(min(IN_SYNC_REPLICAS_MIN, replicas))}
        try:
            is_new = self._client.create_topic(
                self._name, partition_count=PARTITIONS, replication_factor=replicas, config=config
            )
        except AccessError as error:
            settings = " ".join(f"--config {name}={value}" for name, value in config.items())
            raise CommitTopicError(
                f"The commit topic '{self._name}' does not exist, and the principal is not allowed "
                f"to create it. {reason_of(error)}. Nothing was written.",
                advice="Create it with the command `kafka-topics.sh --create --topic "
                f"{self._name} --partitions {PARTITIONS} --replication-factor {replicas} "
                f"{settings}`, or grant the principal CREATE on the topic.",
                option="commitTopic",
                topic=self._name,
            ) from error
        if is_new and replicas < REPLICAS:
            log.warning(
                "The commit topic '%s' was created with %d instead of %d replicas (brokers in the "
                "cluster: %d). If these brokers lose their data, the sink can no longer determine "
                "which batches are committed. Increase the replication factor of the topic when "
                "the cluster has more brokers.",
                self._name,
                replicas,
                REPLICAS,
                brokers,
            )
        return is_new

    def _config(self) -> Mapping[str, str]:
        try:
            return self._client.topic_config(self._name)
        except AccessError as error:
            raise CommitTopicError(
                f"The configuration of the commit topic '{self._name}' cannot be checked. "
                f"{reason_of(error)}. With a wrong configuration, commit decisions could be lost. "
                "Nothing was written.",
                advice="Grant the principal DESCRIBE_CONFIGS on the topic.",
                option="commitTopic",
                topic=self._name,
            ) from error

    def _warn_of_few_replicas(self, config: Mapping[str, str]) -> None:
        replicas, brokers = self._client.replication_of(self._name), self._client.broker_count()
        in_sync_min = int(config.get("min.insync.replicas", IN_SYNC_REPLICAS_MIN))
        required = min(REPLICAS, brokers)
        if replicas < required or in_sync_min < min(IN_SYNC_REPLICAS_MIN, required):
            log.warning(
                "The commit topic '%s' has %s and min.insync.replicas=%d. If a broker loses its "
                "data, commit decisions can be lost. The cluster has %s, so increase the "
                "replication factor to %d and min.insync.replicas to %d.",
                self._name,
                counted(replicas, "replica"),
                in_sync_min,
                counted(brokers, "broker"),
                required,
                min(IN_SYNC_REPLICAS_MIN, required),
            )

    # --- register ---

    def register(self) -> None:
        """Register the sink before its first transaction. `ensure` must have been called.

        The registration later proves that the topic still contains the records of the sink. Raises
        `SinkNotRegisteredError` if the registration is missing, but the transaction coordinator
        knows the sink's id. In this case, records were lost, or the sink used another topic.
        """
        known = (self._topic_id or "", self._sink_id)
        if known in _REGISTERED:
            return
        if self._state().forgotten_number is None:
            if self._client.describe_transactions([self._sink_id]):
                # Another process may have just registered the sink and initialized its id.
                self.read_latest()
            else:
                self.write_plain([registration(self._sink_id)])
        if self._topic_id is not None:
            _REGISTERED.add(known)

    # --- read ---

    def read(self) -> SinkState:
        """Return the state of every query of the sink.

        The result is complete only if the caller has already fenced the sink's id, because
        decisions in open transactions are skipped. Raises `CommitTopicError` if records of the sink
        are corrupt, missing or in a newer format. The error is `SinkNotRegisteredError` if all
        records are missing.
        """
        state = self._state()
        if state.forgotten_number is None:
            raise SinkNotRegisteredError(
                f"The commit topic '{self._name}' does not contain transactionalId "
                f"'{self._sink_id}', although the id has been used before. Either the option "
                "'commitTopic' had another value, or the topic was deleted or truncated, or "
                "partitions were added to it. A batch that was already written could be written "
                "again.",
                advice="If the option 'commitTopic' has changed, restore its value. Otherwise "
                "compare the output of the query with its checkpoint and its input. "
                f"{self._advice_to_register}",
                option="commitTopic",
                topic=self._name,
                transactional_id=self._sink_id,
            )
        return state

    def read_latest(self) -> SinkState:
        """Return the same state as `read`, but make sure that the current leader returns it."""
        self._find_current_leader()
        return self.read()

    def _find_current_leader(self) -> None:
        """Write a tombstone, which only the current leader of the partition can acknowledge.

        A broker that is isolated from the controller continues to return its outdated log end
        offset. After this method returns, the client ignores metadata with an older leader epoch.
        """
        self.write_plain([(_LEADER_CHECK_KEY, None)])

    @property
    def _advice_to_register(self) -> str:
        flags = f"--commit-topic {self._name} --forget --accept-loss"
        return (
            "If the commit decisions are lost, accept the loss with "
            f"{operator_command(self._sink_id, flags)}, which also aborts all open transactions "
            "of this id."
        )

    def _state(self) -> SinkState:
        found = read_commit_log(
            self._client, self.partition, key_prefix(self._sink_id), topic_id=self._topic_id
        )
        records = [(record, batch) for batch in found.decided for record in batch.records]
        try:
            return sink_state(
                self._sink_id,
                (record for record, _ in records),
                location=lambda position: _location(self.partition, records[position][1]),
            )
        except CommitTopicError as error:
            raise CommitTopicError(
                f"The commit decisions of transactionalId '{self._sink_id}' in the commit topic "
                f"'{self._name}' cannot be read. {error.what} Nothing was written.",
                advice=error.advice,
                topic=self._name,
                transactional_id=self._sink_id,
            ) from None

    def removal(self) -> list[tuple[bytes, bytes | None]]:
        """Return records that remove the state of the sink and register the sink again.

        The returned records must be written in one transaction. The existing records may be
        corrupt.
        """
        self._find_current_leader()
        found = read_commit_log(self._client, self.partition, key_prefix(self._sink_id))
        keys = {key for batch in found.decided for key, _ in batch.records if key is not None}
        last_number = last_number_in(keys)
        with suppress(CommitTopicError):
            last_number = max(last_number, self._state().forgotten_number or 0)
        new = registration(self._sink_id, forgotten_number=last_number)
        return [*tombstones(sorted(keys - {new[0]})), new]

    # --- write ---

    def rows(self, records: Sequence[tuple[bytes, bytes | None]]) -> pa.RecordBatch:
        """Convert records to rows for a producer. A record without a value is a tombstone."""
        count = len(records)
        partition = self.partition.partition.to_bytes(4, sys.byteorder)
        columns = [
            _array(pa.binary(), [key for key, _ in records]),
            _array(pa.binary(), [value for _, value in records]),
            _array(pa.string(), [self._name.encode()] * count),
            pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(partition * count)]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def mark_finished(self, state: QueryState) -> None:
        """Record that every transaction of a decision is committed.

        Returns after the records are acknowledged.
        """
        self.write_plain(finishing_records(state))

    def delete(self, state: QueryState) -> None:
        """Delete the decision of a complete batch job without `batchId`. No later run needs it.

        If only the first few records are written, the decision is finished, but not deleted.
        Returns after the records are acknowledged.
        """
        self.write_plain([*finishing_records(state), deletion(state.decision)])

    def write_plain(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records outside a transaction. Returns after they are acknowledged."""
        if not records:
            return
        producer = self._client.producer()
        try:
            producer.send(self.rows(records))
            producer.flush()
        except BaseException:
            producer.abort()
            raise
        producer.close()


def _array(kind: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    """Build an array without `pyarrow.array`.

    `pyarrow.array` imports pandas, and this import takes longer than the planning of a batch.
    """
    ends = accumulate((len(value or b"") for value in values), initial=0)
    are_there = sum(1 << n for n, value in enumerate(values) if value is not None)
    buffers = [
        are_there.to_bytes(len(values) // 8 + 1, "little"),
        b"".join(end.to_bytes(4, sys.byteorder) for end in ends),
        b"".join(value or b"" for value in values),
    ]
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(each) for each in buffers])


def _problems(config: Mapping[str, str]) -> Iterator[str]:
    policy = config.get("cleanup.policy")
    if policy != "compact":
        yield f"its cleanup.policy is '{policy}' instead of 'compact'"
    if config.get("unclean.leader.election.enable") != "false":
        yield "its unclean.leader.election.enable is not 'false'"
    if int(config.get("delete.retention.ms", KEPT_MS_MIN)) < KEPT_MS_MIN:
        yield (
            f"its delete.retention.ms is {config['delete.retention.ms']}, which is less than "
            f"{KEPT_MS_MIN}"
        )
    for name in ("max.message.bytes", "segment.bytes"):
        if int(config.get(name, MESSAGE_BYTES_MIN)) < MESSAGE_BYTES_MIN:
            yield f"its {name} is {config[name]}, which is less than {MESSAGE_BYTES_MIN}"


def _location(partition: TopicPartition, batch: LogBatch) -> str:
    return f"partition {partition.partition}, offsets {batch.base_offset} to {batch.last_offset}"
