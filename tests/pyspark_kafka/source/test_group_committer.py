"""Tests of the offsets that a streaming read commits to a group."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyspark_kafka.client import factory
from pyspark_kafka.errors import KafkaError, OptionError
from pyspark_kafka.kafka.offsets import PartitionOffsets
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.source.group_committer import RECOMMIT_S, GroupCommitter
from tests.pyspark_kafka.client.records import options


class Client:
    """A client that records commits."""

    def __init__(self) -> None:
        self.commits: list[PartitionOffsets] = []

    def commit_offsets(self, group_id: str, offsets: PartitionOffsets) -> None:
        del group_id
        self.commits.append(offsets)


def test_a_query_continues_if_the_settings_can_no_longer_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, offsets = Client(), {TopicPartition("t", 0): 1}
    committer = GroupCommitter(options("127.0.0.1:9", engine="native"))

    def open_client(*_: Any, **__: Any) -> Any:
        raise OptionError("a key was deleted", option="kafka.ssl.keystore.location")

    monkeypatch.setattr(factory, "open_client", open_client)
    committer.commit(offsets)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    monkeypatch.setattr(factory, "open_client", lambda *_, **__: client)
    committer.commit(offsets)
    assert client.commits == [offsets]


def test_offsets_are_committed_again_before_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    client, now_s = Client(), 1_000.0
    committer = GroupCommitter(options("127.0.0.1:9", engine="native"))
    monkeypatch.setattr(GroupCommitter, "_open", lambda _: client)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    one, two = ({TopicPartition("t", 0): offset} for offset in (1, 2))
    for offsets in (one, one, two, two):
        committer.commit(offsets)
    assert client.commits == [one, two]
    now_s += RECOMMIT_S
    committer.commit(two)
    committer.commit(two)
    assert client.commits == [one, two, two]


def test_commits_are_skipped_for_a_while_after_a_slow_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, attempts = 1_000.0, 0
    committer = GroupCommitter(options("127.0.0.1:9", engine="native"))

    def fail_after_10_s(_: GroupCommitter) -> Any:
        nonlocal now_s, attempts
        now_s, attempts = now_s + 10, attempts + 1
        raise KafkaError("The coordinator did not respond.")

    monkeypatch.setattr(GroupCommitter, "_open", fail_after_10_s)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    for offset in range(5):
        committer.commit({TopicPartition("t", 0): offset})
    assert attempts == 1
    now_s += 100
    committer.commit({TopicPartition("t", 0): 5})
    assert attempts == 2
