"""Tests of crashes between the steps of EndTxn (KIP-98).

The coordinator writes PREPARE, then a marker into each partition, then COMPLETE. A prepared
transaction completes with the outcome that PREPARE contains. Proxies in front of the brokers hold
requests between two steps while the test kills a broker (`kill -9`). The brokers are therefore
always processes, regardless of the cluster of the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.faults.links import ProxiedLinks, is_follower
from integration.faults.rules import Rule, of_api
from integration.raw import ConnectionClosedByBrokerError, RawConnection, request
from tests.conformance.eventually import eventually
from tests.conformance.groups import find_coordinator
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
    BUSY,
    Generation,
    TransactionalProducer,
    coordinator_id,
    retried,
)
from tests.conformance.wire import READ_COMMITTED, describe_topics, fetch, only
from tests.conftest import open_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.sampled,
    pytest.mark.timeout(300),
]

NameFactory = Callable[[], str]
NONE = ErrorCode.none
OF_MARKERS = of_api("write_txn_markers")
STATE_TOPIC = "__transaction_state"
OBSERVATION_S = 0.3
"""How long a test waits to check that nothing happens."""


class Steps:
    """Three brokers behind proxies, and a transaction whose end is held between two steps."""

    def __init__(
        self, nodes: Nodes, links: ProxiedLinks, generation: Generation, names: NameFactory
    ) -> None:
        self.nodes = nodes
        self.links = links
        self.producer = TransactionalProducer(nodes, names(), generation).init()
        self.coordinator = coordinator_id(nodes.any(), self.producer.transactional_id)
        states = only(describe_topics(nodes.any(), STATE_TOPIC).topics).partitions
        assert all(set(p.replica_nodes) == set(BROKERS) for p in states)
        self.first, self.second = (b for b in BROKERS if b != self.coordinator)
        # The coordinator does not lead either partition, so that every marker passes a proxy.
        self.topic = nodes.create(
            names(),
            [self.first, self.second, self.coordinator],
            [self.second, self.first, self.coordinator],
        )
        self.group = names()

    def write(self) -> None:
        """Write one record into each of the two partitions, and commit an offset of the group."""
        for partition, text in enumerate("ab"):
            self.producer.write(self.topic, text, partition=partition)
        self.producer.commit_offsets(self.group, self.topic, {0: 5})

    def hold_markers(self, *brokers: int) -> list[Rule]:
        """Hold the marker requests to these brokers."""
        return [self.links.brokers[b].hold_requests(OF_MARKERS) for b in brokers]

    def drop_marker_responses(self, *brokers: int) -> list[Rule]:
        """Deliver the marker requests to these brokers, but drop the responses."""
        return [self.links.brokers[b].drop_responses(OF_MARKERS, times=None) for b in brokers]

    def kill_coordinator(self, rules: list[Rule]) -> None:
        """Kill the coordinator, remove the faults, and wait for the new coordinator."""
        self.nodes.kill(self.coordinator)
        for rule in rules:
            rule.end()
        self.links.heal()
        eventually(
            lambda: (
                coordinator_id(self.nodes.any(), self.producer.transactional_id)
                not in (self.coordinator, -1)
            ),
            timeout_s=60,
        )

    def check(self, *, commit: bool) -> None:
        self.producer.await_state("CompleteCommit" if commit else "CompleteAbort")
        for partition, text in enumerate("ab"):
            leader = self.producer.leader(self.topic, partition)
            await_read(leader, self.topic, *([text] if commit else []), partition=partition)
            kinds = {m.kind for m in markers(leader, self.topic, partition=partition)}
            assert kinds == {COMMIT if commit else ABORT}
        eventually(lambda: self._offset() == (NONE, 5 if commit else -1))

    def _offset(self) -> tuple[ErrorCode, int]:
        """Return the error code and the stable offset of the group."""
        found = only(find_coordinator(self.nodes.any(), self.group).coordinators).node_id
        requested = {"name": self.topic, "partition_indexes": [0]}
        group = only(
            self.nodes.to(found)
            .call(
                "offset_fetch",
                9,
                groups=[{"group_id": self.group, "topics": [requested]}],
                require_stable=True,
            )
            .groups
        )
        if group.error_code != NONE:
            return group.error_code, -1
        offset = only(only(group.topics).partitions)
        return offset.error_code, offset.committed_offset

    def write_with_next_instance(self) -> None:
        """Write and commit with the next producer of the transactional id."""
        producer = self.producer
        again = TransactionalProducer(
            self.nodes, producer.transactional_id, producer.generation
        ).init()
        again.write(self.topic, "next", partition=0)
        again.commit()
        leader = again.leader(self.topic, 0)
        eventually(lambda: read(leader, self.topic)[-1:] == ["next"])


@pytest.fixture(scope="module")
def linked_clusters(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[int], tuple[Cluster, ProxiedLinks]]]:
    """Start clusters of processes with a proxy in front of each broker, once per version."""
    with ExitStack() as stack:
        opened: dict[int, tuple[Cluster, ProxiedLinks]] = {}

        def start(version: int) -> tuple[Cluster, ProxiedLinks]:
            if version not in opened:
                links = stack.enter_context(ProxiedLinks())
                cluster = stack.enter_context(
                    open_cluster(
                        request.config,
                        backend=_backend_of_processes(request.config),
                        brokers=3,
                        racks=RACKS,
                        # A follower whose requests a proxy holds stays in sync for the whole test.
                        configs=SETTINGS | {"replica.lag.time.max.ms": "60000"},
                        features={"transaction.version": version},
                        links=links,
                    )
                )
                opened[version] = cluster, links
            return opened[version]

        yield start


def _backend_of_processes(config: pytest.Config) -> str:
    backend = str(config.getoption("--cluster"))
    return "reference-processes" if backend == "reference" else backend


@pytest.fixture
def steps(
    linked_clusters: Callable[[int], tuple[Cluster, ProxiedLinks]],
    transaction_version: int,
    generation: Generation,
    unique_name: NameFactory,
) -> Iterator[Steps]:
    cluster, links = linked_clusters(transaction_version)
    nodes = Nodes(cluster)
    try:
        yield Steps(nodes, links, generation, unique_name)
    finally:
        links.heal()
        nodes.restore()


@pytest.mark.old_clients
@pytest.mark.parametrize("commit", [True, False])
def test_crash_between_prepare_and_every_marker(steps: Steps, commit: bool) -> None:
    steps.write()
    rules = steps.hold_markers(steps.first, steps.second)
    steps.producer.end(commit=commit)
    for rule in rules:
        rule.await_hits()
    assert steps.producer.describe().state == ("PrepareCommit" if commit else "PrepareAbort")
    for partition in (0, 1):
        leader = steps.producer.leader(steps.topic, partition)
        assert read(leader, steps.topic, partition=partition) == []
    steps.kill_coordinator(rules)
    steps.check(commit=commit)
    steps.write_with_next_instance()


def test_crash_between_two_markers(steps: Steps, commit: bool) -> None:
    steps.write()
    rules = steps.hold_markers(steps.second)
    steps.producer.end(commit=commit)
    rules[0].await_hits()
    await_stable(steps.nodes.to(steps.first), steps.topic, 2)
    assert steps.producer.describe().state == ("PrepareCommit" if commit else "PrepareAbort")
    steps.kill_coordinator(rules)
    steps.check(commit=commit)
    steps.write_with_next_instance()


def test_crash_between_markers_and_complete(steps: Steps, commit: bool) -> None:
    """Every partition has its marker, but the responses to the coordinator are lost."""
    steps.write()
    rules = steps.drop_marker_responses(steps.first, steps.second)
    steps.producer.end(commit=commit)
    for partition, broker_id in ((0, steps.first), (1, steps.second)):
        raw = steps.nodes.to(broker_id)
        # The coordinator sends the marker again and again, and the leader writes it each time.
        eventually(lambda r=raw, p=partition: last_stable_offset(r, steps.topic, partition=p) >= 2)  # type: ignore[misc]
    assert steps.producer.describe().state == ("PrepareCommit" if commit else "PrepareAbort")
    steps.kill_coordinator(rules)
    steps.check(commit=commit)
    steps.write_with_next_instance()


def test_crash_before_prepare_is_replicated(steps: Steps, commit: bool) -> None:
    """The client may send EndTxn again, because only the dead coordinator had the PREPARE."""
    steps.write()
    proxy = steps.links.brokers[steps.coordinator]
    rules = [proxy.hold_requests(is_follower(b)) for b in (steps.first, steps.second)]
    for rule in rules:
        rule.await_hits()
    asking = threading.Thread(target=_end_without_response, args=(steps, commit))
    asking.start()
    # The coordinator has appended PREPARE and waits for its followers; it rejects another EndTxn.
    with RawConnection(steps.nodes.cluster.address(steps.coordinator)) as raw:
        eventually(lambda: _is_busy(raw, steps.producer))
    for partition in (0, 1):
        leader = steps.producer.leader(steps.topic, partition)
        assert markers(leader, steps.topic, partition=partition) == []
    steps.kill_coordinator(rules)
    asking.join()
    found = retried(steps.producer.describe)
    assert found.state == "Ongoing"
    steps.producer.end(commit=not commit)
    steps.check(commit=not commit)
    steps.write_with_next_instance()


def _end_without_response(steps: Steps, commit: bool) -> None:
    producer = steps.producer
    with (
        suppress(ConnectionClosedByBrokerError, OSError),
        RawConnection(steps.nodes.cluster.address(steps.coordinator)) as raw,
    ):
        raw.call(
            "end_txn",
            producer.generation.end_txn,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )


def _is_busy(raw: RawConnection, producer: TransactionalProducer) -> bool:
    response = raw.call(
        "init_producer_id",
        4,
        transactional_id=producer.transactional_id,
        transaction_timeout=producer.timeout_ms,
        # The other producer id is rejected if no change is pending, so the request has no effect.
        producer_id=producer.producer_id + 1,
        producer_epoch=producer.epoch,
    )
    return bool(response.error_code in BUSY)


def test_added_partition_is_acknowledged_after_replication(steps: Steps) -> None:
    """Otherwise a killed coordinator would leave a partition without its marker."""
    producer = steps.producer
    proxy = steps.links.brokers[steps.coordinator]
    rules = [proxy.hold_requests(is_follower(b)) for b in (steps.first, steps.second)]
    for rule in rules:
        rule.await_hits()
    requested = request(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[{"name": steps.topic, "partitions": [0]}],
    )
    with RawConnection(steps.nodes.cluster.address(steps.coordinator)) as raw:
        raw.send_only(requested)
        raw.set_timeout(OBSERVATION_S)
        with pytest.raises(TimeoutError):
            raw.receive_frame()
        assert producer.describe().state == "Empty"
        raw.set_timeout(30)
        for rule in rules:
            rule.end()
        result = only(
            only(raw.receive(requested).results_by_topic_v3_and_below).results_by_partition
        )
    assert result.partition_error_code == NONE
    assert producer.describe().topics == {steps.topic: [0]}


def test_unreplicated_marker_has_no_effect(steps: Steps, unique_name: NameFactory) -> None:
    """The leader has written the marker. Consumers see its effect once it is replicated."""
    name = steps.nodes.create(unique_name(), [steps.first, steps.second])
    producer, leader = steps.producer, steps.nodes.to(steps.first)
    producer.write(name, "a")
    held = steps.links.brokers[steps.first].hold_requests(is_follower(steps.second))
    held.await_hits()
    producer.commit()
    eventually(lambda: not _is_open(leader, name, producer))
    response = fetch(leader, name, isolation_level=READ_COMMITTED)
    assert (response.last_stable_offset, response.high_watermark) == (0, 1)
    assert read(leader, name) == []
    assert producer.describe().state == "PrepareCommit"
    held.end()
    await_read(leader, name, "a")
    producer.await_complete()


def test_marker_truncated_on_a_follower_is_replicated_again(
    steps: Steps, unique_name: NameFactory
) -> None:
    """The leader and one follower have the marker, but the next leader does not."""
    old, ahead = steps.first, steps.second
    behind = steps.coordinator
    name = steps.nodes.create(unique_name(), [old, behind, ahead])
    producer = steps.producer
    producer.write(name, "a")
    proxy = steps.links.brokers[old]
    held = proxy.hold_requests(is_follower(behind))
    held.await_hits()
    counted = proxy.delay_requests(is_follower(ahead), 0)
    producer.commit()
    # The leader has written the marker, and the other follower has fetched beyond it.
    eventually(lambda: not _is_open(steps.nodes.to(old), name, producer))
    counted.await_hits(counted.hits + 3)
    steps.nodes.kill(old)
    held.end()
    leader = steps.nodes.await_leader(name, behind).leader
    assert leader == behind
    producer.await_state("CompleteCommit")
    await_read(steps.nodes.to(behind), name, "a")
    # When the other follower leads later, it serves the same records with one marker.
    steps.nodes.await_isr(name, behind, ahead)
    steps.nodes.stop(behind)
    steps.nodes.await_leader(name, ahead)
    await_read(steps.nodes.to(ahead), name, "a")
    assert [m.kind for m in markers(steps.nodes.to(ahead), name)] == [COMMIT]


def _is_open(raw: RawConnection, topic: str, producer: TransactionalProducer) -> bool:
    requested = [{"name": topic, "partition_indexes": [0]}]
    response = only(only(raw.call("describe_producers", 0, topics=requested).topics).partitions)
    found = [p for p in response.active_producers if p.producer_id == producer.producer_id]
    return bool(only(found).current_txn_start_offset >= 0)
