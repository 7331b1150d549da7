"""What must be true of a cluster whatever goes wrong, checked after every step of every node.

| invariant                                                        | where it is checked         |
| ---------------------------------------------------------------- | --------------------------- |
| a committed record is never lost or changed, nor its leader epoch | `Committed.add`, `agree`    |
| replicas have the same batches up to their high watermark        | `Committed.agree`           |
| who begins to lead has everything that is committed              | `Watch._begins_to_lead`     |
| no value is in a partition twice; a producer's sequences follow  | `Committed.add`             |
| what was acknowledged is committed, where the answer said        | `Committed.acknowledged`    |
| a reader sees what is committed, in order, without gaps          | `Committed.read`            |
| a transaction is wholly visible or wholly invisible, and visible | `Transactions.resolve`      |
| only if its producer asked for it                                |                             |
| what a producer was told of its transaction is what comes about  | `Transactions.check_end`    |
| a read_committed reader sees what is visible, and all of it      | `Committed.check_visible`   |

Purpose: the truth about each partition, put together from all replicas: what is below the high
watermark of any is committed. Invariant: nothing here changes what the cluster does. What it must
not know: clients, faults. Retention and compaction are off in simulated topics, so that nothing
may be missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from broker_ref.log.batch import BatchHeader, decode_records, parse_sound_batches
from broker_ref.log.control import Marker, decode_marker
from broker_ref.node.broker import BrokerNode
from broker_ref.node.controller import ControllerNode
from broker_ref.replication.partition import Partition
from integration.simulation.client import TopicPartition
from integration.simulation.cluster import Node

READ_BYTES_MAX = 1 << 20


class Violation(Exception):  # noqa: N818
    """An invariant does not hold."""


@dataclass(slots=True, kw_only=True)
class Transaction:
    """What is known of one transaction."""

    name: str
    may_commit: bool = False
    """Its producer has asked for it."""
    told: Marker | None = None
    """What the coordinator has answered its producer."""
    outcome: Marker | None = None
    """What the first marker of it said."""
    acknowledged: dict[TopicPartition, list[bytes]] = field(default_factory=dict)


class Transactions:
    """The transactions of all clients, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Transaction] = {}

    def begin(self, name: str) -> Transaction:
        """A producer begins one."""
        transaction = self.by_name[name] = Transaction(name=name)
        return transaction

    def resolve(self, partition: TopicPartition, value: bytes, outcome: Marker) -> None:
        """A marker has become committed that says what becomes of a record."""
        transaction = self.by_name[name_of(value)]
        what = f"{value!r} in {partition} gets marker {outcome.name}"
        if transaction.outcome not in (None, outcome):
            raise Violation(f"{what}, but others of its transaction have another")
        if transaction.told not in (None, outcome):
            raise Violation(f"{what}, but its producer was told otherwise")
        if outcome is Marker.COMMIT and not transaction.may_commit:
            raise Violation(f"{what}, though its producer has not asked to commit")
        transaction.outcome = outcome

    def tell(self, transaction: Transaction, outcome: Marker) -> None:
        """The coordinator has answered what a transaction's end is."""
        if transaction.outcome not in (None, outcome):
            raise Violation(
                f"{transaction.name} was told {outcome.name}, but got other markers already"
            )
        transaction.told = outcome

    def check_end(self, committed: Mapping[TopicPartition, Committed]) -> None:
        """Everything that was to be visible is."""
        for transaction in self.by_name.values():
            if Marker.COMMIT not in (transaction.told, transaction.outcome):
                continue
            for partition, values in transaction.acknowledged.items():
                for value in values:
                    offset = committed[partition].offset_of(value)
                    if offset is None or not committed[partition].is_visible(offset):
                        raise Violation(
                            f"{partition}: {value!r} was acknowledged, its transaction is "
                            f"committed, and it is not visible (offset {offset})"
                        )


def name_of(value: bytes) -> str:
    """The transaction that a value belongs to."""
    return value.rpartition(b":")[0].decode()


