"""The commit topic, which contains the decisions of all queries that write exactly once.

Creates and checks the topic, reads the decisions of one sink, and marks decisions as finished.
Invariant: open transactions of other queries do not prevent `read` from returning a decision.

A read_committed consumer would stop at the first open transaction of any query, before later
decisions of this sink. Therefore the topic is read up to the high watermark. The result is complete
if the caller has already fenced the sink's transactional id, because by then all markers of this id
have been written.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, Final

import pyarrow as pa

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.columns import PRODUCE_SCHEMA
from pyspark_kafka.errors import AccessError, CommitTopicError, reason_of
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.sink.exactly_once.commit_log import KEPT_MS_MIN, read_commit_log
from pyspark_kafka.sink.exactly_once.decisions import (
    Decision,
    QueryState,
    finished_record,
    key_prefix,
    query_states,
    to_records,
    tombstones,
)
from pyspark_kafka.sink.exactly_once.operator_command import operator_command

log = logging.getLogger(__name__)

REPLICAS: Final = 3
IN_SYNC_REPLICAS_MIN: Final = 2
CHUNK_BYTES_MAX: Final = 48 * 1024
MESSAGE_BYTES_MIN: Final = 64 * 1024
"""The smallest allowed `max.message.bytes`: room for a chunk, its key and the batch overhead."""

CONFIG: Final = {
    "cleanup.policy": "compact",
    "unclean.leader.election.enable": "false",
    # Every start of a query reads the whole topic, so compaction should remove superseded records
    # soon. The log cleaner does not clean the active segment. It removes markers and tombstones
    # after `delete.retention.ms`.
    "segment.bytes": str(1024 * 1024),
    "max.message.bytes": str(512 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(KEPT_MS_MIN),
}
"""The configuration of a new commit topic. `min.insync.replicas` depends on the broker count."""

_CHECKED: Final[set[str | None]] = set()
"""The ids of the topics that this process has checked. Each topic is checked only once."""

_SCHEMA: Final = pa.schema(
    [PRODUCE_SCHEMA.field(name) for name in ("key", "value", "topic", "partition")]
)


class CommitTopic:
    """A commit topic, accessed through a client."""

    chunk_bytes_max: ClassVar[int] = CHUNK_BYTES_MAX
    """The maximum size of a record's value; `ensure` checks that the topic accepts it."""

    def __init__(self, client: TransactionalClient, name: str) -> None:
        self._client = client
        self._name = name
        self._partition = TopicPartition(name, 0)
        self._topic_id: str | None = None

    @property
    def topic_id(self) -> str | None:
        """The id of the topic. It is set by `ensure` if the brokers support topic ids."""
        return self._topic_id

    # --- create and check ---

    def ensure(self) -> bool:
        """Create the topic if it does not exist, or check the configuration of the existing topic.

        A new topic has three replicas, or one per broker if there are fewer than three brokers. An
        existing topic is checked once per process. Returns False if it was already checked. Raises
        `CommitTopicError` for a topic that could lose decisions or whose size limits are too low.
        """
        partitions = self._partition_count()
        if partitions == 0:
            if self._create():
                return True
            partitions = self._partition_count()  # another query has created it
        if self._topic_id in _CHECKED:
            return False
        config = self._config()
        problems = [*_problems(partitions, config)]
        if problems:
            raise CommitTopicError(
                f"Topic '{self._name}' cannot be used as the commit topic: {'; '.join(problems)}. "
                "Nothing was written.",
                advice="Correct the topic's configuration with kafka-configs.sh --alter, or set "
                "the option 'commitTopic' to a topic that does not exist yet. The sink creates it "
                "with the required configuration. Change 'commitTopic' only while no batch is "
                "unfinished, because the decisions stay in the old topic.",
                option="commitTopic",
                topic=self._name,
            )
        self._warn_of_few_replicas(config)
        if self._topic_id is not None:
            _CHECKED.add(self._topic_id)
        return True

    def _partition_count(self) -> int:
        description = self._client.describe_topics([self._name]).get(self._name)
        if description is None:
            return 0
        self._topic_id = description.topic_id
        return len(description.partitions)

    def _create(self) -> bool:
        """Create the topic. Returns False if another query has just created it."""
        brokers = self._client.broker_count()
        replicas = min(REPLICAS, brokers)
        config = CONFIG | {"min.insync.replicas": str(min(IN_SYNC_REPLICAS_MIN, replicas))}
        try:
            is_new = self._client.create_topic(
                self._name, partition_count=1, replication_factor=replicas, config=config
            )
        except AccessError as error:
            settings = " ".join(f"--config {name}={value}" for name, value in config.items())
            raise CommitTopicError(
                f"The commit topic '{self._name}' does not exist, and the principal is not allowed "
                f"to create it. {reason_of(error)}. Nothing was written.",
                advice="Create it with the command `kafka-topics.sh --create --topic "
                f"{self._name} --partitions 1 --replication-factor {replicas} {settings}`, or "
                "grant the principal CREATE on the topic.",
                option="commitTopic",
                topic=self._name,
            ) from error
        if is_new and replicas < REPLICAS:
            log.warning(
                "The commit topic '%s' was created with %d of %d replicas, because the cluster has "
                "%d brokers. Decisions are lost if these brokers lose their data. Increase the "
                "replication factor of the topic when the cluster has more brokers.",
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
                f"{reason_of(error)}. With a wrong configuration, decisions could be lost. Nothing "
                "was written.",
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
                "The commit topic '%s' has %d replicas and min.insync.replicas=%d. If a broker is "
                "lost, decisions can be lost with it. The cluster has %d brokers, so increase "
                "the replication factor to %d and min.insync.replicas to %d.",
                self._name,
                replicas,
                in_sync_min,
                brokers,
                required,
                min(IN_SYNC_REPLICAS_MIN, required),
            )

    # --- read ---

    def read(self, sink_id: str) -> Mapping[str, QueryState]:
        """Return the state of every query of this sink, by query id.

        The result is complete only if the caller has already fenced `sink_id`, because decisions in
        open transactions are skipped. Raises `CommitTopicError` if records of the sink are
        damaged, missing or in a newer format.
        """
        found = read_commit_log(
            self._client, self._partition, key_prefix(sink_id), topic_id=self._topic_id
        )
        records = [(record, batch) for batch in found.decided for record in batch.records]
        try:
            states = query_states(
                sink_id,
                (record for record, _ in records),
                location=lambda position: _offsets(records[position][1]),
            )
            if not found.has_open:
                _check_marks(states)
        except CommitTopicError as error:
            raise CommitTopicError(
                f"The decisions of transactionalId '{sink_id}' in the commit topic '{self._name}' "
                f"cannot be read. {error.what} Nothing was written.",
                advice=error.advice,
                topic=self._name,
                transactional_id=sink_id,
            ) from None
        return states

    def keys(self, sink_id: str) -> tuple[bytes, ...]:
        """Return the keys of all records of this sink.

        Tombstones for these keys remove its state.
        """
        found = read_commit_log(self._client, self._partition, key_prefix(sink_id))
        keys = {key for batch in found.decided for key, _ in batch.records if key is not None}
        return tuple(sorted(keys))

    # --- write ---

    def rows(self, records: Sequence[tuple[bytes, bytes | None]]) -> pa.RecordBatch:
        """Return the records as a batch for a producer. A record without a value is a tombstone."""
        count = len(records)
        columns = [
            _array(pa.binary(), [key for key, _ in records]),
            _array(pa.binary(), [value for _, value in records]),
            _array(pa.string(), [self._name.encode()] * count),
            pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def mark_finished(self, decision: Decision) -> None:
        """Record that every transaction of a decision is committed.

        Deletes the decision of a batch job without `batchId`, because no later run needs it.
        Returns after the records are acknowledged.
        """
        if decision.batch_id is None:
            chunks = to_records(decision, chunk_bytes_max=self.chunk_bytes_max)
            state = QueryState(decision=decision, chunk_count=len(chunks))
            self.write_plain(tombstones(state))
        else:
            self.write_plain([finished_record(decision)])

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

    `pyarrow.array` imports pandas, which takes longer than planning.
    """
    ends = accumulate((len(value or b"") for value in values), initial=0)
    are_there = sum(1 << n for n, value in enumerate(values) if value is not None)
    buffers = [
        are_there.to_bytes(len(values) // 8 + 1, "little"),
        b"".join(end.to_bytes(4, sys.byteorder) for end in ends),
        b"".join(value or b"" for value in values),
    ]
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(each) for each in buffers])


def _problems(partitions: int, config: Mapping[str, str]) -> Iterator[str]:
    if partitions != 1:
        yield f"it has {partitions} partitions instead of 1, so decisions are not ordered"
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


def _offsets(batch: LogBatch) -> str:
    return f"partition 0, offsets {batch.base_offset} to {batch.last_offset}"


def _check_marks(states: Mapping[str, QueryState]) -> None:
    for query_id, state in states.items():
        if state.finished_number > state.decision.number:
            sink_id = state.decision.sink_id
            raise CommitTopicError(
                f"The last decision of query {query_id} has the number {state.decision.number}, "
                f"but decision {state.finished_number} is marked as finished. Records of the "
                "topic were deleted, or --forget was used while a query was running.",
                advice="Compare the output of the query with its input. Then remove the state with "
                f"{operator_command(sink_id, '--forget --accept-loss')}.",
                transactional_id=sink_id,
            )
