"""Where partitions move: plans from layouts that are given, without a cluster."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.results import TopicPartition
from klamm.operating.errors import CannotDo
from klamm.operating.placing import (
    Change,
    Layout,
    Replicas,
    change_factor,
    drain,
    explicit,
    parse_placement,
    placement_text,
    spread,
)


def layout(replicas: list[Replicas], racks: dict[int, str | None] | None = None, brokers: int = 4) -> Layout:
    found = {TopicPartition("t", number): each for number, each in enumerate(replicas)}
    return Layout(racks or dict.fromkeys(range(1, brokers + 1)), found)


def after(before: Layout, changes: list[Change]) -> list[Replicas]:
    return list((dict(before.replicas) | {each.partition: each.new for each in changes}).values())


def test_a_new_broker_gets_its_share_and_no_more_moves() -> None:
    before = layout([(1, 2), (2, 3), (3, 1), (1, 2), (2, 3), (3, 1)])
    changes = spread(before, before.replicas)
    assert Counter(broker for each in after(before, changes) for broker in each) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert sum(len(each.adding) for each in changes) == 3
    assert spread(layout(after(before, changes)), before.replicas) == []


def test_a_topic_moves_to_the_brokers_that_are_named() -> None:
    before = layout([(1, 2), (2, 1)])
    assert after(before, spread(before, before.replicas, [3, 4])) == [(4, 3), (3, 4)]
    assert after(before, spread(before, before.replicas, [2, 3])) == [(3, 2), (2, 3)]


def test_a_broker_is_emptied_and_the_others_keep_what_they_have() -> None:
    before = layout([(1, 2), (2, 3), (3, 4)])
    changes = drain(before, before.replicas, [2])
    assert [(each.partition.partition, each.new) for each in changes] == [(0, (1, 4)), (1, (1, 3))]


def test_a_replica_on_a_broker_that_is_down_stays_when_another_is_emptied() -> None:
    before = layout([(1, 5)], brokers=3)
    assert [each.new for each in drain(before, before.replicas, [1])] == [(2, 5)]
    assert [each.new for each in change_factor(before, before.replicas, 3)] == [(1, 5, 2)]


def test_racks_stay_apart() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "a", 4: "b"}
    before = layout([(1, 2)], racks)
    assert [each.new for each in drain(before, before.replicas, [2])] == [(1, 4)]
    assert [each.new for each in drain(before, before.replicas, [1])] == [(3, 2)]
    crowded = layout([(1, 2), (1, 2), (1, 4)], {1: "a", 2: "b", 3: "b", 4: "b"})
    placed = after(crowded, spread(crowded, crowded.replicas))
    assert all(1 in each for each in placed), "only broker 1 is in rack a"
    assert Counter(broker for each in placed for broker in each)[3] == 1


def test_more_and_fewer_replicas() -> None:
    before = layout([(1, 2), (3, 4)])
    assert [each.new for each in change_factor(before, before.replicas, 1)] == [(1,), (3,)]
    more = after(before, change_factor(before, before.replicas, 3))
    assert [each[:2] for each in more] == [(1, 2), (3, 4)] and all(len(set(each)) == 3 for each in more)
    with pytest.raises(CannotDo, match="t-0 needs 5 brokers, and only 4 may have it"):
        change_factor(before, before.replicas, 5)


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({("t", 9): (1,)}, "there is no partition t-9"),
        ({("t", 0): (7,)}, "t-0 cannot go to broker 7, which is not there"),
        ({("t", 0): (1, 1)}, "t-0 needs replicas, each on another broker"),
        ({("t", 0): ()}, "t-0 needs replicas"),
    ],
)
def test_a_placement_that_cannot_be(wanted: dict[tuple[str, int], Replicas], complaint: str) -> None:
    with pytest.raises(CannotDo, match=complaint):
        explicit(layout([(1, 2)]), {TopicPartition(*each): replicas for each, replicas in wanted.items()})
    with pytest.raises(CannotDo, match="there is no broker 9: there are 1, 2, 3, 4"):
        spread(layout([(1, 2)]), [TopicPartition("t", 0)], [9])


def test_a_placement_is_read_as_it_was_written() -> None:
    before = layout([(1, 2), (2, 1)])
    assert parse_placement(placement_text(before.replicas), "plan.json") == before.replicas
    for text in ("", "{}", "[]", '{"partitions": []}', '{"partitions": [{"topic": "t", "partition": 0}]}'):
        with pytest.raises(CannotDo, match=r"plan\.json has no replicas"):
            parse_placement(text, "plan.json")
    (same,) = explicit(before, {TopicPartition("t", 0): (2, 1)})
    assert (same.adding, same.removing) == ((), ())


@given(data=st.data())
def test_every_plan_is_valid_and_even(data: st.DataObject) -> None:
    brokers = data.draw(st.integers(2, 6))
    racks = {
        each: data.draw(st.sampled_from([None, "a", "b", "c"]), label=f"rack {each}")
        for each in range(1, brokers + 1)
    }
    factor = data.draw(st.integers(1, brokers - 1))
    orders = st.permutations(range(1, brokers + 1)).map(lambda each: tuple(each[:factor]))
    before = layout(data.draw(st.lists(orders, min_size=1, max_size=12)), racks)

    def distinct_racks(replicas: Replicas) -> int:
        return len({racks[each] or each for each in replicas})

    spread_out = after(before, spread(before, before.replicas))
    for old, new in zip(before.replicas.values(), spread_out, strict=True):
        assert len(set(new)) == factor and set(new) <= set(racks)
        assert distinct_racks(new) >= distinct_racks(old)
    leads = Counter(each[0] for each in spread_out)
    for each in spread_out:
        assert leads[each[0]] - min(leads[broker] for broker in each) < 2
    if set(racks.values()) == {None}:
        counts = Counter({each: 0 for each in racks})
        counts.update(broker for each in spread_out for broker in each)
        assert max(counts.values()) - min(counts.values()) < 2

    leaving = data.draw(st.integers(1, brokers))
    emptied = after(before, drain(before, before.replicas, [leaving]))
    for old, new in zip(before.replicas.values(), emptied, strict=True):
        assert leaving not in new and len(set(new)) == factor
        assert set(old) - {leaving} <= set(new)
