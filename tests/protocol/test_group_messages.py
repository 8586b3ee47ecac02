"""Records of __consumer_offsets and the messages between consumers, against bytes as Kafka writes them."""

from __future__ import annotations

import pytest

from klamm.protocol.codec import decode_versioned, encode_versioned
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from klamm.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_group_metadata,
    decode_key,
    decode_offset_commit,
    encode_key,
    encode_value,
)


def test_keys() -> None:
    offset_key = OffsetCommitKey(group="g", topic="t", partition=7)
    assert encode_key(offset_key) == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07"
    assert encode_key(GroupMetadataKey(group="g")) == b"\x00\x02\x00\x01g"
    assert decode_key(encode_key(offset_key)) == offset_key
    assert decode_key(b"\x00\x00" + encode_key(offset_key)[2:]) == offset_key
    assert decode_key(b"\x00\x02\x00\x01g") == GroupMetadataKey(group="g")
    assert decode_key(b"\x00\x03\x00\x01g") is None
    with pytest.raises(MalformedMessage):
        decode_key(b"\x00\x01\x00\x01g")


def test_offset_commit_value_is_written_as_version_3_unless_it_has_a_topic_id() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9)
    assert (
        encode_value(value)
        == b"\x00\x03" + bytes(7) + b"\x05" + b"\x00\x00\x00\x02\x00\x01m" + bytes(7) + b"\x09"
    )
    assert decode_offset_commit(encode_value(value)) == value

    value.topic_id = bytes(range(16))
    assert encode_value(value)[:2] == b"\x00\x04"
    assert decode_offset_commit(encode_value(value)) == value


@pytest.mark.parametrize("version", range(5))
def test_old_offset_commit_values_are_read(version: int) -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9, expire_timestamp=11)
    decoded, written_version = decode_versioned(OffsetCommitValue, encode_versioned(value, version))
    assert written_version == version
    assert (decoded.offset, decoded.metadata, decoded.commit_timestamp) == (5, "m", 9)
    assert decoded.leader_epoch == (2 if version >= 3 else -1)
    assert decoded.expire_timestamp == (11 if version == 1 else -1)


def test_group_metadata_value() -> None:
    member = MemberMetadata(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout=300_000,
        session_timeout=45_000,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m",
        current_state_timestamp=1,
        members=[member],
    )
    assert encode_value(value)[:2] == b"\x00\x03"
    assert decode_group_metadata(encode_value(value)) == value
    empty = GroupMetadataValue(protocol_type="consumer", protocol=None, leader=None)
    assert decode_group_metadata(encode_value(empty)) == empty


def test_consumer_protocol() -> None:
    owned = [TopicPartition(topic="t", partitions=[0, 2])]
    subscription = ConsumerProtocolSubscription(
        topics=["t", "u"], owned_partitions=owned, generation_id=4, rack_id="r"
    )
    assignment = ConsumerProtocolAssignment(assigned_partitions=owned, user_data=b"u")
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_assignment(encode_assignment(assignment)) == assignment
    assert decode_subscription(encode_subscription(subscription, 0)) == ConsumerProtocolSubscription(
        topics=["t", "u"]
    )


def test_newer_consumer_protocol_is_read_as_the_newest_known() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"], rack_id="r")
    newer = b"\x00\x09" + encode_subscription(subscription)[2:] + b"what comes next"
    assert decode_subscription(newer) == subscription
    with pytest.raises(MalformedMessage, match="no version -1"):
        decode_subscription(b"\xff\xff" + bytes(10))
