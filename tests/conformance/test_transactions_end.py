"""Tests of EndTxn: valid requests, retries and errors (KIP-98, KIP-890)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.isolation import ABORT, COMMIT, await_read, await_stable, markers, read
from tests.conformance.transactions import (
    VERSION_1,
    VERSION_2,
    Connections,
    TransactionalProducer,
    code_of,
    retried,
)
from tests.conformance.wire import served

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]
NONE = ErrorCode.none


@pytest.fixture
def first(brokers: Connections, unique_name: NameFactory) -> TransactionalProducer:
    return TransactionalProducer(brokers, unique_name(), VERSION_1).init()


@pytest.fixture
def second(brokers: Connections, unique_name: NameFactory) -> TransactionalProducer:
    return TransactionalProducer(brokers, unique_name(), VERSION_2).init()


def end(producer: TransactionalProducer, *, commit: bool, **changed: int) -> ErrorCode:
    """Send one EndTxn and retry only while the coordinator is busy."""
    return code_of(retried(lambda: producer.end_once(commit=commit, **changed)))


def test_every_version_ends(
    raw: RawConnection, topic: TopicFactory, first: TransactionalProducer
) -> None:
    name = topic()
    versions = served(raw, "end_txn")
    for version in versions:
        first.write(name, f"{version}")
        response = retried(lambda v=version: first.end_once(commit=True, version=v))  # type: ignore[misc]
        assert code_of(response) == NONE, version
        first.set_identity(first.producer_id, first.epoch + (version >= 5))
    await_read(raw, name, *(f"{version}" for version in versions))


def test_end_by_another_producer_id_or_epoch_is_refused(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    mapping, fenced = ErrorCode.invalid_producer_id_mapping, ErrorCode.producer_fenced
    for commit in (True, False):
        assert end(producer, commit=commit, producer_id=producer.producer_id + 1) == mapping
        assert end(producer, commit=commit, epoch=producer.epoch + 1) == fenced
    assert producer.describe().state == "Ongoing"
    producer.commit()
    await_read(raw, name, "a")


# Transaction version 1.


@pytest.mark.parametrize("commit", [True, False])
def test_end_without_a_transaction_is_refused(first: TransactionalProducer, commit: bool) -> None:
    assert end(first, commit=commit) == ErrorCode.invalid_txn_state
    assert first.describe().state == "Empty"


@pytest.mark.parametrize("commit", [True, False])
def test_retry_of_an_end_gets_the_same_response(
    raw: RawConnection, topic: TopicFactory, first: TransactionalProducer, commit: bool
) -> None:
    name = topic()
    first.write(name, "a")
    assert end(first, commit=commit) == NONE
    for _ in range(2):
        assert end(first, commit=commit) == NONE
    first.await_complete()
    assert end(first, commit=commit) == NONE
    assert len(markers(raw, name)) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_opposite_end_after_the_end_is_refused(
    raw: RawConnection, topic: TopicFactory, first: TransactionalProducer, commit: bool
) -> None:
    name = topic()
    first.write(name, "a")
    assert end(first, commit=commit) == NONE
    assert end(first, commit=not commit) == ErrorCode.invalid_txn_state
    first.await_complete()
    assert end(first, commit=not commit) == ErrorCode.invalid_txn_state
    assert [m.kind for m in markers(raw, name)] == [COMMIT if commit else ABORT]
    assert read(raw, name) == (["a"] if commit else [])


def test_response_of_old_versions_has_no_producer_id(
    topic: TopicFactory, first: TransactionalProducer
) -> None:
    first.write(topic(), "a")
    response = first.end_once(commit=True)
    assert not hasattr(response, "producer_epoch")
    described = first.await_state("CompleteCommit")
    assert described.producer_epoch == first.epoch


# Transaction version 2, in which every end bumps the producer epoch.


@pytest.mark.parametrize("commit", [True, False])
def test_every_end_of_version_2_returns_the_next_epoch(
    topic: TopicFactory, second: TransactionalProducer, commit: bool
) -> None:
    name = topic()
    for expected in (1, 2, 3):
        second.write(name, "a")
        response = retried(lambda: second.end_once(commit=commit))
        assert (response.error_code, response.producer_id, response.producer_epoch) == (
            NONE,
            second.producer_id,
            expected,
        )
        second.update_identity(response)
    described = second.await_state("CompleteCommit" if commit else "CompleteAbort")
    assert described.producer_epoch == 3


@pytest.mark.parametrize("commit", [True, False])
def test_retry_of_an_end_of_version_2_gets_the_same_epoch(
    raw: RawConnection, topic: TopicFactory, second: TransactionalProducer, commit: bool
) -> None:
    name = topic()
    second.write(name, "a")
    before = second.epoch
    for _ in range(3):
        response = retried(lambda: second.end_once(commit=commit))
        assert (response.error_code, response.producer_epoch) == (NONE, before + 1)
    second.await_complete()
    response = second.end_once(commit=commit)
    assert (response.error_code, response.producer_epoch) == (NONE, before + 1)
    assert len(markers(raw, name)) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_opposite_end_with_the_old_epoch_is_refused(
    topic: TopicFactory, second: TransactionalProducer, commit: bool
) -> None:
    second.write(topic(), "a")
    assert end(second, commit=commit) == NONE
    second.await_complete()
    assert end(second, commit=not commit) == ErrorCode.invalid_txn_state


def test_empty_abort_bumps_the_epoch_and_empty_commit_is_refused(
    raw: RawConnection, topic: TopicFactory, second: TransactionalProducer
) -> None:
    """A client of version 2 cannot know whether its first produce request added a partition."""
    assert end(second, commit=True) == ErrorCode.invalid_txn_state
    for expected in (1, 2):
        response = retried(lambda: second.end_once(commit=False))
        assert (response.error_code, response.producer_epoch) == (NONE, expected)
        second.update_identity(response)
        second.await_state("CompleteAbort")
    name = topic()
    second.write(name, "a")
    second.commit()
    await_read(raw, name, "a")
    # The same holds after a transaction, with the bumped producer epoch.
    second.await_complete()
    assert end(second, commit=True) == ErrorCode.invalid_txn_state
    response = retried(lambda: second.end_once(commit=False))
    assert (response.error_code, response.producer_epoch) == (NONE, second.epoch + 1)


def test_marker_of_version_2_fences_late_requests(
    raw: RawConnection, topic: TopicFactory, second: TransactionalProducer
) -> None:
    name = topic()
    second.write(name, "a")
    late = second.batch("late", sequence=1)
    old = second.epoch
    second.commit()
    await_stable(raw, name, 2)
    (marker,) = markers(raw, name)
    assert marker.producer_epoch == old + 1
    assert second.send_once(name, late).error_code == ErrorCode.invalid_producer_epoch
    # The old epoch is also rejected for a client of version 1 with the same transactional id.
    response = second.send_once(name, late, version=VERSION_1.produce)
    assert response.error_code == ErrorCode.invalid_producer_epoch
    assert end(second, commit=True, epoch=old - 1) == ErrorCode.producer_fenced


def test_next_transaction_of_version_2_needs_the_next_epoch(
    raw: RawConnection, topic: TopicFactory, second: TransactionalProducer
) -> None:
    name = topic()
    second.write(name, "a")
    old = (second.producer_id, second.epoch)
    second.commit()
    second.await_complete()
    second.set_identity(*old)
    assert second.produce_once(name, "b").error_code == ErrorCode.invalid_producer_epoch
    assert second.add_once(name) == [ErrorCode.producer_fenced]
    second.set_identity(old[0], old[1] + 1)
    second.write(name, "c")
    second.commit()
    await_read(raw, name, "a", "c")
