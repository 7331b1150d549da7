"""A test of random operations of producers against a model of Kafka's responses.

The model implements the rules of KIP-98, KIP-360 and KIP-890 a second time, for one transactional
id. Markers are sometimes held back, and the coordinator sometimes restarts. The highest epoch of a
producer id is 4 here, so that epochs are exhausted.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from broker_ref.faults import Match, Rule
from broker_ref.log import producer_state
from broker_ref.log.control import Marker
from broker_ref.transaction import request_validation, transitions
from tests.broker_ref.transaction.producers import WRITE_TXN_MARKERS, Producer, Producers

pytestmark = pytest.mark.slow

EPOCH_MAX = 4
LAST_EPOCH = EPOCH_MAX - 1
NONE = ErrorCode.none
CONCURRENT = ErrorCode.concurrent_transactions
FENCED = ErrorCode.producer_fenced
MAPPING = ErrorCode.invalid_producer_id_mapping
INVALID = ErrorCode.invalid_txn_state

NEW = -2
"""A producer id that the cluster has allocated and the model has not observed yet."""
NOBODY = -1

COMPLETE = {Marker.COMMIT: "CompleteCommit", Marker.ABORT: "CompleteAbort"}
PREPARE = {Marker.COMMIT: "PrepareCommit", Marker.ABORT: "PrepareAbort"}
TOPICS = ("t", "u")


@dataclass
class Model:
    """A model of the transactional id; each method returns the expected error code."""

    server_version: int
    state: str = ""
    id: int = NOBODY
    epoch: int = -1
    last_epoch: int = -1
    id_before: int = NOBODY
    next_id: int = NOBODY
    topics: set[str] = field(default_factory=set)
    markers: dict[str, list[tuple[Marker, int]]] = field(
        default_factory=lambda: {topic: [] for topic in TOPICS}
    )
    is_held: bool = False

    @property
    def current_producer(self) -> Producer:
        return (self.id, self.epoch) if self.next_id == NOBODY else (self.next_id, 0)

    @property
    def marker(self) -> Marker | None:
        return next((marker for marker in Marker if PREPARE[marker] == self.state), None)

    def start(self, expected: Producer | None) -> ErrorCode:  # noqa: PLR0911
        if self.marker is not None:
            return CONCURRENT
        if not self.state:
            self.id = self.id_before = NEW
            self.state, self.epoch = "Empty", 0
            return NONE
        if expected is not None and not self._may_continue(expected):
            return FENCED
        if self.state == "Ongoing":
            self._decide(Marker.ABORT, fences=True, version=self.server_version)
            return CONCURRENT
        expected_epoch = None if expected is None else expected[1]
        id_before, last_epoch = self.id, -1 if expected_epoch is None else self.epoch
        if self.epoch >= LAST_EPOCH:
            if expected_epoch not in (None, self.epoch):
                return ErrorCode.unknown_server_error
            self.id, self.epoch = NEW, 0
        elif expected_epoch in (None, self.epoch):
            self.epoch += 1
        elif expected_epoch == self.last_epoch:
            last_epoch = self.last_epoch
        else:
            return FENCED
        self.state, self.id_before, self.last_epoch = "Empty", id_before, last_epoch
        return NONE

    def _may_continue(self, expected: Producer) -> bool:
        exhausted = expected[0] == self.id_before and expected[1] >= LAST_EPOCH
        return expected[0] == self.id or exhausted

    def add(self, producer: Producer, topic: str) -> ErrorCode:
        if self.state and self.marker is not None:
            return CONCURRENT
        if not self.state or producer[0] != self.id:
            return MAPPING
        if producer[1] != self.epoch:
            return FENCED
        if self.state != "Ongoing" or topic not in self.topics:
            self.id_before = self.id
        self.state = "Ongoing"
        self.topics.add(topic)
        return NONE

    def end(  # noqa: PLR0911
        self, producer: Producer, marker: Marker, *, version: int
    ) -> ErrorCode:
        if self.state and version == 2 and self.marker is not None:
            return CONCURRENT
        rotated = version == 2 and (producer, self.epoch) == ((self.id_before, LAST_EPOCH), 0)
        if not self.state or (producer[0] != self.id and not rotated):
            return MAPPING
        is_complete = self.state in COMPLETE.values()
        again = version == 2 and is_complete and (rotated or producer[1] + 1 == self.epoch)
        if producer[1] != self.epoch and not again:
            return FENCED
        if self.marker is not None:
            return CONCURRENT
        if again or (version == 1 and is_complete):
            return NONE if self.state == COMPLETE[marker] else INVALID
        if self.state != "Ongoing" and (version == 1 or marker is Marker.COMMIT):
            return INVALID
        self._decide(marker, version=version)
        return NONE

    def _decide(self, marker: Marker, *, version: int, fences: bool = False) -> None:
        if version == 2:
            self.next_id = NEW if self.epoch >= LAST_EPOCH else NOBODY
            self.last_epoch = self.epoch
        elif fences:
            self.last_epoch = -1
        if version == 2 or fences:
            self.epoch = min(self.epoch + 1, EPOCH_MAX)
        self.state, self.id_before = PREPARE[marker], self.id
        if not self.is_held or not self.topics:
            self.complete()

    def complete(self) -> None:
        marker = self.marker
        if marker is None:
            return
        for topic in self.topics:
            self.markers[topic].append((marker, self.epoch))
        self.state, self.topics, self.id_before = COMPLETE[marker], set(), self.id
        if self.next_id != NOBODY:
            self.id, self.epoch, self.next_id = self.next_id, 0, NOBODY


identities = st.integers(0, 30)


class TransactionMachine(RuleBasedStateMachine):
    """One transactional id with all its current and former producers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        for module in (transitions, request_validation):
            self.patches.setattr(module, "LAST_PRODUCERS_EPOCH", LAST_EPOCH)
        for module in (transitions, producer_state):
            self.patches.setattr(module, "EPOCH_MAX", EPOCH_MAX)
        self.known: list[Producer] = []
        self.held: Rule | None = None

    def teardown(self) -> None:
        self.patches.undo()

    @initialize(server_version=st.sampled_from([1, 2]))
    def begin(self, server_version: int) -> None:
        self.made = Producers(transaction_version=server_version)
        self.model = Model(server_version=server_version)

    def _pick(self, number: int) -> Producer:
        """Return mostly the current producer, sometimes a former one."""
        if self.known and number % 4:
            return self.known[-1 - (number // 4) % min(len(self.known), 4)]
        return (number % 3, number % 5)

    def _resolve(self) -> None:
        """Let the pending markers arrive, and observe allocated producer ids."""
        if self.model.state in COMPLETE.values():
            self.made.wait_for(self.model.state)
        value = self.made.coordinator(1).value
        drawn = NEW in (self.model.id, self.model.next_id)
        if value is not None and drawn:
            ids = {producer_id for producer_id, _ in self.known}
            new_id = value.next_producer_id if self.model.next_id == NEW else value.producer_id
            assert all(new_id > producer_id for producer_id in ids)
            for name in ("id", "id_before", "next_id"):
                if getattr(self.model, name) == NEW:
                    setattr(self.model, name, new_id)

    def _compare(self, response: Any, expected: ErrorCode) -> None:
        self._resolve()
        assert response.error_code is expected
        if expected is NONE:
            current_producer = (response.producer_id, response.producer_epoch)
            assert current_producer == self.model.current_producer
            self.known.append(current_producer)

    @rule()
    def start(self) -> None:
        expected = self.model.start(None)
        self._compare(self.made.start(), expected)

    @rule(number=identities)
    def continue_transaction(self, number: int) -> None:
        producer = self._pick(number)
        expected = self.model.start(producer)
        self._compare(self.made.start(was=producer), expected)

    @rule(number=identities, topic=st.sampled_from(TOPICS))
    def add(self, number: int, topic: str) -> None:
        producer = self._pick(number)
        expected = self.model.add(producer, topic)
        assert self.made.add(producer, (topic, 0)) is expected

    @rule(number=identities, marker=st.sampled_from(Marker), version=st.sampled_from([1, 2]))
    def end(self, number: int, marker: Marker, version: int) -> None:
        producer = self._pick(number)
        expected = self.model.end(producer, marker, version=version)
        response = self.made.end(
            producer, commit=marker is Marker.COMMIT, version=5 if version == 2 else 4
        )
        if version == 2:
            self._compare(response, expected)
        else:
            self._resolve()
            assert response.error_code is expected

    @precondition(lambda self: self.held is None)
    @rule()
    def hold_markers(self) -> None:
        match = Match(api_keys=frozenset({WRITE_TXN_MARKERS}))
        self.held = self.made.cluster.faults.hold(match)
        self.model.is_held = True

    @precondition(lambda self: self.held is not None)
    @rule()
    def release_markers(self) -> None:
        assert self.held is not None
        self.held.remove()
        self.held, self.model.is_held = None, False
        self._finish()

    @rule()
    def coordinator_restarts(self) -> None:
        """Restart the coordinator, whose log does not contain the epoch that may be retried."""
        self.made.restart_all()
        self.made.generate_producer_id()  # The next block is allocated.
        self.model.last_epoch = -1
        self._finish()

    def _finish(self) -> None:
        if not self.model.is_held and self.model.marker is not None:
            self.model.complete()
            self._resolve()

    @precondition(lambda self: self.model.state == "Ongoing")
    @rule()
    def time_passes(self) -> None:
        self.made.cluster.advance(80_000)
        self.model._decide(Marker.ABORT, fences=True, version=self.model.server_version)
        self._resolve()

    @invariant()
    def the_coordinator_has_what_the_model_has(self) -> None:
        if not hasattr(self, "made"):
            return
        value = self.made.coordinator(1).value
        assert self.made.state == self.model.state
        if value is not None:
            assert (value.producer_id, value.producer_epoch) == (self.model.id, self.model.epoch)
            assert {key.topic for key in value.partitions} == self.model.topics

    @invariant()
    def partitions_have_the_expected_markers(self) -> None:
        if not hasattr(self, "made"):
            return
        for topic in TOPICS:
            written = [(marker, epoch) for marker, epoch, _ in self.made.markers(topic)]
            assert once(written) == once(self.model.markers[topic])


def once(markers: list[tuple[Marker, int]]) -> list[tuple[Marker, int]]:
    """Drop repeated markers, which a restarted coordinator sends again."""
    return [marker for marker, _ in itertools.groupby(markers)]


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
