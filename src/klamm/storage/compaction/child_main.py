"""The main program of the child process that compacts: `python -m klamm.storage.compaction.child_main`.
The broker starts it through `child_process`.

Compaction is pure computing, and in a thread of the broker it would hold the interpreter's lock for most
of the time. So it runs here, at low priority.

It speaks lines of JSON. In comes a plan. Out goes one line per new segment, `{"segment": …}`, each of
which the broker answers with an empty line when it has put the segment in place; then `{"summary": …}`,
or `{"failed": "why", "is_disk_failure": …}`; and `{}` now and then, as a sign of life. Any other input ends
the process at once, above all the end of standard input, which it also sees when the broker is killed. The
broker, or the recovery at its next start, removes the files that the process leaves.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
from typing import Any, BinaryIO

from klamm.storage.compaction.rewriting import CleanPlan, Stopped, clean
from klamm.storage.files import LogDirFailure

_NICENESS = 10
"""Enough that a broker with work to do always comes first, even on one core."""
_SIGN_OF_LIFE_EVERY = 32


def main() -> None:
    os.nice(_NICENESS)
    gc.disable()  # a clean makes millions of tuples and no cycles
    commands = sys.stdin.buffer
    try:
        while line := commands.readline():
            _serve(CleanPlan.from_json(json.loads(line)), commands)
    except (Stopped, BrokenPipeError):
        pass


class _Watch:
    """Asked after every megabyte whether to stop."""

    def __init__(self, commands: BinaryIO) -> None:
        self._inbox = select.poll()
        self._inbox.register(commands, select.POLLIN)
        self._asked = 0

    def should_stop(self) -> bool:
        self._asked += 1
        if self._asked % _SIGN_OF_LIFE_EVERY == 0:
            _say({})
        return bool(self._inbox.poll(0))


def _serve(plan: CleanPlan, commands: BinaryIO) -> None:
    steps = clean(plan, _Watch(commands).should_stop)
    try:
        while True:
            _say({"segment": next(steps)._asdict()})
            if not commands.readline():
                raise Stopped
    except StopIteration as end:
        _say({"summary": end.value._asdict()})
    except (Stopped, BrokenPipeError):
        raise
    except Exception as error:
        # Whatever is wrong with this log, the process must live on to compact the others.
        _say(
            {
                "failed": f"{type(error).__name__}: {error}",
                "is_disk_failure": isinstance(error, LogDirFailure),
            }
        )


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
