"""A cluster in memory with the port `TransactionalClient`: coordinators, logs, topics, faults.

It runs the protocol's steps in any order, with any injected fault, without brokers. The transaction
coordinator is that of the reference broker (`broker_ref.transaction`), which `tests/conformance`
compares with Apache Kafka. Logs, markers and time are implemented here. There is no background
activity: a request is complete before the next one begins, unless a test changes this.

    cluster = FakeCluster(transaction_version=2)
    old, new = cluster.client("old"), cluster.client("new")
    old.before("list_transactions", lambda: plan(new, ...))  # or before(7, ...): its 7th request
    old.fail("init_producer_id", BrokerUnreachableError("..."))  # the request is not executed
    old.lose_response("end_transactions")  # the request is executed, but the response is lost
    cluster.respond_to_end_txn("X/0/0/0-0", ErrorCode.producer_fenced)  # without executing it
    cluster.holds_markers = True  # decided, and stays Prepare...
    cluster.advance(60_000); cluster.exhaust("X"); cluster.expire("X")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING
from uuid import uuid4

from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction import request_validation as coordinator
from broker_ref.transaction.request_validation import TransactionMetadata
from broker_ref.transaction.states import PREPARED
from broker_ref.transaction.states import TransactionState as State
from broker_ref.transaction.transitions import (
    LAST_PRODUCERS_EPOCH,
    Transaction,
    new_transactional_id,
    prepare_complete,
)
from pyspark_kafka.errors import (
    BrokerUnreachableError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionResult,
    TransactionState,
    TransactionVersion,
)
from tests.pyspark_kafka.sink.exactly_once.fake_log import FakeLog, Record

if TYPE_CHECKING:
    from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient

Action = Callable[[], object]

GROUPS_TOPIC = "__consumer_offsets"
TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "segment.bytes": "1073741824",
    "unclean.leader.election.enable": "false",
}
BROKER_DEFAULTS = {
    "transaction.max.timeout.ms": "900000",
    "transaction.partition.verification.enable": "true",
}


@dataclass
class FakeTopic:
    logs: list[FakeLog]
    replication_factor: int = 1
    config: dict[str, str] = field(default_factory=dict)
    topic_id: str | None = None

    def setting(self, name: str) -> str:
        return self.config.get(name, TOPIC_DEFAULTS[name])


@dataclass(frozen=True)
class Request:
    """A request of a client; requests are recorded in order of execution."""

    client: str
    name: str
    subject: str = ""


class FakeCluster:
    """The brokers of a cluster; all clients see the same state."""

    def __init__(
        self,
        transaction_version: TransactionVersion = 2,
        *,
        broker_count: int = 3,
        has_topic_ids: bool = False,
    ) -> None:
        """Without topic ids, as on old brokers, a client must not rely on its earlier reads."""
        self.transaction_version = transaction_version
        self.broker_count = broker_count
        self.has_topic_ids = has_topic_ids
        self.broker_config: dict[str, str] | None = dict(BROKER_DEFAULTS)
        self.topics: dict[str, FakeTopic] = {}
        self.ids: dict[str, TransactionMetadata] = {}
        self.groups: dict[tuple[str, TopicPartition], int] = {}
        self.requests: list[Request] = []
        self.now_ms = 1_000_000
        self.holds_markers = False
        self.while_waiting: Action = lambda: None
        """Called when a client waits for markers, before it gives up."""
        self.unlisted_ids: set[str] = set()
        """Ids that are missing in lists, because their coordinator is moving."""
        self.denied_requests: set[str] = set()
        """Requests for which an ACL is missing; `list_transactions` then returns an empty list."""
        self._end_txn_responses: dict[str, list[ErrorCode | None]] = {}
        self._pending_offsets: dict[int, dict[tuple[str, TopicPartition], int]] = {}
        self._producer_ids = count(1000)

    def client(self, name: str = "client") -> FakeClient:
        from tests.pyspark_kafka.sink.exactly_once import fake_client  # noqa: PLC0415

        return fake_client.FakeClient(self, name)

    def new_producer_id(self) -> int:
        return next(self._producer_ids)

    # --- topics ---

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = 3,
        config: Mapping[str, str] | None = None,
    ) -> FakeTopic:
        self.topics[name] = FakeTopic(
            logs=[FakeLog() for _ in range(partitions)],
            replication_factor=replication_factor,
            config=dict(config or {}),
            topic_id=str(uuid4()) if self.has_topic_ids else None,
        )
        return self.topics[name]

    def topic(self, name: str) -> FakeTopic:
        if name not in self.topics:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return self.topics[name]

    def log(self, partition: TopicPartition) -> FakeLog:
        topic = self.topic(partition.topic)
        if partition.partition >= len(topic.logs):
            raise UnknownTopicOrPartitionError(f"{partition} does not exist")
        return topic.logs[partition.partition]

    def committed(self, name: str) -> list[Record]:
        """Return the records of a topic that a `read_committed` consumer reads."""
        return [
            record
            for log in self.topic(name).logs
            for batch in log.visible()
            for record in batch.records
        ]

    def is_stable(self, name: str) -> bool:
        """Return whether no open transaction blocks consumers of a topic."""
        return all(log.last_stable_offset == log.end for log in self.topic(name).logs)

    # --- operations of tests on transactions ---

    def respond_to_end_txn(self, transactional_id: str, *codes: ErrorCode | None) -> None:
        """Set the error codes of the next EndTxn requests of this id, which are not executed."""
        self._end_txn_responses.setdefault(transactional_id, []).extend(codes)

    def state(self, transactional_id: str) -> TransactionState:
        return TransactionState(self.ids[transactional_id].current.state.title)

    def producer_of(self, transactional_id: str) -> ProducerIdAndEpoch:
        return producer_in(self.ids[transactional_id].current)

    def advance(self, milliseconds: int) -> None:
        """Advance the clock and abort the transactions that have timed out."""
        self.now_ms += milliseconds
        for entry in list(self.ids.values()):
            if coordinator.has_timed_out(entry, self.now_ms):
                self._fence(entry)

    def exhaust(self, transactional_id: str) -> None:
        """Give the producer its last epoch, as after 32,000 transactions."""
        entry = self.ids[transactional_id]
        entry.current = dataclasses.replace(entry.current, producer_epoch=LAST_PRODUCERS_EPOCH)

    def expire(self, transactional_id: str) -> None:
        del self.ids[transactional_id]

    def write_markers(self) -> None:
        for entry in self.ids.values():
            if entry.current.state in PREPARED:
                self._complete(entry)

    # --- coordinators ---

    def initialize(
        self,
        name: str,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
    ) -> ProducerIdAndEpoch:
        fresh = new_transactional_id(
            self.new_producer_id(), timeout_ms=timeout_ms, now_ms=self.now_ms
        )
        entry = self.ids.setdefault(
            name, TransactionMetadata(name=name, current=fresh, unmarked=set())
        )
        for attempt in range(3):
            try:
                value = coordinator.initialize(
                    entry,
                    timeout_ms=timeout_ms,
                    expected=None if expected is None else _theirs(expected),
                    generate_producer_id=self.new_producer_id,
                    now_ms=self.now_ms,
                )
            except ApiError as error:
                if error.error_code is not ErrorCode.concurrent_transactions:
                    raise
                if attempt == 0:
                    self.while_waiting()
                continue
            if value is not None:
                entry.current = value
                return producer_in(value)
            self._fence(entry)
        raise BrokerUnreachableError(
            f"transactional id {name!r}: CONCURRENT_TRANSACTIONS until the timeout"
        )

    def end(self, end: EndTransaction) -> ErrorCode | None:
        scripted = self._end_txn_responses.get(end.transactional_id)
        if scripted:
            return scripted.pop(0)
        for attempt in range(2):
            try:
                self._end_once(end)
            except ApiError as error:
                if error.error_code is not ErrorCode.concurrent_transactions:
                    return error.error_code
                if attempt == 0:
                    self.while_waiting()
            else:
                return ErrorCode.none
        return None

    def _end_once(self, end: EndTransaction) -> None:
        entry = self.ids.get(end.transactional_id)
        if entry is None:
            raise ApiError(ErrorCode.invalid_producer_id_mapping, "no such transactional id")
        value = coordinator.end(
            entry,
            _theirs(end.producer),
            commit=end.is_commit,
            client_transaction_version=end.version,
            generate_producer_id=self.new_producer_id,
            now_ms=self.now_ms,
        )
        if value is not None:
            self._decided(entry, value)

    def add_partition(
        self, name: str, producer: ProducerIdAndEpoch, partition: TopicPartition, version: int
    ) -> None:
        """Add a partition to the transaction, which begins with its first partition."""
        entry = self.ids.get(name)
        if entry is None:
            raise ApiError(ErrorCode.invalid_producer_id_mapping, "no such transactional id")
        value = coordinator.add_partitions(
            entry,
            _theirs(producer),
            [_key(partition)],
            client_transaction_version=version,
            now_ms=self.now_ms,
        )
        if value is not None:
            entry.current = value

    def verify_partition(
        self, name: str, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> None:
        """Check that an open transaction contains the partition (KIP-890, version 1)."""
        key = _key(partition)
        code = coordinator.verify_partitions(self.ids[name], _theirs(producer), [key])[key]
        if code is not ErrorCode.none:
            raise ApiError(code, f"no transaction of {name!r} contains {partition}")

    def add_offsets(
        self, producer: ProducerIdAndEpoch, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        pending = self._pending_offsets.setdefault(producer.producer_id, {})
        pending.update({(group_id, partition): offset for partition, offset in offsets.items()})

    def _fence(self, entry: TransactionMetadata) -> None:
        value = coordinator.fence(
            entry,
            transaction_version=self.transaction_version,
            generate_producer_id=self.new_producer_id,
            now_ms=self.now_ms,
        )
        self._decided(entry, value)

    def _decided(self, entry: TransactionMetadata, value: Transaction) -> None:
        entry.current = value
        entry.pending = prepare_complete(value, now_ms=self.now_ms)
        if not self.holds_markers:
            self._complete(entry)

    def _complete(self, entry: TransactionMetadata) -> None:
        value = entry.current
        commit = value.state is State.PREPARE_COMMIT
        for key in sorted(value.partitions, key=lambda key: (key.topic, key.partition)):
            if key.topic == GROUPS_TOPIC:
                pending = self._pending_offsets.pop(value.producer_id, {})
                self.groups.update(pending if commit else {})
            elif key.topic in self.topics:
                self.log(TopicPartition(key.topic, key.partition)).append(
                    producer_in(value),
                    transactional=True,
                    verdict=TransactionResult.COMMIT if commit else TransactionResult.ABORT,
                )
        entry.pending = None
        entry.current = prepare_complete(value, now_ms=self.now_ms)


def _key(partition: TopicPartition) -> PartitionKey:
    return PartitionKey(topic=partition.topic, partition=partition.partition)


def producer_in(value: Transaction) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id=value.producer_id, producer_epoch=value.producer_epoch)


def _theirs(producer: ProducerIdAndEpoch) -> coordinator.ProducerIdAndEpoch:
    return coordinator.ProducerIdAndEpoch(
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
    )
