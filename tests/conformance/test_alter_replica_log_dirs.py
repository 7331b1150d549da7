"""Tests of AlterReplicaLogDirs, which moves logs to another log directory of a broker (KIP-113).

The brokers have one log directory, so nothing is moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.wire import only, served

TopicFactory = Callable[..., str]
NAME_MAX = 255 - len("-0.-future") - 32
"""The maximum length of the name of a topic with a future log."""


def log_dir(raw: RawConnection) -> str:
    return str(only(raw.call("describe_log_dirs", 4, topics=()).results).log_dir)


def moved(
    raw: RawConnection, *directories: tuple[str, dict[str, list[int]]], version: int = 2
) -> dict[tuple[str, int], ErrorCode]:
    """Send AlterReplicaLogDirs with the partitions of each directory; return the error codes."""
    dirs: list[dict[str, Any]] = [
        {
            "path": path,
            "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
        }
        for path, topics in directories
    ]
    response = raw.call("alter_replica_log_dirs", version, dirs=dirs)
    return {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in response.results
        for partition in topic.partitions
    }


def test_log_stays_in_its_directory_in_every_version(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name, path = topic(partitions=2), log_dir(raw)
    for version in served(raw, "alter_replica_log_dirs"):
        found = moved(raw, (path, {name: [0, 1]}), version=version)
        assert found == {(name, 0): ErrorCode.none, (name, 1): ErrorCode.none}, version


def test_other_directories_are_not_found(raw: RawConnection, topic: TopicFactory) -> None:
    name, path = topic(), log_dir(raw)
    for other in ("/no-such-directory", f"{path}/", f"{path}/..", "", "any"):
        assert moved(raw, (other, {name: [0]})) == {(name, 0): ErrorCode.log_dir_not_found}, other


def test_last_directory_of_a_partition_applies(raw: RawConnection, topic: TopicFactory) -> None:
    name, path = topic(), log_dir(raw)
    found = moved(raw, (path, {name: [0]}), ("/no-such-directory", {name: [0]}))
    assert found == {(name, 0): ErrorCode.log_dir_not_found}
    found = moved(raw, ("/no-such-directory", {name: [0]}), (path, {name: [0]}))
    assert found == {(name, 0): ErrorCode.none}


def test_partitions_without_a_local_replica(
    raw: RawConnection, cluster: Cluster, unique_name: Callable[[], str]
) -> None:
    path, name = log_dir(raw), unique_name()
    cluster.create_topic(name, assignment=[[cluster.broker_ids[-1]]])
    here = len(cluster.broker_ids) == 1
    found = moved(raw, (path, {name: [0, 9], "no-such-topic": [0], "": [0]}))
    assert found == {
        (name, 0): ErrorCode.none if here else ErrorCode.replica_not_available,
        (name, 9): ErrorCode.unknown_topic_or_partition,
        ("no-such-topic", 0): ErrorCode.unknown_topic_or_partition,
        ("", 0): ErrorCode.unknown_topic_or_partition,
    }


def test_names_that_are_too_long_for_a_future_log(raw: RawConnection) -> None:
    path = log_dir(raw)
    names = ["x" * length for length in (NAME_MAX, NAME_MAX + 1)]
    found = moved(raw, (path, {name: [0] for name in names}))
    assert found == {
        (names[0], 0): ErrorCode.unknown_topic_or_partition,
        (names[1], 0): ErrorCode.invalid_topic_exception,
    }
    found = moved(raw, ("/no-such-directory", {names[1]: [0]}))
    assert found == {(names[1], 0): ErrorCode.invalid_topic_exception}


def test_empty_request(raw: RawConnection) -> None:
    assert moved(raw) == {}
