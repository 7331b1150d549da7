"""Tests of transaction timeouts, expired transactional ids and two-phase commit.

See KIP-98 and KIP-939.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import ConnectionClosedByBrokerError, RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.groups import committed, group_coordinated_by
from tests.conformance.isolation import (
    ABORT,
    COMMIT,
    await_read,
    await_stable,
    markers,
    read,
)
from tests.conformance.transactions import (
    VERSION_1,
    VERSION_2,
    Connections,
    Generation,
    TransactionalProducer,
    code_of,
    retried,
)
from tests.conformance.wire import append, served

pytestmark = pytest.mark.slow

ClusterFactory = Callable[..., Cluster]
NameFactory = Callable[[], str]
NONE = ErrorCode.none
TIMEOUT_MS = 300
UNLIMITED_MS = 2**31 - 1
EXPIRATION_MS = 2_000
NOT_FOUND = ErrorCode.transactional_id_not_found


class OpenCluster:
    """A cluster of one broker with its own configs."""

    def __init__(self, cluster: Cluster, brokers: Connections, names: NameFactory) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.raw = brokers.any()
        self.name = names

    def topic(self) -> str:
        name = self.name()
        self.cluster.create_topic(name)
        return name

    def producer(
        self, generation: Generation, *, timeout_ms: int = 60_000, name: str | None = None
    ) -> TransactionalProducer:
        transactional_id = self.name() if name is None else name
        made = TransactionalProducer(
            self.brokers, transactional_id, generation, timeout_ms=timeout_ms
        )
        return made.init()


_SHORT_TIMEOUTS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "transaction.max.timeout.ms": "120000",
    "transaction.two.phase.commit.enable": "true",
    # Version 6 of InitProducerId is unstable: brokers serve it only with this config.
    "unstable.api.versions.enable": "true",
}
_SHORT_EXPIRATION = {
    "unstable.api.versions.enable": "true",
    "transactional.id.expiration.ms": str(EXPIRATION_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
}


@pytest.fixture(scope="module")
def clusters(cluster_with: ClusterFactory) -> Callable[..., Cluster]:
    """Return clusters of one broker, each started once.

    Call it as `clusters(transaction_version, **configs)`.
    """

    @cache
    def start(transaction_version: int, **settings: str) -> Cluster:
        features = {"transaction.version": transaction_version}
        return cluster_with(settings, features=features)

    return start


@pytest.fixture
def short_timeouts(
    clusters: Callable[..., Cluster], transaction_version: int, unique_name: NameFactory
) -> Iterator[OpenCluster]:
    """Return a cluster that checks transaction timeouts continuously."""
    opened = clusters(transaction_version, **_SHORT_TIMEOUTS)
    with Connections(opened) as brokers:
        yield OpenCluster(opened, brokers, unique_name)


@pytest.fixture
def short_expiration(
    clusters: Callable[..., Cluster], transaction_version: int, unique_name: NameFactory
) -> Iterator[OpenCluster]:
    """Return a cluster whose idle transactional ids expire within seconds."""
    opened = clusters(transaction_version, **_SHORT_EXPIRATION)
    with Connections(opened) as brokers:
        yield OpenCluster(opened, brokers, unique_name)


# Transaction timeouts.


@pytest.mark.old_clients
def test_timed_out_transaction_is_aborted_and_its_producer_fenced(
    short_timeouts: OpenCluster, generation: Generation
) -> None:
    name = short_timeouts.topic()
    producer = short_timeouts.producer(generation, timeout_ms=TIMEOUT_MS)
    producer.write(name, "a")
    found = producer.await_state("CompleteAbort")
    assert found.producer_id == producer.producer_id
    assert found.producer_epoch > producer.epoch
    await_stable(short_timeouts.raw, name, 2)
    (marker,) = markers(short_timeouts.raw, name)
    assert (marker.kind, marker.producer_epoch) == (ABORT, producer.epoch + 1)
    assert read(short_timeouts.raw, name) == []
    # The responses to the next requests show that the producer is fenced.
    fenced = ErrorCode.producer_fenced
    late = producer.produce_once(name, "b")
    assert late.error_code == ErrorCode.invalid_producer_epoch
    assert producer.add_once(name) == [fenced]
    commit = code_of(producer.end_once(commit=True))
    if generation.bumps_epoch:
        # The coordinator treats an abort with the previous epoch as a retry of the completed abort.
        assert commit == ErrorCode.invalid_txn_state
        again = producer.end_once(commit=False)
        assert (again.error_code, again.producer_epoch) == (NONE, found.producer_epoch)
    else:
        assert commit == fenced
        assert code_of(producer.end_once(commit=False)) == fenced
    again = short_timeouts.producer(generation, name=producer.transactional_id)
    again.write(name, "c")
    again.commit()
    await_read(short_timeouts.raw, name, "c")


@pytest.mark.old_clients
def test_timed_out_producer_recovers_only_in_version_2(
    short_timeouts: OpenCluster, generation: Generation, transaction_version: int
) -> None:
    name = short_timeouts.topic()
    producer = short_timeouts.producer(generation, timeout_ms=TIMEOUT_MS)
    producer.write(name, "a")
    producer.await_state("CompleteAbort")
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    response = retried(lambda: producer.init_once(**identity))
    if transaction_version == 1:
        assert response.error_code == ErrorCode.producer_fenced
    else:
        assert (response.error_code, response.producer_epoch) == (NONE, producer.epoch + 1)


def test_readers_continue_after_a_timed_out_transaction(
    short_timeouts: OpenCluster, generation: Generation
) -> None:
    name = short_timeouts.topic()
    gone = short_timeouts.producer(generation, timeout_ms=2_000)
    other = short_timeouts.producer(generation)
    gone.write(name, "gone")
    append(short_timeouts.raw, name, batch(values("plain")))
    other.write(name, "other")
    other.commit()
    other.await_complete()
    assert read(short_timeouts.raw, name) == []
    await_read(short_timeouts.raw, name, "plain", "other")


def test_timeout_counts_from_the_start_of_the_transaction(short_timeouts: OpenCluster) -> None:
    """Requests of the producer do not extend the timeout."""
    name = short_timeouts.topic()
    producer = short_timeouts.producer(VERSION_1, timeout_ms=1_000)
    producer.write(name, "0")
    refused: list[ErrorCode] = []

    def is_fenced() -> bool:
        code = code_of(producer.produce_once(name, "x"))
        if code != NONE:
            refused.append(code)
        return bool(refused)

    eventually(is_fenced)
    assert refused == [ErrorCode.invalid_producer_epoch]
    assert producer.describe().state in ("PrepareAbort", "CompleteAbort")


def test_idle_producer_does_not_time_out(short_timeouts: OpenCluster) -> None:
    name = short_timeouts.topic()
    idle = short_timeouts.producer(VERSION_1, timeout_ms=TIMEOUT_MS)
    ended = short_timeouts.producer(VERSION_1, timeout_ms=TIMEOUT_MS)
    eventually(lambda: _committed_in_time(ended, name))
    other = short_timeouts.producer(VERSION_1, timeout_ms=TIMEOUT_MS)
    other.write(name, "b")
    other.await_state("CompleteAbort")
    assert idle.describe().state == "Empty"
    assert ended.describe().state == "CompleteCommit"
    for one in (idle, ended):
        assert one.describe().producer_epoch == one.epoch


def _committed_in_time(producer: TransactionalProducer, topic: str) -> bool:
    """Return whether a transaction completed before its timeout, which a slow machine may miss."""
    producer.init()
    producer.add(topic)
    if code_of(producer.end_once(commit=True)) != NONE:
        return False
    return producer.await_state("CompleteCommit", "CompleteAbort").state == "CompleteCommit"


def test_offsets_of_a_timed_out_transaction_are_dropped(
    short_timeouts: OpenCluster, generation: Generation
) -> None:
    name = short_timeouts.topic()
    group = group_coordinated_by(short_timeouts.raw, 1, short_timeouts.name)
    producer = short_timeouts.producer(generation, timeout_ms=TIMEOUT_MS)
    producer.commit_offsets(group, name, {0: 5})
    producer.await_state("CompleteAbort")
    assert committed(short_timeouts.raw, group, name) == [(-1, "", -1)]


def test_transaction_max_timeout_is_enforced(short_timeouts: OpenCluster) -> None:
    instance = TransactionalProducer(short_timeouts.brokers, short_timeouts.name(), VERSION_1)
    response = retried(lambda: instance.init_once(transaction_timeout=120_001))
    assert response.error_code == ErrorCode.invalid_transaction_timeout
    instance.init(transaction_timeout=120_000)


# Two-phase commit (KIP-939): an external system decides, however long this takes.


def two_phase(place: OpenCluster, **fields: object) -> TransactionalProducer:
    made = TransactionalProducer(place.brokers, place.name(), VERSION_2, timeout_ms=TIMEOUT_MS)
    return made.init(version=6, enable2_pc=True, **fields)


def test_two_phase_transaction_has_no_timeout(short_timeouts: OpenCluster) -> None:
    name = short_timeouts.topic()
    patient = two_phase(short_timeouts)
    assert patient.describe().timeout_ms == UNLIMITED_MS
    patient.write(name, "a")
    other = short_timeouts.producer(VERSION_2, timeout_ms=TIMEOUT_MS)
    other.write(name, "b")
    other.await_state("CompleteAbort")
    assert patient.describe().state == "Ongoing"
    patient.commit()
    await_read(short_timeouts.raw, name, "a")


def test_requested_timeout_is_ignored_with_two_phase_commit(short_timeouts: OpenCluster) -> None:
    two_phase(short_timeouts, transaction_timeout=0)
    instance = two_phase(short_timeouts, transaction_timeout=UNLIMITED_MS)
    assert instance.describe().timeout_ms == UNLIMITED_MS
    # The next producer of the id does not have to use two-phase commit.
    instance.init()
    assert instance.describe().timeout_ms == TIMEOUT_MS
    response = instance.init_once(version=6, transaction_timeout=UNLIMITED_MS)
    assert code_of(response) == ErrorCode.invalid_transaction_timeout


def test_next_instance_aborts_a_two_phase_transaction(short_timeouts: OpenCluster) -> None:
    name = short_timeouts.topic()
    old = two_phase(short_timeouts)
    old.write(name, "a")
    new = TransactionalProducer(short_timeouts.brokers, old.transactional_id, VERSION_2)
    new.init(version=6, enable2_pc=True)
    await_stable(short_timeouts.raw, name, 2)
    assert read(short_timeouts.raw, name) == []


@pytest.mark.parametrize("enable", [True, False])
def test_keep_prepared_is_not_supported(short_timeouts: OpenCluster, enable: bool) -> None:
    instance = TransactionalProducer(short_timeouts.brokers, short_timeouts.name(), VERSION_2)
    response = retried(
        lambda: instance.init_once(version=6, enable2_pc=enable, keep_prepared_txn=True)
    )
    assert response.error_code == ErrorCode.unsupported_version
    assert (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch) == (-1, -1)


def test_two_phase_commit_must_be_enabled(short_expiration: OpenCluster) -> None:
    instance = TransactionalProducer(short_expiration.brokers, short_expiration.name(), VERSION_2)
    for fields in ({}, {"keep_prepared_txn": True}, {"transaction_timeout": 0}):
        response = retried(lambda f=fields: instance.init_once(version=6, enable2_pc=True, **f))  # type: ignore[misc]
        assert response.error_code == ErrorCode.transactional_id_authorization_failed, fields
        assert (response.producer_id, response.producer_epoch) == (-1, -1)
    assert instance.init(version=6).epoch == 0


def test_version_6_requires_unstable_api_versions(
    short_timeouts: OpenCluster, raw_address: str
) -> None:
    assert served(short_timeouts.raw, "init_producer_id")[-1] == 6
    with RawConnection(raw_address) as stable:
        assert served(stable, "init_producer_id")[-1] == 5
        with pytest.raises(ConnectionClosedByBrokerError):
            stable.call("init_producer_id", 6, transactional_id="x", transaction_timeout=60_000)


# Expiration of transactional ids.


def test_idle_id_expires(short_expiration: OpenCluster, generation: Generation) -> None:
    name = short_expiration.topic()
    ended, busy = (short_expiration.producer(generation) for _ in range(2))
    ended.write(name, "a")
    ended.commit()
    busy.write(name, "b")
    # This id is used last, so when it expires, the others have expired too.
    idle = short_expiration.producer(generation)
    for one in (idle, ended):
        eventually(lambda o=one: o.describe().error_code == NOT_FOUND)  # type: ignore[misc]
    gone = ErrorCode.invalid_producer_id_mapping
    assert code_of(idle.end_once(commit=True)) == gone
    assert idle.add_once(name) == [gone]
    # A transactional id with an open transaction does not expire.
    assert busy.describe().state == "Ongoing"
    busy.commit()
    await_read(short_expiration.raw, name, "a", "b")
    assert [m.kind for m in markers(short_expiration.raw, name)] == [COMMIT] * 2


def test_expired_id_starts_again(short_expiration: OpenCluster) -> None:
    old = short_expiration.producer(VERSION_1)
    eventually(lambda: old.describe().error_code == NOT_FOUND)
    # The client sends its previous producer id and epoch, which the coordinator cannot check.
    again = retried(lambda: old.init_once(producer_id=old.producer_id, producer_epoch=old.epoch))
    assert again.error_code == NONE
    assert (again.producer_id != old.producer_id, again.producer_epoch) == (True, 0)


def test_expiration_survives_a_restart(short_expiration: OpenCluster) -> None:
    old = short_expiration.producer(VERSION_1)
    eventually(lambda: old.describe().error_code == NOT_FOUND)
    short_expiration.cluster.stop_broker(1)
    short_expiration.cluster.start_broker(1)
    with Connections(short_expiration.cluster) as brokers:
        again = TransactionalProducer(brokers, old.transactional_id, VERSION_1)
        found = retried(again.describe)
        assert found.error_code == NOT_FOUND
        assert again.init().producer_id != old.producer_id
