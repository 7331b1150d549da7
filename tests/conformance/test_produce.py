"""Tests of Produce: validation, offsets, timestamps and errors."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection, request
from tests.conformance.batches import (
    CONTROL,
    GZIP,
    LOG_APPEND_TIME,
    NONE,
    NOW_MS,
    ZSTD,
    Record,
    batch,
    parse,
    values,
)
from tests.conformance.groups import find_coordinator
from tests.conformance.wire import (
    LATEST,
    MEBIBYTE,
    append,
    describe_topics,
    fetch,
    list_offset,
    only,
    produce,
    produce_request,
    served,
    topic_id,
)

TopicFactory = Callable[..., str]
HOUR_MS = 3_600_000


def test_offsets_are_assigned_one_by_one(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    assert append(raw, name, batch(values("a", "b", "c"))) == 0
    assert append(raw, name, batch(values("d"))) == 3
    assert append(raw, name, batch(values("e", "f"), codec=GZIP)) == 4
    read = [r for b in parse(fetch(raw, name).records) for r in b.records]
    assert [(r.offset, r.value) for r in read] == list(
        enumerate([b"a", b"b", b"c", b"d", b"e", b"f"])
    )


def test_partitions_have_independent_offsets(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    assert append(raw, name, batch(values("a", "b")), partition=0) == 0
    assert append(raw, name, batch(values("c")), partition=1) == 0
    assert append(raw, name, batch(values("d")), partition=0) == 2


def test_broker_writes_its_leader_epoch_into_the_batch(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(values("a"), leader_epoch=41))
    assert only(parse(fetch(raw, name).records)).leader_epoch == 0


def test_batch_is_returned_as_sent(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    records = [
        Record(key=None, value=b"no key", timestamp_ms=NOW_MS + 5),
        Record(key=b"no value", value=None, timestamp_ms=NOW_MS + 2),
        Record(key=None, value=None, timestamp_ms=NOW_MS + 9),
        Record(key=b"", value=b"", timestamp_ms=NOW_MS + 7),
        Record(headers=(("a", b"1"), ("a", b"2"), ("", b""), ("null", None), ("ü", b"\xff"))),
    ]
    append(raw, name, batch(records))
    stored = only(parse(fetch(raw, name).records))
    assert stored.record_count == len(records)
    assert stored.max_timestamp_ms == NOW_MS + 9
    for sent, read in zip(records, stored.records, strict=True):
        assert (read.key, read.value, read.headers) == (sent.key, sent.value, sent.headers)
        assert read.timestamp_ms == sent.timestamp_ms


@pytest.mark.parametrize("acks", [1, -1])
def test_acknowledged_record_can_be_read(
    raw: RawConnection, topic: TopicFactory, acks: int
) -> None:
    name = topic()
    response = produce(raw, name, batch(values("a")), acks=acks)
    assert (response.error_code, response.base_offset) == (ErrorCode.none, 0)
    assert response.log_start_offset == 0
    assert response.log_append_time is None
    assert fetch(raw, name).high_watermark == 1


def test_no_response_with_acks_0(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    raw.send_only(produce_request(name, batch(values("a")), acks=0))
    # With acks=0 there is no response, so the next response is for the next request.
    assert list_offset(raw, name, LATEST).offset == 1


def test_error_with_acks_0_closes_the_connection(raw: RawConnection, topic: TopicFactory) -> None:
    raw.send_only(produce_request(topic(), batch(values("a"), corrupt=True), acks=0))
    assert raw.closed_by_broker()


def test_only_the_admin_client_writes_to_internal_topics(raw: RawConnection, group: str) -> None:
    """Operators can repair internal topics with the client id `__admin_client`."""
    coordinator = only(find_coordinator(raw, group).coordinators).node_id
    records = batch([Record(key=b"\x00\x63", value=None)])  # An unknown type, which is ignored.
    partition = next(
        one.partition_index
        for one in only(describe_topics(raw, "__consumer_offsets").topics).partitions
        if one.leader_id == coordinator
    )
    wanted = produce_request("__consumer_offsets", records, partition=partition)
    codes = [
        only(only(raw.send(wanted, client_id=client_id).responses).partition_responses).error_code
        for client_id in ("raw", "__admin_client")
    ]
    assert codes == [ErrorCode.invalid_topic_exception, ErrorCode.none]


@pytest.mark.parametrize(
    ("compression_type", "sent", "stored"),
    [
        ("producer", GZIP, GZIP),
        ("gzip", GZIP, GZIP),
        ("gzip", NONE, GZIP),
        ("uncompressed", GZIP, NONE),
        ("zstd", GZIP, ZSTD),
    ],
)
def test_batch_is_stored_with_the_codec_of_the_topic(
    raw: RawConnection, topic: TopicFactory, compression_type: str, sent: int, stored: int
) -> None:
    name = topic(**{"compression.type": compression_type})
    records = [Record(key=b"k", value=b"a" * 500, timestamp_ms=NOW_MS + i) for i in (5, 2, 9)]
    assert append(raw, name, batch(records, codec=sent)) == 0
    read = only(parse(fetch(raw, name).records))
    assert (read.codec, read.record_count, read.last_offset_delta) == (stored, 3, 2)
    assert read.max_timestamp_ms == NOW_MS + 9
    if stored != ZSTD:  # The module does not decompress zstd.
        assert [(r.key, r.value, r.timestamp_ms) for r in read.records] == [
            (r.key, r.value, r.timestamp_ms) for r in records
        ]


def test_size_limit_applies_to_the_stored_codec(raw: RawConnection, topic: TopicFactory) -> None:
    small = batch([Record(value=bytes(5_000))], codec=GZIP)
    for compression_type, error_code in (
        ("producer", ErrorCode.none),
        ("uncompressed", ErrorCode.message_too_large),
    ):
        configs = {"compression.type": compression_type, "max.message.bytes": "1000"}
        assert produce(raw, topic(**configs), small).error_code == error_code


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_are_refused(raw: RawConnection, topic: TopicFactory, acks: int) -> None:
    name = topic()
    response = produce(raw, name, batch(values("a")), acks=acks)
    assert response.error_code == ErrorCode.invalid_required_acks
    assert response.base_offset == -1
    assert list_offset(raw, name, LATEST).offset == 0


def test_every_version_accepts_a_batch(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    versions = served(raw, "produce")
    for count, version in enumerate(versions):
        partition = {"index": 0, "records": batch(values(f"v{version}"))}
        by = {"topic_id": topic_id(raw, name)} if version >= 13 else {"name": name}
        response = raw.call(
            "produce",
            version,
            acks=-1,
            timeout=30_000,
            topic_data=[{**by, "partition_data": [partition]}],
        )
        found = only(only(response.responses).partition_responses)
        assert (found.error_code, found.base_offset) == (ErrorCode.none, count), version
    assert list_offset(raw, name, LATEST).offset == len(versions)


def test_wrong_checksum_is_a_corrupt_message(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    response = produce(raw, name, batch(values("a"), corrupt=True))
    assert (response.error_code, response.base_offset) == (ErrorCode.corrupt_message, -1)
    assert list_offset(raw, name, LATEST).offset == 0


def _with_length(data: bytes, length: int) -> bytes:
    return data[:8] + length.to_bytes(4, "big", signed=True) + data[12:]


ONE_BATCH = batch(values("a", "b"))


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(_with_length(ONE_BATCH, len(ONE_BATCH) - 12 + 1), id="one byte missing"),
        pytest.param(_with_length(ONE_BATCH, 3), id="shorter than a header"),
        pytest.param(_with_length(ONE_BATCH, -1), id="negative length"),
        pytest.param(_with_length(ONE_BATCH, 2**31 - 1), id="length of 2 GiB"),
        pytest.param(ONE_BATCH[:40], id="half a header"),
    ],
)
def test_invalid_batch_length_is_refused(
    raw: RawConnection, topic: TopicFactory, records: bytes
) -> None:
    name = topic()
    assert produce(raw, name, records).error_code != ErrorCode.none
    assert list_offset(raw, name, LATEST).offset == 0


def test_record_count_must_match_the_offsets(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    response = produce(raw, name, batch(values("a", "b"), last_offset_delta=7))
    assert response.error_code == ErrorCode.invalid_record
    assert list_offset(raw, name, LATEST).offset == 0


def test_record_count_above_the_batch_size_is_refused(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    lying = batch(values("a"), last_offset_delta=2**31 - 2, record_count=2**31 - 1)
    assert produce(raw, name, lying).error_code == ErrorCode.invalid_record
    assert list_offset(raw, name, LATEST).offset == 0


def test_zstd_is_refused_before_version_7(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    packed = batch(values("a"), attributes=ZSTD)  # rejected without decompression
    for version in served(raw, "produce"):
        if 3 <= version < 7:
            response = produce(raw, name, packed, version=version)
            assert response.error_code == ErrorCode.unsupported_compression_type, version
    assert list_offset(raw, name, LATEST).offset == 0


def test_one_batch_per_partition_and_request(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    response = produce(raw, name, batch(values("a")) + batch(values("b")))
    assert response.error_code == ErrorCode.invalid_record
    assert list_offset(raw, name, LATEST).offset == 0


def test_no_batch_at_all_is_refused(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    assert produce(raw, name, b"").error_code == ErrorCode.invalid_record
    assert list_offset(raw, name, LATEST).offset == 0


def test_client_may_not_choose_offsets(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    response = produce(raw, name, batch(values("a"), base_offset=1))
    assert (response.error_code, response.base_offset) == (ErrorCode.invalid_record, -1)
    assert list_offset(raw, name, LATEST).offset == 0


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_formats_other_than_version_2_are_refused(
    raw: RawConnection, topic: TopicFactory, magic: int
) -> None:
    name = topic()
    assert produce(raw, name, batch(values("a"), magic=magic)).error_code != ErrorCode.none
    assert list_offset(raw, name, LATEST).offset == 0


def test_client_may_not_write_control_records(raw: RawConnection, topic: TopicFactory) -> None:
    response = produce(raw, topic(), batch(values("a"), attributes=CONTROL))
    assert response.error_code == ErrorCode.invalid_record


def test_unknown_topic_or_partition(
    raw: RawConnection, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert produce(raw, unique_name(), batch(values("a"))).error_code == unknown
    assert produce(raw, topic(), batch(values("a")), partition=1).error_code == unknown
    assert produce(raw, topic(), batch(values("a")), partition=-1).error_code == unknown


def test_one_invalid_partition_does_not_affect_the_others(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic(partitions=3)
    good, bad = batch(values("a")), batch(values("a"), corrupt=True)
    response = raw.send(
        request(
            "produce",
            9,
            acks=-1,
            timeout=30_000,
            topic_data=[
                {
                    "name": name,
                    "partition_data": [
                        {"index": 0, "records": good},
                        {"index": 1, "records": bad},
                        {"index": 2, "records": good},
                        {"index": 9, "records": good},
                    ],
                }
            ],
        )
    )
    codes = {p.index: p.error_code for p in only(response.responses).partition_responses}
    assert codes == {
        0: ErrorCode.none,
        1: ErrorCode.corrupt_message,
        2: ErrorCode.none,
        9: ErrorCode.unknown_topic_or_partition,
    }


@pytest.mark.parametrize("codec", [0, GZIP])
def test_keyless_record_in_a_compacted_topic_is_refused(
    raw: RawConnection, topic: TopicFactory, codec: int
) -> None:
    name = topic(**{"cleanup.policy": "compact"})
    records = [Record(), Record(key=None), Record(), Record(key=None)]
    response = produce(raw, name, batch(records, codec=codec))
    assert (response.error_code, response.base_offset) == (ErrorCode.invalid_record, -1)
    assert [error.batch_index for error in response.record_errors] == [1, 3]
    assert response.error_message
    assert append(raw, name, batch([Record(), Record(key=b"", value=None)], codec=codec)) == 0


def test_batch_above_max_message_bytes_is_refused(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"max.message.bytes": "1000"})
    fits = batch([Record(value=b"x" * 800)])
    too_large = batch([Record(value=b"x" * (801 + 1000 - len(fits)))])
    assert len(too_large) == 1001
    response = produce(raw, name, too_large)
    assert (response.error_code, response.base_offset) == (ErrorCode.message_too_large, -1)
    assert append(raw, name, batch([Record(value=b"x" * (800 + 1000 - len(fits)))])) == 0


def test_default_limit_accepts_one_mebibyte_including_the_batch_header(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    assert produce(raw, name, batch([Record(value=b"x" * (MEBIBYTE + 12))])).error_code == (
        ErrorCode.message_too_large
    )
    large = Record(value=b"x" * (MEBIBYTE - 80))
    append(raw, name, batch([large]))
    read = only(parse(fetch(raw, name, partition_max_bytes=2 * MEBIBYTE).records))
    assert only(read.records).value == large.value


def test_timestamps_of_the_producer_are_kept_by_default(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    response = produce(raw, name, batch(values("a", timestamp_ms=123)))
    assert response.log_append_time is None
    stored = only(parse(fetch(raw, name).records))
    assert stored.attributes & LOG_APPEND_TIME == 0
    assert only(stored.records).timestamp_ms == 123


@pytest.mark.parametrize("codec", [0, GZIP])
def test_log_append_time_is_the_clock_of_the_broker(
    raw: RawConnection, topic: TopicFactory, codec: int
) -> None:
    name = topic(**{"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    records = [*values("a", timestamp_ms=1), *values("b", timestamp_ms=2)]
    response = produce(raw, name, batch(records, codec=codec))
    after_ms = int(time.time() * 1000)
    assert response.error_code == ErrorCode.none
    appended_ms = round(response.log_append_time.timestamp() * 1000)
    assert before_ms <= appended_ms <= after_ms
    stored = only(parse(fetch(raw, name).records))
    assert stored.attributes & LOG_APPEND_TIME
    assert stored.max_timestamp_ms == appended_ms
    assert {r.timestamp_ms for r in stored.records} == {appended_ms}


def test_timestamp_too_far_ahead_is_refused(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    now_ms = int(time.time() * 1000)
    response = produce(raw, name, batch(values("a", timestamp_ms=now_ms + 2 * HOUR_MS)))
    assert response.error_code == ErrorCode.invalid_timestamp
    assert append(raw, name, batch(values("a", timestamp_ms=now_ms + HOUR_MS // 2))) == 0


def test_timestamp_too_far_back_is_refused_if_configured(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic(**{"message.timestamp.before.max.ms": str(HOUR_MS)})
    now_ms = int(time.time() * 1000)
    response = produce(raw, name, batch(values("a", timestamp_ms=now_ms - 2 * HOUR_MS)))
    assert response.error_code == ErrorCode.invalid_timestamp
    assert append(raw, name, batch(values("a", timestamp_ms=now_ms))) == 0
