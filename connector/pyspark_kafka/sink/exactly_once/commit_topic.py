"""The commit topic: where decisions are kept, for all queries that write exactly once.

Purpose: create and check it, read what was decided under one X, mark decisions as finished.
Invariant: what `read` tells was decided, whatever other queries have open meanwhile. What it must
not know: what decisions are for, Spark.

A read_committed reader would stop where any query has a transaction open, in front of decisions of
this one. So everything up to the high watermark is read. That is enough for who has just taken X:
its markers are all written by then.
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
from pyspark_kafka.errors import AccessError, CommitTopicError
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.sink.exactly_once.commit_log import KEPT_MS_MIN, read_commit_log
from pyspark_kafka.sink.exactly_once.decisions import (
    Decision,
    QueryState,
    finished_record,
    key_prefix,
    query_states,
)
from pyspark_kafka.sink.exactly_once.operator_command import operator_command

log = logging.getLogger(__name__)

REPLICAS: Final = 3
IN_SYNC_REPLICAS_MIN: Final = 2
CHUNK_BYTES_MAX: Final = 48 * 1024
MESSAGE_BYTES_MIN: Final = 64 * 1024
"""What the topic has to take in one message: a chunk, its key, and what Kafka puts around them."""

CONFIG: Final = {
    "cleanup.policy": "compact",
    "unclean.leader.election.enable": "false",
    # Every start of a query reads all of it: what is superseded has to go soon. Brokers clean
    # whole segments, and drop markers and tombstones when nobody can be reading them any more.
    "segment.bytes": str(1024 * 1024),
    "max.message.bytes": str(512 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(KEPT_MS_MIN),
}
"""Of a topic that is created here, beside what depends on the number of brokers."""

_CHECKED: Final[set[str | None]] = set()
"""Topics by their ids, by this process: Spark plans every micro-batch in the same one."""

_SCHEMA: Final = pa.schema(
    [PRODUCE_SCHEMA.field(name) for name in ("key", "value", "topic", "partition")]
)


class CommitTopic:
    """The topic of this name, through a client."""

    chunk_bytes_max: ClassVar[int] = CHUNK_BYTES_MAX
    """Of a record's value; `ensure` has seen to it that the topic takes that much."""

    def __init__(self, client: TransactionalClient, name: str) -> None:
        self._client = client
        self._name = name
        self._partition = TopicPartition(name, 0)
        self._topic_id: str | None = None

    @property
    def topic_id(self) -> str | None:
        """Once `ensure` has found the topic, where brokers have topic ids."""
        return self._topic_id

    # --- created and checked ---

    def ensure(self) -> bool:
        """See to it that the topic is there and keeps what is written to it.

        Creates it with three replicas, fewer only where there are fewer brokers. One that is there
        is checked once a process; False where that was before. Raises `CommitTopicError` for a
        topic that could lose decisions or cannot hold them.
        """
        partitions = self._partition_count()
        if partitions == 0:
            if self._create():
                return True
            partitions = self._partition_count()  # another one was faster
        if self._topic_id in _CHECKED:
            return False
        config = self._config()
        faults = [*_faults(partitions, config)]
        if faults:
            raise CommitTopicError(
                f"topic '{self._name}' cannot be the commit topic: {'; '.join(faults)}. Nothing "
                "was written. Correct it (kafka-configs.sh --alter), or name another topic with "
                "option 'commitTopic', which is created as it has to be; decisions do not move "
                "with it, so change it only while nothing is left to finish"
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
        """Whether the topic is new; False where another one was faster."""
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
                f"the commit topic '{self._name}' does not exist, and this principal may not "
                f"create it ({error}). Nothing was written. Have it created: kafka-topics.sh "
                f"--create --topic {self._name} --partitions 1 --replication-factor {replicas} "
                f"{settings}; or allow CREATE on it"
            ) from error
        if is_new and replicas < REPLICAS:
            log.warning(
                "the commit topic '%s' was created with %d of %d replicas, since the cluster has "
                "%d brokers: decisions can be lost with them; raise its replication factor when "
                "there are more",
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
                f"the settings of the commit topic '{self._name}' cannot be checked ({error}), and "
                "with wrong ones it would lose decisions. Nothing was written: allow "
                "DESCRIBE_CONFIGS on it to this principal"
            ) from error

    def _warn_of_few_replicas(self, config: Mapping[str, str]) -> None:
        replicas, brokers = self._client.replication_of(self._name), self._client.broker_count()
        in_sync_min = int(config.get("min.insync.replicas", IN_SYNC_REPLICAS_MIN))
        wanted = min(REPLICAS, brokers)
        if replicas < wanted or in_sync_min < min(IN_SYNC_REPLICAS_MIN, wanted):
            log.warning(
                "the commit topic '%s' has %d replicas and min.insync.replicas=%d, where %d "
                "brokers could have %d and %d: what was decided can be lost with a broker; raise "
                "both",
                self._name,
                replicas,
                in_sync_min,
                brokers,
                wanted,
                min(IN_SYNC_REPLICAS_MIN, wanted),
            )

    # --- read ---

    def read(self, sink_id: str) -> Mapping[str, QueryState]:
        """What was decided under X, by query.

        Whole only for who has taken X before: a decision under way is passed over. Raises
        `CommitTopicError` where records of X are damaged, missing or of a newer format.
        """
        found = read_commit_log(
            self._client, self._partition, key_prefix(sink_id), topic_id=self._topic_id
        )
        records = [(record, batch) for batch in found.decided for record in batch.records]
        try:
            states = query_states(
                sink_id,
                (record for record, _ in records),
                place=lambda position: _offsets(records[position][1]),
            )
            if not found.has_open:
                _check_marks(states)
        except CommitTopicError as error:
            raise CommitTopicError(f"topic '{self._name}': {error}") from None
        return states

    def keys(self, sink_id: str) -> tuple[bytes, ...]:
        """The keys of all records of X that are there, to remove them: tombstones for all."""
        found = read_commit_log(self._client, self._partition, key_prefix(sink_id))
        keys = {key for batch in found.decided for key, _ in batch.records if key is not None}
        return tuple(sorted(keys))

    # --- written ---

    def rows(self, records: Sequence[tuple[bytes, bytes | None]]) -> pa.RecordBatch:
        """Keys and values as what a producer sends to the topic; a value of None removes its key."""
        count = len(records)
        columns = [
            _array(pa.binary(), [key for key, _ in records]),
            _array(pa.binary(), [value for _, value in records]),
            _array(pa.string(), [self._name.encode()] * count),
            pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def mark_finished(self, decision: Decision) -> None:
        """Say that every transaction of a decision is committed; returns when that is confirmed."""
        self.write_plain([finished_record(decision)])

    def write_plain(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records, if any, outside of transactions; returns when they are confirmed."""
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
    """Put together by hand: `pyarrow.array` imports pandas, which takes longer than a planning."""
    ends = accumulate((len(value or b"") for value in values), initial=0)
    are_there = sum(1 << n for n, value in enumerate(values) if value is not None)
    buffers = [
        are_there.to_bytes(len(values) // 8 + 1, "little"),
        b"".join(end.to_bytes(4, sys.byteorder) for end in ends),
        b"".join(value or b"" for value in values),
    ]
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(each) for each in buffers])


def _faults(partitions: int, config: Mapping[str, str]) -> Iterator[str]:
    if partitions != 1:
        yield f"it has {partitions} partitions, and decisions are in order only within one"
    policy = config.get("cleanup.policy")
    if policy != "compact":
        yield f"its cleanup.policy is '{policy}', and only 'compact' keeps every last decision"
    if config.get("unclean.leader.election.enable") != "false":
        yield "its unclean.leader.election.enable is not 'false', and such an election drops some"
    if int(config.get("delete.retention.ms", KEPT_MS_MIN)) < KEPT_MS_MIN:
        yield (
            f"its delete.retention.ms is {config['delete.retention.ms']}, and markers have to be "
            f"kept for {KEPT_MS_MIN} or more"
        )
    for name in ("max.message.bytes", "segment.bytes"):
        if int(config.get(name, MESSAGE_BYTES_MIN)) < MESSAGE_BYTES_MIN:
            yield f"its {name} is {config[name]}, and a decision needs {MESSAGE_BYTES_MIN} or more"


def _offsets(batch: LogBatch) -> str:
    return f"partition 0, offset {batch.base_offset} to {batch.last_offset}"


def _check_marks(states: Mapping[str, QueryState]) -> None:
    for query_id, state in states.items():
        if state.finished_number > state.decision.number:
            sink_id = state.decision.sink_id
            raise CommitTopicError(
                f"the last decision of query {query_id} is number {state.decision.number}, and "
                f"number {state.finished_number} is marked as finished: decisions of "
                f"transactionalId '{sink_id}' are gone, or were removed while a query was running. "
                "Which rows were decided is not known, and nothing is written: compare the output "
                f"with the input, then remove the state with {operator_command(sink_id, '--forget --accept-loss')}"
            )
