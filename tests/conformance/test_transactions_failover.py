"""Tests of transactions during broker failures.

Ended transactions are kept, and open transactions stay invisible. Brokers are processes, which the
tests `kill -9` unless a test states otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.groups import committed, fetch_offsets, find_coordinator
from tests.conformance.isolation import (
    ABORT,
    COMMIT,
    await_read,
    await_stable,
    last_stable_offset,
    markers,
    read,
)
from tests.conformance.nodes import BROKERS, RACKS, SETTINGS, Nodes
from tests.conformance.transactions import (
    Generation,
    TransactionalProducer,
    code_of,
    coordinator_id,
    retried,
)
from tests.conformance.wire import READ_COMMITTED, append, fetch, only

pytestmark = pytest.mark.slow

NameFactory = Callable[[], str]
NONE = ErrorCode.none
TWO = {"min.insync.replicas": "2"}


@pytest.fixture
def three_brokers(
    clusters_of_processes: Callable[..., Cluster], transaction_version: int
) -> Cluster:
    return clusters_of_processes(
        transaction_version=transaction_version, brokers=3, racks=RACKS, configs=SETTINGS
    )


@pytest.fixture
def begin(
    nodes: Nodes, generation: Generation, unique_name: NameFactory
) -> Callable[..., TransactionalProducer]:
    """Create producers whose coordinator is one of these brokers."""

    def make(*coordinators: int) -> TransactionalProducer:
        while True:
            name = unique_name()
            coordinator_id(nodes.any(), name)
            eventually(lambda n=name: coordinator_id(nodes.any(), n) in BROKERS)  # type: ignore[misc]
            if coordinator_id(nodes.any(), name) in (coordinators or BROKERS):
                return TransactionalProducer(nodes, name, generation).init()

    return make


def await_other_coordinator(nodes: Nodes, transactional_id: str, gone: int) -> int:
    """Return the coordinator of the transactional id, once it is not `gone`."""
    eventually(
        lambda: coordinator_id(nodes.any(), transactional_id) not in (gone, -1), timeout_s=60
    )
    return coordinator_id(nodes.any(), transactional_id)


# Failures of the transaction coordinator.


def test_next_coordinator_completes_prepared_transactions(
    nodes: Nodes,
    unique_name: NameFactory,
    begin: Callable[..., TransactionalProducer],
    commit: bool,
) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], [2, 3, 1], **TWO)
    producer = begin()
    producer.write(name, "a", partition=0)
    producer.write(name, "b", partition=1)
    before = producer.describe()
    gone = coordinator_id(nodes.any(), producer.transactional_id)
    nodes.kill(gone)
    await_other_coordinator(nodes, producer.transactional_id, gone)
    after = retried(producer.describe)
    assert after == before
    producer.end(commit=commit)
    producer.await_complete()
    for partition, value in ((0, "a"), (1, "b")):
        leader = producer.leader(name, partition)
        await_read(leader, name, *([value] if commit else []), partition=partition)
        found = [m.kind for m in markers(leader, name, partition=partition)]
        assert found == [COMMIT if commit else ABORT]


@pytest.mark.full
def test_epochs_continue_with_the_next_coordinator(
    nodes: Nodes, unique_name: NameFactory, begin: Callable[..., TransactionalProducer]
) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], **TWO)
    old = begin()
    old.write(name, "a")
    old.commit()
    old.await_complete()
    gone = coordinator_id(nodes.any(), old.transactional_id)
    nodes.stop(gone)
    await_other_coordinator(nodes, old.transactional_id, gone)
    new = TransactionalProducer(nodes, old.transactional_id, old.generation).init()
    assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 1)
    assert code_of(retried(lambda: old.end_once(commit=True))) == ErrorCode.producer_fenced
    nodes.start(gone)


@pytest.mark.full
def test_restarted_coordinator_does_not_use_its_old_state(
    nodes: Nodes, unique_name: NameFactory, begin: Callable[..., TransactionalProducer]
) -> None:
    """The restarted coordinator does not use state that it had in memory before the restart."""
    name = nodes.create(unique_name(), [1, 2, 3], **TWO)
    producer = begin()
    first = coordinator_id(nodes.any(), producer.transactional_id)
    nodes.stop(first)
    second = await_other_coordinator(nodes, producer.transactional_id, first)
    producer.write(name, "a")
    nodes.start(first)
    response = nodes.to(first).call(
        "end_txn",
        4,
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=False,
    )
    assert code_of(response) == ErrorCode.not_coordinator
    assert coordinator_id(nodes.to(first), producer.transactional_id) == second
    producer.commit()
    await_read(producer.leader(name), name, "a")


# Failures of a partition leader.


@pytest.mark.full
def test_leader_is_killed_before_the_marker(
    nodes: Nodes,
    unique_name: NameFactory,
    begin: Callable[..., TransactionalProducer],
    commit: bool,
) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], **TWO)
    producer = begin(2, 3)
    producer.write(name, "a")
    nodes.kill(1)
    # The failure is not detected yet, so the marker reaches the next leader.
    producer.end(commit=commit)
    producer.await_complete()
    leader = nodes.to(nodes.await_leader(name, 2, 3).leader)
    await_stable(leader, name, 2)
    assert read(leader, name) == (["a"] if commit else [])
    assert [m.kind for m in markers(leader, name)] == [COMMIT if commit else ABORT]


@pytest.mark.full
def test_leader_is_killed_after_the_marker(
    nodes: Nodes, unique_name: NameFactory, begin: Callable[..., TransactionalProducer]
) -> None:
    """The next leader has the same transactions, aborted transaction index and producer state."""
    name = nodes.create(unique_name(), [1, 2, 3], **TWO)
    producer, other = begin(2, 3), begin(2, 3)
    for number in range(6):
        producer.write(name, f"{number}")
        producer.end(commit=number % 2 == 1)
    other.write(name, "open")
    producer.await_complete()
    nodes.kill(1)
    leader = nodes.to(nodes.await_leader(name, 2, 3).leader)
    await_stable(leader, name, 12)
    assert read(leader, name) == ["1", "3", "5"]
    response = fetch(leader, name, isolation_level=READ_COMMITTED)
    assert sorted(a.first_offset for a in response.aborted_transactions) == [0, 4, 8]
    # Open transactions stay open, and their producers continue.
    append(leader, name, batch(values("plain")))
    assert last_stable_offset(leader, name) == 12
    other.write(name, "open still")
    other.commit()
    await_read(leader, name, "1", "3", "5", "open", "plain", "open still")


@pytest.mark.full
def test_retry_to_the_next_leader_is_written_once(
    nodes: Nodes, unique_name: NameFactory, begin: Callable[..., TransactionalProducer]
) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], **TWO)
    producer = begin(2, 3)
    producer.write(name, "a", "b")
    nodes.kill(1)
    leader = nodes.to(nodes.await_leader(name, 2, 3).leader)
    again = producer.produce_once(name, "a", "b", sequence=0)
    assert (again.error_code, again.base_offset) == (NONE, 0)
    gap = producer.produce_once(name, "d", sequence=3)
    assert gap.error_code == ErrorCode.out_of_order_sequence_number
    producer.commit()
    await_read(leader, name, "a", "b")


# Failures of the group coordinator.


@pytest.mark.full
def test_pending_offsets_survive_the_groups_coordinator(
    nodes: Nodes, unique_name: NameFactory, begin: Callable[..., TransactionalProducer]
) -> None:
    name, group = nodes.create(unique_name(), [1, 2, 3]), unique_name()
    gone = int(only(find_coordinator(nodes.any(), group).coordinators).node_id)
    kept, dropped = begin(*set(BROKERS) - {gone}), begin(*set(BROKERS) - {gone})
    kept.commit_offsets(group, name, {0: 5})
    dropped.commit_offsets(group, name, {0: 7})
    nodes.kill(gone)

    def coordinator() -> int:
        return int(only(find_coordinator(nodes.any(), group).coordinators).node_id)

    eventually(lambda: coordinator() not in (gone, -1), timeout_s=60)
    raw = nodes.to(coordinator())
    eventually(lambda: fetch_offsets(raw, group, {name: [0]}).error_code == NONE)
    requested = [{"group_id": group, "topics": [{"name": name, "partition_indexes": [0]}]}]

    def stable() -> tuple[int, ErrorCode]:
        response = raw.call("offset_fetch", 9, groups=requested, require_stable=True)
        found = only(only(only(response.groups).topics).partitions)
        return found.committed_offset, found.error_code

    eventually(lambda: stable() == (-1, ErrorCode.unstable_offset_commit))
    dropped.abort()
    dropped.await_complete()
    assert stable() == (-1, ErrorCode.unstable_offset_commit)
    kept.commit()
    kept.await_complete()
    eventually(lambda: stable() == (5, NONE))
    assert committed(raw, group, name)[0][0] == 5


# Failures of all brokers.


@pytest.mark.full
def test_transactions_survive_a_restart_of_all_brokers(
    nodes: Nodes,
    unique_name: NameFactory,
    begin: Callable[..., TransactionalProducer],
    transaction_version: int,
) -> None:
    """The brokers restore the state from the log, or from the snapshot of a clean shutdown."""
    end = Nodes.stop if transaction_version == 1 else Nodes.kill
    name, group = nodes.create(unique_name(), [1, 2, 3]), unique_name()
    decided, undecided = begin(), begin()
    for number in range(4):
        decided.write(name, f"{number}")
        decided.commit_offsets(group, name, {0: number})
        decided.end(commit=number % 2 == 0)
        decided.await_complete()
    undecided.write(name, "open")
    undecided.commit_offsets(group, name, {0: 9})
    before = undecided.describe()
    for broker_id in BROKERS:
        end(nodes, broker_id)
    for broker_id in BROKERS:
        nodes.start(broker_id)
    leader = nodes.to(nodes.await_leader(name, *BROKERS).leader)
    await_stable(leader, name, 8)
    assert read(leader, name) == ["0", "2"]
    assert retried(undecided.describe) == before
    undecided.commit()
    await_read(leader, name, "0", "2", "open")
    found = only(find_coordinator(nodes.any(), group).coordinators).node_id
    eventually(lambda: committed(nodes.to(found), group, name)[0][0] == 9)
