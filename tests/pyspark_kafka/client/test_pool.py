"""Tests of the client pool: exclusive use, reuse, and closing of failed clients."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pyspark_kafka.client.pool import ClientPool
from pyspark_kafka.errors import KafkaError
from pyspark_kafka.options.values import ClientOptions
from tests.pyspark_kafka.source.fake_client import FakeClient


@pytest.fixture
def opened() -> list[FakeClient]:
    return []


@pytest.fixture
def pool(opened: list[FakeClient]) -> ClientPool[FakeClient]:
    def open_client(_options: ClientOptions) -> FakeClient:
        opened.append(FakeClient({}))
        return opened[-1]

    return ClientPool(open_client)


def options(servers: str = "a:1", group_id: str = "g") -> ClientOptions:
    return ClientOptions(
        bootstrap_servers=servers, kafka={"bootstrap.servers": servers}, group_id=group_id
    )


def test_kept_for_the_next_task(pool: ClientPool[FakeClient], opened: list[FakeClient]) -> None:
    for group_id in ("made-up-1", "made-up-2"):
        with pool.lend(options(group_id=group_id)) as client:
            assert client is opened[0]
    assert not opened[0].closed


def test_other_settings_are_another_client(
    pool: ClientPool[FakeClient], opened: list[FakeClient]
) -> None:
    for servers in ("a:1", "b:1"):
        with pool.lend(options(servers)):
            pass
    assert len(opened) == 2


def test_never_lent_twice_at_once(pool: ClientPool[FakeClient], opened: list[FakeClient]) -> None:
    with pool.lend(options()) as one, pool.lend(options()) as other:
        assert one is not other
    assert sum(client.closed for client in opened) == 1


def test_closed_after_an_error(pool: ClientPool[FakeClient], opened: list[FakeClient]) -> None:
    with pytest.raises(KafkaError), pool.lend(options()):
        raise KafkaError("broken")
    assert opened[0].closed
    with pool.lend(options()) as client:
        assert client is opened[1]


def test_reader_closed_early_leaves_the_client(
    pool: ClientPool[FakeClient], opened: list[FakeClient]
) -> None:
    def rows() -> Iterator[int]:
        with pool.lend(options()):
            yield 1
            yield 2

    reader = rows()
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    assert not opened[0].closed
    with pool.lend(options()) as client:
        assert client is opened[0]


def test_interrupted_in_the_middle_of_anything(
    pool: ClientPool[FakeClient], opened: list[FakeClient]
) -> None:
    with pytest.raises(KeyboardInterrupt), pool.lend(options()):
        raise KeyboardInterrupt
    assert opened[0].closed
    with pool.lend(options()) as client:
        assert client is opened[1]


def test_another_process_opens_its_own(
    pool: ClientPool[FakeClient], opened: list[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool.lend(options()):
        pass
    parent = os.getpid()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: parent + 1)
        with pool.lend(options()) as client:
            assert client is opened[1]
    assert not opened[0].closed, "the sockets belong to the parent process"
    with pool.lend(options()) as client:
        assert client is opened[0]


def test_idle_clients_are_bounded(pool: ClientPool[FakeClient], opened: list[FakeClient]) -> None:
    for number in range(6):
        with pool.lend(options(f"broker-{number}:1")):
            pass
    assert [client.closed for client in opened] == [True, True, False, False, False, False]
