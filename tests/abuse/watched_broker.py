"""`klamm`, with a watch on its event loop: `python watched_broker.py STALLS klamm up ...`.

Whenever the loop's thread used the CPU for more than a few milliseconds without coming back to the loop, the
file STALLS gets a line with the milliseconds. CPU time, because on a busy machine the clock on the wall says
more about the other processes.
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


class Watch:
    def __init__(self, stalls: Path) -> None:
        self._file = stalls.open("a", buffering=1)
        self._last_s = time.thread_time()

    def tick(self) -> None:
        now_s = time.thread_time()
        stalled_ms = (now_s - self._last_s) * 1000
        self._last_s = now_s
        if stalled_ms > WORTH_A_LINE_MS:
            self._file.write(f"{stalled_ms:.1f}\n")
        asyncio.get_running_loop().call_later(TICK_S, self.tick)


class WatchedBroker(broker.BrokerNode):
    async def start(self) -> None:
        await super().start()
        Watch(Path(STALLS)).tick()


if __name__ == "__main__":
    run_broker.BrokerNode = WatchedBroker  # type: ignore[misc]
    STALLS, *sys.argv = sys.argv[1:]
    main()
