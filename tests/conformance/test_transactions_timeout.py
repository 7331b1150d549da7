"""Timeouts of transactions, expiration of ids, and two-phase commit (KIP-98, KIP-939)."""

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


class Place:
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


_IMPATIENT = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "transaction.max.timeout.ms": "120000",
    "transaction.two.phase.commit.enable": "true",
    # Version 6 of InitProducerId is unstable: brokers have it only with this config.
    "unstable.api.versions.enable": "true",
}
_FORGETFUL = {
    "unstable.api.versions.enable": "true",
    "transactional.id.expiration.ms": str(EXPIRATION_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
}


@pytest.fixture(scope="module")
def clusters(cluster_with: ClusterFactory) -> Callable[..., Cluster]:
    """Clusters of one broker, each started once: `clusters(transaction_version, **configs)`."""

    @cache
    def start(transaction_version: int, **settings: str) -> Cluster:
        features = {"transaction.version": transaction_version}
        return cluster_with(settings, features=features)

    return start


@pytest.fixture
def impatient(
    clusters: Callable[..., Cluster], transaction_version: int, unique_name: NameFactory
) -> Iterator[Place]:
    """A cluster that checks transaction timeouts constantly."""
    opened = clusters(transaction_version, **_IMPATIENT)
    with Connections(opened) as brokers:
        yield Place(opened, brokers, unique_name)


@pytest.fixture
def forgetful(
    clusters: Callable[..., Cluster], transaction_version: int, unique_name: NameFactory
) -> Iterator[Place]:
    """A cluster whose idle transactional ids expire within seconds."""
    opened = clusters(transaction_version, **_FORGETFUL)
    with Connections(opened) as brokers:
        yield Place(opened, brokers, unique_name)


# Timeout.


@pytest.mark.old_clients
def test_timed_out_transaction_is_aborted_and_its_producer_fenced(
    impatient: Place, generation: Generation
) -> None:
    name = impatient.topic()
    producer = impatient.producer(generation, timeout_ms=TIMEOUT_MS)
    producer.write(name, "a")
    found = producer.await_state("CompleteAbort")
    assert found.producer_id == producer.producer_id
    assert found.producer_epoch > producer.epoch
    await_stable(impatient.raw, name, 2)
    (marker,) = markers(impatient.raw, name)
    assert (marker.kind, marker.producer_epoch) == (ABORT, producer.epoch + 1)
    assert read(impatient.raw, name) == []
    # Its next request shows it.
    fenced = ErrorCode.producer_fenced
    late = producer.produce_once(name, "b")
    assert late.error_code == ErrorCode.invalid_producer_epoch
    assert producer.add_once(name) == [fenced]
    commit = code_of(producer.end_once(commit=True))
    if generation.bumps_epoch:
        # An abort with the epoch before the last is a retry of the completed one.
        assert commit == ErrorCode.invalid_txn_state
        again = producer.end_once(commit=False)
        assert (again.error_code, again.producer_epoch) == (NONE, found.producer_epoch)
    else:
        assert commit == fenced
        assert code_of(producer.end_once(commit=False)) == fenced
    again = impatient.producer(generation, name=producer.transactional_id)
    again.write(name, "c")
    again.commit()
    await_read(impatient.raw, name, "c")


@pytest.mark.old_clients
def test_timed_out_producer_recovers_only_in_version_2(
    impatient: Place, generation: Generation, transaction_version: int
) -> None:
    name = impatient.topic()
    producer = impatient.producer(generation, timeout_ms=TIMEOUT_MS)
    producer.write(name, "a")
    producer.await_state("CompleteAbort")
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    answer = retried(lambda: producer.init_once(**identity))
    if transaction_version == 1:
        assert answer.error_code == ErrorCode.producer_fenced
    else:
        assert (answer.error_code, answer.producer_epoch) == (NONE, producer.epoch + 1)


def test_readers_continue_after_a_timed_out_transaction(
    impatient: Place, generation: Generation
) -> None:
    name = impatient.topic()
    gone = impatient.producer(generation, timeout_ms=2_000)
    other = impatient.producer(generation)
    gone.write(name, "gone")
    append(impatient.raw, name, batch(values("plain")))
    other.write(name, "other")
    other.commit()
    other.await_complete()
    assert read(impatient.raw, name) == []
    await_read(impatient.raw, name, "plain", "other")


def test_timeout_counts_from_the_start_of_the_transaction(impatient: Place) -> None:
    """Requests of the producer do not extend the timeout."""
    name = impatient.topic()
    producer = impatient.producer(VERSION_1, timeout_ms=1_000)
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


def test_idle_producer_does_not_time_out(impatient: Place) -> None:
    name = impatient.topic()
    idle = impatient.producer(VERSION_1, timeout_ms=TIMEOUT_MS)
    ended = impatient.producer(VERSION_1, timeout_ms=TIMEOUT_MS)
    eventually(lambda: _committed_in_time(ended, name))
    other = impatient.producer(VERSION_1, timeout_ms=TIMEOUT_MS)
    other.write(name, "b")
    other.await_state("CompleteAbort")
    assert idle.describe().state == "Empty"
    assert ended.describe().state == "CompleteCommit"
    for one in (idle, ended):
        assert one.describe().producer_epoch == one.epoch


def _committed_in_time(producer: TransactionalProducer, topic: str) -> bool:
    """Return whether a transaction was faster than its timeout, on a possibly slow machine."""
    producer.init()
    producer.add(topic)
    if code_of(producer.end_once(commit=True)) != NONE:
        return False
    return producer.await_state("CompleteCommit", "CompleteAbort").state == "CompleteCommit"


def test_offsets_of_a_timed_out_transaction_are_dropped(
    impatient: Place, generation: Generation
) -> None:
    name = impatient.topic()
    group = group_coordinated_by(impatient.raw, 1, impatient.name)
    producer = impatient.producer(generation, timeout_ms=TIMEOUT_MS)
    producer.commit_offsets(group, name, {0: 5})
    producer.await_state("CompleteAbort")
    assert committed(impatient.raw, group, name) == [(-1, "", -1)]


def test_transaction_max_timeout_is_enforced(impatient: Place) -> None:
    instance = TransactionalProducer(impatient.brokers, impatient.name(), VERSION_1)
    answer = retried(lambda: instance.init_once(transaction_timeout=120_001))
    assert answer.error_code == ErrorCode.invalid_transaction_timeout
    instance.init(transaction_timeout=120_000)


# Two-phase commit (KIP-939): an external system decides, however long it takes.


def two_phase(place: Place, **fields: object) -> TransactionalProducer:
    made = TransactionalProducer(place.brokers, place.name(), VERSION_2, timeout_ms=TIMEOUT_MS)
    return made.init(version=6, enable2_pc=True, **fields)


def test_two_phase_transaction_has_no_timeout(impatient: Place) -> None:
    name = impatient.topic()
    patient = two_phase(impatient)
    assert patient.describe().timeout_ms == UNLIMITED_MS
    patient.write(name, "a")
    other = impatient.producer(VERSION_2, timeout_ms=TIMEOUT_MS)
    other.write(name, "b")
    other.await_state("CompleteAbort")
    assert patient.describe().state == "Ongoing"
    patient.commit()
    await_read(impatient.raw, name, "a")


def test_requested_timeout_is_ignored_with_two_phase_commit(impatient: Place) -> None:
    two_phase(impatient, transaction_timeout=0)
    instance = two_phase(impatient, transaction_timeout=UNLIMITED_MS)
    assert instance.describe().timeout_ms == UNLIMITED_MS
    # The next producer of the id may be without two-phase commit.
    instance.init()
    assert instance.describe().timeout_ms == TIMEOUT_MS
    answer = instance.init_once(version=6, transaction_timeout=UNLIMITED_MS)
    assert code_of(answer) == ErrorCode.invalid_transaction_timeout


def test_next_instance_aborts_a_two_phase_transaction(impatient: Place) -> None:
    name = impatient.topic()
    old = two_phase(impatient)
    old.write(name, "a")
    new = TransactionalProducer(impatient.brokers, old.transactional_id, VERSION_2)
    new.init(version=6, enable2_pc=True)
    await_stable(impatient.raw, name, 2)
    assert read(impatient.raw, name) == []


@pytest.mark.parametrize("enable", [True, False])
def test_keep_prepared_is_not_supported(impatient: Place, enable: bool) -> None:
    instance = TransactionalProducer(impatient.brokers, impatient.name(), VERSION_2)
    answer = retried(
        lambda: instance.init_once(version=6, enable2_pc=enable, keep_prepared_txn=True)
    )
    assert answer.error_code == ErrorCode.unsupported_version
    assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (-1, -1)


def test_two_phase_commit_must_be_enabled(forgetful: Place) -> None:
    instance = TransactionalProducer(forgetful.brokers, forgetful.name(), VERSION_2)
    for fields in ({}, {"keep_prepared_txn": True}, {"transaction_timeout": 0}):
        answer = retried(lambda f=fields: instance.init_once(version=6, enable2_pc=True, **f))  # type: ignore[misc]
        assert answer.error_code == ErrorCode.transactional_id_authorization_failed, fields
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
    assert instance.init(version=6).epoch == 0


def test_version_6_requires_unstable_api_versions(impatient: Place, raw_address: str) -> None:
    assert served(impatient.raw, "init_producer_id")[-1] == 6
    with RawConnection(raw_address) as stable:
        assert served(stable, "init_producer_id")[-1] == 5
        with pytest.raises(ConnectionClosedByBrokerError):
            stable.call("init_producer_id", 6, transactional_id="x", transaction_timeout=60_000)


# Expiration.


def test_idle_id_expires(forgetful: Place, generation: Generation) -> None:
    name = forgetful.topic()
    ended, busy = (forgetful.producer(generation) for _ in range(2))
    ended.write(name, "a")
    ended.commit()
    busy.write(name, "b")
    # This one is used last, so the others have expired when it expires.
    idle = forgetful.producer(generation)
    for one in (idle, ended):
        eventually(lambda o=one: o.describe().error_code == NOT_FOUND)  # type: ignore[misc]
    gone = ErrorCode.invalid_producer_id_mapping
    assert code_of(idle.end_once(commit=True)) == gone
    assert idle.add_once(name) == [gone]
    # An open transaction keeps its id.
    assert busy.describe().state == "Ongoing"
    busy.commit()
    await_read(forgetful.raw, name, "a", "b")
    assert [m.kind for m in markers(forgetful.raw, name)] == [COMMIT] * 2


def test_expired_id_starts_again(forgetful: Place) -> None:
    old = forgetful.producer(VERSION_1)
    eventually(lambda: old.describe().error_code == NOT_FOUND)
    # A recovering client sends its previous identity, which cannot be checked.
    again = retried(lambda: old.init_once(producer_id=old.producer_id, producer_epoch=old.epoch))
    assert again.error_code == NONE
    assert (again.producer_id != old.producer_id, again.producer_epoch) == (True, 0)


def test_expiration_survives_a_restart(forgetful: Place) -> None:
    old = forgetful.producer(VERSION_1)
    eventually(lambda: old.describe().error_code == NOT_FOUND)
    forgetful.cluster.stop_broker(1)
    forgetful.cluster.start_broker(1)
    with Connections(forgetful.cluster) as brokers:
        again = TransactionalProducer(brokers, old.transactional_id, VERSION_1)
        found = retried(again.describe)
        assert found.error_code == NOT_FOUND
        assert again.init().producer_id != old.producer_id
