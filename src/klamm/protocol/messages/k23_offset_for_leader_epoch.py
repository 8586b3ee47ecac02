"""OffsetForLeaderEpoch, key 23: where a leader epoch ended in the log.

Versions 2-4, flexible from 4. Consumers and followers use it to find out whether the log was truncated.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, int64, string


class OffsetForLeaderPartition(Struct):
    partition: int = field(int32)
    current_leader_epoch: int = field(int32, versions="2+", default=-1, ignorable=True)
    leader_epoch: int = field(int32)


class OffsetForLeaderTopic(Struct):
    topic: str = field(string)
    partitions: list[OffsetForLeaderPartition] = field(array(OffsetForLeaderPartition))


class OffsetForLeaderEpochRequest(Message, api_key=23, versions="2-4", flexible="4+"):
    replica_id: int = field(int32, versions="3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = field(array(OffsetForLeaderTopic))


class EpochEndOffset(Struct):
    error_code: int = field(int16)
    partition: int = field(int32)
    leader_epoch: int = field(int32, versions="1+", default=-1, ignorable=True)
    end_offset: int = field(int64, default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = field(string)
    partitions: list[EpochEndOffset] = field(array(EpochEndOffset))


class OffsetForLeaderEpochResponse(Message, api_key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: int = field(int32, versions="2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = field(array(OffsetForLeaderTopicResult))
