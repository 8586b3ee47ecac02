"""Metadata (key 3), versions 0 to 13.

Tells which brokers there are, with the addresses of the listener that the request came by, and which broker
leads which partition. A broker that left is listed for a moment more (cluster/departed.py). No topics means
all in version 0 and none later, where null means all. Topics can be asked for by id from version 12 on.

A topic that is not there is created when the client and `auto.create.topics.enable` allow it. Kafka answers
such a first question with an error and lets the client come back; here the topic is made first, so the first
answer has it.

Answers about all of thousands of partitions are frequent, so a topic's part of the answer is made once and
kept until the topic changes.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, distinct, in_steps, lazily, pieces_of
from klamm.cluster.controller.topics import NewTopic
from klamm.cluster.image import NO_LEADER, OFFSETS_TOPIC, ClusterImage, PartitionImage, TopicImage
from klamm.cluster.permissions import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from klamm.cluster.service import ClusterService
from klamm.cluster.topic_names import check_topic_name
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

FIRST_VERSION_WITH_NULL_FOR_ALL = 1
FIRST_VERSION_WITH_TOPIC_IDS = 12

KEPT_PARTITIONS = 1_000
"""The part of an answer about a topic of so many partitions is made at once and kept. For a larger topic it
is made in steps, each time."""


@api(ApiKey.METADATA)
def handle(
    broker: Broker, request: Request[MetadataRequest]
) -> Steps[MetadataResponse | Coroutine[Any, Any, Steps[MetadataResponse]]]:
    asked = request.message.topics
    if asked is None or (not asked and request.version < FIRST_VERSION_WITH_NULL_FOR_ALL):
        answers = _answers_of(broker.cluster)
        operations = _operations(request.message)
        topics = list(broker.cluster.image.topics.values())
        each_topic = lazily(topics, lambda topic: answers.topic(broker, topic, operations))
        return _response(broker, request, each_topic)
    missing = yield from _names_to_create(broker, request)
    if missing:
        return _create_and_answer(broker, request, asked, missing)
    return _answer(broker, request, asked, {})


async def _create_and_answer(
    broker: Broker, request: Request[MetadataRequest], asked: list[MetadataRequestTopic], missing: list[str]
) -> Steps[MetadataResponse]:
    wanted = [NewTopic(name) for name in missing if name != OFFSETS_TOPIC]
    failures = await broker.cluster.create_missing(wanted)
    errors = {name: error.code for name, error in failures.items()}
    if OFFSETS_TOPIC in missing:
        try:
            await broker.cluster.ensure_offsets_topic()
        except KafkaError as error:
            errors[OFFSETS_TOPIC] = error.code
    return in_steps(_answer(broker, request, asked, errors))


def _names_to_create(broker: Broker, request: Request[MetadataRequest]) -> Steps[list[str]]:
    """The topics that the request names, that do not exist, and that it may create."""
    if not request.message.allow_auto_topic_creation or not broker.config.bool_("auto.create.topics.enable"):
        return []
    topics = broker.cluster.image.topics
    names: dict[str, None] = {}
    for asked in pieces_of(request.message.topics or []):
        for topic in asked:
            name = topic.name
            if name is None or topic.topic_id != ZERO_TOPIC_ID or name in topics or name in names:
                continue
            if _is_legal(name):
                names[name] = None
        yield
    return list(names)


def _is_legal(name: str) -> bool:
    try:
        check_topic_name(name)
    except KafkaError:
        return False
    return True


def _answer(
    broker: Broker,
    request: Request[MetadataRequest],
    asked: list[MetadataRequestTopic],
    creation_errors: dict[str, ErrorCode],
) -> MetadataResponse:
    image = broker.cluster.image
    answers = _answers_of(broker.cluster)
    operations = _operations(request.message)

    def answer(named: tuple[str | None, bytes]) -> MetadataResponseTopic:
        name, topic_id = named
        by_id = topic_id != ZERO_TOPIC_ID
        if request.version < FIRST_VERSION_WITH_TOPIC_IDS and (by_id or name is None):
            return _failed(name or "", topic_id, ErrorCode.INVALID_REQUEST)
        if by_id:
            name = image.topic_names_by_id.get(topic_id)
        found = image.topics.get(name) if name is not None else None
        if found is not None:
            return answers.topic(broker, found, operations)
        if by_id:
            return _failed(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return _failed(name, ZERO_TOPIC_ID, _why_missing(name or "", creation_errors))

    named = distinct((topic.name, topic.topic_id) for topic in asked)
    return _response(broker, request, lazily(named, answer))


def _why_missing(name: str, creation_errors: dict[str, ErrorCode]) -> ErrorCode:
    if not _is_legal(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return creation_errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _failed(name: str | None, topic_id: bytes, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)


def _operations(message: MetadataRequest) -> int:
    return TOPIC_OPERATIONS if message.include_topic_authorized_operations else NOT_ASKED


def _response(
    broker: Broker, request: Request[MetadataRequest], topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    image = broker.cluster.image
    asked_operations = request.message.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=each.id, host=endpoint.host, port=endpoint.port, rack=each.rack)
            for each, endpoint in broker.cluster.view.listed_brokers(request.listener_name)
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked_operations else NOT_ASKED,
    )


_NONE_KEPT: dict[int, tuple[TopicImage, MetadataResponseTopic]] = {}


class TopicAnswers:
    """The part of an answer about each topic, kept for its operations and the living brokers.

    A new image shares the objects that have not changed with the image before it. So a part still holds if it
    was made from the same object.
    """

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._offline_version = -1
        self._topics: dict[str, dict[int, tuple[TopicImage, MetadataResponseTopic]]] = {}
        """By the topic's name and the operations asked for."""

    def topic(self, broker: Broker, topic: TopicImage, operations: int) -> MetadataResponseTopic:
        """The part about `topic`, to be encoded in steps; `topic` may have changed or gone meanwhile."""
        self._forget_what_changed(broker)
        kept = self._topics.get(topic.name, _NONE_KEPT).get(operations)
        if kept is not None and kept[0] is topic:
            return kept[1]
        partitions = lazily(
            list(enumerate(topic.partitions)), lambda each: _partition(broker, topic, each[0], each[1])
        )
        answer = MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=partitions,
            topic_authorized_operations=operations,
        )
        if len(partitions) <= KEPT_PARTITIONS and broker.cluster.image.topics.get(topic.name) is topic:
            answer.partitions = list(partitions)
            self._topics.setdefault(topic.name, {})[operations] = (topic, answer)
        return answer

    def _forget_what_changed(self, broker: Broker) -> None:
        """Drop what no longer holds, above all the answers about topics that were deleted."""
        image, before = broker.cluster.image, self._image
        offline_version = broker.partitions.offline.version
        if image is before and offline_version == self._offline_version:
            return
        if before is None or image.brokers is not before.brokers or offline_version != self._offline_version:
            self._topics.clear()
        else:
            for name, _, topic in image.topics.changes_since(before.topics):
                if topic is None:
                    self._topics.pop(name, None)
        self._image = image
        self._offline_version = offline_version


def _partition(
    broker: Broker, topic: TopicImage, index: int, partition: PartitionImage
) -> MetadataResponsePartition:
    offline = broker.partitions.offline_replicas(broker.cluster.image, topic.name, index)
    is_led = partition.leader != NO_LEADER and partition.leader not in offline
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if is_led else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=offline,
    )


_ANSWERS: WeakKeyDictionary[ClusterService, TopicAnswers] = WeakKeyDictionary()
"""Kept per broker, since tests run several in one process."""


def _answers_of(cluster: ClusterService) -> TopicAnswers:
    answers = _ANSWERS.get(cluster)
    if answers is None:
        answers = _ANSWERS[cluster] = TopicAnswers()
    return answers
