"""The invariants of a cluster, which are checked after every step of every node.

| invariant                                                        | where it is checked          |
| ---------------------------------------------------------------- | ---------------------------- |
| committed records and leader epochs are never lost or changed    | `CommittedLog.add`, `agree`  |
| replicas have the same batches up to their high watermarks       | `CommittedLog.agree`         |
| a new leader has all committed records                           | `_begins_to_lead`            |
| no value appears twice; sequences are consecutive                | `CommittedLog.add`           |
| an acknowledged record is committed at the acknowledged offset   | `CommittedLog.acknowledged`  |
| a record is not committed if all attempts to write it were        | `CommittedLog.rejected`      |
| rejected                                                         |                              |
| a consumer reads committed records, in order, without gaps       | `CommittedLog.read`          |
| a transaction is visible completely or not at all, and only if   | `Transactions.resolve`       |
| its producer has requested the commit                            |                              |
| a transaction ends with the result that the coordinator returned | `Transactions.check_end`     |
| a read_committed consumer reads exactly the visible records      | `CommittedLog.check_visible` |

The module derives the committed state of each partition from all replicas: all records below any
replica's high watermark are committed. Retention is off, and only internal topics are compacted, so
a record may be missing only if compaction has removed it. Invariant: the checks do not change the
cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from broker_ref.controller.metadata import PartitionMetadata
from broker_ref.log.batch import BatchHeader, parse_checked_batches
from broker_ref.log.control import Marker, decode_marker
from broker_ref.node.broker import BrokerNode
from broker_ref.node.controller import ControllerNode
from broker_ref.replication.partition import Partition
from integration.simulation.client import TopicPartition
from integration.simulation.cluster import Node
from integration.simulation.elections import Elections
from integration.simulation.messages import records_of

READ_BYTES_MAX = 1 << 20
RECREATED_TOPIC = "recreated"
"""The topic that is deleted and created again. Each of its topic ids is checked separately."""


class InvariantViolationError(Exception):
    """An invariant does not hold."""


@dataclass(slots=True, kw_only=True)
class Transaction:
    """The state of one transaction."""

    name: str
    may_commit: bool = False
    """Whether the producer has requested the commit."""
    response: Marker | None = None
    """The result in the coordinator's response to the producer."""
    outcome: Marker | None = None
    """The result in the transaction's first marker."""
    acknowledged: dict[TopicPartition, list[bytes]] = field(default_factory=dict)


class Transactions:
    """The transactions of all clients, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Transaction] = {}

    def begin(self, name: str) -> Transaction:
        """Record that a producer has started a transaction."""
        transaction = self.by_name[name] = Transaction(name=name)
        return transaction

    def resolve(self, partition: TopicPartition, value: bytes, outcome: Marker) -> None:
        """Record the marker of a record's transaction, and check that the marker is valid."""
        transaction = self.by_name[name_of(value)]
        what = f"{value!r} in {partition} has marker {outcome.name}"
        if transaction.outcome not in (None, outcome):
            raise InvariantViolationError(
                f"{what}, but other records of its transaction have a different marker"
            )
        if transaction.response not in (None, outcome):
            raise InvariantViolationError(
                f"{what}, but the coordinator returned {transaction.response.name}"
            )
        if outcome is Marker.COMMIT and not transaction.may_commit:
            raise InvariantViolationError(f"{what}, but its producer has not requested a commit")
        transaction.outcome = outcome

    def record_response(self, transaction: Transaction, outcome: Marker) -> None:
        """Record the coordinator's response to EndTxn, and check it against the markers."""
        if transaction.outcome not in (None, outcome):
            raise InvariantViolationError(
                f"{transaction.name}: the coordinator returned {outcome.name}, but the "
                "transaction has different markers"
            )
        transaction.response = outcome

    def check_end(self, committed: Mapping[TopicPartition, CommittedLog]) -> None:
        """Check that all records of committed transactions are visible."""
        for transaction in self.by_name.values():
            if Marker.COMMIT not in (transaction.response, transaction.outcome):
                continue
            for partition, values in transaction.acknowledged.items():
                for value in values:
                    offset = committed[partition].offset_of(value)
                    if offset is None or not committed[partition].is_visible(offset):
                        raise InvariantViolationError(
                            f"{partition}: {value!r} was acknowledged in a committed transaction, "
                            f"but is not visible (offset {offset})"
                        )


