"""Tests of the placement of replicas."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import Broker
from broker_ref.controller.replica_placement import place, random_below
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from integration.simulation.cluster import seeded_bytes


def broker(
    broker_id: int,
    rack: str | None = None,
    *,
    is_fenced: bool = False,
    in_controlled_shutdown: bool = False,
) -> Broker:
    return Broker(
        broker_id=broker_id,
        incarnation_id=Uuid(int=broker_id + 1),
        broker_epoch=0,
        host="h",
        port=1,
        rack=rack,
        is_fenced=is_fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )


def first(bound: int) -> int:
    del bound
    return 0


def test_stripes_of_kafkas_documentation() -> None:
    # Three racks A, B and C have three brokers each; every random offset is zero.
    brokers = [broker(rack * 10 + i, "ABC"[rack]) for rack in range(3) for i in range(3)]
    placed = place(brokers, count=3, replication_factor=3, draw=first)
    assert placed == [(0, 10, 20), (11, 21, 1), (22, 2, 12)]


def test_without_racks_each_partition_starts_one_broker_further() -> None:
    brokers = [broker(i) for i in (0, 4, 7)]
    placed = place(brokers, count=3, replication_factor=2, draw=first)
    assert placed == [(0, 4), (4, 7), (7, 0)]


def test_broker_in_controlled_shutdown_is_not_used() -> None:
    stopping = broker(3, in_controlled_shutdown=True)
    with pytest.raises(ApiError):
        place([broker(1), broker(2), stopping], count=1, replication_factor=3, draw=first)
    stopped = broker(3, is_fenced=True, in_controlled_shutdown=True)
    brokers = [broker(1), broker(2), stopped]
    assert place(brokers, count=1, replication_factor=3, draw=first) == [(1, 2, 3)]


def test_every_rack_has_a_replica() -> None:
    brokers = [broker(1, "A"), broker(2, "A"), broker(3, "A"), broker(4, "B")]
    draw = random_below(seeded_bytes())
    for replicas in place(brokers, count=50, replication_factor=2, draw=draw):
        assert 4 in replicas


@given(
    states=st.lists(
        st.tuples(st.sampled_from([None, "A", "B", "C"]), st.booleans()), min_size=1, max_size=9
    ),
    count=st.integers(1, 30),
    replication_factor=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_replicas_are_distinct_leaders_are_active_and_load_is_even(
    states: list[tuple[str | None, bool]], count: int, replication_factor: int, seed: int
) -> None:
    brokers = [broker(i, rack, is_fenced=fenced) for i, (rack, fenced) in enumerate(states)]
    unfenced = {b.broker_id for b in brokers if not b.is_fenced}
    draw = random_below(seeded_bytes(seed))

    def placed() -> list[tuple[int, ...]]:
        return place(brokers, count=count, replication_factor=replication_factor, draw=draw)

    if not unfenced or replication_factor > len(brokers):
        with pytest.raises(ApiError) as caught:
            placed()
        assert caught.value.error_code is ErrorCode.invalid_replication_factor
        return
    racks = {b.broker_id: b.rack for b in brokers}
    partitions = placed()
    assert len(partitions) == count
    for replicas in partitions:
        assert len(set(replicas)) == len(replicas) == replication_factor
        assert replicas[0] in unfenced
        used = {racks[replica] for replica in replicas}
        if len({rack for rack, fenced in states if not fenced}) == len({r for r, _ in states}):
            assert len(used) == min(replication_factor, len(set(racks.values())))
    if len(set(racks.values())) == 1 and len(unfenced) == len(brokers):
        loads = Counter(replicas[0] for replicas in partitions[: len(brokers)])
        assert max(loads.values()) == 1
