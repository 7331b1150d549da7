"""A test of random offset commits, inside and outside of transactions."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.group.offsets import TopicPartition
from broker_ref.log.control import Marker
from tests.broker_ref.group.coordinators import Coordinators

pytestmark = pytest.mark.slow

CONFIG = BrokerConfig(offsets_topic_num_partitions=1)
GROUPS, PARTITIONS, PRODUCERS = ("g", "h"), (0, 1), (7, 8)
groups = st.sampled_from(GROUPS)
partitions = st.sampled_from(PARTITIONS)
producers = st.sampled_from(PRODUCERS)

Place = tuple[str, int]


class TransactionalOffsetsMachine(RuleBasedStateMachine):
    """The model: each partition has a committed offset, and a pending offset for each producer.

    Each offset equals its record's offset in the log, so a larger offset is a later one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made = Coordinators(CONFIG)
        self.committed: dict[Place, int] = {}
        self.pending: dict[int, dict[Place, int]] = {producer: {} for producer in PRODUCERS}
        self.groups: set[str] = set()

    @property
    def _end_offset(self) -> int:
        return self.made.partition.log.log_end_offset

    @rule(group=groups, partition=partitions)
    def commit(self, group: str, partition: int) -> None:
        offset = self._end_offset
        assert self.made.commit(offset, group, partition).result is ErrorCode.none
        self.committed[group, partition] = offset
        self.groups.add(group)

    @rule(producer=producers, group=groups, chosen=st.sets(partitions, min_size=1))
    def commit_in_transaction(self, producer: int, group: str, chosen: set[int]) -> None:
        first = self._end_offset
        offsets = {partition: first + index for index, partition in enumerate(sorted(chosen))}
        reply = self.made.commit_in_transaction(offsets, group, producer_id=producer)
        assert reply.result is ErrorCode.none
        self.pending[producer] |= {(group, one): offset for one, offset in offsets.items()}
        self.groups.add(group)

    @rule(producer=producers, marker=st.sampled_from(Marker))
    def end(self, producer: int, marker: Marker) -> None:
        assert self.made.end(marker, producer_id=producer).result is ErrorCode.none
        ended, self.pending[producer] = self.pending[producer], {}
        if marker is Marker.COMMIT:
            for place, offset in ended.items():
                self.committed[place] = max(offset, self.committed.get(place, -1))

    @rule(group=groups, partition=partitions)
    def delete_offset(self, group: str, partition: int) -> None:
        if group in self.groups:
            key = TopicPartition(topic="t", partition=partition)
            codes, _ = self.made.groups.delete_offsets(group, [key], self.made.now_ms)
            assert codes == {key: ErrorCode.none}
            self._remove({(group, partition)})

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        known = group in self.groups
        expected = ErrorCode.none if known else ErrorCode.group_id_not_found
        assert self.made.groups.delete(group, self.made.now_ms).result is expected
        self._remove({(group, partition) for partition in PARTITIONS})
        self.groups.discard(group)

    @rule()
    def the_coordinator_moves(self) -> None:
        self.made.move()

    def _remove(self, places: set[Place]) -> None:
        for offsets in (self.committed, *self.pending.values()):
            for place in places:
                offsets.pop(place, None)

    @invariant()
    def readers_see_what_is_committed_and_what_is_open(self) -> None:
        for group in GROUPS:
            for partition in PARTITIONS:
                place = (group, partition)
                assert self.made.offset_of(*place) == self.committed.get(place)
                is_open = any(place in offsets for offsets in self.pending.values())
                assert self.made.is_pending(*place) == is_open

    @invariant()
    def groups_exist(self) -> None:
        assert {group.group_id for group in self.made.groups.groups()} == self.groups


TestTransactionalOffsetsMachine = TransactionalOffsetsMachine.TestCase
TestTransactionalOffsetsMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