def name_of(value: bytes) -> str:
    """Return the name of the transaction that wrote a value."""
    return value.rpartition(b":")[0].decode()


class CommittedLog:
    """The committed records of a partition. Record values in internal topics are not checked."""

    def __init__(
        self,
        partition: TopicPartition,
        transactions: Transactions,
        origins: dict[bytes, TopicPartition],
        *,
        has_values: bool,
    ) -> None:
        """Create an empty log. `origins` maps each value to the partition that contains it."""
        self.partition = partition
        self.end_offset = 0
        self.batches: list[BatchHeader] = []
        self.values: dict[int, bytes] = {}
        self._transactions = transactions
        self._origins = origins
        self._has_values = has_values
        self._open: dict[int, list[int]] = {}
        self._outcomes: dict[int, Marker | None] = {}
        self._by_base: dict[int, tuple[int, int, int]] = {}
        self._offsets: dict[bytes, int] = {}
        self._sequences: dict[int, tuple[int, int]] = {}
        self._rejected: dict[bytes, str] = {}

    def add(self, header: BatchHeader, batch: memoryview, host: str) -> None:
        """Add a batch below a replica's high watermark to the committed records."""
        if header.base_offset != self.end_offset:
            raise InvariantViolationError(
                f"{self.partition}: {host} has offset {header.base_offset} instead of "
                f"{self.end_offset}"
            )
        if self._has_values:  # All batches that coordinators write have sequence 0.
            self._check_sequence(header, host)
        self.batches.append(header)
        self._by_base[header.base_offset] = _identity(header)
        if self._has_values:
            if header.is_control:
                self._resolve(header.producer_id, batch)
            else:
                self._add_values(header, batch)
        self.end_offset = header.next_offset

    def _add_values(self, header: BatchHeader, batch: memoryview) -> None:
        for record in records_of(batch):
            value = record.value or b""
            self.values[record.offset] = value
            if value in self._rejected:
                self._raise_rejected(value, record.offset)
            origin = self._origins.setdefault(value, self.partition)
            if origin != self.partition:
                raise InvariantViolationError(
                    f"{self.partition}: {value!r} at offset {record.offset} belongs to {origin}"
                )
            before = self._offsets.setdefault(value, record.offset)
            if before != record.offset:
                raise InvariantViolationError(
                    f"{self.partition}: {value!r} is committed twice, at offsets {before} and "
                    f"{record.offset}"
                )
            if header.is_transactional:
                self._open.setdefault(header.producer_id, []).append(record.offset)
                self._outcomes[record.offset] = None

    def _resolve(self, producer_id: int, batch: memoryview) -> None:
        marker = decode_marker(bytes(batch))
        if marker is None:
            return
        for offset in self._open.pop(producer_id, ()):
            self._outcomes[offset] = marker.marker
            self._transactions.resolve(self.partition, self.values[offset], marker.marker)

    def is_visible(self, offset: int) -> bool:
        """Return whether a read_committed consumer must read a record."""
        return self._outcomes.get(offset, Marker.COMMIT) is Marker.COMMIT

    def check_visible(self, offset: int, *, is_seen: bool, who: str) -> None:
        """Check that a read_committed consumer reads or skips a record correctly."""
        outcome = self._outcomes.get(offset, Marker.COMMIT)
        if outcome is None or is_seen is not (outcome is Marker.COMMIT):
            raise InvariantViolationError(
                f"{self.partition}: {who} {'sees' if is_seen else 'skips'} "
                f"{self.values.get(offset)!r} at offset {offset}, whose transaction is "
                f"{'still open' if outcome is None else outcome.name}"
            )

    def _check_sequence(self, header: BatchHeader, host: str) -> None:
        """Check that a producer's sequences are consecutive and start at 0 in each epoch."""
        if header.producer_id < 0 or header.is_control or header.base_sequence < 0:
            return
        epoch, last = self._sequences.get(header.producer_id, (-1, -1))
        if header.producer_epoch < epoch:
            raise InvariantViolationError(
                f"{self.partition}: {host} has a batch of producer {header.producer_id} with "
                f"producer epoch {header.producer_epoch} at offset {header.base_offset}, after "
                f"epoch {epoch}"
            )
        expected = last + 1 if header.producer_epoch == epoch else 0
        if header.base_sequence != expected:
            raise InvariantViolationError(
                f"{self.partition}: on {host}, the batch of producer {header.producer_id} "
                f"(producer epoch {header.producer_epoch}) at offset {header.base_offset} has base "
                f"sequence {header.base_sequence} instead of {expected}"
            )
        self._sequences[header.producer_id] = (header.producer_epoch, header.last_sequence)

    def agree(self, header: BatchHeader, host: str) -> None:
        """Check that a replica's batch below its high watermark equals the committed batch."""
        committed = self._by_base.get(header.base_offset)
        if committed != _identity(header):
            raise InvariantViolationError(
                f"{self.partition}: {host} has batch {_identity(header)} (last offset, leader "
                f"epoch, CRC) at offset {header.base_offset} instead of the committed {committed}"
            )

    def acknowledged(self, value: bytes, offset: int, who: str) -> None:
        """Check that a record acknowledged with acks=all is committed at its offset."""
        if offset >= self.end_offset:
            raise InvariantViolationError(
                f"{self.partition}: {value!r} was acknowledged to {who} at offset {offset}, but "
                f"only offsets below {self.end_offset} are committed"
            )
        self.read(value, offset, who)

    def read(self, value: bytes, offset: int, who: str) -> None:
        """Check that a record received by a client equals the committed record."""
        if self.values.get(offset) != value:
            raise InvariantViolationError(
                f"{self.partition}: {who} received {value!r} at offset {offset} instead of the "
                f"committed {self.values.get(offset)!r}"
            )

    def rejected(self, value: bytes, error: str) -> None:
        """Record that all attempts to write a value were rejected, the last one with this error."""
        self._rejected[value] = error
        offset = self.offset_of(value)
        if offset is not None:
            self._raise_rejected(value, offset)

    def _raise_rejected(self, value: bytes, offset: int) -> None:
        raise InvariantViolationError(
            f"{self.partition}: {value!r} is committed at offset {offset}, but all attempts to "
            f"write it were rejected, the last one with {self._rejected[value]}"
        )

    def offset_of(self, value: bytes) -> int | None:
        """Return the offset of a committed value, or None if the value is not committed."""
        return self._offsets.get(value)


