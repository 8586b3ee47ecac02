"""The checker of histories: each anomaly is found, and a history without one is not blamed."""

from __future__ import annotations

from random import Random
from time import perf_counter

import pytest

from tests.faults.cluster.history import History, Outcome, Place, Seen, Sent, Stored, anomalies, duplicates

P: Place = ("orders", 0)
ACKED, REFUSED, UNKNOWN = Outcome.ACKNOWLEDGED, Outcome.REFUSED, Outcome.UNKNOWN


def value(number: int) -> bytes:
    return b"value-%d" % number


def good(count: int = 4) -> tuple[list[Sent], list[Seen], list[Stored]]:
    sent = [Sent("a", P, value(n), ACKED, n) for n in range(count)]
    seen = [Seen("c", 0, P, n, value(n)) for n in range(count)]
    stored = [Stored(P, n, value(n)) for n in range(count)]
    return sent, seen, stored


def found(sent: list[Sent], seen: list[Seen], stored: list[Stored]) -> list[str]:
    return anomalies(History(sent, seen, stored))


def test_a_history_without_faults_has_no_anomaly() -> None:
    assert found(*good()) == []


def test_records_whose_outcome_is_unknown_may_be_there_or_not() -> None:
    sent, seen, stored = good()
    sent += [Sent("a", P, value(4), UNKNOWN), Sent("a", P, value(5), UNKNOWN)]
    stored.append(Stored(P, 4, value(5)))
    assert found(sent, seen, stored) == []


def test_a_gap_in_the_offsets_is_not_a_skip() -> None:
    sent = [Sent("a", P, value(n), ACKED, 3 * n) for n in range(4)]
    seen = [Seen("c", 0, P, 3 * n, value(n)) for n in range(4)]
    assert found(sent, seen, [Stored(P, 3 * n, value(n)) for n in range(4)]) == []


def test_a_consumer_may_go_back_in_a_new_session() -> None:
    sent, seen, stored = good()
    seen += [Seen("c", 1, P, 2, value(2)), Seen("c", 1, P, 3, value(3))]
    assert found(sent, seen, stored) == []


@pytest.mark.parametrize(
    ("anomaly", "change"),
    [
        ("lost write", lambda sent, seen, stored: (seen.pop(), stored.pop())),
        ("moved write", lambda sent, seen, stored: sent.__setitem__(3, sent[3]._replace(offset=9))),
        ("aborted read", lambda sent, seen, stored: sent.__setitem__(3, sent[3]._replace(outcome=REFUSED))),
        ("invented record", lambda sent, seen, stored: sent.pop()),
        ("inconsistent offset", lambda sent, seen, stored: stored.__setitem__(2, Stored(P, 2, value(3)))),
        ("non-monotonic send", lambda sent, seen, stored: sent.reverse()),
        ("non-monotonic poll", lambda sent, seen, stored: seen.reverse()),
        ("poll skip", lambda sent, seen, stored: seen.pop(1)),
        ("dirty read", lambda sent, seen, stored: stored.pop(1)),
    ],
)
def test_each_anomaly_is_found(anomaly: str, change: object) -> None:
    sent, seen, stored = good()
    change(sent, seen, stored)  # type: ignore[operator]
    assert any(each.startswith(anomaly) for each in found(sent, seen, stored))


def test_duplicates_are_told_apart() -> None:
    sent, seen, stored = good()
    stored.append(Stored(P, 4, value(3)))
    assert found(sent, seen, stored) == []
    assert [value for value, _ in duplicates(stored)] == [value(3)]


def test_many_anomalies_of_a_kind_are_counted_and_not_listed() -> None:
    sent, _, _ = good(100)
    lost = found(sent, [], [])
    assert len(lost) == 6
    assert lost[-1] == "... and 95 more like the last"


def test_a_hundred_thousand_reads_are_checked_in_moments() -> None:
    places = [("orders", index) for index in range(6)]
    random = Random(3)
    count = 100_000
    where = [places[random.randrange(6)] for _ in range(count)]
    sent = [Sent("a", where[n], value(n), ACKED, n) for n in range(count)]
    seen = [Seen("c", 0, where[n], n, value(n)) for n in range(count)]
    stored = [Stored(where[n], n, value(n)) for n in range(count)]
    started = perf_counter()
    assert found(sent, seen, stored) == []
    assert perf_counter() - started < 30
