"""Where seeks go: plans from offsets that are given, without a cluster."""

from __future__ import annotations

import pytest

from klamm.client.results import CommittedOffset, TopicPartition
from klamm.operating.errors import CannotDo
from klamm.operating.ranges import Bound, Ends, Kind
from klamm.operating.seeking import (
    Move,
    PartitionFacts,
    TopicChoice,
    by_count,
    is_chosen,
    parse_choice,
    parse_undo,
    to_place,
    to_saved,
    undo_text,
)

READ = TopicPartition("orders", 0)
NEW = TopicPartition("orders", 1)
FACTS = {
    READ: PartitionFacts(Ends(10, 100), CommittedOffset(50, "noted")),
    NEW: PartitionFacts(Ends(0, 20)),
}


def offsets(moves: tuple[Move, ...]) -> list[tuple[int | None, int | None]]:
    return [(each.old and each.old.offset, each.new and each.new.offset) for each in moves]


@pytest.mark.parametrize(
    ("place", "new", "read_again", "passed_over"),
    [
        (Bound(Kind.START), [10, 0], 40, 0),
        (Bound(Kind.END), [100, 20], 0, 50),
        (Bound(Kind.OFFSET, 60), [60, 20], 0, 10),
        (Bound(Kind.OFFSET, 5), [10, 5], 40, 0),
        (Bound(Kind.BACK, 7), [93, 13], 0, 43),
        (Bound(Kind.TIME, 1000), [30, 20], 20, 0),
    ],
)
def test_a_seek_to_a_place(place: Bound, new: list[int], read_again: int, passed_over: int) -> None:
    plan = to_place("g", FACTS, place, {READ: 30, NEW: None})
    assert offsets(plan.moves) == [(50, new[0]), (None, new[1])]
    assert (plan.read_again, plan.passed_over) == (read_again, passed_over)


def test_a_seek_says_where_the_log_ends() -> None:
    plan = to_place("g", FACTS, Bound(Kind.OFFSET, 60), {})
    assert [each.note for each in plan.moves] == ["", "the log ends at 20"]


def test_a_seek_by_a_number_stays_in_the_log_and_needs_offsets() -> None:
    assert offsets(by_count("g", FACTS, -30).moves) == [(50, 20)]
    back, forward = by_count("g", FACTS, -90), by_count("g", FACTS, 90)
    assert (offsets(back.moves), back.moves[0].note) == ([(50, 10)], "the log begins at 10")
    assert (offsets(forward.moves), forward.moves[0].note) == ([(50, 100)], "the log ends at 100")
    with pytest.raises(CannotDo, match="group g has no committed offsets to move by a number"):
        by_count("g", {NEW: FACTS[NEW]}, 1)


def test_where_a_group_is_already_nothing_changes() -> None:
    plan = by_count("g", FACTS, 0)
    assert plan.changes == () and len(plan.moves) == 1


def test_a_plan_is_undone_from_its_text() -> None:
    plan = to_place("g", FACTS, Bound(Kind.END), {})
    saved = parse_undo(undo_text(plan), "undo.json")
    assert saved == {READ: CommittedOffset(50, "noted"), NEW: None}
    moved = {move.partition: PartitionFacts(move.ends, move.new) for move in plan.moves}
    undone = to_saved("g", moved, saved, "undo.json")
    assert offsets(undone.moves) == [(100, 50), (20, None)]
    assert undone.moves[0].new == CommittedOffset(50, "noted")
    assert len(undone.changes) == 2


def test_saved_offsets_of_partitions_that_are_gone_are_left_out() -> None:
    gone = TopicPartition("gone", 0)
    plan = to_saved("g", FACTS, {gone: CommittedOffset(1), READ: CommittedOffset(2)}, "group other")
    assert offsets(plan.moves) == [(50, 10)]
    with pytest.raises(CannotDo, match="group other has no offset of a partition that is there"):
        to_saved("g", FACTS, {gone: CommittedOffset(1)}, "group other")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"offsets": []}', '{"offsets": [{"topic": "a"}]}', '{"offsets": [1]}', "null"]
)
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(CannotDo, match=r"^here has no offsets of a group\. Expected"):
        parse_undo(text, "here")


def test_topics_and_partitions_are_chosen() -> None:
    assert parse_choice("orders") == TopicChoice("orders")
    assert parse_choice("orders:0,2") == TopicChoice("orders", frozenset({0, 2}))
    choices = [parse_choice("orders:1"), parse_choice("other")]
    chosen = [
        is_chosen(TopicPartition(*each), choices) for each in [("orders", 0), ("orders", 1), ("other", 5)]
    ]
    assert chosen == [False, True, True]
    with pytest.raises(CannotDo, match="orders:x names no partitions"):
        parse_choice("orders:x")
