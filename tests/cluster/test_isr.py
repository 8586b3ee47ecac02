"""AlterPartition and reassignments: what the controller grants a leader, and with which code it refuses."""

from __future__ import annotations

import pytest

from klamm.cluster.controller.isr import IsrProposal, alter_isrs
from klamm.cluster.controller.reassignment import reassigned_partitions
from klamm.cluster.image import NO_LEADER
from klamm.model.errors import ErrorCode, KafkaError

from .events import CONTROLLER_EPOCH, Events


def test_the_isr_shrinks_and_grows_in_one_leader_epoch():
    events = Events(1, 2, 3)
    events.create("t", [1, 2, 3])
    after = events.alter_isr([1])
    assert (after.isr, after.leader_epoch, after.partition_epoch) == ((1,), 0, 1)
    after = events.alter_isr([1, 3])
    assert (after.isr, after.leader_epoch, after.partition_epoch) == ((1, 3), 0, 2)
    again = events.alter_isr([3, 1])
    assert again == after._replace(partition_epoch=3), "an earlier proposal on its way must not hold any more"
    events.check_store()


def test_a_leader_that_did_not_hear_the_answer_gets_it_again():
    events = Events(1, 2, 3)
    events.create("t", [1, 2, 3])
    after = events.alter_isr([1, 3])
    assert events.alter_isr([3, 1], partition_epoch=0) is events.partition()
    assert events.partition() == after
    assert events.alter_isr([1], partition_epoch=0).code is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("isr", "others", "code"),
    [
        ([1, 2], {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ([1, 2], {"leader_epoch": 2}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ([1, 2], {"sender": 1}, ErrorCode.INVALID_REQUEST),
        ([1], {}, ErrorCode.INVALID_REQUEST),
        ([2, 2], {}, ErrorCode.INVALID_REQUEST),
        ([2, 4], {}, ErrorCode.INVALID_REQUEST),
        ([], {}, ErrorCode.INVALID_REQUEST),
        ([2, 3], {}, ErrorCode.INELIGIBLE_REPLICA),
        ([2, 1], {"epochs": {1: 7}}, ErrorCode.INELIGIBLE_REPLICA),
        ([2, 1], {"epochs": {1: -1}}, None),
        ([2, 1], {}, None),
    ],
)
def test_proposals_are_refused_with_kafkas_codes(isr, others, code):
    events = Events(1, 2, 3, 4)
    events.create("t", [1, 2, 3])
    events.fail(1)
    events.start(1)
    events.fail(3)
    assert events.partition().leader == 2 and events.partition().leader_epoch == 1
    before = events.partition()
    result = events.alter_isr(isr, **others)
    if code is None:
        assert result.isr == tuple(isr)
    else:
        assert result.code is code and result.message
        assert events.partition() is before


def test_topics_partitions_and_senders_that_are_not_there_are_refused():
    events = Events(1)
    events.create("t", [1])
    epoch = events.image.brokers[1].epoch
    proposals = [
        IsrProposal(b"x" * 16, 0, 0, 0, ((1, -1),)),
        IsrProposal(events.image.topics["t"].topic_id, 5, 0, 0, ((1, -1),)),
    ]
    made = alter_isrs(events.image, events.config, 1, epoch, proposals, controller_epoch=CONTROLLER_EPOCH)
    assert [result.code for result in made.results] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    for sender, sender_epoch in ((1, epoch - 1), (2, epoch)):
        with pytest.raises(KafkaError) as caught:
            alter_isrs(
                events.image, events.config, sender, sender_epoch, [], controller_epoch=CONTROLLER_EPOCH
            )
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_reassignment_adds_waits_and_drops():
    events = Events(1, 2, 3, 4)
    events.create("t", [1, 2])
    events.reassign([3, 4])
    partition = events.partition()
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 4, 1, 2), (1, 2), 1)
    assert (partition.adding_replicas, partition.removing_replicas) == ((3, 4), (1, 2))
    assert [tuple(place) for place, _ in reassigned_partitions(events.image)] == [("t", 0)]
    events.check_store()
    events.alter_isr([1, 2, 3])
    assert events.partition().is_reassigned
    result = events.alter_isr([1, 2, 3, 4])
    assert result.code is ErrorCode.NEW_LEADER_ELECTED
    partition = events.partition()
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 4), (3, 4), 3)
    assert not partition.is_reassigned and partition.leader_epoch == 1
    events.check_store()


def test_a_reassignment_is_cancelled():
    events = Events(1, 2, 3)
    events.create("t", [1, 2])
    with pytest.raises(KafkaError) as caught:
        events.reassign(None)
    assert caught.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    events.reassign([3, 1])
    events.alter_isr([1, 3])
    assert events.partition().is_reassigned is False, "broker 2 was to go, and all others are in sync"
    events.reassign([2, 1])
    events.reassign(None)
    partition = events.partition()
    assert set(partition.replicas) == {1, 3} and set(partition.isr) == {1, 3} and not partition.is_reassigned
    events.check_store()


def test_a_reassignment_can_change_its_target():
    events = Events(1, 2, 3, 4)
    events.create("t", [1, 2])
    events.reassign([3, 1])
    events.reassign([4, 1])
    partition = events.partition()
    assert partition.replicas == (4, 1, 2)
    assert (partition.adding_replicas, partition.removing_replicas) == ((4,), (2,))


def test_fewer_replicas_or_another_order_need_no_waiting():
    events = Events(1, 2, 3)
    events.create("t", [1, 2, 3])
    events.reassign([3, 1])
    assert events.partition().replicas == (3, 1) and events.partition().isr == (1, 3)
    events.reassign([1, 3])
    assert events.partition().replicas == (1, 3) and events.partition().leader_epoch == 0


@pytest.mark.parametrize(
    ("target", "others", "code"),
    [
        ([], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 2], {"name": "no"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1, 2], {"index": 3}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1, 2, 3], {"allow_replication_factor_change": False}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_reassignments_are_refused(target, others, code):
    events = Events(1, 2, 3)
    events.create("t", [1, 2])
    with pytest.raises(KafkaError) as caught:
        events.reassign(target, **others)
    assert caught.value.code is code and caught.value.message


def test_a_reassignment_waits_for_a_leader_that_failed():
    events = Events(1, 2, 3)
    events.create("t", [1, 2])
    events.reassign([3])
    events.alter_isr([1, 2, 3])
    assert events.partition().replicas == (3,)
    events.reassign([1, 2])
    events.fail(3)
    assert (events.partition().leader, events.partition().isr) == (NO_LEADER, (3,))
    events.check_store()


def test_a_leader_that_shuts_down_may_have_another_join_but_nobody_that_shuts_down_joins():
    events = Events(1, 2, 3)
    events.create("t", [1, 2, 3])
    events.alter_isr([1])
    assert events.shut_down(1), "nobody else can lead"
    after = events.alter_isr([1, 2])
    assert after.isr == (1, 2)
    assert not events.shut_down(1)
    events.shut_down(3)
    refused = events.alter_isr([2, 3])
    assert isinstance(refused, KafkaError) and refused.code is ErrorCode.INELIGIBLE_REPLICA
    events.check_store()
