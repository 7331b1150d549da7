"""A client of the fake cluster: the port `TransactionalClient`, with injected faults.

The client sends requests to `fake_cluster` as an engine does, counts them, and runs actions of a
test before or instead of a request. Each request is complete before the next one begins.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

import pyarrow as pa
from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError
from broker_ref.transaction.request_validation import TransactionMetadata
from pyspark_kafka.errors import (
    AuthorizationError,
    BrokerUnreachableError,
    DeliveryError,
    FetchTimeoutError,
    OptionError,
    ProducerFencedError,
)
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, FetchRange, IsolationLevel, OffsetQuery
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
)
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import (
    BROKER_DEFAULTS,
    GROUPS_TOPIC,
    TOPIC_DEFAULTS,
    Action,
    FakeCluster,
    Request,
    producer_in,
)
from tests.pyspark_kafka.sink.exactly_once.fake_log import Record

_RECORD_OVERHEAD_BYTES = 61 + 16


class Lost:
    """A response that is lost after the request was executed."""


class FakeProducer:
    """A producer of one client, transactional if it has an id.

    The rows are in the log when `send` returns.
    """

    def __init__(
        self,
        client: FakeClient,
        producer: ProducerIdAndEpoch,
        *,
        transactional_id: str | None = None,
        version: int = 0,
    ) -> None:
        self.is_closed = self.is_aborted = False
        self._client = client
        self._cluster = client.cluster
        self._producer = producer
        self._id = transactional_id
        self._version = version
        self._added: set[TopicPartition] = set()
        self._last_offsets: dict[TopicPartition, int] = {}

    @property
    def last_offsets(self) -> Mapping[TopicPartition, int]:
        return dict(self._last_offsets)

    def send(self, batch: pa.RecordBatch) -> None:
        assert not self.is_closed
        assert not self.is_aborted
        with self._client.asking("produce", self._id or ""):
            rows: dict[TopicPartition, list[Record]] = {}
            for row in batch.to_pylist():
                rows.setdefault(self._partition(row), []).append((row.get("key"), row["value"]))
            for partition, records in rows.items():
                self._append(partition, records)

    def flush(self) -> None:
        with self._client.asking("flush", self._id or ""):
            pass

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        assert self._id is not None
        with self._client.asking("send_offsets", group_id):
            self._add(TopicPartition(GROUPS_TOPIC, 0))
            self._cluster.add_offsets(self._producer, group_id, offsets)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def _partition(self, row: Mapping[str, object]) -> TopicPartition:
        topic, number, key = row["topic"], row.get("partition"), row.get("key")
        assert isinstance(topic, str)
        if number is None:
            partitions = len(self._cluster.topic(topic).logs)
            number = zlib.crc32(key) % partitions if isinstance(key, bytes) else 0
        assert isinstance(number, int)
        return TopicPartition(topic, number)

    def _append(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        limit = int(self._cluster.topic(partition.topic).setting("max.message.bytes"))
        for key, value in records:
            if len(key or b"") + len(value or b"") + _RECORD_OVERHEAD_BYTES > limit:
                raise DeliveryError(f"{partition}: MESSAGE_TOO_LARGE")
        if self._id is not None:
            self._add(partition)
        try:
            self._last_offsets[partition] = self._cluster.log(partition).append(
                self._producer, records, transactional=self._id is not None
            )
        except ApiError as error:
            raise self._error(error) from None

    def _add(self, partition: TopicPartition) -> None:
        """Add the partition: version 1 once, by request; version 2 with every produce."""
        assert self._id is not None
        try:
            if self._version == 1 and partition in self._added:
                self._cluster.verify_partition(self._id, self._producer, partition)
            else:
                self._cluster.add_partition(self._id, self._producer, partition, self._version)
        except ApiError as error:
            raise self._error(error) from None
        self._added.add(partition)

    def _error(self, error: ApiError) -> Exception:
        fenced = (
            ErrorCode.producer_fenced,
            ErrorCode.invalid_producer_epoch,
            ErrorCode.invalid_producer_id_mapping,
        )
        kind = ProducerFencedError if error.error_code in fenced else DeliveryError
        return kind(f"{self._id}: {error.error_code.name}: {error}")


class _Asking:
    """A context that runs the hooks of a request, and injects its fault before or after it."""

    def __init__(self, client: FakeClient, request: Request) -> None:
        self._client = client
        self._request = request
        self._fault: Exception | Lost | None = None

    def __enter__(self) -> None:
        self._fault = self._client.begin(self._request)
        if isinstance(self._fault, Exception):
            raise self._fault

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None and isinstance(self._fault, Lost):
            raise BrokerUnreachableError(f"no response to {self._request.name} arrived in time")


class FakeClient:
    """A `TransactionalClient` of one process; `cluster.requests` contains its `name`."""

    checks_topic_ids: ClassVar[bool] = True

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.request_count = 0
        self.is_closed = False
        self.producers: list[FakeProducer] = []
        self._actions: dict[str | int, list[Action]] = {}
        self._faults: dict[str | int, list[Exception | Lost]] = {}
        self._plain: ProducerIdAndEpoch | None = None

    # --- operations of tests ---

    def before(self, request: str | int, action: Action) -> None:
        """Run `action` before the next request of a name, or before this client's n-th (from 1)."""
        self._actions.setdefault(request, []).append(action)

    def fail(self, request: str | int, error: Exception) -> None:
        """Raise `error` instead of executing the next request of a name, or this client's n-th."""
        self._faults.setdefault(request, []).append(error)

    def lose_response(self, request: str | int) -> None:
        """Execute the next request of a name, or this client's n-th, and lose the response."""
        self._faults.setdefault(request, []).append(Lost())

    def asked(self) -> list[str]:
        return [each.name for each in self.cluster.requests if each.client == self.name]

    def asking(self, name: str, subject: str = "") -> _Asking:
        return _Asking(self, Request(client=self.name, name=name, subject=subject))

    def begin(self, request: Request) -> Exception | Lost | None:
        """Count a request, call its hooks, and return its fault."""
        assert not self.is_closed, f"the client is closed: {request.name}"
        self.request_count += 1
        names: tuple[str | int, ...] = (self.request_count, request.name)
        for name in names:
            waiting = self._actions.get(name)
            if waiting:
                waiting.pop(0)()
        self.cluster.requests.append(request)
        if request.name in self.cluster.denied_requests and request.name != "list_transactions":
            raise AuthorizationError(f"{request.name}: TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
        for name in names:
            faults = self._faults.get(name)
            if faults:
                return faults.pop(0)
        return None

    # --- the port: transactions ---

    def transaction_version(self) -> TransactionVersion:
        return self.cluster.transaction_version

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        with self.asking("init_producer_id", transactional_id):
            if timeout_ms > int(BROKER_DEFAULTS["transaction.max.timeout.ms"]):
                raise OptionError("option 'transactionTimeout': INVALID_TRANSACTION_TIMEOUT")
            try:
                return self.cluster.initialize(
                    transactional_id, timeout_ms=timeout_ms, expected=expected
                )
            except ApiError as error:
                raise ProducerFencedError(f"{transactional_id}: {error.error_code.name}") from None

    def init_producer_ids(
        self, transactional_ids: Collection[str], *, timeout_ms: int
    ) -> Mapping[str, ProducerIdAndEpoch]:
        return {
            name: self.init_producer_id(name, timeout_ms=timeout_ms) for name in transactional_ids
        }

    def end_transactions(
        self, ends: Collection[EndTransaction], *, timeout_ms: float | None = None
    ) -> Mapping[str, ErrorCode | None]:
        if not ends:
            return {}
        try:
            with self.asking("end_transactions", ",".join(e.transactional_id for e in ends)):
                return {each.transactional_id: self.cluster.end(each) for each in ends}
        except BrokerUnreachableError:
            return {each.transactional_id: None for each in ends}

    def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> Mapping[str, TransactionDescription]:
        if not transactional_ids:
            return {}
        with self.asking("describe_transactions", ",".join(transactional_ids)):
            return {
                name: _description(self.cluster.ids[name])
                for name in transactional_ids
                if name in self.cluster.ids
            }

    def list_transactions(
        self, id_prefix: str, *states: TransactionState
    ) -> Sequence[TransactionListing]:
        with self.asking("list_transactions", id_prefix):
            if "list_transactions" in self.cluster.denied_requests:
                return []
            return [
                TransactionListing(
                    transactional_id=name,
                    producer_id=entry.current.producer_id,
                    state=TransactionState(entry.current.state.title),
                )
                for name, entry in self.cluster.ids.items()
                if name.startswith(id_prefix)
                and name not in self.cluster.unlisted_ids
                and (not states or self.cluster.state(name) in states)
            ]

    def transactional_producer(
        self, transactional_id: str, producer: ProducerIdAndEpoch, version: TransactionVersion
    ) -> FakeProducer:
        self.producers.append(
            FakeProducer(self, producer, transactional_id=transactional_id, version=version)
        )
        return self.producers[-1]

    def producer(self) -> FakeProducer:
        if self._plain is None:
            self._plain = ProducerIdAndEpoch(
                producer_id=self.cluster.new_producer_id(), producer_epoch=0
            )
        self.producers.append(FakeProducer(self, self._plain))
        return self.producers[-1]

    # --- the port: logs and topics ---

    def read_log(
        self, partition: TopicPartition, start_offset: int, end_offset: int
    ) -> Iterator[LogBatch]:
        with self.asking("read_log", str(partition)):
            log = self.cluster.log(partition)
            if end_offset > log.end:
                raise FetchTimeoutError(f"{partition}: no record at offset {log.end}")
            found = [b for b in log.batches if start_offset <= b.last_offset]
        yield from (batch for batch in found if batch.base_offset < end_offset)

    def create_topic(
        self,
        topic: str,
        *,
        partition_count: int,
        replication_factor: int,
        config: Mapping[str, str],
    ) -> bool:
        with self.asking("create_topic", topic):
            if topic in self.cluster.topics:
                return False
            self.cluster.create_topic(
                topic, partition_count, replication_factor=replication_factor, config=config
            )
        return True

    def topic_config(self, topic: str) -> Mapping[str, str]:
        with self.asking("topic_config", topic):
            return TOPIC_DEFAULTS | self.cluster.topic(topic).config

    def broker_config(self) -> Mapping[str, str] | None:
        with self.asking("broker_config"):
            return self.cluster.broker_config

    def replication_of(self, topic: str) -> int:
        return self.cluster.topic(topic).replication_factor

    def broker_count(self) -> int:
        return self.cluster.broker_count

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self.asking("commit_offsets", group_id):
            self.cluster.groups.update({(group_id, p): o for p, o in offsets.items()})

    # --- the port: reads ---

    def list_topics(self) -> Collection[str]:
        return list(self.cluster.topics)

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        with self.asking("describe_topics", ",".join(topics)):
            return {
                name: TopicDescription(
                    name=name,
                    topic_id=self.cluster.topics[name].topic_id,
                    partitions=tuple(range(len(self.cluster.topics[name].logs))),
                    is_internal=False,
                )
                for name in topics
                if name in self.cluster.topics
            }

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        with self.asking("list_offsets", ",".join(str(partition) for partition in queries)):
            answers: dict[TopicPartition, int | None] = {}
            for partition, query in queries.items():
                log = self.cluster.log(partition)
                assert query in (EARLIEST, LATEST)
                latest = log.end
                if isolation_level is IsolationLevel.READ_COMMITTED:
                    latest = log.last_stable_offset
                answers[partition] = log.start if query == EARLIEST else latest
            return answers

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        return {p: self.cluster.groups.get((group_id, p)) for p in partitions}

    def fetch(
        self,
        fetch_range: FetchRange,
        columns: tuple[str, ...],
        isolation_level: IsolationLevel,
        *,
        topic_id: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        raise AssertionError("the protocol reads only raw batches")

    def close(self) -> None:
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _description(entry: TransactionMetadata) -> TransactionDescription:
    value = entry.current
    return TransactionDescription(
        transactional_id=entry.name,
        state=TransactionState(value.state.title),
        producer=producer_in(value),
        timeout_ms=value.timeout_ms,
        started_ms=None if value.start_timestamp_ms < 0 else value.start_timestamp_ms,
        partitions=frozenset(TopicPartition(key.topic, key.partition) for key in value.partitions),
    )
