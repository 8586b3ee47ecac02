from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from klamm.client.consumer.start import EARLIEST, LATEST, StartPolicy, parse_start, start_text
from klamm.config.rows import ConfigError

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("none", None),
        ("by_duration:PT1H", NOW_MS - HOUR_MS),
        ("by_duration:P1D", NOW_MS - 24 * HOUR_MS),
        ("by_duration:P1DT1H30M0.5S", NOW_MS - 25 * HOUR_MS - HOUR_MS // 2 - 500),
        ("by_duration:P99999D", 0),
        ("by_time:2026-01-01T00:00:00Z", int(NEW_YEAR.timestamp() * 1000)),
        ("by_time:2026-01-01T01:00:00+01:00", int(NEW_YEAR.timestamp() * 1000)),
    ],
)
def test_words(text: str, timestamp: int | None) -> None:
    assert parse_start(text).timestamp(NOW_MS) == timestamp


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "by_duration:",
        "by_duration:P",
        "by_duration:PT",
        "by_duration:1H",
        "by_duration:P1DT",
        "by_time:x",
    ],
)
def test_words_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
        parse_start(text)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="zone"):
        parse_start(start_text(datetime(2026, 1, 1)) or "")


@pytest.mark.parametrize(
    ("start", "policy"),
    [
        (timedelta(hours=1), StartPolicy("duration", HOUR_MS)),
        (timedelta(0), StartPolicy("duration", 0)),
        (NEW_YEAR, StartPolicy("time", int(NEW_YEAR.timestamp() * 1000))),
        ("earliest", StartPolicy("earliest")),
    ],
)
def test_what_python_users_write(start: str | datetime | timedelta, policy: StartPolicy) -> None:
    assert parse_start(start_text(start) or "") == policy


@pytest.mark.parametrize("start", [timedelta(seconds=-1), 17, b"earliest"])
def test_what_nobody_should_write(start: object) -> None:
    with pytest.raises(ConfigError, match="start="):
        start_text(start)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "nearest"),
    [
        ("begin", "; the nearest is earliest$"),
        ("earlist", "; the nearest is earliest$"),
        ("Latest", "; the nearest is latest$"),
        ("end", "; the nearest is latest$"),
        ("xyzzy", "12:00:00Z$"),
        (datetime(2026, 1, 1), "time zone"),
        ("by_duration:1H", "not a valid duration"),
    ],
)
def test_a_wrong_start_is_told_by_the_name_that_the_user_gave(start: str | datetime, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"^start=.* is refused: .*{nearest}") as refused:
        start_text(start)
    assert refused.value.key == "start"
