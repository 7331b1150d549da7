"""Clients that write in transactions.

Purpose: transactional producers, which write to partitions, commit offsets of a group, and commit,
abort or abandon. The process dies at times, and another one with the same id takes over, sometimes
while the first still runs. Both client generations (KIP-890) exist: `transaction.version` 1 adds
partitions first; 2 does not, and gets a new epoch with every end. Checked invariants: which
responses are allowed; group offsets are those of committed transactions. What it must not know:
markers, and the actual coordinator. Source: Kafka's `TransactionManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.log.control import Marker
from integration.simulation.client import Ask, Client, Pause, Script, Step, TopicPartition
from integration.simulation.coordinators import GROUP, TRANSACTION, Coordinator
from integration.simulation.grouping import committed_offset, offset_fetch
from integration.simulation.invariants import InvariantViolationError, Transaction, Watch
from integration.simulation.messages import request
from integration.simulation.producing import RETRIABLE, encode, produce_request, produced

TIMEOUT_MS: Final = 2_500
CONCURRENT: Final = frozenset({ErrorCode.concurrent_transactions})
TRIES_MAX: Final = 25

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
"""Error codes after which another producer has taken over or the transaction has timed out.

A sequence is out of order if the previous transaction was aborted meanwhile.
"""


class _FencedError(Exception):
    """The producer's id and epoch are no longer valid."""


@dataclass(slots=True)
class _Offset:
    """A group offset that a transaction commits."""

    offset: int
    transaction: Transaction


@dataclass(slots=True)
class Account:
    """The transactions of all processes with one transactional id."""

    transactional_id: str
    offsets: list[_Offset] = field(default_factory=list)
    transactions: int = 0

    def check(self, offset: int, seen: int, who: str) -> None:
        """Check that a group offset is that of a possibly committed transaction, not
        before `seen`.
        """
        if offset == -1 and seen == -1:
            return
        found = next((each for each in self.offsets if each.offset == offset), None)
        if found is None or offset < seen or found.transaction.outcome is Marker.ABORT:
            raise InvariantViolationError(
                f"group {self.transactional_id}: {who} received offset {offset} "
                f"({found.transaction if found is not None else 'of no transaction'}), but at "
                f"least {seen} is committed"
            )

    @property
    def least_offset(self) -> int:
        """Return the lower bound of the group offset, from the coordinator's responses."""
        committed = [
            each.offset for each in self.offsets if each.transaction.response is Marker.COMMIT
        ]
        return max(committed, default=-1)