def name_of_log(metadata: PartitionMetadata) -> TopicPartition:
    """Return the key of a partition's `CommittedLog`, which differs after a topic is recreated."""
    topic = metadata.topic
    if topic == RECREATED_TOPIC:
        topic = f"{topic}@{metadata.topic_id}"
    return TopicPartition(topic, metadata.partition)


def _identity(header: BatchHeader) -> tuple[int, int, int]:
    return header.last_offset, header.partition_leader_epoch, header.crc


def batches_between(
    partition: Partition, start_offset: int, end_offset: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a replica between two offsets."""
    offset = start_offset
    while offset < end_offset:
        data = partition.log.read(
            offset, end_offset=end_offset, max_bytes=READ_BYTES_MAX, at_least_one_batch=True
        )
        if not data:
            raise InvariantViolationError(
                f"{partition.key.topic}-{partition.key.partition}: no data at offset "
                f"{offset}, below {end_offset}"
            )
        for header, batch in parse_checked_batches(data):
            if header.base_offset >= end_offset:
                return
            yield header, batch
            offset = header.next_offset


@dataclass(slots=True)
class _ObservedPartition:
    """The last observed state of a replica.

    Below the offset `verified`, the replica contains exactly the committed records.
    """

    partition: Partition
    verified: int = 0
    log_end_offset: int = 0
    led_epoch: int = -1
    removals: int = -1


class InvariantChecker:
    """Checks every replica after each step of its broker.

    `__consumer_offsets` has `offsets_partitions` partitions. If the internal topics are compacted,
    only the end offsets of their logs are checked.
    """

    def __init__(
        self, offsets_partitions: int = 1, *, compacts_internal_topics: bool = False
    ) -> None:
        self.offsets_partitions = offsets_partitions
        self._compacts_internal_topics = compacts_internal_topics
        self.committed: dict[TopicPartition, CommittedLog] = {}
        self.transactions = Transactions()
        self.controller: ControllerNode | None = None
        self.elections = Elections()
        self.step = 0
        """The number of steps of nodes that were checked."""
        self.reloads: Counter[TopicPartition] = Counter()
        """The number of times that a replica was opened or truncated, on any broker.

        The replica then loads the state of producers from a snapshot.
        """
        self._seen: dict[tuple[str, str, int], _ObservedPartition] = {}
        self._origins: dict[bytes, TopicPartition] = {}

    def of(self, partition: TopicPartition) -> CommittedLog:
        """Return the committed records of a partition."""
        found = self.committed.get(partition)
        if found is None:
            found = self.committed[partition] = CommittedLog(
                partition,
                self.transactions,
                self._origins,
                has_values=not partition.topic.startswith("__"),
            )
        return found

    def acknowledged_in_any(self, partition: TopicPartition, value: bytes, offset: int) -> None:
        """Check that a record is committed at its acknowledged offset in a topic with this name."""
        origin = self._origins.get(value)
        if origin is None or self.of(origin).offset_of(value) != offset:
            raise InvariantViolationError(
                f"{partition}: {value!r} was acknowledged at offset {offset}, but is not committed "
                "there in any topic with this name"
            )

    def replica(self, host: str, partition: TopicPartition) -> Partition | None:
        """Return the last observed replica of a host, or None."""
        seen = self._seen.get((host, partition.topic, partition.partition))
        return seen.partition if seen is not None else None

    def check(self, host: str, node: Node) -> None:
        """Check the replicas of a node after a step.

        A node that failed during the step is also checked, because its responses from this step are
        sent. Raises `InvariantViolationError` if an invariant does not hold.
        """
        self.step += 1
        if not isinstance(node, BrokerNode):
            self.controller = node
            self.elections.observe(node.side.metadata, self.step)
            return
        if node.broker is None:
            return
        for partition in node.broker.replicas.partitions():
            key = (host, *partition.key)
            seen = self._seen.get(key)
            if seen is None or seen.partition is not partition:
                seen = self._seen[key] = _ObservedPartition(partition)
            if seen.removals != partition.log.removals:
                seen.removals = partition.log.removals
                self.reloads[TopicPartition(*key[1:])] += 1
            self._check_partition(host, seen, partition)

    def check_again(self, host: str, node: BrokerNode) -> None:
        """Check all committed records of a broker again.

        Raises `InvariantViolationError` if an invariant does not hold.
        """
        for key in [key for key in self._seen if key[0] == host]:
            del self._seen[key]
        self.check(host, node)

    def _check_partition(self, host: str, seen: _ObservedPartition, partition: Partition) -> None:
        log_end_offset = partition.log.log_end_offset
        if log_end_offset < seen.log_end_offset:
            seen.verified = min(seen.verified, log_end_offset)
        seen.log_end_offset = log_end_offset
        if partition.is_leader and partition.leader_epoch != seen.led_epoch:
            seen.led_epoch = partition.leader_epoch
            self._begins_to_lead(host, partition)
        if log_end_offset > seen.verified:
            high_watermark = partition.high_watermark
            if high_watermark > seen.verified:
                self._verify(host, seen, partition, high_watermark)

    def _begins_to_lead(self, host: str, partition: Partition) -> None:
        name, key = name_of_log(partition.metadata), partition.key
        committed = self.of(name)
        end_offset = partition.log.log_end_offset
        if end_offset >= committed.end_offset:
            return
        metadata = self.controller.side.metadata if self.controller is not None else None
        current = metadata.partition(key.topic, key.partition) if metadata is not None else None
        if (
            current is not None
            and current.topic_id == partition.metadata.topic_id
            and current.leader_epoch == partition.leader_epoch
        ):
            raise InvariantViolationError(
                f"{name}: {host} becomes leader in leader epoch {partition.leader_epoch} with log "
                f"end offset {end_offset}, but offsets below {committed.end_offset} are committed"
            )

    def _verify(
        self, host: str, seen: _ObservedPartition, partition: Partition, end_offset: int
    ) -> None:
        committed = self.of(name_of_log(partition.metadata))
        if self._compacts_internal_topics and partition.key.topic.startswith("__"):
            committed.end_offset = max(committed.end_offset, end_offset)
            seen.verified = end_offset
            return
        for header, batch in batches_between(partition, seen.verified, end_offset):
            if header.base_offset < committed.end_offset:
                committed.agree(header, host)
            else:
                committed.add(header, batch, host)
            seen.verified = header.next_offset
