"""Brokers that get the controller's requests in order know what the controller knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.cluster.announcing import (
    EPOCH_OF_DELETED,
    FULL,
    INCREMENTAL,
    full_requests,
    image_after_request,
    requests_of_change,
)
from klamm.cluster.config_changes import alter_config
from klamm.cluster.fencing import (
    check_controller_epoch,
    check_leader_epoch,
    check_own_broker_epoch,
)
from klamm.cluster.image import ALL_BROKERS, ClusterImage, joined
from klamm.cluster.persistent_map import PersistentMap
from klamm.config.alterations import Alteration, AlterOperation
from klamm.config.rows import ResourceType
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.codec import decode, encode

from .events import CONTROLLER_EPOCH, Events, partitions_of
from .test_random_events import EVENT, happen


class Follower:
    """A broker that keeps an image and its replicas by what the controller sends, over the wire."""

    def __init__(self, image):
        self.image = ClusterImage(image.cluster_id, -1)
        self.replicas = {}
        self.names = {}

    def take(self, requests):
        for request in requests:
            if request is None:
                continue
            version = type(request).__valid_versions__.last
            received, _ = decode(type(request), version, memoryview(encode(request, version)))
            getattr(self, "take_" + type(request).__name__)(received)

    def take_UpdateMetadataRequest(self, request):
        before = self.image
        self.image, delta = image_after_request(before, request)
        assert before.with_delta(delta) == self.image

    def take_LeaderAndIsrRequest(self, request):
        if request.type == FULL:
            self.replicas = {}
        for topic in request.topic_states:
            others = [topic_id for topic_id, _ in self.replicas if self.names[topic_id] == topic.topic_name]
            assert set(others) <= {topic.topic_id}, "a log of a deleted topic is in the way"
            self.names[topic.topic_id] = topic.topic_name
            for state in topic.partition_states:
                place = (topic.topic_id, state.partition_index)
                assert request.type == FULL or state.is_new == (place not in self.replicas)
                self.replicas[place] = (state.leader, state.leader_epoch, state.partition_epoch)

    def take_StopReplicaRequest(self, request):
        for topic in request.topic_states:
            for state in topic.partition_states:
                self.replicas.pop((topic.topic_id, state.partition_index), None)


def told(image):
    """What brokers know of the controller's image."""
    return replace(image, deleted_topics=PersistentMap(), known_epochs=PersistentMap())


def check(followers, image):
    for broker_id in image.brokers:
        follower = followers[broker_id]
        assert follower.image.topics == image.topics and follower.image.brokers == image.brokers
        similar = {flat: set(names) for flat, names in image.similar_topic_names.items()}
        assert {flat: set(names) for flat, names in follower.image.similar_topic_names.items()} == similar
        empty = PersistentMap()
        assert replace(follower.image, similar_topic_names=empty) == replace(
            told(image), similar_topic_names=empty
        )
        assert follower.replicas == {
            place: (partition.leader, partition.leader_epoch, partition.partition_epoch)
            for place, partition in partitions_of(image)
            if broker_id in partition.replicas
        }


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 5), st.lists(EVENT, max_size=20))
@example(3, [("lose replica", 17, 0), ("lose replica", 1, 0)])
def test_brokers_that_are_told_all_changes_have_the_controllers_image(broker_count, sequence):
    brokers = list(range(1, broker_count + 1))
    events = Events(*brokers)
    followers = {broker_id: Follower(events.image) for broker_id in brokers}
    for broker_id, requests in full_requests(events.image, 1).items():
        followers[broker_id].take(requests)
    events.create("t.u", partitions=3, factor=2)
    events.create("v", partitions=1, factor=3)
    done = len(events.changes) - 2
    for kind, first, second in [("prefer", 0, 0), *sequence]:
        try:
            happen(events, brokers, kind, first, second)
        except KafkaError:
            continue
        if kind == "take office":
            for broker_id, requests in full_requests(events.image, 2).items():
                followers[broker_id].take(requests)
            done = len(events.changes)
        for change in events.changes[done:]:
            for broker_id, requests in requests_of_change(change.image, change.delta, 2).items():
                followers[broker_id].take(requests)
        done = len(events.changes)
        check(followers, events.image)


def test_a_topic_that_is_deleted_and_made_again_in_one_change_is_stopped_first():
    events = Events(1)
    events.create("t", [1], [1])
    follower = Follower(events.image)
    follower.take(full_requests(events.image, 1)[1])
    both = joined([events.delete("t").delta, events.create("t", [1]).delta])
    follower.take(requests_of_change(events.image, both, 1)[1])
    check({1: follower}, events.image)


