"""Replicas that their broker cannot use: who leads then, and what happens when they are back."""

from __future__ import annotations

import pytest

from klamm.cluster.controller.elections import ElectionType
from klamm.cluster.image import NO_LEADER
from klamm.model.errors import ErrorCode, KafkaError

from .events import Events


def test_another_replica_leads_and_the_offline_one_leaves_the_isr():
    events = Events(1, 2, 3)
    events.create("t", [1, 2, 3])
    events.change_replica(1, is_offline=True)
    after = events.partition()
    assert (after.leader, after.isr, after.offline_replicas) == (2, (2, 3), (1,))
    assert (after.leader_epoch, after.partition_epoch) == (1, 1)
    events.change_replica(1, is_offline=True)
    assert events.partition() is after, "it is known"
    events.change_replica(3, is_offline=True)
    after = events.partition()
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), 1), "only the ISR changed"
    events.check_store()


def test_an_offline_replica_is_not_let_into_the_isr_and_leads_in_no_election():
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.change_replica(1, is_offline=True)
    assert events.alter_isr([2, 1]).code is ErrorCode.INELIGIBLE_REPLICA
    assert events.elect(ElectionType.PREFERRED, ("t", 0)) == {
        ("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    }
    events.fail(2)
    assert (events.partition().leader, events.partition().isr) == (NO_LEADER, (2,))
    assert events.elect(ElectionType.UNCLEAN, ("t", 0)) == {
        ("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    }
    events.change_replica(1, is_offline=False)
    assert events.elect(ElectionType.UNCLEAN, ("t", 0)) == {("t", 0): None}
    assert (events.partition().leader, events.partition().isr) == (1, (1,))


def test_the_last_of_an_isr_stays_in_it_and_leads_when_it_is_back():
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.alter_isr([1])
    events.change_replica(1, is_offline=True)
    after = events.partition()
    assert (after.leader, after.isr, after.leader_epoch) == (NO_LEADER, (1,), 1)
    events.change_replica(1, is_offline=False)
    after = events.partition()
    assert (after.leader, after.isr, after.leader_epoch, after.offline_replicas) == (1, (1,), 2, ())
    events.check_store()


@pytest.mark.parametrize("clean", [True, False])
def test_a_broker_that_registers_anew_is_asked_again(clean):
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.create("alone", [1])
    for name in ("t", "alone"):
        events.change_replica(1, name, is_offline=True)
    events.fail(1)
    assert events.partition("alone").leader == NO_LEADER
    events.start(1, clean=clean)
    assert events.partition("t").offline_replicas == events.partition("alone").offline_replicas == ()
    assert (events.partition("t").leader, events.partition("alone").leader) == (2, 1)


def test_what_a_broker_said_before_its_restart_is_refused():
    events = Events(1, 2)
    events.create("t", [1, 2])
    epoch = events.image.brokers[1].epoch
    events.start(1)
    with pytest.raises(KafkaError) as refused:
        events.change_replica(1, is_offline=True, epoch=epoch)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_replica_that_is_moved_away_is_not_offline_any_more():
    events = Events(1, 2, 3)
    events.create("t", [1, 2])
    events.change_replica(1, is_offline=True)
    events.reassign([2, 3])
    assert events.partition().offline_replicas == (1,)
    events.alter_isr([2, 3])
    assert (events.partition().replicas, events.partition().offline_replicas) == ((2, 3), ())
