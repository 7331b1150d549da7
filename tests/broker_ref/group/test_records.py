"""Tests of `__consumer_offsets` records against bytes that Apache Kafka 4.3 wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_ref.coordination.partitioning import java_hash, partition_of
from broker_ref.group.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnreadableOffsetError,
    decode_group_value,
    decode_key,
    decode_value,
    encode_group_value,
    encode_key,
    encode_value,
)
from broker_ref.protocol.identifiers import Uuid
from tests.broker_ref.work import count_calls

KEY = bytes.fromhex("0001000267310002703100000001")
VALUE = bytes.fromhex(
    "0004000000000000000500000002056d657461000001a1fb90344001001093ecc133183742a1973a02e4873480fe"
)
TOPIC_ID = Uuid("93ecc133-1837-42a1-973a-02e4873480fe")


def test_offset_key_is_encoded_as_by_kafka() -> None:
    key = OffsetCommitKey(group="g1", topic="p1", partition=1)
    assert decode_key(KEY) == key
    assert encode_key(key) == KEY


def test_offset_value_is_encoded_as_by_kafka() -> None:
    value = OffsetCommitValue(
        offset=5,
        leader_epoch=2,
        metadata="meta",
        commit_timestamp_ms=1795221894208,
        topic_id=TOPIC_ID,
    )
    assert decode_value(VALUE) == value
    assert encode_value(value) == VALUE


def test_older_versions_of_offset_values() -> None:
    tail = bytes.fromhex("0004 6d657461 000001a1fb903440".replace(" ", ""))
    offset = bytes.fromhex("0000000000000005")
    older = decode_value(b"\x00\x02" + offset + tail)
    assert (older.offset, older.leader_epoch, older.metadata) == (5, -1, "meta")
    with_epoch = decode_value(b"\x00\x03" + offset + b"\x00\x00\x00\x02" + tail)
    assert (with_epoch.leader_epoch, with_epoch.commit_timestamp_ms) == (2, 1795221894208)


MEMBER_ID = "i1-14f71da5-4071-4029-8f98-cc0c8128392b"
GROUP_KEY = bytes.fromhex("000200026731")
GROUP_VALUE = bytes.fromhex(
    "00030008636f6e73756d657200000001000572616e6765002769312d31346637316461352d343037312d343032392d"
    "386639382d636330633831323833393262000001a1fc5e26d500000001002769312d31346637316461352d34303731"
    "2d343032392d386639382d636330633831323833393262000269310003726177000a2f3132372e302e302e31000075"
    "3000007530000000016d00000003616c6c"
)


def test_group_is_encoded_as_by_kafka() -> None:
    member = MemberMetadata(
        member_id=MEMBER_ID,
        group_instance_id="i1",
        client_id="raw",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=30_000,
        session_timeout_ms=30_000,
        subscription=b"m",
        assignment=b"all",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader=MEMBER_ID,
        state_timestamp_ms=1795235391189,
        members=(member,),
    )
    assert decode_key(GROUP_KEY) == GroupMetadataKey(group="g1")
    assert encode_key(GroupMetadataKey(group="g1")) == GROUP_KEY
    assert decode_group_value(GROUP_VALUE) == value
    assert encode_group_value(value) == GROUP_VALUE


def test_other_versions_of_groups() -> None:
    start = bytes.fromhex("0001 63 00000005 0001 72 0001 6d 00000001 0001 6d 0001 63 0001 68")
    end = bytes.fromhex("00000007 00000001 73 00000001 61")
    oldest = decode_group_value(bytes(2) + start + end)
    assert (oldest.state_timestamp_ms, oldest.members[0].rebalance_timeout_ms) == (-1, -1)
    assert (oldest.members[0].subscription, oldest.members[0].assignment) == (b"s", b"a")
    flexible = bytes.fromhex(
        "0004 02 63 00000005 02 72 02 6d 0000000000000009 02 02 6d 00 02 63 02 68"
        "00000006 00000007 02 73 02 61 00 00"
    )
    newest = decode_group_value(flexible)
    assert newest.state_timestamp_ms == 9
    assert newest.members[0].rebalance_timeout_ms == 6
    assert (newest.leader, newest.members[0].session_timeout_ms) == ("m", 7)


def test_records_of_other_types_have_no_key() -> None:
    assert decode_key(b"\x00\x03\x00\x02g1") is None


@pytest.mark.parametrize(
    "data", [b"", b"\x00\x05" + bytes(40), VALUE[:-1], VALUE[:9], b"\x00\x03\x00\x00"]
)
def test_unreadable_values(data: bytes) -> None:
    with pytest.raises(UnreadableOffsetError):
        decode_value(data)


@given(
    offset=st.integers(-(2**63), 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(max_size=300),
    topic_id=st.uuids(),
)
def test_values_round_trip(offset: int, leader_epoch: int, metadata: str, topic_id: Uuid) -> None:
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=1,
        topic_id=topic_id,
    )
    assert decode_value(encode_value(value)) == value


def test_partitions_of_groups_are_those_of_kafka() -> None:
    # Observed on Apache Kafka 4.3 with 50 partitions.
    chosen = {name: partition_of(name, 50) for name in ("g1", "newg2", "newg3", "")}
    assert chosen == {"g1": 42, "newg2": 3, "newg3": 4, "": 0}


@pytest.mark.parametrize(
    ("name", "value", "partition"),
    # The hash of the second key is Integer.MIN_VALUE.
    [("producer", -1003761774, 24), ("polygenelubricants", -(2**31), 0)],
)
def test_absolute_value_of_a_negative_hash(name: str, value: int, partition: int) -> None:
    assert (java_hash(name), partition_of(name, 50)) == (value, partition)


def test_hash_uses_utf16_code_units() -> None:
    # "😀".hashCode() is 0xD83D * 31 + 0xDE00.
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00
    assert java_hash("\ude00\ud83d") == 0xDE00 * 31 + 0xD83D


def test_hash_of_a_long_name_is_exact_and_fast() -> None:
    """A request can contain thousands of long names."""
    for name in ("a", "\uffff", "\U0001f600z"):
        for length in (31, 32, 33, 65):
            assert java_hash(name * length) == hash_by_definition(name * length)
    name = "\uffff" * 10_000
    assert count_calls(lambda: java_hash(name)) < len(name) / 10


def hash_by_definition(text: str) -> int:
    """Return the hash as Java's documentation defines it."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + 256 * high + low) % 2**32
    return value - 2**32 if value >= 2**31 else value
