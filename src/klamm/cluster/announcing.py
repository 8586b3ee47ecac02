"""What the controller tells brokers, as requests made from an image and a delta; and the way back.

Each broker gets UpdateMetadata, then StopReplica for the partitions that it has no replicas of any more, then
LeaderAndIsr for those that it has. Requests are sent in order, so when a broker makes a log it knows the
topic's settings, and no log of a deleted topic has that name. A broker that has just registered gets full
requests, which replace all that it knew; the others get what changed. A broker that applies the deltas of all
UpdateMetadata requests in order has the image of the controller, but for what the controller alone knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from klamm.cluster.image import (
    BrokerDelta,
    BrokerImage,
    ClusterImage,
    ConfigDelta,
    Endpoint,
    ImageDelta,
    PartitionImage,
    TopicDelta,
    TopicImage,
    difference,
    topic_delta,
)
from klamm.model.ids import TopicId
from klamm.protocol.messages.k04_leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from klamm.protocol.messages.k05_stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from klamm.protocol.messages.k06_update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataConfig,
    UpdateMetadataDeletedTopic,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataSetting,
    UpdateMetadataTopicState,
)

INCREMENTAL = 1
FULL = 2

# The leader epoch of a partition whose topic is deleted: it is later than any.
EPOCH_OF_DELETED = -2


class Requests(NamedTuple):
    """The requests for one broker, in the order of sending; None where there is nothing to say."""

    update_metadata: UpdateMetadataRequest | None
    stop_replica: StopReplicaRequest | None
    leader_and_isr: LeaderAndIsrRequest | None


def requests_of_change(
    image: ClusterImage, delta: ImageDelta, controller_epoch: int, *, but_for: int | None = None
) -> dict[int, Requests]:
    """What each living broker is told after `delta`, which led to `image`; not the broker `but_for`."""
    announcement = _Announcement(image, controller_epoch)
    return {
        broker.id: announcement.full(broker)
        if _has_just_registered(delta.brokers.get(broker.id))
        else announcement.incremental(broker, delta)
        for broker in image.brokers.values()
        if broker.id != but_for
    }


def full_requests(
    image: ClusterImage, controller_epoch: int, *, but_for: int | None = None
) -> dict[int, Requests]:
    """What a new controller tells every living broker, but not the broker `but_for`."""
    announcement = _Announcement(image, controller_epoch)
    return {broker.id: announcement.full(broker) for broker in image.brokers.values() if broker.id != but_for}


def _has_just_registered(delta: BrokerDelta | None) -> bool:
    if delta is None or delta.after is None:
        return False
    return delta.before is None or delta.before.epoch != delta.after.epoch


class _Announcement:
    """Makes the requests of one change; what all brokers are told alike is made once."""

    def __init__(self, image: ClusterImage, controller_epoch: int) -> None:
        self._image = image
        self._epoch = controller_epoch
        self._brokers = [_broker_message(broker) for broker in image.brokers.values()]
        self._changed_topics: list[UpdateMetadataTopicState] | None = None
        self._all_topics: list[UpdateMetadataTopicState] | None = None

    # ---- everything

    def full(self, broker: BrokerImage) -> Requests:
        image = self._image
        new_topics = {name: topic_delta(None, image.topics[name]) for name in sorted(image.topics)}
        if self._all_topics is None:
            self._all_topics = [self._topic_message(delta) for delta in new_topics.values()]
        metadata = self._update_metadata(broker, FULL)
        metadata.topic_states = self._all_topics
        metadata.broker_configs = _config_messages(image.broker_configs)
        metadata.group_configs = _config_messages(image.group_configs)
        deleted = [
            _stopped(
                topic.name,
                topic.topic_id,
                ((index, EPOCH_OF_DELETED) for index in range(topic.partition_count)),
            )
            for topic in image.deleted_topics.values()
            if broker.id in topic.brokers
        ]
        leader_and_isr = self._leader_and_isr(broker, FULL, new_topics)
        return Requests(metadata, self._stop_replica(broker, deleted), leader_and_isr)

    # ---- what changed

    def incremental(self, broker: BrokerImage, delta: ImageDelta) -> Requests:
        leader_and_isr = self._leader_and_isr(broker, INCREMENTAL, delta.topics)
        return Requests(
            self._changed_metadata(broker, delta),
            self._stop_replica(broker, list(self._stopped_replicas(broker.id, delta.topics))),
            leader_and_isr if leader_and_isr.topic_states else None,
        )

    def _changed_metadata(self, broker: BrokerImage, delta: ImageDelta) -> UpdateMetadataRequest | None:
        if not replace(delta, deleted_topics={}, known_epochs={}):
            return None
        if self._changed_topics is None:
            self._changed_topics = [
                self._topic_message(topic) for topic in delta.topics.values() if topic.after is not None
            ]
        metadata = self._update_metadata(broker, INCREMENTAL)
        metadata.topic_states = self._changed_topics
        metadata.deleted_topics = [
            UpdateMetadataDeletedTopic(topic_name=name, topic_id=topic.deleted.topic_id)
            for name, topic in delta.topics.items()
            if topic.deleted is not None
        ]
        metadata.broker_configs = _config_messages(delta.broker_configs)
        metadata.group_configs = _config_messages(delta.group_configs)
        return metadata

    def _stopped_replicas(
        self, broker_id: int, topics: Mapping[str, TopicDelta]
    ) -> Iterator[StopReplicaTopicState]:
        for name, delta in topics.items():
            gone = delta.deleted
            if gone is not None:
                indexes = [
                    (index, EPOCH_OF_DELETED)
                    for index, partition in enumerate(gone.partitions)
                    if broker_id in partition.replicas
                ]
                topic_id = gone.topic_id
            elif delta.before is not None and delta.after is not None:
                before, after = delta.before.partitions, delta.after.partitions
                indexes = [
                    (index, after[index].leader_epoch)
                    for index in delta.partitions
                    if index < len(before)
                    and broker_id in before[index].replicas
                    and broker_id not in after[index].replicas
                ]
                topic_id = delta.after.topic_id
            else:
                continue
            if indexes:
                yield _stopped(name, topic_id, indexes)

    # ---- messages

    def _update_metadata(self, broker: BrokerImage, type_: int) -> UpdateMetadataRequest:
        return UpdateMetadataRequest(
            controller_id=self._image.controller_id,
            controller_epoch=self._epoch,
            broker_epoch=broker.epoch,
            type=type_,
            live_brokers=self._brokers,
        )

    def _topic_message(self, delta: TopicDelta) -> UpdateMetadataTopicState:
        topic = delta.after
        assert topic is not None
        is_same = delta.is_same_topic and delta.before is not None and delta.before.config == topic.config
        return UpdateMetadataTopicState(
            topic_name=topic.name,
            topic_id=topic.topic_id,
            partition_states=[
                self._partition_message(index, topic.partitions[index]) for index in delta.partitions
            ],
            configs=None if is_same else _settings_messages(topic.config),
        )

    def _partition_message(self, index: int, partition: PartitionImage) -> UpdateMetadataPartitionState:
        return UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=self._epoch,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=list(partition.isr),
            zk_version=partition.partition_epoch,
            replicas=list(partition.replicas),
            offline_replicas=[
                each
                for each in partition.replicas
                if each not in self._image.brokers or each in partition.offline_replicas
            ],
            adding_replicas=list(partition.adding_replicas),
            removing_replicas=list(partition.removing_replicas),
            eligible_replicas=list(partition.eligible_replicas),
        )

    def _leader_and_isr(
        self, broker: BrokerImage, type_: int, topics: Mapping[str, TopicDelta]
    ) -> LeaderAndIsrRequest:
        states = (self._replica_messages(broker.id, delta, type_) for delta in topics.values())
        return LeaderAndIsrRequest(
            controller_id=self._image.controller_id,
            controller_epoch=self._epoch,
            broker_epoch=broker.epoch,
            type=type_,
            topic_states=[state for state in states if state is not None],
        )

    def _replica_messages(
        self, broker_id: int, delta: TopicDelta, type_: int
    ) -> LeaderAndIsrTopicState | None:
        topic = delta.after
        if topic is None:
            return None
        known = delta.before.partitions if delta.is_same_topic and delta.before is not None else ()
        states = [
            LeaderAndIsrPartitionState(
                partition_index=index,
                controller_epoch=self._epoch,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                isr=list(partition.isr),
                partition_epoch=partition.partition_epoch,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
                is_new=type_ == INCREMENTAL
                and (index >= len(known) or broker_id not in known[index].replicas),
            )
            for index in delta.partitions
            if broker_id in (partition := topic.partitions[index]).replicas
        ]
        if not states:
            return None
        return LeaderAndIsrTopicState(topic_name=topic.name, topic_id=topic.topic_id, partition_states=states)

    def _stop_replica(
        self, broker: BrokerImage, topics: list[StopReplicaTopicState]
    ) -> StopReplicaRequest | None:
        if not topics:
            return None
        return StopReplicaRequest(
            controller_id=self._image.controller_id,
            controller_epoch=self._epoch,
            broker_epoch=broker.epoch,
            topic_states=topics,
        )


def _stopped(name: str, topic_id: bytes, partitions: Iterable[tuple[int, int]]) -> StopReplicaTopicState:
    return StopReplicaTopicState(
        topic_name=name,
        topic_id=topic_id,
        partition_states=[
            StopReplicaPartitionState(partition_index=index, leader_epoch=leader_epoch, delete_partition=True)
            for index, leader_epoch in partitions
        ],
    )


def _broker_message(broker: BrokerImage) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=broker.id,
        endpoints=[
            UpdateMetadataEndpoint(listener=name, host=endpoint.host, port=endpoint.port)
            for name, endpoint in broker.endpoints.items()
        ],
        rack=broker.rack,
        broker_epoch=broker.epoch,
        is_shutting_down=broker.is_shutting_down,
    )


def _settings_messages(settings: Mapping[str, str]) -> list[UpdateMetadataSetting]:
    return [UpdateMetadataSetting(name=name, value=value) for name, value in sorted(settings.items())]


def _config_messages(configs: ConfigDelta) -> list[UpdateMetadataConfig]:
    return [
        UpdateMetadataConfig(name=name, settings=_settings_messages(settings or {}))
        for name, settings in sorted(configs.items())
    ]


# ---- the way back


def image_after_request(
    image: ClusterImage, request: UpdateMetadataRequest
) -> tuple[ClusterImage, ImageDelta]:
    """A broker's image after an UpdateMetadata request of the controller, and what has changed.

    The image of a full request is used as it is made. To change the old image by the difference instead took
    as long again, and kept the event loop away when a controller did not know thousands of topics any longer.
    """
    if request.type == FULL:
        empty = ClusterImage(image.cluster_id, request.controller_id)
        after = empty.with_delta(_changes(empty, request))
        return after, difference(image, after)
    delta = _changes(image, request)
    return image.with_delta(delta), delta


def _changes(image: ClusterImage, request: UpdateMetadataRequest) -> ImageDelta:
    topics: dict[str, TopicDelta] = {}
    for deleted in request.deleted_topics:
        topic = image.topics.get(deleted.topic_name)
        if topic is not None and topic.topic_id == deleted.topic_id:
            topics[topic.name] = TopicDelta(topic, None, ())
    brokers = {each.id: _broker_of(each) for each in request.live_brokers}
    for state in request.topic_states:
        topics[state.topic_name] = _topic_of(image.topics.get(state.topic_name), state, brokers.keys())
    return ImageDelta(
        topics=topics,
        brokers={
            broker_id: BrokerDelta(image.brokers.get(broker_id), brokers.get(broker_id))
            for broker_id in sorted(image.brokers.keys() | brokers.keys())
            if image.brokers.get(broker_id) != brokers.get(broker_id)
        },
        broker_configs=_configs_of(request.broker_configs),
        group_configs=_configs_of(request.group_configs),
        controller_id=request.controller_id if request.controller_id != image.controller_id else None,
    )


def _topic_of(
    before: TopicImage | None, state: UpdateMetadataTopicState, living: Collection[int]
) -> TopicDelta:
    is_same = before is not None and before.topic_id == state.topic_id
    partitions = list(before.partitions) if before is not None and is_same else []
    for each in sorted(state.partition_states, key=lambda each: each.partition_index):
        partition = _partition_of(each, living)
        if each.partition_index < len(partitions):
            partitions[each.partition_index] = partition
        else:
            partitions.append(partition)
    if state.configs is not None:
        config: Mapping[str, str] = {each.name: each.value for each in state.configs}
    else:
        config = before.config if before is not None and is_same else {}
    after = TopicImage(state.topic_name, TopicId(state.topic_id), tuple(partitions), config)
    return TopicDelta(before, after, tuple(sorted(each.partition_index for each in state.partition_states)))


def _partition_of(state: UpdateMetadataPartitionState, living: Collection[int]) -> PartitionImage:
    return PartitionImage(
        tuple(state.replicas),
        tuple(state.isr),
        state.leader,
        state.leader_epoch,
        state.zk_version,
        tuple(state.adding_replicas),
        tuple(state.removing_replicas),
        tuple(state.eligible_replicas),
        offline_replicas=tuple(each for each in state.offline_replicas if each in living),
    )


def _broker_of(message: UpdateMetadataBroker) -> BrokerImage:
    endpoints = {each.listener: Endpoint(each.host, each.port) for each in message.endpoints}
    return BrokerImage(message.id, endpoints, message.rack, message.broker_epoch, message.is_shutting_down)


def _configs_of(messages: Iterable[UpdateMetadataConfig]) -> ConfigDelta:
    return {
        each.name: {setting.name: setting.value for setting in each.settings} or None for each in messages
    }
