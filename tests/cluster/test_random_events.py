"""Random events over three to five brokers: whatever happens in whatever order, the rules hold.

A failure prints the events that led to it, and hypothesis the seed to repeat it with.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.cluster.controller.elections import ElectionType
from klamm.cluster.image import NO_LEADER
from klamm.model.errors import KafkaError

from .events import Events, partitions_of

EVENT = st.tuples(
    st.sampled_from(
        [
            "start",
            "start",
            "start uncleanly",
            "fail",
            "bounce",
            "shut down",
            "alter isr",
            "alter isr",
            "alter isr",
            "reassign",
            "cancel",
            "prefer",
            "elect uncleanly",
            "create",
            "delete",
            "confirm",
            "take office",
            "lose replica",
            "lose replica",
            "find replica",
        ]
    ),
    st.integers(0, 999),
    st.integers(0, 999),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 5), st.booleans(), st.lists(EVENT, max_size=25))
def test_the_rules_hold_whatever_happens(broker_count, is_unclean_allowed, sequence):
    brokers = list(range(1, broker_count + 1))
    events = Events(*brokers, config={"unclean.leader.election.enable": str(is_unclean_allowed).lower()})
    events.create("t", partitions=4, factor=min(3, broker_count), min_insync_replicas="2")
    events.create("u", partitions=2, factor=2)
    for kind, first, second in sequence:
        before = dict(partitions_of(events.image))
        try:
            happen(events, brokers, kind, first, second)
        except KafkaError:
            continue
        check_rules(events, before)
    events.check_store()


def happen(events, brokers, kind, first, second):
    broker_id = brokers[first % len(brokers)]
    alive = sorted(events.registered)
    names = sorted(events.image.topics)
    name = names[first % len(names)] if names else "none"
    partitions = len(events.image.topics[name].partitions) if names else 1
    index = second % partitions
    if kind in ("start", "start uncleanly") and broker_id not in events.registered:
        events.start(broker_id, clean=kind == "start")
    elif kind == "bounce" and broker_id in events.registered:
        events.start(broker_id, clean=bool(second % 2))
    elif kind == "fail" and broker_id in events.registered:
        others = [each for each in alive if each != broker_id]
        events.fail(broker_id, *others[: second % 3])
    elif kind == "shut down" and broker_id in events.image.brokers:
        events.shut_down(broker_id)
    elif kind == "alter isr" and names and events.partition(name, index).leader in events.image.brokers:
        partition = events.partition(name, index)
        isr = [each for each in partition.replicas if each == partition.leader or (second >> each) % 2]
        events.alter_isr(isr, name, index)
    elif kind == "reassign" and alive:
        events.reassign([alive[(first + each) % len(alive)] for each in range(1 + second % 3)], name, index)
    elif kind == "cancel":
        events.reassign(None, name, index)
    elif kind == "prefer":
        events.elect(ElectionType.PREFERRED)
    elif kind == "elect uncleanly":
        events.elect(ElectionType.UNCLEAN)
    elif kind == "create" and alive:
        events.create(f"new-{first}", partitions=1 + second % 3, factor=1 + second % len(alive), start=first)
    elif kind == "delete":
        events.delete(name)
    elif kind == "confirm":
        events.confirm(broker_id)
    elif kind == "take office":
        events.take_office()
    elif kind in ("lose replica", "find replica") and names and broker_id in events.image.brokers:
        events.change_replica(broker_id, name, index, is_offline=kind == "lose replica")


def check_rules(events, before):
    for place, partition in partitions_of(events.image):
        assert partition.isr, place
        assert len(set(partition.isr)) == len(partition.isr) and set(partition.isr) <= set(partition.replicas)
        assert len(set(partition.replicas)) == len(partition.replicas)
        assert set(partition.adding_replicas) | set(partition.removing_replicas) <= set(partition.replicas)
        assert not set(partition.adding_replicas) & set(partition.removing_replicas)
        topic = events.image.topics[events.image.topic_names_by_id[place[0]]]
        minimum = min(int(topic.config.get("min.insync.replicas", 1)), len(partition.replicas))
        assert not partition.eligible_replicas or len(partition.isr) < minimum
        assert set(partition.eligible_replicas) <= set(partition.replicas) - set(partition.isr)
        if partition.leader == NO_LEADER:
            usable = [
                each
                for each in (*partition.isr, *partition.eligible_replicas)
                if each in events.image.brokers
                and not events.image.brokers[each].is_shutting_down
                and each not in partition.offline_replicas
            ]
            assert not usable, f"{place} could be led by {usable}"
        else:
            assert partition.leader in partition.isr and set(partition.isr) <= set(events.image.brokers)
            assert not set(partition.isr) & set(partition.offline_replicas)
        old = before.get(place)
        if old is None:
            continue
        assert partition.leader_epoch >= old.leader_epoch
        assert (partition.leader == old.leader) or partition.leader_epoch > old.leader_epoch
        # What is offline is not stored: a new controller asks for it.
        of_no_epoch = {"partition_epoch": 0, "offline_replicas": ()}
        changed = partition._replace(**of_no_epoch) != old._replace(**of_no_epoch)
        # A leader's proposal raises the partition epoch, whatever it changes.
        assert partition.partition_epoch - old.partition_epoch in ((1,) if changed else (0, 1))


def test_a_write_whose_answer_was_lost_is_read_though_a_server_of_the_store_lags():
    events = Events(1)
    store, past = events.store, dict(events.store.nodes)
    events.create("t")
    newest, store.nodes = store.nodes, past

    async def catch_up():
        store.nodes = newest

    store.sync = catch_up
    assert "t" in events.read().image.topics
