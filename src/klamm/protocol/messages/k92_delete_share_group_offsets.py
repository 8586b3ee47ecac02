"""DeleteShareGroupOffsets, key 92: delete the start offsets of a share group.

Version 0, all flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string, uuid


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(string)


class DeleteShareGroupOffsetsRequest(Message, api_key=92, versions="0", flexible="0+"):
    group_id: str = field(string)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field(array(DeleteShareGroupOffsetsRequestTopic))


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(string)
    topic_id: bytes = field(uuid)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Message, api_key=92, versions="0", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field(array(DeleteShareGroupOffsetsResponseTopic))
