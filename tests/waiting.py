"""Waiting for what announces itself to nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 30.0
LOOK_INTERVAL_S = 0.01


def wait_until(
    condition: Callable[[], T], what: str | Callable[[], str], patience_s: float = PATIENCE_S
) -> T:
    """Wait until the condition holds and return what it returned; fail with `what` when it never does."""
    deadline = time.monotonic() + patience_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            description = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {patience_s:.0f} s: {description}")
        time.sleep(LOOK_INTERVAL_S)
    return result
