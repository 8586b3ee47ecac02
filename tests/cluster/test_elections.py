"""Who leads, and who is in the ISR, when brokers fail, return, restart and shut down."""

from __future__ import annotations

import pytest

from klamm.cluster.controller.elections import ElectionType, imbalanced_partitions
from klamm.cluster.image import NO_LEADER
from klamm.model.errors import ErrorCode, KafkaError

from .events import Events


def test_the_next_replica_in_the_assignment_that_is_in_sync_and_alive_leads():
    events = Events(1, 2, 3, 4)
    events.create("t", [4, 2, 1, 3])
    events.alter_isr([4, 1, 3])
    events.fail(4)
    after = events.partition()
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1, 3), 1)
    events.fail(3)
    after = events.partition()
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1,), 1), "only the ISR changed"
    assert after.partition_epoch == 3
    events.check_store()


def test_the_last_member_of_the_isr_stays_and_leads_when_it_returns():
    events = Events(1, 2, 3)
    events.create("t", [1, 2, 3])
    events.fail(2, 3)
    events.fail(1)
    assert (events.partition().leader, events.partition().isr) == (NO_LEADER, (1,))
    events.start(2, 3)
    assert events.partition().leader == NO_LEADER
    epoch = events.partition().leader_epoch
    events.start(1, clean=False)
    assert (events.partition().leader, events.partition().isr) == (1, (1,))
    assert events.partition().leader_epoch == epoch + 1
    events.check_store()


def test_all_members_stay_in_the_isr_if_they_fail_at_once():
    events = Events(1, 2, 3)
    events.create("t", [1, 2, 3])
    events.fail(1, 2, 3)
    assert (events.partition().leader, events.partition().isr) == (NO_LEADER, (1, 2, 3))
    events.start(2)
    assert (events.partition().leader, events.partition().isr) == (2, (2,)), "the dead leave now"
    events.start(1)
    assert (events.partition().leader, events.partition().isr) == (2, (2,)), "the others have to catch up"


def test_a_broker_that_did_not_stop_cleanly_leaves_the_isr_before_it_may_lead():
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.fail(1, 2)
    events.start(1, clean=False)
    assert (events.partition().leader, events.partition().isr) == (NO_LEADER, (2,))
    events.start(2, clean=False)
    assert (events.partition().leader, events.partition().isr) == (2, (2,)), "nobody has more than the last"


def test_a_broker_that_stopped_cleanly_is_trusted():
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.fail(1, 2)
    events.start(2, clean=True)
    assert events.partition().leader == 2


def test_a_broker_that_registered_twice_before_a_controller_looked_is_trusted():
    """Its session ended two times, and it lived on: it has lost nothing since the epoch that is known."""
    events = Events(1, 2)
    events.create("t", [1, 2])
    known_epoch = events.image.known_epochs[2]
    events.fail(1, 2)
    events.start_intact(2, known_epoch, known_epoch + 10)
    assert (events.partition().leader, events.partition().isr) == (2, (2,))
    events.start(1, clean=False)
    assert (events.partition().leader, events.partition().isr) == (2, (2,))


def test_a_broker_with_the_files_of_an_earlier_epoch_is_not_trusted():
    events = Events(1, 2)
    events.create("t", [1, 2])
    known_epoch = events.image.known_epochs[2]
    events.fail(1, 2)
    events.start_intact(2, 0, known_epoch - 1)
    assert (events.partition().leader, events.partition().isr) == (NO_LEADER, (1,))


@pytest.mark.parametrize("clean", [True, False])
def test_a_fast_bounce_is_a_failure_and_a_start(clean):
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.start(1, clean=clean)
    after = events.partition()
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), 1)
    events.create("alone", [1])
    events.start(1, clean=clean)
    alone = events.partition("alone")
    assert (alone.leader, alone.isr, alone.leader_epoch) == (1, (1,), 1), "its log may have been cut"


def test_a_new_controller_notices_what_happened_while_there_was_none():
    events = Events(1, 2, 3)
    events.create("t", [1, 2, 3])
    events.create("u", [2, 3])
    del events.registered[1]
    kept = events.registered.copy()
    events.take_office()
    assert (events.partition("t").leader, events.partition("t").isr) == (2, (2, 3))
    assert events.partition("u").leader_epoch == 0, "brokers 2 and 3 have gone on all the time"
    events.registered = kept
    before = events.image
    events.take_office()
    assert events.image.topics == before.topics
    events.check_store()


