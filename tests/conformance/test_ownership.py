"""Tests of partition ownership: one owner per group, and independent groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.subscribers import await_owned, await_taken, members
from tests.conformance.wire import append

pytestmark = pytest.mark.slow

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
EAGER = {"partition.assignment.strategy": "range"}


@pytest.mark.parametrize("options", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def test_each_partition_has_one_owner_and_surplus_members_idle(
    bootstrap: str, topic: TopicFactory, group: str, options: dict[str, str]
) -> None:
    name = topic(partitions=2)
    with members(bootstrap, group, name, 3, **options) as joined:
        await_owned(joined, 0, 1)
        assert sorted(len(member.owned) for member in joined) == [0, 1, 1]


def test_every_record_is_consumed_by_one_member(
    raw: RawConnection, bootstrap: str, topic: TopicFactory, group: str
) -> None:
    name = topic(partitions=3)
    with members(bootstrap, group, name, 2) as joined:
        await_owned(joined, 0, 1, 2)
        for n in range(30):
            append(raw, name, batch(values(f"{n}")), partition=n % 3)
        await_taken(joined, 30)
        taken = sorted(int(m.value() or b"") for member in joined for m in member.taken)
        assert taken == list(range(30))
        assert all(member.taken for member in joined)


@pytest.mark.parametrize("options", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def test_partitions_of_a_leaving_member_are_reassigned(
    raw: RawConnection, bootstrap: str, topic: TopicFactory, group: str, options: dict[str, str]
) -> None:
    name = topic(partitions=2)
    with members(bootstrap, group, name, 2, **options) as joined:
        await_owned(joined, 0, 1)
        append(raw, name, batch(values("before")), partition=0)
        append(raw, name, batch(values("before")), partition=1)
        await_taken(joined, 2)
        for member in joined:
            member.commit()
        joined.pop().close()
        await_owned(joined, 0, 1)
        append(raw, name, batch(values("after")), partition=0)
        append(raw, name, batch(values("after")), partition=1)
        (stays,) = joined
        # The member does not read records that the other member has committed.
        await_taken([stays], 3)
        assert [m.value() for m in stays.taken] == [b"before", b"after", b"after"]


def test_independent_groups_consume_all_records(
    raw: RawConnection,
    bootstrap: str,
    topic: TopicFactory,
    group: str,
    unique_name: NameFactory,
) -> None:
    name, other = topic(), unique_name()
    append(raw, name, batch(values("a", "b")))
    with (
        members(bootstrap, group, name, 1) as (one,),
        members(bootstrap, other, name, 1) as (two,),
    ):
        for member in (one, two):
            await_taken([member], 2)
            assert [m.value() for m in member.taken] == [b"a", b"b"]
