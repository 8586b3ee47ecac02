"""The values that the client returns to its users: records, where a record was written, offsets."""

from __future__ import annotations

from typing import NamedTuple

from klamm.model.ids import TopicPartition as TopicPartition
from klamm.records.reader import Headers as Headers

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


class Record(NamedTuple):
    """A record that a consumer received. `timestamp` is in milliseconds since 1970, in UTC."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: str = CREATE_TIME
    leader_epoch: int = -1


class SentRecord(NamedTuple):
    """Where a record was written. With acks=0 the broker does not answer, and `offset` is -1."""

    partition: int
    offset: int
    timestamp: int
    topic: str


class CommittedOffset(NamedTuple):
    """A group's committed position: the offset of the next record to read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTime(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp: int
    leader_epoch: int = -1
