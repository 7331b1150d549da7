"""Tests of DeleteRecords, which increases the log start offset (KIP-107)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import Record, batch, parse, values
from tests.conformance.topic_settings import settings
from tests.conformance.wire import (
    EARLIEST,
    LATEST,
    append,
    fetch,
    list_offset,
    only,
    served,
)

TopicFactory = Callable[..., str]
HIGH_WATERMARK = -1


def delete(
    raw: RawConnection, topic: str, offset: int, *, partition: int = 0, version: int = 2
) -> Any:
    requested = {"partition_index": partition, "offset": offset}
    response = raw.call(
        "delete_records",
        version,
        timeout=30_000,
        topics=[{"name": topic, "partitions": [requested]}],
    )
    return only(only(response.topics).partitions)


@pytest.fixture
def filled(raw: RawConnection, topic: TopicFactory) -> str:
    """Return a topic with batches at offsets 0 to 2, 3 to 5 and 6."""
    name = topic()
    for records in (values("a", "b", "c"), values("d", "e", "f"), values("g")):
        append(raw, name, batch(records))
    return name


def test_records_before_the_offset_are_deleted(raw: RawConnection, filled: str) -> None:
    result = delete(raw, filled, 4)
    assert (result.error_code, result.low_watermark) == (ErrorCode.none, 4)
    assert list_offset(raw, filled, EARLIEST).offset == 4
    assert list_offset(raw, filled, LATEST).offset == 7
    assert fetch(raw, filled, 3).error_code == ErrorCode.offset_out_of_range
    response = fetch(raw, filled, 4)
    assert (response.error_code, response.log_start_offset) == (ErrorCode.none, 4)
    # The broker returns the whole batch that contains the offset; clients skip earlier records.
    assert parse(response.records)[0].base_offset == 3


def test_minus_one_deletes_up_to_the_high_watermark(raw: RawConnection, filled: str) -> None:
    result = delete(raw, filled, HIGH_WATERMARK)
    assert (result.error_code, result.low_watermark) == (ErrorCode.none, 7)
    assert list_offset(raw, filled, EARLIEST).offset == 7
    assert append(raw, filled, batch(values("h"))) == 7


def test_every_version_deletes_records(raw: RawConnection, filled: str) -> None:
    for offset, version in enumerate(served(raw, "delete_records"), start=1):
        assert delete(raw, filled, offset, version=version).low_watermark == offset


def test_deleted_offset_may_be_deleted_again(raw: RawConnection, filled: str) -> None:
    delete(raw, filled, 5)
    for offset in (5, 2, 0):
        result = delete(raw, filled, offset)
        assert (result.error_code, result.low_watermark) == (ErrorCode.none, 5)


@pytest.mark.parametrize("offset", [8, 1_000, -2])
def test_offset_above_the_high_watermark_is_out_of_range(
    raw: RawConnection, filled: str, offset: int
) -> None:
    result = delete(raw, filled, offset)
    assert (result.error_code, result.low_watermark) == (ErrorCode.offset_out_of_range, -1)
    assert list_offset(raw, filled, EARLIEST).offset == 0


def test_unknown_topic_or_partition(
    raw: RawConnection, filled: str, unique_name: Callable[[], str]
) -> None:
    unknown = (ErrorCode.unknown_topic_or_partition, -1)
    for result in (delete(raw, unique_name(), 0), delete(raw, filled, 0, partition=1)):
        assert (result.error_code, result.low_watermark) == unknown


def test_compacted_topic_refuses_delete_records(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"cleanup.policy": "compact"})
    append(raw, name, batch(values("a", "b")))
    assert delete(raw, name, 1).error_code == ErrorCode.policy_violation
    assert list_offset(raw, name, EARLIEST).offset == 0


def test_topic_without_a_cleanup_policy(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"cleanup.policy": ""})
    assert settings(raw, name)["cleanup.policy"] == ""
    append(raw, name, batch(values("a", "b")))
    append(raw, name, batch([Record(key=None)]))
    assert delete(raw, name, 1).error_code == ErrorCode.none
    assert list_offset(raw, name, EARLIEST).offset == 1
