"""OffsetFetch (key 9), versions 1 to 10.

A partition for which nothing is committed, or whose group is unknown, has offset -1 and no error. Null
topics ask for everything. Offsets of a deleted topic are not shown, though they are deleted a moment later.
What is asked twice is answered once. Up to version 7 a request is about one group,
from 8 on about many; 9 adds the member, which groups of the classic protocol do not check; 10 names topics by
id. `require_stable` has nothing to wait for as long as there are no transactions.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, distinct, in_steps, lazily
from klamm.cluster.image import ClusterImage
from klamm.groups.offsets import CommittedOffset, OffsetTable
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_FIRST_VERSION_WITH_GROUPS = 8
_FIRST_VERSION_WITH_TOPIC_IDS = 10
_FIRST_VERSION_WITH_ERROR_CODE = 2
_Wanted = dict[tuple[str, bytes], list[int]]
"""Partitions of each topic, by its name and its id: a topic that a request names twice is there once."""

_NOTHING = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", commit_timestamp_ms=-1)


@api(ApiKey.OFFSET_FETCH)
def handle(broker: Broker, request: Request[OffsetFetchRequest]) -> Steps[OffsetFetchResponse]:
    if request.version >= _FIRST_VERSION_WITH_GROUPS:
        uses_ids = request.version >= _FIRST_VERSION_WITH_TOPIC_IDS
        groups: dict[str, OffsetFetchRequestGroup] = {}
        for group in request.message.groups:
            groups.setdefault(group.group_id, group)
        return in_steps(
            OffsetFetchResponse(
                groups=lazily(
                    list(groups.values()),
                    lambda group: _fetch(broker, group.group_id, _wanted(group.topics), uses_ids=uses_ids),
                )
            )
        )
    message = request.message
    fetched = _fetch(broker, message.group_id, _wanted(message.topics), uses_ids=False)
    return in_steps(_in_old_form(fetched, request.version))


def _fetch(
    broker: Broker, group_id: str, wanted: _Wanted | None, *, uses_ids: bool
) -> OffsetFetchResponseGroup:
    image = broker.cluster.image
    code = ErrorCode.NONE
    try:
        offsets = broker.groups.offsets_of(group_id)
    except KafkaError as error:
        code = error.code
        offsets = OffsetTable()
    if wanted is None:
        topics = _all_topics(image, offsets, uses_ids=uses_ids)
    else:
        topics = lazily(
            wanted.items(),
            lambda topic: _fetch_topic(image, offsets, *topic, uses_ids=uses_ids),
        )
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics, error_code=code)


def _fetch_topic(
    image: ClusterImage,
    offsets: OffsetTable,
    wanted: tuple[str, bytes],
    indexes: list[int],
    *,
    uses_ids: bool,
) -> OffsetFetchResponseTopics:
    wanted_name, wanted_id = wanted
    name = image.topic_names_by_id.get(wanted_id) if uses_ids else wanted_name
    code = ErrorCode.NONE if name is not None else ErrorCode.UNKNOWN_TOPIC_ID
    topic_id = _topic_id(image, name)
    partitions = lazily(
        distinct(indexes),
        lambda index: _partition(
            index, offsets.get(name, index) if name is not None else None, topic_id, code
        ),
    )
    return OffsetFetchResponseTopics(name=wanted_name, topic_id=wanted_id, partitions=partitions)


def _all_topics(
    image: ClusterImage, offsets: OffsetTable, *, uses_ids: bool
) -> list[OffsetFetchResponseTopics]:
    names = offsets.topics
    if uses_ids:
        names = [name for name in names if name in image.topics]  # a topic that is gone cannot be named

    def answer(name: str) -> OffsetFetchResponseTopics:
        topic_id = _topic_id(image, name)
        indexes = offsets.partitions_for(name, topic_id)
        partitions = lazily(indexes, lambda index: _partition(index, offsets.get(name, index), topic_id))
        return OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=partitions)

    return lazily(names, answer)


def _topic_id(image: ClusterImage, name: str | None) -> bytes:
    topic = image.topics.get(name) if name is not None else None
    return ZERO_TOPIC_ID if topic is None else topic.topic_id


def _partition(
    index: int, committed: CommittedOffset | None, topic_id: bytes, code: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
    if committed is None or not committed.is_for(topic_id):
        committed = _NOTHING
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


def _wanted(
    topics: list[OffsetFetchRequestTopics] | list[OffsetFetchRequestTopic] | None,
) -> _Wanted | None:
    """What a request names, of the old form too, in which topics have no id."""
    if topics is None:
        return None
    wanted: _Wanted = {}
    for topic in topics:
        topic_id = topic.topic_id if isinstance(topic, OffsetFetchRequestTopics) else ZERO_TOPIC_ID
        wanted.setdefault((topic.name, topic_id), []).extend(topic.partition_indexes)
    return wanted


def _in_old_form(group: OffsetFetchResponseGroup, version: int) -> OffsetFetchResponse:
    """Version 1 has no error code for the whole: each partition carries it."""
    group_code = ErrorCode.NONE if version >= _FIRST_VERSION_WITH_ERROR_CODE else group.error_code

    def old_partition(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
        return OffsetFetchResponsePartition(
            partition_index=partition.partition_index,
            committed_offset=partition.committed_offset,
            committed_leader_epoch=partition.committed_leader_epoch,
            metadata=partition.metadata,
            error_code=partition.error_code or group_code,
        )

    def old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
        return OffsetFetchResponseTopic(name=topic.name, partitions=lazily(topic.partitions, old_partition))

    return OffsetFetchResponse(topics=lazily(group.topics, old_topic), error_code=group.error_code)
