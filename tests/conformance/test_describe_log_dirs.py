"""Tests of DescribeLogDirs, which returns the logs of a broker and their sizes.

See KIP-113 and KIP-827.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.wire import append, only, served

TopicFactory = Callable[..., str]


def describe(
    raw: RawConnection, requested: dict[str, Sequence[int]] | None, *, version: int = 4
) -> Any:
    """Send DescribeLogDirs; `requested` None requests all partitions."""
    topics = None
    if requested is not None:
        topics = [{"topic": name, "partitions": indexes} for name, indexes in requested.items()]
    return raw.call("describe_log_dirs", version, topics=topics)


def logs(response: Any) -> dict[tuple[str, int], Any]:
    return {
        (topic.name, partition.partition_index): partition
        for result in response.results
        for topic in result.topics
        for partition in topic.partitions
    }


def test_every_version_returns_the_sizes(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    data = batch(values("a", "b"))
    append(raw, name, data)
    append(raw, name, data)
    for version in served(raw, "describe_log_dirs"):
        response = describe(raw, {name: [0, 1]}, version=version)
        assert {result.error_code for result in response.results} == {ErrorCode.none}
        if version >= 3:
            assert response.error_code == ErrorCode.none
        found = {
            key: (log.partition_size, log.offset_lag, log.is_future_key)
            for key, log in logs(response).items()
        }
        assert found == {(name, 0): (2 * len(data), 0, False), (name, 1): (0, 0, False)}, version


def test_null_topics_return_all(raw: RawConnection, topic: TopicFactory) -> None:
    names = [topic(), topic(partitions=2)]
    found = logs(describe(raw, None))
    assert {(names[0], 0), (names[1], 0), (names[1], 1)} <= found.keys()


def test_unknown_partitions_are_omitted(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    response = describe(raw, {name: [0, 9], "no-such-topic": [0]})
    assert set(logs(response)) == {(name, 0)}


def test_empty_request_returns_only_the_directories(raw: RawConnection) -> None:
    result = only(describe(raw, {}).results)
    assert (result.error_code, result.topics) == (ErrorCode.none, ())
    assert result.log_dir.startswith("/")


def test_volume_size_is_returned_or_unknown(raw: RawConnection) -> None:
    result = only(describe(raw, {}).results)
    assert result.total_bytes == -1 or 0 <= result.usable_bytes <= result.total_bytes
