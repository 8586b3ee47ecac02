"""Group state as records of __consumer_offsets, as Kafka writes them, and back.

A key says in its first two bytes what the record is about; a value says its own version. Kinds and versions
that this broker does not know are skipped with a warning: they belong to other group protocols, or were
written by a newer version.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, TypeAlias

from klamm.groups.events import GroupSnapshot, MemberSnapshot
from klamm.groups.offsets import CommittedOffset
from klamm.protocol.codec import encode_versioned
from klamm.protocol.errors import MalformedMessage
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

KeyValue: TypeAlias = tuple[bytes, bytes | None]
"""The key and the value of a record of __consumer_offsets; without a value it is a tombstone."""

_LOGGER = logging.getLogger(__name__)
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1


class OffsetChange(NamedTuple):
    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


class GroupChange(NamedTuple):
    group_id: str
    snapshot: GroupSnapshot | None


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> KeyValue:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    )
    if committed.expire_timestamp_ms >= 0:
        encoded = encode_versioned(value, _OFFSET_VALUE_VERSION_WITH_EXPIRY)
    else:
        encoded = encode_value(value)
    return encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition)), encoded


def offset_tombstone(group_id: str, topic: str, partition: int) -> KeyValue:
    return encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition)), None


def group_record(snapshot: GroupSnapshot) -> KeyValue:
    value = GroupMetadataValue(
        protocol_type=snapshot.protocol_type,
        generation=snapshot.generation,
        protocol=snapshot.protocol_name,
        leader=snapshot.leader_id,
        current_state_timestamp=snapshot.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in snapshot.members
        ],
    )
    return encode_key(GroupMetadataKey(group=snapshot.group_id)), encode_value(value)


def group_tombstone(group_id: str) -> KeyValue:
    return encode_key(GroupMetadataKey(group=group_id)), None


def parse_record(key: bytes | None, value: bytes | None) -> OffsetChange | GroupChange | None:
    """The change that a record stands for; None for a record that this broker does not know."""
    try:
        parsed_key = None if key is None else decode_key(key)
        if isinstance(parsed_key, OffsetCommitKey):
            committed = None if value is None else _parse_offset(value)
            return OffsetChange(parsed_key.group, parsed_key.topic, parsed_key.partition, committed)
        if isinstance(parsed_key, GroupMetadataKey):
            group_id = parsed_key.group
            return GroupChange(group_id, None if value is None else _parse_group(group_id, value))
    except MalformedMessage as error:
        _LOGGER.warning("a record of __consumer_offsets is skipped: %s", error)
        return None
    _LOGGER.warning("a record of __consumer_offsets is skipped: its key %r is of no known kind", key)
    return None


def _parse_offset(value: bytes) -> CommittedOffset:
    parsed = decode_offset_commit(value)
    return CommittedOffset(
        offset=parsed.offset,
        leader_epoch=parsed.leader_epoch,
        metadata=parsed.metadata,
        commit_timestamp_ms=parsed.commit_timestamp,
        expire_timestamp_ms=parsed.expire_timestamp,
        topic_id=parsed.topic_id,
    )


def _parse_group(group_id: str, value: bytes) -> GroupSnapshot:
    parsed = decode_group_metadata(value)
    return GroupSnapshot(
        group_id=group_id,
        protocol_type=parsed.protocol_type,
        generation=parsed.generation,
        protocol_name=parsed.protocol,
        leader_id=parsed.leader,
        state_timestamp_ms=parsed.current_state_timestamp,
        members=tuple(
            MemberSnapshot(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                # Version 0 knew one timeout for both.
                rebalance_timeout_ms=max(member.rebalance_timeout, 0) or member.session_timeout,
                session_timeout_ms=member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in parsed.members
        ),
    )
