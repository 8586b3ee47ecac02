from __future__ import annotations

import asyncio

import pytest

from klamm.server import unsent as unsent_module
from klamm.server.unsent import AnswerBytes, UnsentAnswers
from tests.server.fakes import eventually


class Slow:
    def __init__(self, unsent: UnsentAnswers) -> None:
        self.unsent = unsent
        self.progress_s = 0.0
        self.reason = ""

    def last_progress_s(self) -> float:
        return self.progress_s

    def close(self, reason: str = "") -> None:
        self.reason = reason
        self.unsent.note(self, 0, 0)


@pytest.fixture(autouse=True)
def check_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent_module, "CHECK_INTERVAL_S", 0.0)


async def test_counts_over_all_connections() -> None:
    unsent = UnsentAnswers(max_bytes=100, max_files=10)
    one, two = Slow(unsent), Slow(unsent)
    unsent.note(one, 30, 2)
    unsent.note(two, 15, 3)
    assert (unsent.byte_count, unsent.file_count, unsent.files_left) == (45, 5, 5)
    assert not unsent.is_crowded
    unsent.note(one, 40, 2)
    assert unsent.is_crowded
    unsent.note(one, 0, 0)
    unsent.note(two, 0, 0)
    assert (unsent.byte_count, unsent.file_count, unsent.is_crowded) == (0, 0, False)


async def test_at_the_bound_those_are_closed_that_have_waited_longest() -> None:
    unsent = UnsentAnswers(max_bytes=100, max_files=10)
    now_s = asyncio.get_running_loop().time()
    oldest, older, reading = Slow(unsent), Slow(unsent), Slow(unsent)
    oldest.progress_s, older.progress_s, reading.progress_s = now_s - 100, now_s - 50, now_s + 3600
    unsent.note(older, 40, 0)
    unsent.note(reading, 40, 0)
    unsent.note(oldest, 40, 0)
    await eventually(lambda: oldest.reason)
    assert "does not read" in oldest.reason
    assert unsent.byte_count == 80
    unsent.note(reading, 400, 0)
    await eventually(lambda: older.reason)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reading.reason, "a client that reads is never closed"


async def test_bytes_that_are_being_made_count_and_are_no_reason_to_close_their_own_connection() -> None:
    unsent = UnsentAnswers(max_bytes=100, max_files=10)
    made, stuck = AnswerBytes(unsent), Slow(unsent)
    made.add(40)
    assert not unsent.is_crowded
    made.add(40)
    assert unsent.is_crowded and unsent.is_crowded_with_bytes
    unsent.note(stuck, 10, 0)
    assert unsent._check is None
    made.add(10)
    await eventually(lambda: stuck.reason)
    made.release()
    assert (unsent.byte_count, unsent.bytes_being_made, unsent.is_crowded) == (0, 0, False)


async def test_files_count_too() -> None:
    unsent = UnsentAnswers(max_bytes=100, max_files=10)
    stuck = Slow(unsent)
    unsent.note(stuck, 0, 10)
    assert unsent.files_left == 0
    await eventually(lambda: stuck.reason)
    assert unsent.files_left == 10


def test_reserved_files_are_kept_from_other_answers() -> None:
    unsent = UnsentAnswers(max_files=10)
    assert unsent.reserve_files(7) == 7
    assert unsent.reserve_files(7) == 3
    assert unsent.reserve_files(7) == 0
    unsent.release_files(7)
    assert unsent.files_left == 7
