"""`klamm`, with a watch on its event loop: `python watched_broker.py STALLS klamm up ...`.

Whenever the loop's thread used the CPU for more than a few milliseconds without coming back to the loop, the
file STALLS gets a line with the milliseconds. CPU time, because on a busy machine the clock on the wall says
more about the other processes. Even CPU time grows there, as the processes share caches and cores: so the
milliseconds are those of an idle machine, by a piece of work whose time on one is known.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from klamm.cli import run_broker
from klamm.cli.main import main
from klamm.node import broker

TICK_S = 0.001
WORTH_A_LINE_MS = 10.0

YARDSTICK_MS = 1.6
"""What `yardstick` takes on an idle machine of two cores, with a factor of 1.3 for slower ones."""
MOST_SLOWDOWN = 4.0
"""More than this no neighbour explains."""


def yardstick() -> None:
    """Work of the kind that handlers do: small objects, a dictionary, bytes."""
    seen: dict[bytes, int] = {}
    for number in range(6_000):
        key = number.to_bytes(4, "big")
        seen[key] = len(seen) + seen.get(key[2:], 0)


def slowdown() -> float:
    """How much longer work takes now than on an idle machine."""
    times_ms = []
    for _ in range(3):
        before_s = time.thread_time()
        yardstick()
        times_ms.append((time.thread_time() - before_s) * 1000)
    return min(max(sorted(times_ms)[1] / YARDSTICK_MS, 1.0), MOST_SLOWDOWN)


class Watch:
    def __init__(self, stalls: Path) -> None:
        self._file = stalls.open("a", buffering=1)
        self._last_s = time.thread_time()

    def tick(self) -> None:
        now_s = time.thread_time()
        stalled_ms = (now_s - self._last_s) * 1000
        if stalled_ms > WORTH_A_LINE_MS:
            self._file.write(f"{stalled_ms / slowdown():.1f}\n")
            now_s = time.thread_time()
        self._last_s = now_s
        asyncio.get_running_loop().call_later(TICK_S, self.tick)


class WatchedBroker(broker.BrokerNode):
    async def start(self) -> None:
        await super().start()
        Watch(Path(STALLS)).tick()


if __name__ == "__main__":
    run_broker.BrokerNode = WatchedBroker  # type: ignore[misc]
    STALLS, *sys.argv = sys.argv[1:]
    main()
