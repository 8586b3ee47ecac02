"""Which records a text after --from means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from klamm.operating.errors import CannotDo
from klamm.operating.ranges import Bound, Ends, Kind, Range, offset_of, parse_range

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ENDS = Ends(100, 200)


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def local(text: str) -> int:
    return ms(datetime.fromisoformat(text).astimezone())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", Range(Bound(Kind.START))),
        ("end", Range(Bound(Kind.END))),
        ("5", Range(Bound(Kind.OFFSET, 5))),
        ("-10", Range(Bound(Kind.BACK, 10))),
        ("5:9", Range(Bound(Kind.OFFSET, 5), Bound(Kind.OFFSET, 9))),
        (":9", Range(Bound(Kind.START), Bound(Kind.OFFSET, 9))),
        ("5:", Range(Bound(Kind.OFFSET, 5), Bound(Kind.END))),
        ("5:end", Range(Bound(Kind.OFFSET, 5), Bound(Kind.END))),
        ("-10:end", Range(Bound(Kind.BACK, 10), Bound(Kind.END))),
        ("@2026-01-01T10:00", Range(Bound(Kind.TIME, local("2026-01-01T10:00")))),
        ("@2026-01-01T10:00Z", Range(Bound(Kind.TIME, ms(datetime(2026, 1, 1, 10, tzinfo=UTC))))),
        ("@2026-01-01", Range(Bound(Kind.TIME, local("2026-01-01")))),
        ("@1767261600000", Range(Bound(Kind.TIME, 1767261600000))),
        ("@-90m", Range(Bound(Kind.TIME, ms(NOW - timedelta(minutes=90))))),
        ("@-1.5h:end", Range(Bound(Kind.TIME, ms(NOW - timedelta(minutes=90))), Bound(Kind.END))),
        (
            "@2026-01-01T10:00:@2026-01-01T11:00",
            Range(Bound(Kind.TIME, local("2026-01-01T10:00")), Bound(Kind.TIME, local("2026-01-01T11:00"))),
        ),
    ],
)
def test_texts(text: str, expected: Range) -> None:
    assert parse_range(text, NOW) == expected


def test_a_time_of_today() -> None:
    (bound, _) = parse_range("@10:30", NOW)
    assert bound.value == local(f"{NOW.astimezone().date()}T10:30")


@pytest.mark.parametrize("text", ["", "first", "5:x", "@", "@yesterday", "5:start", "--3"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(CannotDo):
        parse_range(text, NOW)


@pytest.mark.parametrize(
    ("bound", "offset"),
    [
        (Bound(Kind.START), 100),
        (Bound(Kind.END), 200),
        (Bound(Kind.OFFSET, 150), 150),
        (Bound(Kind.OFFSET, 5), 100),
        (Bound(Kind.OFFSET, 250), 250),
        (Bound(Kind.BACK, 10), 190),
        (Bound(Kind.BACK, 1000), 100),
        (Bound(Kind.TIME, 7), 177),
        (Bound(Kind.TIME, 8), 200),
    ],
)
def test_offsets_lie_in_the_partition(bound: Bound, offset: int) -> None:
    assert offset_of(bound, ENDS, {7: 177, 8: None}) == offset
