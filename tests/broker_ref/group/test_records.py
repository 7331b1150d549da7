"""The records of `__consumer_offsets` against bytes that Apache Kafka 4.3 wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_ref.group.offsets import java_hash
from broker_ref.group.records import (
    OffsetCommitKey,
    OffsetCommitValue,
    UnreadableOffsetError,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from broker_ref.protocol.identifiers import Uuid

KEY = bytes.fromhex("0001000267310002703100000001")
VALUE = bytes.fromhex(
    "0004000000000000000500000002056d657461000001a1fb90344001001093ecc133183742a1973a02e4873480fe"
)
TOPIC_ID = Uuid("93ecc133-1837-42a1-973a-02e4873480fe")


def test_a_key_that_kafka_wrote() -> None:
    key = OffsetCommitKey(group="g1", topic="p1", partition=1)
    assert decode_key(KEY) == key
    assert encode_key(key) == KEY


def test_a_value_that_kafka_wrote() -> None:
    value = OffsetCommitValue(
        offset=5,
        leader_epoch=2,
        metadata="meta",
        commit_timestamp_ms=1795221894208,
        topic_id=TOPIC_ID,
    )
    assert decode_value(VALUE) == value
    assert encode_value(value) == VALUE


def test_values_of_older_versions() -> None:
    tail = bytes.fromhex("0004 6d657461 000001a1fb903440".replace(" ", ""))
    offset = bytes.fromhex("0000000000000005")
    older = decode_value(b"\x00\x02" + offset + tail)
    assert (older.offset, older.leader_epoch, older.metadata) == (5, -1, "meta")
    with_epoch = decode_value(b"\x00\x03" + offset + b"\x00\x00\x00\x02" + tail)
    assert (with_epoch.leader_epoch, with_epoch.commit_timestamp_ms) == (2, 1795221894208)


def test_records_about_other_things_have_no_key() -> None:
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


def test_groups_go_to_the_partition_that_kafka_chose() -> None:
    # Seen on Apache Kafka 4.3 with 50 partitions.
    chosen = {name: (java_hash(name) & 0x7FFFFFFF) % 50 for name in ("g1", "newg2", "newg3", "")}
    assert chosen == {"g1": 42, "newg2": 3, "newg3": 4, "": 0}


def test_the_hash_is_of_utf16_units() -> None:
    # "😀".hashCode() is 0xD83D * 31 + 0xDE00.
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00
