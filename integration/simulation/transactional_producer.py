"""Clients that produce records in transactions.

A transactional producer writes to partitions, commits a group's offsets, and then commits, aborts
or abandons the transaction. At random times, its process is killed or replaced: a new process with
the same transactional id takes over, in some cases while the old process is still running. The
producers use both versions of the client protocol (KIP-890). With `transaction.version` 1, the
client sends AddPartitionsToTxn before it writes. With version 2, the client omits this request, and
each EndTxn returns a new producer epoch. Checked invariants: only allowed error codes are returned,
and group offsets are offsets of committed transactions. Modeled on Kafka's `TransactionManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.log.control import Marker
from integration.simulation.client import (
    REQUEST_TIMEOUT_MS,
    Call,
    Client,
    Script,
    Sleep,
    Step,
    TopicPartition,
)
from integration.simulation.coordinators import GROUP, TRANSACTION, Coordinator
from integration.simulation.invariants import InvariantChecker, InvariantViolationError, Transaction
from integration.simulation.messages import request
from integration.simulation.offset_reads import (
    AcknowledgedOffsets,
    OffsetRead,
    committed_offset,
    fetch_offset,
)
from integration.simulation.producers import (
    MAY_BE_APPENDED,
    RETRIABLE,
    encode,
    produce_request,
    produced,
)

TIMEOUT_MS: Final = 2_500
CONCURRENT: Final = frozenset({ErrorCode.concurrent_transactions})
ATTEMPTS_MAX: Final = 25

FENCED: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.transaction_abortable,
        ErrorCode.out_of_order_sequence_number,
    }
)
"""Error codes that a producer gets after it has been fenced or its transaction has timed out.

