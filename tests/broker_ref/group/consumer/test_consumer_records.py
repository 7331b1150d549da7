"""Tests of consumer group records against bytes that Apache Kafka 4.3 wrote."""

from __future__ import annotations

import pytest

from broker_ref.group.consumer.member import ClassicMetadata
from broker_ref.group.consumer.records import (
    AssignedPartitions,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupValue,
    TopicPartitions,
    decode_consumer_key,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
)
from broker_ref.group.members import MemberProtocol
from broker_ref.group.records import UnreadableOffsetError
from broker_ref.protocol.identifiers import Uuid

TOPIC_ID = Uuid("5a5235e0-be71-4a56-b982-3f35347f0697")
MEMBER = ConsumerGroupMemberMetadataValue(
    instance_id="i1",
    rack_id="r1",
    client_id="raw",
    client_host="/127.0.0.1",
    subscribed_topic_names=("p1",),
    subscribed_topic_regex="p.*",
    rebalance_timeout_ms=30_000,
    server_assignor="range",
)

RECORDS: list[tuple[str, ConsumerGroupKey, str, ConsumerGroupValue]] = [
    (
        "000300026730",
        ConsumerGroupMetadataKey("g0"),
        "00000000000201000887669a68eaee267d",
        ConsumerGroupMetadataValue(epoch=2, metadata_hash=-0x789965971511D983),
    ),
    (
        "00050002673000026d31",
        ConsumerGroupMemberMetadataKey("g0", "m1"),
        "0000036931037231047261770b2f3132372e302e302e310203703104702e2a000075300672616e676501000100",
        MEMBER,
    ),
    (
        "000600026730",
        ConsumerGroupTargetAssignmentMetadataKey("g0"),
        "000000000002010008000001a21739341f",
        ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=2, assignment_timestamp_ms=0x1A21739341F
        ),
    ),
    (
        "00070002673000026d31",
        ConsumerGroupTargetAssignmentMemberKey("g0", "m1"),
        "0000025a5235e0be714a56b9823f35347f06970300000000000000010000",
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=(TopicPartitions(topic_id=TOPIC_ID, partitions=(0, 1)),)
        ),
    ),
    (
        "00080002673000026d31",
        ConsumerGroupCurrentMemberAssignmentKey("g0", "m1"),
        (
            "0000000000030000000301025a5235e0be714a56b9823f35347f0697030000000000000001010009"
            "030000000200000002025a5235e0be714a56b9823f35347f06970200000002010005020000000200"
        ),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=3,
            previous_member_epoch=3,
            state=1,
            assigned_partitions=(
                AssignedPartitions(topic_id=TOPIC_ID, partitions=(0, 1), assignment_epochs=(2, 2)),
            ),
            partitions_pending_revocation=(
                AssignedPartitions(topic_id=TOPIC_ID, partitions=(2,), assignment_epochs=(2,)),
            ),
        ),
    ),
    (
        "0010000267300003702e2a",
        ConsumerGroupRegularExpressionKey("g0", "p.*"),
        "0000020370310000000000000019000001a21739347900",
        ConsumerGroupRegularExpressionValue(topics=("p1",), version=25, timestamp_ms=0x1A217393479),
    ),
]


@pytest.mark.parametrize(("key_hex", "key", "value_hex", "value"), RECORDS)
def test_records_are_encoded_as_by_kafka(
    key_hex: str, key: ConsumerGroupKey, value_hex: str, value: ConsumerGroupValue
) -> None:
    encoded_key, encoded_value = bytes.fromhex(key_hex), bytes.fromhex(value_hex)
    assert decode_consumer_key(encoded_key) == key
    assert encode_consumer_key(key) == encoded_key
    assert decode_consumer_value(key, encoded_value) == value
    assert encode_consumer_value(key, value) == encoded_value
    with pytest.raises(UnreadableOffsetError):
        decode_consumer_value(key, encoded_value[:-1])


def test_member_of_the_classic_protocol() -> None:
    """The classic part is a nullable struct in a tagged field."""
    key = ConsumerGroupMemberMetadataKey("g", "m")
    classic = ClassicMetadata(
        session_timeout_ms=7, protocols=(MemberProtocol(name="range", metadata=b"ab"),)
    )
    value = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="",
        client_host="",
        subscribed_topic_names=(),
        subscribed_topic_regex="",
        rebalance_timeout_ms=9,
        server_assignor=None,
        classic_member_metadata=classic,
    )
    encoded = encode_consumer_value(key, value)
    fields = "0000 00 00 01 01 01 01 00000009 00"
    tagged = "01 00 11 01 00000007 02 0672616e6765 036162 00 00"
    assert encoded == bytes.fromhex((fields + tagged).replace(" ", ""))
    assert decode_consumer_value(key, encoded) == value


def test_records_of_earlier_and_later_versions() -> None:
    """Kafka 4.0 writes no hash and no epochs, and stores topics. Unknown tags are skipped."""
    group, member = ConsumerGroupMetadataKey("g"), ConsumerGroupCurrentMemberAssignmentKey("g", "m")
    assert decode_consumer_value(group, bytes.fromhex("0000 00000005 00".replace(" ", ""))) == (
        ConsumerGroupMetadataValue(epoch=5)
    )
    later = bytes.fromhex("0000 00000005 02 00 08 0000000000000007 09 01 ff".replace(" ", ""))
    assert decode_consumer_value(group, later) == ConsumerGroupMetadataValue(
        epoch=5, metadata_hash=7
    )
    head = "0000 00000005 00000004 00 02" + TOPIC_ID.hex
    old = bytes.fromhex((head + "02 00000001 00 01 00").replace(" ", ""))
    value = decode_consumer_value(member, old)
    assert isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
    assert value.assigned_partitions == (AssignedPartitions(topic_id=TOPIC_ID, partitions=(1,)),)
    stored = decode_consumer_value(ConsumerGroupPartitionMetadataKey("g"), b"\x00\x00\x01\x00")
    assert stored == ConsumerGroupPartitionMetadataValue()
    assert decode_consumer_key(b"\x00\x02\x00\x01g") is None
