"""What a retry topic's records say about redrives."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from klamm.client.results import Record
from klamm.pipelines.dead_letters import LETTER
from klamm.pipelines.retry.log import (
    ALL_RULES,
    MARKS,
    MOST_EPOCH,
    OPENING,
    SINCE,
    Headers,
    Identity,
    Marks,
    Opening,
    Place,
    RetryLog,
    letter_place,
    letter_text,
    note,
    since_of,
)

PLACES = st.tuples(st.integers(0, 3), st.integers(0, 20))


def opening(name: str, epoch: int = 0, topic_id: str = "t") -> Opening:
    return Opening(name, Identity(7, epoch), topic_id)


class Topic:
    """A retry topic in memory: records are written as a redrive writes them."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.since = 0

    def add(self, value: bytes | None, headers: Headers) -> None:
        self.records.append(Record("retry", 0, len(self.records), 0, None, value, tuple(headers)))

    def open(self, opening: Opening) -> None:
        self.add(*note(OPENING, opening, self.since))

    def send(self, *places: Place) -> None:
        for place in places:
            self.add(b"{}", [(LETTER, letter_text(place)), (SINCE, str(self.since).encode())])

    def close(self, opening: Opening, marks: Marks) -> None:
        self.add(*note(MARKS, opening, self.since, marks))
        self.since = len(self.records) - 1

    def read(self) -> RetryLog:
        """As the next redrive reads it: from the newest marks on, to which the last record leads."""
        log = RetryLog()
        for record in self.records[since_of(self.records[-1]) or 0 :]:
            log.take(record)
        return log


def test_a_redrive_that_was_killed_has_sent_what_it_has_sent() -> None:
    topic = Topic()
    topic.open(opening("a"))
    topic.send((0, 3), (1, 4))
    log = topic.read()
    assert log.sent == {(0, 3), (1, 4)} and log.since == 0
    assert log.has("decode", (0, 3)) and not log.has("decode", (0, 4))
    topic.open(opening("b", 1))
    topic.send((0, 5))
    assert topic.read().sent == {(0, 3), (1, 4), (0, 5)}
    topic.close(opening("b", 1), Marks("t").advanced("decode", {0: 6, 1: 5}, {(0, 2)}))
    log = topic.read()
    assert (log.since, log.sent) == (5, set())
    assert log.has("decode", (0, 5)) and not log.has("decode", (0, 6)) and not log.has("decode", (0, 2))
    assert not log.has("other rule", (0, 5))
    assert log.newest_but("c") == Identity(7, 1), "the next redrive shuts out the one that wrote the marks"
    topic.open(opening("c", 2))
    topic.send((0, 2))
    assert topic.read().has("decode", (0, 2)) and topic.read().since == 5
    assert topic.read().newest_but("c") == Identity(7, 1)


def test_another_dead_letter_topic_has_other_records() -> None:
    topic = Topic()
    topic.open(opening("a"))
    topic.send((0, 3))
    assert topic.read().of("made anew").sent == set()
    topic.close(opening("a"), Marks("t").advanced(ALL_RULES, {0: 9}, ()))
    assert topic.read().of("t").has("decode", (0, 3))
    assert not topic.read().of("made anew").has("decode", (0, 3))
    topic.open(opening("b", 1, "made anew"))
    topic.send((0, 1))
    log = topic.read().of("made anew")
    assert log.has("decode", (0, 1)) and not log.has("decode", (0, 3))


@given(
    st.dictionaries(
        st.sampled_from([ALL_RULES, "decode", "r"]), st.dictionaries(st.integers(0, 3), st.integers(0, 9))
    ),
    st.frozensets(PLACES),
    PLACES,
    st.sampled_from(["decode", "r"]),
)
def test_marks_stay_what_they_are_on_their_way(
    below: dict[str, dict[int, int]], left: frozenset[Place], place: Place, rule: str
) -> None:
    marks = Marks("t", below, left)
    assert Marks.from_json(json.loads(json.dumps(marks.to_json()))) == marks
    if not marks.have(rule, place):
        assert marks.start(rule, place[0]) <= place[1], (
            "a redrive begins at or before all that it has to send"
        )
    further = marks.advanced(rule, {place[0]: place[1] + 1}, left - {place})
    assert further.have(rule, place)
    assert further.advanced(rule, {place[0]: 0}, left - {place}).have(rule, place), "marks only grow"


@given(PLACES)
def test_a_place_is_read_as_it_was_written(place: Place) -> None:
    assert letter_place(letter_text(place)) == place


def test_what_says_nothing_is_passed_over() -> None:
    assert letter_place(None) is None and letter_place(b"x/3") is None and letter_place(b"7") is None
    stranger = Record("retry", 0, 5, 0, None, b"by hand", ())
    assert since_of(stranger) is None
    log = RetryLog()
    log.take(stranger)
    assert log.sent == set() and log.newest_but("a") is None


def test_epochs_end() -> None:
    assert Identity(7, 0).next() == Identity(7, 1)
    assert Identity(7, MOST_EPOCH).next() is None
