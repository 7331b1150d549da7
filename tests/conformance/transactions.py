"""Transactional producers, request by request, as clients of both generations send them.

Purpose: a producer whose every field a test can choose. What ends in `_once` is sent once and its
answer returned, whatever it says; the others ask again while the coordinator is busy or moves, as
clients do, and must succeed. Invariant: batches have the producer id, epoch and sequence that the
coordinator's answers and earlier batches imply, unless the test says otherwise. What it must not
know: which cluster serves. Sources: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import ConnectionClosedByBrokerError, RawConnection
from tests.conformance.batches import TRANSACTIONAL, Record, batch
from tests.conformance.eventually import eventually
from tests.conformance.groups import find_coordinator
from tests.conformance.transaction_states import Description, describe_transaction
from tests.conformance.wire import describe_topics, only, produce

TRANSACTION = 1
"""The key type of transactional ids in FindCoordinator."""
TIMEOUT_MS = 60_000
NOBODY = -1
_MOVING = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    }
)
BUSY = _MOVING | {ErrorCode.concurrent_transactions}
"""What clients take as `ask again`."""
_PRODUCE_AGAIN = BUSY | {
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.network_exception,
    ErrorCode.request_timed_out,
}
_ATTEMPT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The versions that a client speaks, for each request of a transaction."""

    init_producer_id: int
    add_partitions_to_txn: int
    produce: int
    add_offsets_to_txn: int
    txn_offset_commit: int
    end_txn: int

    @property
    def adds_implicitly(self) -> bool:
        """Whether Produce and TxnOffsetCommit add their partition to the transaction (KIP-890)."""
        return self.produce >= 12

    @property
    def bumps_epoch(self) -> bool:
        """Whether every EndTxn begins an epoch (KIP-890)."""
        return self.end_txn >= 5


VERSION_1 = Generation(
    init_producer_id=4,
    add_partitions_to_txn=3,
    produce=11,
    add_offsets_to_txn=3,
    txn_offset_commit=4,
    end_txn=4,
)
VERSION_2 = Generation(
    init_producer_id=5,
    add_partitions_to_txn=3,
    produce=12,
    add_offsets_to_txn=4,
    txn_offset_commit=5,
    end_txn=5,
)


class Brokers(Protocol):
    """Where to send requests; `tests.conformance.nodes.Nodes` is one."""

    def to(self, broker_id: int) -> RawConnection:
        """The connection of this test to a broker."""

    def any(self) -> RawConnection:
        """The connection to some broker that runs."""