class Committed:
    """What is committed of one partition; values of internal topics are not looked at."""

    def __init__(
        self,
        partition: TopicPartition,
        transactions: Transactions,
        *,
        has_values: bool,
    ) -> None:
        self.partition = partition
        self.end_offset = 0
        self.batches: list[BatchHeader] = []
        self.values: dict[int, bytes] = {}
        self._transactions = transactions
        self._has_values = has_values
        self._open: dict[int, list[int]] = {}
        self._outcomes: dict[int, Marker | None] = {}
        self._by_base: dict[int, tuple[int, int, int]] = {}
        self._offsets: dict[bytes, int] = {}
        self._sequences: dict[int, tuple[int, int]] = {}

    def add(self, header: BatchHeader, batch: memoryview, host: str) -> None:
        """A batch has become committed, on the word of a replica."""
        if header.base_offset != self.end_offset:
            raise Violation(
                f"{self.partition}: {host} has offset {header.base_offset} where "
                f"{self.end_offset} comes next"
            )
        if self._has_values:  # A coordinator's batches all have sequence 0.
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
        for record in decode_records(batch):
            value = record.value or b""
            self.values[record.offset] = value
            before = self._offsets.setdefault(value, record.offset)
            if before != record.offset:
                raise Violation(
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
        """Whether a read_committed reader is to see a record."""
        return self._outcomes.get(offset, Marker.COMMIT) is Marker.COMMIT

    def check_visible(self, offset: int, *, is_seen: bool, who: str) -> None:
        """A read_committed reader was given a record, and sees it or leaves it out."""
        outcome = self._outcomes.get(offset, Marker.COMMIT)
        if outcome is None or is_seen is not (outcome is Marker.COMMIT):
            raise Violation(
                f"{self.partition}: {who} {'sees' if is_seen else 'leaves out'} "
                f"{self.values.get(offset)!r} at offset {offset}, whose transaction is "
                f"{'still open' if outcome is None else outcome.name}"
            )

    def _check_sequence(self, header: BatchHeader, host: str) -> None:
        """An idempotent producer's batches follow each other, from 0 in each epoch."""
        if header.producer_id < 0 or header.is_control or header.base_sequence < 0:
            return
        epoch, last = self._sequences.get(header.producer_id, (-1, -1))
        if header.producer_epoch < epoch:
            raise Violation(
                f"{self.partition}: {host} has a batch of producer {header.producer_id} with epoch "
                f"{header.producer_epoch} at offset {header.base_offset}, after epoch {epoch}"
            )
        expected = last + 1 if header.producer_epoch == epoch else 0
        if header.base_sequence != expected:
            raise Violation(
                f"{self.partition}: {host} has sequence {header.base_sequence} of producer "
                f"{header.producer_id} (epoch {header.producer_epoch}) at offset "
                f"{header.base_offset}, where {expected} comes next"
            )
        self._sequences[header.producer_id] = (header.producer_epoch, header.last_sequence)

    def agree(self, header: BatchHeader, host: str) -> None:
        """A replica has a batch below its high watermark: it is the committed one."""
        committed = self._by_base.get(header.base_offset)
        if committed != _identity(header):
            raise Violation(
                f"{self.partition}: {host} has another batch at offset {header.base_offset} than "
                f"was committed: (last offset, leader epoch, CRC) {_identity(header)}, not "
                f"{committed}"
            )

    def acknowledged(self, value: bytes, offset: int, who: str) -> None:
        """A producer was told with acks=all that a record is at an offset."""
        if offset >= self.end_offset:
            raise Violation(
                f"{self.partition}: {value!r} was acknowledged to {who} at offset {offset}, but "
                f"nothing is committed from {self.end_offset} on"
            )
        self.read(value, offset, who)

    def read(self, value: bytes, offset: int, who: str) -> None:
        """A client was given a record."""
        if self.values.get(offset) != value:
            raise Violation(
                f"{self.partition}: {who} was given {value!r} at offset {offset}, where "
                f"{self.values.get(offset)!r} is committed"
            )

    def offset_of(self, value: bytes) -> int | None:
        """Where a value is committed; None where it is not."""
        return self._offsets.get(value)


def _identity(header: BatchHeader) -> tuple[int, int, int]:
    return header.last_offset, header.partition_leader_epoch, header.crc


def batches_between(
    partition: Partition, start_offset: int, end_offset: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole batches of a replica from one offset up to another."""
    offset = start_offset
    while offset < end_offset:
        data = partition.log.read(
            offset, end_offset=end_offset, max_bytes=READ_BYTES_MAX, at_least_one_batch=True
        )
        if not data:
            raise Violation(
                f"{partition.key.topic}-{partition.key.partition}: nothing can be read at offset "
                f"{offset}, below {end_offset}"
            )
        for header, batch in parse_sound_batches(data):
            if header.base_offset >= end_offset:
                return
            yield header, batch
            offset = header.next_offset


@dataclass(slots=True)
class _Seen:
    """What was last seen of a replica; below `verified` it is as is committed."""

    partition: Partition
    verified: int = 0
    log_end_offset: int = 0
    led_epoch: int = -1


class Watch:
    """Looks at every replica after each step of its broker."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, Committed] = {}
        self.transactions = Transactions()
        self.controller: ControllerNode | None = None
        self.openings: Counter[TopicPartition] = Counter()
        """How often a replica was opened, of any broker."""
        self._seen: dict[tuple[str, str, int], _Seen] = {}
        self._names: dict[tuple[str, int], TopicPartition] = {}

    def of(self, partition: TopicPartition) -> Committed:
        """What is committed of a partition."""
        found = self.committed.get(partition)
        if found is None:
            found = self.committed[partition] = Committed(
                partition, self.transactions, has_values=not partition.topic.startswith("__")
            )
        return found

    def look(self, host: str, node: Node) -> None:
        """Check the replicas of a node that has taken a step; Violation."""
        if not isinstance(node, BrokerNode):
            self.controller = node
            return
        if node.broker is None or node.failure is not None:
            return
        for partition in node.broker.replicas.partitions():
            key = (host, partition.key.topic, partition.key.partition)
            seen = self._seen.get(key)
            if seen is None or seen.partition is not partition:
                self.openings[TopicPartition(*key[1:])] += 1
                seen = self._seen[key] = _Seen(partition)
            self._look_at(host, seen, partition)

    def look_anew(self, host: str, node: BrokerNode) -> None:
        """Check everything that a broker has below its high watermarks once more; Violation."""
        for key in [key for key in self._seen if key[0] == host]:
            del self._seen[key]
        self.look(host, node)

    def _look_at(self, host: str, seen: _Seen, partition: Partition) -> None:
        log_end_offset = partition.log.log_end_offset
        if log_end_offset < seen.log_end_offset:
            seen.verified = min(seen.verified, log_end_offset)
        seen.log_end_offset = log_end_offset
        if partition.is_leader and partition.leader_epoch != seen.led_epoch:
            seen.led_epoch = partition.leader_epoch
            self._begins_to_lead(host, partition)
        high_watermark = partition.high_watermark
        if high_watermark > seen.verified:
            self._verify(host, seen, partition, high_watermark)

    def _begins_to_lead(self, host: str, partition: Partition) -> None:
        name = TopicPartition(partition.key.topic, partition.key.partition)
        committed = self.of(name)
        end_offset = partition.log.log_end_offset
        if end_offset >= committed.end_offset:
            return
        metadata = self.controller.side.metadata if self.controller is not None else None
        current = metadata.partition(name.topic, name.partition) if metadata is not None else None
        if current is not None and current.leader_epoch == partition.leader_epoch:
            raise Violation(
                f"{name}: {host} begins to lead in epoch {partition.leader_epoch} with a log that "
                f"ends at {end_offset}, but everything below {committed.end_offset} is committed"
            )

    def _verify(self, host: str, seen: _Seen, partition: Partition, end_offset: int) -> None:
        committed = self.of(TopicPartition(partition.key.topic, partition.key.partition))
        for header, batch in batches_between(partition, seen.verified, end_offset):
            if header.base_offset < committed.end_offset:
                committed.agree(header, host)
            else:
                committed.add(header, batch, host)
            seen.verified = header.next_offset
