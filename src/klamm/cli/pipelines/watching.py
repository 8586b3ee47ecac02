"""Shows the progress of a run on stderr: a live table on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Group
from rich.live import Live
from rich.text import Text

from klamm.cli.pipelines.showing import remarks, status_line, status_table
from klamm.cli.showing import console
from klamm.pipelines.progress import ENDED, PipelineStatus

LINE_INTERVAL_S = 10.0
"""How often a pipeline gets a line off a terminal. A change of its state gets one at once."""

REFRESHES_PER_SECOND = 4


class Watch:
    """A context manager that shows statuses. At its end the last table stays on the terminal."""

    def __init__(self, waiting: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting = waiting
        self._clock = clock
        self._statuses: Sequence[PipelineStatus] = ()
        self._told: dict[str, tuple[str, float]] = {}
        self._live: Live | None = None

    def __enter__(self) -> Watch:
        if sys.stderr.isatty():
            self._live = Live(
                Text(self._waiting, style="dim"),
                console=console(stderr=True),
                refresh_per_second=REFRESHES_PER_SECOND,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        else:
            print(self._waiting, file=sys.stderr)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is None:
            return
        self._live.update(self._picture() if self._statuses else Text(""))
        self._live.stop()

    def show(self, statuses: Sequence[PipelineStatus]) -> None:
        self._statuses = statuses
        if self._live is not None:
            self._live.update(self._picture())
            return
        now = self._clock()
        for status in statuses:
            state, told_at = self._told.get(status.pipeline, ("", 0.0))
            is_due = now - told_at >= LINE_INTERVAL_S and status.state not in ENDED
            if status.state != state or is_due:
                self._told[status.pipeline] = (status.state, now)
                print(status_line(status), file=sys.stderr)

    def _picture(self) -> Group:
        lines = [
            Text(line, style="red" if " failed: " in line else "dim") for line in remarks(self._statuses)
        ]
        return Group(status_table(self._statuses), *lines)
