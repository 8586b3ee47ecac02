"""Which event loop brokers and plain clients run on: uvloop's where it is installed, else asyncio's own.

uvloop is faster and is installed with Klamm wherever it exists; Windows and PyPy have none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new loop until it ends, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