class Connections:
    """A connection to each broker of a cluster that nobody ends; use it as a context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[int, RawConnection] = {}
        self._closing = ExitStack()

    def to(self, broker_id: int) -> RawConnection:
        """The connection to a broker."""
        if broker_id not in self._open:
            made = RawConnection(self._cluster.address(broker_id))
            self._open[broker_id] = self._closing.enter_context(made)
        return self._open[broker_id]

    def any(self) -> RawConnection:
        """The connection to the first broker."""
        return self.to(self._cluster.broker_ids[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.close()


def coordinator_id(raw: RawConnection, transactional_id: str) -> int:
    """The broker that FindCoordinator names; -1 for none."""
    found = find_coordinator(raw, transactional_id, key_type=TRANSACTION).coordinators
    return int(only(found).node_id)


def retried(
    attempt: Callable[[], Any],
    again: frozenset[ErrorCode] = BUSY,
    *,
    timeout_s: float = _ATTEMPT_TIMEOUT_S,
) -> Any:
    """The first answer whose `error_code` is none of `again`; connections that end count as such.

    An answer may be an `ErrorCode` itself.
    """
    answers: list[Any] = []

    def answered() -> bool:
        with suppress(OSError, ConnectionClosedByBrokerError):
            answers[:] = [attempt()]
            return code_of(answers[0]) not in again
        return False

    try:
        eventually(answered, timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}: the last answer is {answers}") from None
    return answers[0]


def code_of(answer: Any) -> ErrorCode:
    """The error code of an answer."""
    code = answer if isinstance(answer, ErrorCode) else answer.error_code
    assert isinstance(code, ErrorCode)
    return code


class TransactionalProducer:
    """One instance of a transactional id; another instance may have the same id."""

    def __init__(
        self,
        brokers: Brokers,
        transactional_id: str,
        generation: Generation,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self.brokers = brokers
        self.transactional_id = transactional_id
        self.generation = generation
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int] | str] = set()

    # Where to.

    def coordinator(self) -> RawConnection:
        """The connection to the coordinator, asked for anew each time; `OSError` for none."""
        return self._to(coordinator_id(self.brokers.any(), self.transactional_id))

    def leader(self, topic: str, partition: int = 0) -> RawConnection:
        """The connection to the partition's leader, asked for anew; `OSError` for none."""
        found = only(describe_topics(self.brokers.any(), topic).topics)
        by_index = {p.partition_index: p.leader_id for p in found.partitions}
        return self._to(by_index.get(partition, NOBODY))

    def _to(self, broker_id: int) -> RawConnection:
        if broker_id == NOBODY:
            raise OSError("nobody leads, for now")
        return self.brokers.to(broker_id)

    # InitProducerId.

    def init_once(self, *, version: int | None = None, **fields: Any) -> Any:
        """One InitProducerId; `fields` replace those of the request."""
        asked: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": self.timeout_ms,
        }
        used = self.generation.init_producer_id if version is None else version
        return self.coordinator().call("init_producer_id", used, **(asked | fields))

    def init(self, *, version: int | None = None, **fields: Any) -> Self:
        """InitProducerId until it is answered, which must be without an error."""
        answer = retried(lambda: self.init_once(version=version, **fields))
        assert answer.error_code == ErrorCode.none, answer
        self.adopt(answer)
        return self

    def adopt(self, answer: Any) -> None:
        """Go on with the producer id and epoch of an answer."""
        self.set_identity(int(answer.producer_id), int(answer.producer_epoch))

    def set_identity(self, producer_id: int, epoch: int) -> None:
        """Go on with this producer id and epoch: sequences begin anew where either is another."""
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences = {}
        self.producer_id, self.epoch = producer_id, epoch
        self._added = set()

    # AddPartitionsToTxn.

    def add_once(
        self,
        topic: str,
        *partitions: int,
        version: int | None = None,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> list[ErrorCode]:
        """One AddPartitionsToTxn; the codes of these partitions (of partition 0)."""
        used = self.generation.add_partitions_to_txn if version is None else version
        fields: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id if producer_id is None else producer_id,
            "producer_epoch": self.epoch if epoch is None else epoch,
            "topics": [{"name": topic, "partitions": list(partitions or (0,))}],
        }
        connection = self.coordinator()
        if used >= 4:
            answer = connection.call("add_partitions_to_txn", used, transactions=[fields])
            topics = only(answer.results_by_transaction).topic_results
        else:
            old = {f"v3_and_below_{name}": value for name, value in fields.items()}
            answer = connection.call("add_partitions_to_txn", used, **old)
            topics = answer.results_by_topic_v3_and_below
        found = {
            p.partition_index: p.partition_error_code for p in only(topics).results_by_partition
        }
        return [found[partition] for partition in partitions or (0,)]

    def add(self, topic: str, *partitions: int) -> None:
        """AddPartitionsToTxn until the partitions are added."""
        code = retried(lambda: _worst(self.add_once(topic, *partitions)))
        assert code == ErrorCode.none, code
        self._added |= {(topic, partition) for partition in partitions or (0,)}

    # Produce.

    def batch(
        self,
        *texts: str,
        sequence: int,
        epoch: int | None = None,
        is_transactional: bool = True,
        key: str = "key",
    ) -> bytes:
        """A batch of these values, with timestamps of now: a partition forgets old producers."""
        now_ms = int(time.time() * 1000)
        return batch(
            [Record(key=key.encode(), value=t.encode(), timestamp_ms=now_ms) for t in texts],
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL if is_transactional else 0,
        )

    def produce_once(
        self,
        topic: str,
        *texts: str,
        partition: int = 0,
        sequence: int | None = None,
        epoch: int | None = None,
        version: int | None = None,
        is_transactional: bool = True,
        key: str = "key",
    ) -> Any:
        """One Produce of one batch, adding nothing; an accepted one moves the sequence on."""
        at = (topic, partition)
        first = self.sequences.get(at, 0) if sequence is None else sequence
        data = self.batch(
            *texts, sequence=first, epoch=epoch, is_transactional=is_transactional, key=key
        )
        answer = self.send_once(topic, data, partition=partition, version=version)
        if answer.error_code == ErrorCode.none:
            self.sequences[at] = first + len(texts)
        return answer

    def send_once(
        self, topic: str, records: bytes, *, partition: int = 0, version: int | None = None
    ) -> Any:
        """One Produce of any bytes, in the name of this transactional id."""
        return produce(
            self.leader(topic, partition),
            topic,
            records,
            partition=partition,
            version=self.generation.produce if version is None else version,
            transactional_id=self.transactional_id,
        )

    def write(self, topic: str, *texts: str, partition: int = 0, key: str = "key") -> int:
        """Produce in the transaction, as clients of the generation do; the base offset."""
        if not self.generation.adds_implicitly and (topic, partition) not in self._added:
            self.add(topic, partition)
        answer = retried(
            lambda: self.produce_once(topic, *texts, partition=partition, key=key), _PRODUCE_AGAIN
        )
        assert answer.error_code == ErrorCode.none, answer
        return int(answer.base_offset)

    # AddOffsetsToTxn and TxnOffsetCommit.

    def add_offsets_once(
        self,
        group: str,
        *,
        version: int | None = None,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> ErrorCode:
        """One AddOffsetsToTxn."""
        return code_of(
            self.coordinator().call(
                "add_offsets_to_txn",
                self.generation.add_offsets_to_txn if version is None else version,
                transactional_id=self.transactional_id,
                producer_id=self.producer_id if producer_id is None else producer_id,
                producer_epoch=self.epoch if epoch is None else epoch,
                group_id=group,
            )
        )

    def add_offsets(self, group: str) -> None:
        """AddOffsetsToTxn until the group is added."""
        code = retried(lambda: self.add_offsets_once(group))
        assert code == ErrorCode.none, code
        self._added.add(group)

    def commit_offsets_once(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        version: int | None = None,
        producer_id: int | None = None,
        epoch: int | None = None,
        metadata: str | None = "",
        **member: Any,
    ) -> list[ErrorCode]:
        """One TxnOffsetCommit of a topic's partitions, adding nothing; their codes in order.

        `member` is generation_id, member_id and group_instance_id, from version 3 on.
        """
        found = only(find_coordinator(self.brokers.any(), group).coordinators).node_id
        answer = self.brokers.to(found).call(
            "txn_offset_commit",
            self.generation.txn_offset_commit if version is None else version,
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": p,
                            "committed_offset": o,
                            "committed_metadata": metadata,
                        }
                        for p, o in offsets.items()
                    ],
                }
            ],
            **member,
        )
        by_index = {p.partition_index: p.error_code for p in only(answer.topics).partitions}
        return [by_index[partition] for partition in offsets]

    def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], **member: Any
    ) -> None:
        """Send offsets to the transaction, as clients of the generation do."""
        if not self.generation.adds_implicitly and group not in self._added:
            self.add_offsets(group)
        code = retried(
            lambda: _worst(self.commit_offsets_once(group, topic, offsets, **member)),
            _PRODUCE_AGAIN,
        )
        assert code == ErrorCode.none, code

    # EndTxn.

    def end_once(
        self,
        *,
        commit: bool,
        version: int | None = None,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> Any:
        """One EndTxn."""
        return self.coordinator().call(
            "end_txn",
            self.generation.end_txn if version is None else version,
            transactional_id=self.transactional_id,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=commit,
        )

    def end(self, *, commit: bool) -> None:
        """EndTxn until it is answered, which must be without an error; go on with its epoch."""
        answer = retried(lambda: self.end_once(commit=commit))
        assert answer.error_code == ErrorCode.none, answer
        self._added = set()
        if self.generation.bumps_epoch:
            self.adopt(answer)

    def commit(self) -> None:
        """End the transaction; its records become visible a moment later."""
        self.end(commit=True)

    def abort(self) -> None:
        """Abort the transaction."""
        self.end(commit=False)

    # What the coordinator knows.

    def describe(self) -> Description:
        """The coordinator's DescribeTransactions of this transactional id."""
        return describe_transaction(self.coordinator(), self.transactional_id)

    def await_state(self, *states: str) -> Description:
        """Return the description once the transaction is in one of these states."""
        found: list[Description] = []

        def so() -> bool:
            found[:] = [retried(self.describe)]
            return found[0].state in states

        try:
            eventually(so)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.transactional_id} stays {found}") from None
        return found[0]

    def await_complete(self) -> None:
        """Return once every partition has its marker and the coordinator has written that."""
        self.await_state("CompleteCommit", "CompleteAbort")


def _worst(codes: list[ErrorCode]) -> ErrorCode:
    return next((code for code in codes if code != ErrorCode.none), ErrorCode.none)
