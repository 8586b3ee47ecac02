"""What clients did and saw while brokers failed, and the anomalies in it.

A history has three parts: what producers sent and what became of it, what consumers were handed while the
cluster was failing, and what every partition holds at the end, read from its start. `anomalies` compares
them. The names are those of Jepsen's Kafka workload; its anomalies of transactions are left out.

Values are unique: each is sent once by the application, however often the client sends it on the wire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

Place = tuple[str, int]
"""(topic, partition)"""


class Outcome(Enum):
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """The broker said that it has not written the record, and will not."""
    UNKNOWN = "unknown"
    """A time-out or a lost connection: the record may be there or not."""


class Sent(NamedTuple):
    """One record of one producer, in the order of its sends to the partition."""

    producer: str
    place: Place
    value: bytes
    outcome: Outcome
    offset: int = -1
    """Where the record lies, if it was acknowledged."""


class Seen(NamedTuple):
    """One record that a consumer was handed. Within a `session` a consumer never changed its position."""

    consumer: str
    session: int
    place: Place
    offset: int
    value: bytes


class Stored(NamedTuple):
    """One record of the log at the end."""

    place: Place
    offset: int
    value: bytes


class History(NamedTuple):
    sent: Sequence[Sent]
    seen: Sequence[Seen]
    stored: Sequence[Stored]


def anomalies(history: History) -> list[str]:
    """Every anomaly in one sentence, at most a few of each kind. For duplicates see `duplicates`."""
    values_at = _values_at(history)
    places_of = _places_of(history.stored)
    found: list[str] = []
    for kind in (
        _inconsistent_offsets(values_at),
        _lost_writes(history.sent, places_of),
        _aborted_reads(history, places_of),
        _non_monotonic_sends(history.sent),
        _polls(history.seen, values_at),
        _unseen(history),
    ):
        found += _first_few(kind)
    return found


MOST_OF_A_KIND = 5


def _first_few(kind: Iterable[str]) -> list[str]:
    every = list(kind)
    more = len(every) - MOST_OF_A_KIND
    return every[:MOST_OF_A_KIND] + ([f"... and {more} more like the last"] if more > 0 else [])


def _values_at(history: History) -> dict[Place, dict[int, set[bytes]]]:
    """All values that anybody was told to be at an offset."""
    values: dict[Place, dict[int, set[bytes]]] = defaultdict(lambda: defaultdict(set))
    for stored in history.stored:
        values[stored.place][stored.offset].add(stored.value)
    for seen in history.seen:
        values[seen.place][seen.offset].add(seen.value)
    for sent in history.sent:
        if sent.outcome is Outcome.ACKNOWLEDGED and sent.offset >= 0:
            values[sent.place][sent.offset].add(sent.value)
    return values


def _places_of(stored: Iterable[Stored]) -> dict[bytes, list[tuple[Place, int]]]:
    places: dict[bytes, list[tuple[Place, int]]] = defaultdict(list)
    for record in stored:
        places[record.value].append((record.place, record.offset))
    return places


def _inconsistent_offsets(values_at: dict[Place, dict[int, set[bytes]]]) -> Iterator[str]:
    for place, by_offset in values_at.items():
        for offset, values in by_offset.items():
            if len(values) > 1:
                yield f"inconsistent offset: {place} {offset} is told to hold {sorted(values)}"


def _lost_writes(sent: Iterable[Sent], places_of: dict[bytes, list[tuple[Place, int]]]) -> Iterator[str]:
    for record in sent:
        if record.outcome is not Outcome.ACKNOWLEDGED:
            continue
        places = places_of.get(record.value, [])
        if not places:
            yield (
                f"lost write: {record.value!r} of {record.producer} was acknowledged at {record.place} "
                f"{record.offset} and is not in the log"
            )
        elif record.offset >= 0 and (record.place, record.offset) not in places:
            yield f"moved write: {record.value!r} was acknowledged at {record.offset} and is at {places}"


def _aborted_reads(history: History, places_of: dict[bytes, list[tuple[Place, int]]]) -> Iterator[str]:
    """Records that were refused, or that nobody sent, and are there all the same."""
    refused = {record.value for record in history.sent if record.outcome is Outcome.REFUSED}
    known = {record.value for record in history.sent}
    for value in {*places_of, *(seen.value for seen in history.seen)}:
        if value in refused:
            yield f"aborted read: {value!r} was refused and can be read"
        elif value not in known:
            yield f"invented record: {value!r} can be read and was never sent"


def duplicates(stored: Iterable[Stored]) -> list[tuple[bytes, list[tuple[Place, int]]]]:
    """Values that are stored more than once, and where: anomalies if their producers are idempotent."""
    return [(value, places) for value, places in _places_of(stored).items() if len(places) > 1]


def _non_monotonic_sends(sent: Iterable[Sent]) -> Iterator[str]:
    last: dict[tuple[str, Place], Sent] = {}
    for record in sent:
        if record.outcome is Outcome.ACKNOWLEDGED and record.offset >= 0:
            before = last.get((record.producer, record.place))
            if before is not None and before.offset >= record.offset:
                yield (
                    f"non-monotonic send: {record.producer} sent {record.value!r} after {before.value!r} to "
                    f"{record.place}, and it got offset {record.offset} after {before.offset}"
                )
            last[record.producer, record.place] = record


def _polls(seen: Iterable[Seen], values_at: dict[Place, dict[int, set[bytes]]]) -> Iterator[str]:
    """A consumer goes forward and leaves out nothing that is in the log."""
    offsets_of = {place: sorted(by_offset) for place, by_offset in values_at.items()}
    rank = {place: {offset: at for at, offset in enumerate(offsets)} for place, offsets in offsets_of.items()}
    last: dict[tuple[str, int, Place], int] = {}
    for record in seen:
        key = (record.consumer, record.session, record.place)
        before = last.get(key)
        if before is not None and record.offset <= before:
            yield f"non-monotonic poll: {record.consumer} got {record.place} {record.offset} after {before}"
        elif before is not None:
            skipped = rank[record.place][record.offset] - rank[record.place][before] - 1
            if skipped:
                yield (
                    f"poll skip: {record.consumer} got {record.place} {record.offset} after {before}, "
                    f"without {skipped} records between them"
                )
        last[key] = record.offset


def _unseen(history: History) -> Iterator[str]:
    """Records that a consumer was handed during the run and that the log does not hold at the end."""
    stored = {(record.place, record.offset, record.value) for record in history.stored}
    first: dict[Place, int] = {}
    for at, offset, _ in stored:
        first[at] = min(offset, first.get(at, offset))
    for record in history.seen:
        is_kept = record.offset >= first.get(record.place, 0)
        if is_kept and (record.place, record.offset, record.value) not in stored:
            yield (
                f"dirty read: {record.consumer} was handed {record.value!r} at {record.place} "
                f"{record.offset}, and the log does not hold it"
            )
