"""The records of __consumer_offsets that classic groups write: committed offsets and group metadata.

Keys and values both begin with an int16. In a value that is its version. In a key it tells the kind
of the record: 0 and 1 are offsets, laid out alike, 2 is a group. The declarations here count the kinds as
versions of the key. Other kinds belong to other group protocols.
"""

from __future__ import annotations

from klamm.protocol.codec import decode_versioned, encode_versioned, peek_version
from klamm.protocol.primitives import Buffer
from klamm.protocol.schema import Message, Struct, array, byte_string, field, int32, int64, string, uuid

OFFSET_COMMIT_KEY_VERSION = 1
GROUP_METADATA_KEY_VERSION = 2

OFFSET_COMMIT_VALUE_VERSION = 3
"""Old enough for every Kafka of today. Version 4 is written only where there is a topic id to note."""

GROUP_METADATA_VALUE_VERSION = 3


class OffsetCommitKey(Message, versions="0-1"):
    group: str = field(string)
    topic: str = field(string)
    partition: int = field(int32)


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    offset: int = field(int64)
    leader_epoch: int = field(int32, versions="3+", default=-1, ignorable=True)
    metadata: str = field(string)
    commit_timestamp: int = field(int64)
    expire_timestamp: int = field(int64, versions="1", default=-1, ignorable=True)
    topic_id: bytes = field(uuid, versions="4+", tag=0, ignorable=True)


class GroupMetadataKey(Message, versions="2"):
    group: str = field(string)


class MemberMetadata(Struct):
    member_id: str = field(string)
    group_instance_id: str | None = field(string, versions="3+", nullable="3+", default=None, ignorable=True)
    client_id: str = field(string)
    client_host: str = field(string)
    rebalance_timeout: int = field(int32, versions="1+", default=-1, ignorable=True)
    session_timeout: int = field(int32)
    subscription: bytes = field(byte_string)
    assignment: bytes = field(byte_string)


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    protocol_type: str = field(string)
    generation: int = field(int32)
    protocol: str | None = field(string, nullable="0+")
    leader: str | None = field(string, nullable="0+")
    current_state_timestamp: int = field(int64, versions="2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = field(array(MemberMetadata))


GroupKey = OffsetCommitKey | GroupMetadataKey


def encode_key(key: GroupKey) -> bytes:
    is_offset = isinstance(key, OffsetCommitKey)
    return encode_versioned(key, OFFSET_COMMIT_KEY_VERSION if is_offset else GROUP_METADATA_KEY_VERSION)


def decode_key(buffer: Buffer) -> GroupKey | None:
    """None for a kind of record that classic groups do not write."""
    kind = peek_version(buffer)
    if kind in OffsetCommitKey.__valid_versions__:
        return decode_versioned(OffsetCommitKey, buffer)[0]
    if kind in GroupMetadataKey.__valid_versions__:
        return decode_versioned(GroupMetadataKey, buffer)[0]
    return None


def encode_value(value: OffsetCommitValue | GroupMetadataValue) -> bytes:
    if isinstance(value, GroupMetadataValue):
        return encode_versioned(value, GROUP_METADATA_VALUE_VERSION)
    has_topic_id = value.topic_id != uuid.default
    return encode_versioned(value, OFFSET_COMMIT_VALUE_VERSION + has_topic_id)


def decode_offset_commit(buffer: Buffer) -> OffsetCommitValue:
    return decode_versioned(OffsetCommitValue, buffer)[0]


def decode_group_metadata(buffer: Buffer) -> GroupMetadataValue:
    return decode_versioned(GroupMetadataValue, buffer)[0]