def change_config(events, resource_type, name, key, value):
    operation = AlterOperation.SET if value is not None else AlterOperation.DELETE
    return events.apply(
        alter_config(
            events.image,
            events.config,
            resource_type,
            name,
            [Alteration(key, operation, value)],
            controller_epoch=CONTROLLER_EPOCH,
        )
    )


def test_settings_reach_every_broker():
    events = Events(1, 2)
    events.create("t", [1, 2], retention_ms="5")
    follower = Follower(events.image)
    follower.take(full_requests(events.image, 1)[2])
    for change in (
        change_config(events, ResourceType.TOPIC, "t", "retention.ms", "6"),
        change_config(events, ResourceType.BROKER, ALL_BROKERS, "message.max.bytes", "7"),
        change_config(events, ResourceType.GROUP, "g", "consumer.session.timeout.ms", "50000"),
        change_config(events, ResourceType.TOPIC, "t", "retention.ms", None),
        change_config(events, ResourceType.GROUP, "g", "consumer.session.timeout.ms", None),
    ):
        requests = requests_of_change(change.image, change.delta, 1)[2]
        assert requests.leader_and_isr is None and requests.stop_replica is None
        follower.take(requests)
        assert follower.image == told(change.image)
    again = Follower(events.image)
    again.take(full_requests(events.image, 1)[1])
    assert again.image == told(events.image)


def test_only_what_changed_is_told_and_only_to_those_whom_it_concerns():
    events = Events(1, 2, 3)
    events.create("t", [1, 2], [2, 3], [3, 1])
    events.create("other", [1, 2, 3])
    events.alter_isr([2], index=1)
    change = events.changes[-1]
    requests = requests_of_change(change.image, change.delta, 4)
    for broker_id in (1, 2, 3):
        metadata = requests[broker_id].update_metadata
        assert metadata.type == INCREMENTAL and metadata.controller_epoch == 4
        assert metadata.broker_epoch == events.image.brokers[broker_id].epoch
        (topic,) = metadata.topic_states
        assert [state.partition_index for state in topic.partition_states] == [1] and topic.configs is None
    assert requests[1].leader_and_isr is None
    (topic,) = requests[3].leader_and_isr.topic_states
    assert [state.partition_index for state in topic.partition_states] == [1]


def test_a_broker_that_registers_is_told_everything_and_the_others_that_it_is_there():
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.create("gone", [1, 2])
    gone_id = events.image.topics["gone"].topic_id
    events.fail(2)
    events.delete("gone")
    change = events.start(2)
    requests = requests_of_change(change.image, change.delta, 1)
    assert requests[2].update_metadata.type == requests[2].leader_and_isr.type == FULL
    assert requests[1].update_metadata.type == INCREMENTAL
    assert [broker.id for broker in requests[1].update_metadata.live_brokers] == [1, 2]
    (stopped,) = requests[2].stop_replica.topic_states
    assert (stopped.topic_name, stopped.topic_id) == ("gone", gone_id)
    assert [(each.partition_index, each.leader_epoch) for each in stopped.partition_states] == [
        (0, EPOCH_OF_DELETED)
    ]
    assert requests[1].stop_replica is None


def test_a_late_deletion_does_not_touch_a_topic_of_the_same_name():
    events = Events(1)
    events.create("t", [1])
    deletion = events.delete("t")
    request = requests_of_change(deletion.image, deletion.delta, 1)[1].update_metadata
    events.create("t", [1])
    _, delta = image_after_request(told(events.image), request)
    assert "t" not in delta.topics


@pytest.mark.parametrize(
    ("check_one", "stale", "fresh", "code"),
    [
        (check_controller_epoch, (4, 5), [(5, 5), (6, 5)], ErrorCode.STALE_CONTROLLER_EPOCH),
        (check_own_broker_epoch, (4, 5), [(5, 5), (6, 5)], ErrorCode.STALE_BROKER_EPOCH),
        (check_leader_epoch, (4, 5), [(5, 5), (6, 5)], ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_requests_of_the_past_are_refused(check_one, stale, fresh, code):
    for arguments in fresh:
        check_one(*arguments)
    with pytest.raises(KafkaError) as caught:
        check_one(*stale)
    assert caught.value.code == code
