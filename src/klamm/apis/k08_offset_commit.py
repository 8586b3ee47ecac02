"""OffsetCommit (key 8), versions 2 to 10.

Answered when the offsets are in __consumer_offsets. A commit without generation (-1) is taken while the group
has no members, and makes the group if need be; one with a generation must come from a member of it.
Versions 2 to 4 may choose how long the offset is kept; 6 brings the leader epoch; 7 the static name; 9 tells
of an unknown group by GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION; 10 names topics by id. More than
`MOST_AT_ONCE` offsets are written in several batches, so some may be committed and others refused; each
partition has a code of its own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps, pieces_of
from klamm.groups.offsets import NO_TIMESTAMP, CommittedOffset
from klamm.groups.writer import MOST_AT_ONCE
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_FIRST_VERSION_WITH_GROUP_NOT_FOUND = 9
_FIRST_VERSION_WITH_TOPIC_IDS = 10
_KEEP_FOR_DEFAULT = -1
_LATEST_TIMESTAMP_MS = 2**63 - 1


@api(ApiKey.OFFSET_COMMIT)
def handle(
    broker: Broker, request: Request[OffsetCommitRequest]
) -> Steps[Coroutine[Any, Any, Steps[OffsetCommitResponse]]]:
    commit = _Commit(broker, request)
    for topic in request.message.topics:
        yield from commit.collect(topic)
    return commit.write_and_answer()


class _Commit:
    """One request: the offsets that may be committed, and the answers for the other partitions."""

    def __init__(self, broker: Broker, request: Request[OffsetCommitRequest]) -> None:
        self._broker = broker
        self._request = request
        self._offsets: dict[TopicPartition, CommittedOffset] = {}
        self._answers: list[tuple[OffsetCommitResponsePartition, TopicPartition]] = []
        self._topics: list[OffsetCommitResponseTopic] = []
        self._now_ms = broker.clock.now_ms()
        retention_ms = request.message.retention_time_ms
        self._expire_timestamp_ms = (
            NO_TIMESTAMP
            if retention_ms == _KEEP_FOR_DEFAULT
            else min(self._now_ms + retention_ms, _LATEST_TIMESTAMP_MS)
        )

    def collect(self, topic: OffsetCommitRequestTopic) -> Steps[None]:
        image = self._broker.cluster.image
        uses_ids = self._request.version >= _FIRST_VERSION_WITH_TOPIC_IDS
        name = image.topic_names_by_id.get(topic.topic_id) if uses_ids else topic.name
        known = image.topics.get(name) if name is not None else None
        unknown_code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition_count = len(known.partitions) if known is not None else 0
        answers = []
        for partition in topic.partitions:
            yield
            index = partition.partition_index
            answer = OffsetCommitResponsePartition(partition_index=index, error_code=ErrorCode.NONE)
            answers.append(answer)
            if name is None or known is None or not 0 <= index < partition_count:
                answer.error_code = unknown_code
                continue
            place = TopicPartition(name, index)
            self._answers.append((answer, place))
            self._offsets[place] = CommittedOffset(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata or "",
                commit_timestamp_ms=self._now_ms,
                expire_timestamp_ms=self._expire_timestamp_ms,
                topic_id=known.topic_id,  # also where the client named the topic: another may take its name
            )
        self._topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )

    async def write_and_answer(self) -> Steps[OffsetCommitResponse]:
        codes: dict[TopicPartition, ErrorCode] = {}
        # Also a commit of nothing is checked: the group may not exist, or not know the member.
        for offsets in list(pieces_of(list(self._offsets.items()), MOST_AT_ONCE)) or [[]]:
            codes |= await self._write(dict(offsets))
        for answer, place in self._answers:
            answer.error_code = codes[place]
        return in_steps(OffsetCommitResponse(topics=self._topics))

    async def _write(self, offsets: dict[TopicPartition, CommittedOffset]) -> dict[TopicPartition, ErrorCode]:
        message = self._request.message
        has_own_code = self._request.version >= _FIRST_VERSION_WITH_GROUP_NOT_FOUND
        try:
            return await self._broker.groups.commit(
                message.group_id,
                message.member_id,
                message.group_instance_id,
                message.generation_id_or_member_epoch,
                offsets,
                unknown_group_error=(
                    ErrorCode.GROUP_ID_NOT_FOUND if has_own_code else ErrorCode.ILLEGAL_GENERATION
                ),
            )
        except KafkaError as error:
            return dict.fromkeys(offsets, error.code)
