"""The subscriptions and assignments that members of a classic group exchange in JoinGroup and SyncGroup.

To the broker these are opaque bytes, except where it has to know the topics that a group subscribes to. Both
messages carry their version in front. A version newer than those known here is read as the newest one known:
the members of a group may differ in age, and versions only ever add fields at the end.
"""

from __future__ import annotations

from klamm.protocol.codec import MessageT, decode, encode_versioned, peek_version
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.primitives import Buffer
from klamm.protocol.schema import Message, Struct, array, byte_string, field, int32, string

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members speak this protocol."""

_VERSION_SIZE = 2


class TopicPartition(Struct):
    topic: str = field(string)
    partitions: list[int] = field(array(int32))


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: list[str] = field(array(string))
    user_data: bytes | None = field(byte_string, nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = field(array(TopicPartition), versions="1+", ignorable=True)
    generation_id: int = field(int32, versions="2+", default=-1, ignorable=True)
    rack_id: str | None = field(string, versions="3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    assigned_partitions: list[TopicPartition] = field(array(TopicPartition))
    user_data: bytes | None = field(byte_string, nullable="0+", default=None)


def decode_subscription(buffer: Buffer) -> ConsumerProtocolSubscription:
    return _decode_newest_known(ConsumerProtocolSubscription, buffer)


def decode_assignment(buffer: Buffer) -> ConsumerProtocolAssignment:
    return _decode_newest_known(ConsumerProtocolAssignment, buffer)


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = 3) -> bytes:
    return encode_versioned(subscription, version)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = 3) -> bytes:
    return encode_versioned(assignment, version)


def _decode_newest_known(cls: type[MessageT], buffer: Buffer) -> MessageT:
    version = peek_version(buffer)
    if version < 0:
        raise MalformedMessage(f"{cls.__name__} has no version {version}")
    return decode(cls, min(version, cls.__valid_versions__.last), buffer, _VERSION_SIZE)[0]
