"""DeleteTopics, key 20: delete topics.

Versions 1-6, flexible from 4. Up to 5 by name, from 6 by name or topic id.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string, uuid


class DeleteTopicState(Struct):
    name: str | None = field(string, versions="6+", nullable="6+", default=None)
    topic_id: bytes = field(uuid, versions="6+")


class DeleteTopicsRequest(Message, api_key=20, versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = field(array(DeleteTopicState), versions="6+")
    topic_names: list[str] = field(array(string), versions="0-5", ignorable=True)
    timeout_ms: int = field(int32)


class DeletableTopicResult(Struct):
    name: str | None = field(string, nullable="6+")
    topic_id: bytes = field(uuid, versions="6+", ignorable=True)
    error_code: int = field(int16)
    error_message: str | None = field(string, versions="5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(Message, api_key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    responses: list[DeletableTopicResult] = field(array(DeletableTopicResult))
