from __future__ import annotations

import os
import pty
import sys
import termios
from collections.abc import Iterator

import pytest
from tests.waiting import wait_until

from klamm.cli.pipelines.dev.keys import has_keys, keys


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of a terminal that is this process's stdin."""
    ours, theirs = pty.openpty()
    with open(theirs, closefd=False) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)
    os.close(theirs)


def test_keys_come_without_enter_and_the_terminal_is_as_before(terminal: int) -> None:
    before = termios.tcgetattr(sys.stdin.fileno())
    pressed: list[str] = []
    with keys(pressed.append):
        os.write(terminal, b"rn\xc3\xbc")
        wait_until(lambda: len(pressed) == 3, "three keys came")
    assert pressed == ["r", "n", "ü"]
    assert termios.tcgetattr(sys.stdin.fileno()) == before


def test_what_is_not_in_the_foreground_of_a_terminal_reads_no_keys(terminal: int) -> None:
    assert not has_keys(), "this terminal is not that of the tests"