class TransactionalProducer:
    """One process with a transactional id."""

    def __init__(
        self,
        client: Client,
        watch: Watch,
        account: Account,
        *,
        partitions: Sequence[TopicPartition],
        version: int,
        pace_ms: int,
        until_ms: int,
        start_successor: Callable[[], None],
    ) -> None:
        """`start_successor` starts the process that takes the id over."""
        self.is_done = False
        self._client = client
        self._watch = watch
        self._account = account
        self._partitions = tuple(partitions)
        self._is_v2 = version >= 2
        self._pace_ms = pace_ms
        self._until_ms = until_ms
        self._succeed = start_successor
        self._coordinator = Coordinator(client, account.transactional_id, TRANSACTION)
        self._group = Coordinator(client, account.transactional_id, GROUP)
        self._producer_id = self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._has_succeeded = False
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
            yield Pause(ms=random.randint(1, 2 * self._pace_ms))
        if not self._has_succeeded:
            yield from self._finish()
        self.is_done = True

    def _hand_over(self) -> None:
        if not self._has_succeeded:
            self._has_succeeded = True
            self.is_done = True
            self._succeed()

    def _finish(self) -> Step:
        """Check the group offset after the last process's transaction has ended."""
        yield from self._begin()
        offset = yield from self._check_offset()
        for each in self._account.offsets:
            if each.transaction.outcome is Marker.COMMIT and each.offset > offset:
                raise InvariantViolationError(
                    f"group {self._account.transactional_id} has offset {offset}, but "
                    f"{each.transaction.name}, which set {each.offset}, is committed"
                )

    # The steps of a transaction

    def _begin(self) -> Step:
        """Initialize the producer id, which aborts an open transaction."""
        beginning = request(
            "init_producer_id",
            transactional_id=self._account.transactional_id,
            transaction_timeout=TIMEOUT_MS,
        )
        response, code = yield from self._coordinator.ask(beginning, again_on=CONCURRENT)
        if code is not ErrorCode.none:
            raise self._refused("InitProducerId", code)
        self._take_identity(response.producer_id, response.producer_epoch)

    def _take_identity(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._sequences.clear()
        self._producer_id, self._epoch = producer_id, epoch

    def _transact(self) -> Step:
        random = self._client.random
        account = self._account
        account.transactions += 1
        name = f"{account.transactional_id}.{account.transactions}"
        transaction = self._watch.transactions.begin(name)
        count = random.randint(1, len(self._partitions))
        partitions = random.sample(self._partitions, count)
        if not self._is_v2:
            yield from self._add_partitions(partitions)
        is_whole = yield from self._write_some(transaction, partitions)
        if random.random() < 0.5:
            yield from self._commit_offset(transaction, account.transactions)
        if random.random() < 0.1:  # Abandon it: the coordinator or the next process aborts it.
            raise _FencedError
        if random.random() < 0.2:
            yield Pause(ms=random.choice((50, 500, TIMEOUT_MS + 500)))
        yield from self._end(transaction, commit=is_whole and random.random() < 0.75)
        if random.random() < 0.3:  # Markers are being written.
            yield from self._check_offset()
        if not is_whole:
            yield from self._begin()  # A sequence may be missing.

    def _write_some(self, transaction: Transaction, partitions: Sequence[TopicPartition]) -> Step:
        """Write batches; return False after a batch with unknown outcome, since none
        may follow it.
        """
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
            v3_and_below_transactional_id=self._account.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                {"name": name, "partitions": indexes} for name, indexes in topics.items()
            ],
        )
        _, code = yield from self._coordinator.ask(
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
        """Write one batch; return False if the outcome is unknown."""
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
            transactional_id=self._account.transactional_id,
            is_v2=self._is_v2,
        )
        for _ in range(TRIES_MAX):
            leader = yield from self._client.await_leader(partition)
            answer = produced((yield Ask(broker_id=leader.broker_id, request=writing)))
            code = answer.error_code if answer is not None else ErrorCode.network_exception
            if answer is not None and code is ErrorCode.none:
                committed = self._watch.of(partition)
                committed.acknowledged(value, answer.base_offset, self._client.name)
                transaction.acknowledged.setdefault(partition, []).append(value)
                self._sequences[partition] = sequence + 1
                return True
            if code not in RETRIABLE and code not in CONCURRENT:
                self._require("Produce", code)
            yield Pause(ms=self._client.random.randint(5, 60))
            yield from self._client.find_leaders(partition.topic)
        return False

    def _commit_offset(self, transaction: Transaction, offset: int) -> Step:
        """Commit the group's offset in the transaction."""
        account = self._account
        if not self._is_v2:
            _, code = yield from self._coordinator.ask(
                request(
                    "add_offsets_to_txn",
                    transactional_id=account.transactional_id,
                    producer_id=self._producer_id,
                    producer_epoch=self._epoch,
                    group_id=account.transactional_id,
                ),
                again_on=CONCURRENT,
            )
            self._require("AddOffsetsToTxn", code)
        partition = self._partitions[0]
        account.offsets.append(_Offset(offset, transaction))
        _, code = yield from self._group.ask(
            request(
                "txn_offset_commit",
                is_v2=self._is_v2,
                transactional_id=account.transactional_id,
                group_id=account.transactional_id,
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
            transactional_id=self._account.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=commit,
        )
        response, code = yield from self._coordinator.ask(ending, again_on=CONCURRENT)
        self._require("EndTxn", code)
        self._watch.transactions.record_response(
            transaction, Marker.COMMIT if commit else Marker.ABORT
        )
        if self._is_v2:
            self._take_identity(response.producer_id, response.producer_epoch)

    def _check_offset(self) -> Step:
        """Check the group's offset, which is that of the last committed transaction."""
        seen = self._account.least_offset
        offset = yield from self._fetch_offset()
        self._account.check(offset, seen, self._client.name)
        return offset

    def _fetch_offset(self) -> Step:
        """Return the group's stable offset."""
        partition = self._partitions[0]
        response, code = yield from self._group.ask(
            offset_fetch(self._account.transactional_id, partition),
            lambda response: response.error_code or response.topics[0].partitions[0].error_code,
            again_on=frozenset({ErrorCode.unstable_offset_commit}),
        )
        if code is not ErrorCode.none:
            raise self._refused("OffsetFetch", code)
        return response.topics[0].partitions[0].committed_offset

    def _require(self, what: str, code: ErrorCode) -> None:
        if code in FENCED:
            raise _FencedError
        if code is not ErrorCode.none:
            raise self._refused(what, code)

    def _refused(self, what: str, code: ErrorCode) -> InvariantViolationError:
        return InvariantViolationError(f"{self._client.name}: {what} failed with {code.name}")
