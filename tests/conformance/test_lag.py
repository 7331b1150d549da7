"""Tests of consumer lag, which is the log end offset minus the committed offset."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka

from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.groups import committed, fetch_offsets
from tests.conformance.subscribers import await_owned, await_taken, members
from tests.conformance.wire import LATEST, append, list_offset

TopicFactory = Callable[..., str]


def lag(raw: RawConnection, group: str, name: str, partition: int) -> int:
    ((offset, _, _),) = committed(raw, group, name, partition)
    return int(list_offset(raw, name, LATEST, partition=partition).offset) - offset


def test_lag_grows_with_records_and_shrinks_with_commits(
    raw: RawConnection, bootstrap: str, topic: TopicFactory, group: str
) -> None:
    name = topic(partitions=2)
    append(raw, name, batch(values("a", "b", "c")), partition=0)
    append(raw, name, batch(values("d")), partition=1)
    with members(bootstrap, group, name, 1) as (member,):
        await_owned([member], 0, 1)
        await_taken([member], 4)
        # The consumer has read records but not committed an offset.
        assert fetch_offsets(raw, group, None).topics == ()
        member.commit()
        assert [lag(raw, group, name, p) for p in (0, 1)] == [0, 0]
        append(raw, name, batch(values("e", "f")), partition=1)
        assert [lag(raw, group, name, p) for p in (0, 1)] == [0, 2]
        await_taken([member], 6)
        member.commit()
        assert [lag(raw, group, name, p) for p in (0, 1)] == [0, 0]
    # The lag is visible while the group has no members.
    append(raw, name, batch(values("g")), partition=0)
    assert [lag(raw, group, name, p) for p in (0, 1)] == [1, 0]


def test_other_clients_see_the_lag(
    raw: RawConnection, bootstrap: str, topic: TopicFactory, group: str
) -> None:
    name = topic()
    append(raw, name, batch(values("a", "b", "c")))
    with members(bootstrap, group, name, 1) as (member,):
        await_owned([member], 0)
        await_taken([member], 3)
        member.commit()
    append(raw, name, batch(values("d")))
    observer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group}
    )
    try:
        requested = confluent_kafka.TopicPartition(name, 0)
        (found,) = observer.committed([requested], timeout=30)
        _, high = observer.get_watermark_offsets(requested, timeout=30)
        assert high - found.offset == 1
    finally:
        observer.close()