def test_an_unclean_election_happens_only_where_it_is_allowed():
    events = Events(1, 2)
    events.create("safe", [1, 2])
    events.create("risky", [1, 2], unclean_leader_election_enable="true")
    for name in ("safe", "risky"):
        events.alter_isr([1], name)
    events.fail(1)
    assert (events.partition("safe").leader, events.partition("safe").isr) == (NO_LEADER, (1,))
    assert (events.partition("risky").leader, events.partition("risky").isr) == (2, (2,))


def test_preferred_leaders_are_elected_on_demand():
    events = Events(1, 2)
    events.create("t", [1, 2], [2, 1])
    events.fail(1)
    preferred = ElectionType.PREFERRED
    assert events.elect(preferred, ("t", 0), ("t", 1), ("t", 2), ("no", 0)) == {
        ("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    events.start(1)
    assert events.elect(preferred) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}, "not in sync yet"
    events.alter_isr([2, 1])
    assert events.elect(preferred) == {("t", 0): None}
    assert events.partition().leader == 1
    assert events.elect(preferred) == {}


def test_unclean_leaders_are_elected_on_demand():
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.alter_isr([1])
    unclean = ElectionType.UNCLEAN
    assert events.elect(unclean, ("t", 0)) == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}
    events.fail(1)
    assert events.elect(unclean) == {("t", 0): None}
    assert (events.partition().leader, events.partition().isr) == (2, (2,))
    events.fail(2)
    assert events.elect(unclean) == {("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_leaders_go_back_when_too_many_are_elsewhere():
    events = Events(1, 2)
    events.create("t", *([[1, 2]] * 10), *([[2, 1]] * 10))
    assert imbalanced_partitions(events.image) == []
    events.fail(1)
    events.start(1)
    assert imbalanced_partitions(events.image) == [], "broker 1 has to catch up first"
    for index in range(3):
        events.alter_isr([2, 1], index=index)
    assert [place.partition for place in imbalanced_partitions(events.image)] == [0, 1, 2]
    events.elect(ElectionType.PREFERRED, ("t", 0))
    assert imbalanced_partitions(events.image, max_imbalance_percent=90) == []


def test_a_controlled_shutdown_moves_leaders_and_leaves_the_isr():
    events = Events(1, 2, 3)
    events.create("led", [1, 2])
    events.create("followed", [2, 1])
    events.create("alone", [1])
    events.create("last", [1, 2])
    events.alter_isr([1], "last")
    assert events.shut_down(1) == [("last", 0)]
    assert (events.partition("led").leader, events.partition("led").isr) == (2, (2,))
    assert events.partition("followed").isr == (2,)
    assert events.partition("alone").leader == events.partition("last").leader == 1
    assert events.alter_isr([2, 1], "led").code is ErrorCode.INELIGIBLE_REPLICA
    assert events.elect(ElectionType.PREFERRED, ("led", 0)) == {
        ("led", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    }
    before = events.image
    assert events.shut_down(1) == [("last", 0)]
    assert events.image.topics == before.topics and not events.changes[-1].delta
    with pytest.raises(KafkaError) as caught:
        events.shut_down(1, epoch=5)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
    events.fail(1)
    events.start(1)
    assert not events.image.brokers[1].is_shutting_down
    assert events.partition("last").leader == 1
    events.check_store()


def test_a_broker_is_unregistered_when_it_is_gone():
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.delete("t")
    events.confirm(1)
    assert [topic.brokers for topic in events.image.deleted_topics.values()] == [(2,)]
    with pytest.raises(KafkaError) as caught:
        events.unregister(2)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    events.fail(2)
    events.unregister(2)
    assert len(events.image.deleted_topics) == 0 and 2 not in events.image.known_epochs
    with pytest.raises(KafkaError) as caught:
        events.unregister(2)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    events.check_store()


def test_a_deletion_is_remembered_until_every_replica_is_gone():
    events = Events(1, 2)
    events.create("t", [1, 2])
    events.fail(2)
    events.delete("t")
    events.create("t", [1])
    events.confirm(1)
    assert len(events.image.deleted_topics) == 1
    events.delete("t")
    assert len(events.image.deleted_topics) == 2
    events.check_store()
    events.start(2)
    events.confirm(2)
    events.confirm(1)
    assert len(events.image.deleted_topics) == 0
    events.check_store()