OUT_OF_ORDER_SEQUENCE_NUMBER is possible because the previous transaction may have been aborted.
"""


class _FencedError(Exception):
    """The producer id and producer epoch are no longer valid."""


@dataclass(slots=True)
class _Offset:
    """A group offset that a transaction commits."""

    offset: int
    transaction: Transaction


class TransactionHistory:
    """The transactions of all processes with the same transactional id, and their group offsets.

    `acknowledged` contains the offsets of transactions that the coordinator reported as committed.
    """

    def __init__(self, transactional_id: str, checker: InvariantChecker) -> None:
        self.transactional_id = transactional_id
        self.offsets: list[_Offset] = []
        self.acknowledged = AcknowledgedOffsets(checker)
        self.transactions = 0

    def committed(self, transaction: Transaction) -> None:
        """Record that the coordinator has reported a transaction as committed."""
        for each in self.offsets:
            if each.transaction is transaction:
                self.acknowledged.add(each.offset)

    def check(self, read: OffsetRead, who: str) -> None:
        """Check a fetched group offset.

        The offset must include the acknowledged commits, and the transaction that committed the
        offset must not be aborted.
        """
        offset, seen = read.offset, self.acknowledged.highest_before(read.complete_to)
        if offset == -1 and seen == -1:
            return
        found = next((each for each in self.offsets if each.offset == offset), None)
        if found is None or offset < seen or found.transaction.outcome is Marker.ABORT:
            raise InvariantViolationError(
                f"group {self.transactional_id}: {who} fetched offset {offset} "
                f"({found.transaction if found is not None else 'of no transaction'}), but the "
                f"committed offset is at least {seen}"
            )


class TransactionalProducer:
    """One process with a transactional id."""

    def __init__(
        self,
        client: Client,
        checker: InvariantChecker,
        history: TransactionHistory,
        *,
        partitions: Sequence[TopicPartition],
        version: int,
        pace_ms: int,
        until_ms: int,
        start_successor: Callable[[], None],
    ) -> None:
        """Create a producer. `start_successor` starts the process that replaces this producer."""
        self.is_done = False
        self._client = client
        self._checker = checker
        self._history = history
        self._partitions = tuple(partitions)
        self._is_v2 = version >= 2
        self._pace_ms = pace_ms
        self._until_ms = until_ms
        self._succeed = start_successor
        self._coordinator = Coordinator(client, history.transactional_id, TRANSACTION)
        self._group = Coordinator(client, history.transactional_id, GROUP)
        self._producer_id = self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._has_succeeded = False
        self._has_retried_end = False
        client.spawn(self._main(), after_ms=client.random.randint(0, 100))

    def _main(self) -> Script:
        client, random = self._client, self._client.random
        yield from self._begin()
        while client.now_ms < self._until_ms:
            try:
                yield from self._transact()
            except _FencedError:
                if self._has_succeeded:
                    break
                yield from self._begin()
            if random.random() < 0.08:
                self._hand_over()
                if random.random() < 0.5:
                    client.stop()
                    return
            yield Sleep(ms=random.randint(1, 2 * self._pace_ms))
        if not self._has_succeeded:
            yield from self._finish()
        self.is_done = True

    def _hand_over(self) -> None:
        if not self._has_succeeded:
            self._has_succeeded = True
            self.is_done = True
            self._succeed()

    def _finish(self) -> Step:
        """Check the group offset after the transaction of the last process has ended.

        A coordinator that has been replaced may not know about all transactions. Therefore, the
        offset is requested again until the new coordinator responds.
        """
        yield from self._begin()
        read: OffsetRead = yield from self._check_offset()
        while read.is_replaced:
            yield Sleep(ms=self._pace_ms)
            read = yield from self._check_offset()
        offset = read.offset
        for each in self._history.offsets:
            if each.transaction.outcome is Marker.COMMIT and each.offset > offset:
                raise InvariantViolationError(
                    f"group {self._history.transactional_id} has offset {offset}, but transaction "
                    f"{each.transaction.name} with offset {each.offset} is committed"
                )

    # The steps of a transaction

    def _begin(self) -> Step:
        """Initialize the producer id. The coordinator aborts any open transaction."""
        beginning = request(
            "init_producer_id",
            transactional_id=self._history.transactional_id,
            transaction_timeout=TIMEOUT_MS,
        )
        response, code = yield from self._coordinator.call(beginning, again_on=CONCURRENT)
        if code is not ErrorCode.none:
            raise self._refused("InitProducerId", code)
        self._take_identity(response.producer_id, response.producer_epoch)

    def _take_identity(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._sequences.clear()
        self._producer_id, self._epoch = producer_id, epoch

    def _transact(self) -> Step:
        random = self._client.random
        history = self._history
        history.transactions += 1
        name = f"{history.transactional_id}.{history.transactions}"
        transaction = self._checker.transactions.begin(name)
        count = random.randint(1, len(self._partitions))
        partitions = random.sample(self._partitions, count)
        if not self._is_v2:
            yield from self._add_partitions(partitions)
        is_whole = yield from self._write_some(transaction, partitions)
        if random.random() < 0.5:
            yield from self._commit_offset(transaction, history.transactions)
        if random.random() < 0.1:  # The coordinator or the next process aborts the transaction.
            raise _FencedError
        if random.random() < 0.2:
            yield Sleep(ms=random.choice((50, 500, TIMEOUT_MS + 500)))
        elif self._has_retried_end:  # The first request may still arrive during this transaction.
            yield Sleep(ms=TIMEOUT_MS - 500)
        yield from self._end(transaction, commit=is_whole and random.random() < 0.75)
        if random.random() < 0.3:  # The coordinator may still be writing markers.
            yield from self._check_offset()
        if not is_whole:
            yield from self._begin()  # The unknown outcome may leave a gap in the sequences.

    def _write_some(self, transaction: Transaction, partitions: Sequence[TopicPartition]) -> Step:
        """Write batches. Stop and return False after a batch whose outcome is unknown."""
        number = 0
        for partition in partitions:
            for _ in range(self._client.random.choice((1, 1, 2))):
                number += 1
                value = f"{transaction.name}:{number}".encode()
                if not (yield from self._write(transaction, partition, value)):
                    return False
        return True

    def _add_partitions(self, partitions: Sequence[TopicPartition]) -> Step:
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        addition = request(
            "add_partitions_to_txn",
            v3_and_below_transactional_id=self._history.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                {"name": name, "partitions": indexes} for name, indexes in topics.items()
            ],
        )
        _, code = yield from self._coordinator.call(
            addition,
            lambda response: (
                response.results_by_topic_v3_and_below[0]
                .results_by_partition[0]
                .partition_error_code
            ),
            again_on=CONCURRENT | {ErrorCode.unknown_topic_or_partition},
        )
        self._require("AddPartitionsToTxn", code)

    def _write(self, transaction: Transaction, partition: TopicPartition, value: bytes) -> Step:
        """Write one batch. Return False if its outcome is unknown."""
        sequence = self._sequences.get(partition, 0)
        batch = encode(
            [value],
            self._client.now_ms,
            producer=(self._producer_id, self._epoch, sequence),
            is_transactional=True,
        )
        writing = produce_request(
            partition,
            batch,
            transactional_id=self._history.transactional_id,
            is_v2=self._is_v2,
        )
        committed, is_rejected = self._checker.of(partition), True
        for _ in range(ATTEMPTS_MAX):
            leader = yield from self._client.await_leader(partition)
            partition_response = produced((yield Call(broker_id=leader.broker_id, request=writing)))
            code = (
                partition_response.error_code
                if partition_response is not None
                else ErrorCode.network_exception
            )
            if partition_response is not None and code is ErrorCode.none:
                committed.acknowledged(value, partition_response.base_offset, self._client.name)
                transaction.acknowledged.setdefault(partition, []).append(value)
                self._sequences[partition] = sequence + 1
                return True
            is_rejected = is_rejected and code not in MAY_BE_APPENDED
            if code not in RETRIABLE and code not in CONCURRENT:
                if is_rejected:
                    committed.rejected(value, code.name)
                self._require("Produce", code)
            yield Sleep(ms=self._client.random.randint(5, 60))
            yield from self._client.find_leaders(partition.topic)
        return False

    def _commit_offset(self, transaction: Transaction, offset: int) -> Step:
        """Commit the group's offset in the transaction."""
        history = self._history
        if not self._is_v2:
            _, code = yield from self._coordinator.call(
                request(
                    "add_offsets_to_txn",
                    transactional_id=history.transactional_id,
                    producer_id=self._producer_id,
                    producer_epoch=self._epoch,
                    group_id=history.transactional_id,
                ),
                again_on=CONCURRENT,
            )
            self._require("AddOffsetsToTxn", code)
        partition = self._partitions[0]
        history.offsets.append(_Offset(offset, transaction))
        _, code = yield from self._group.call(
            request(
                "txn_offset_commit",
                is_v2=self._is_v2,
                transactional_id=history.transactional_id,
                group_id=history.transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                generation_id=-1,
                member_id="",
                topics=[committed_offset(partition, offset)],
            ),
            lambda response: response.topics[0].partitions[0].error_code,
            again_on=CONCURRENT | {ErrorCode.unknown_topic_or_partition},
        )
        self._require("TxnOffsetCommit", code)

    def _end(self, transaction: Transaction, *, commit: bool) -> Step:
        transaction.may_commit = transaction.may_commit or commit
        ending = request(
            "end_txn",
            is_v2=self._is_v2,
            transactional_id=self._history.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=commit,
        )
        begun_ms = self._client.now_ms
        response, code = yield from self._coordinator.call(ending, again_on=CONCURRENT)
        self._has_retried_end = self._client.now_ms - begun_ms >= REQUEST_TIMEOUT_MS
        self._require("EndTxn", code)
        self._checker.transactions.record_response(
            transaction, Marker.COMMIT if commit else Marker.ABORT
        )
        if commit:
            self._history.committed(transaction)
        if self._is_v2:
            self._take_identity(response.producer_id, response.producer_epoch)

    def _check_offset(self) -> Step:
        """Fetch the group's stable offset and check that it is the last committed offset."""
        read: OffsetRead = yield from fetch_offset(
            self._group, self._checker, self._history.transactional_id, self._partitions[0]
        )
        if read.error_code is not ErrorCode.none:
            raise self._refused("OffsetFetch", read.error_code)
        self._history.check(read, self._client.name)
        return read

    def _require(self, what: str, code: ErrorCode) -> None:
        if code in FENCED:
            raise _FencedError
        if code is not ErrorCode.none:
            raise self._refused(what, code)

    def _refused(self, what: str, code: ErrorCode) -> InvariantViolationError:
        return InvariantViolationError(f"{self._client.name}: {what} failed with {code.name}")
