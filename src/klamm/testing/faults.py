"""Faults at the moments of a batch at which a crash is dangerous: around its files, its commit, its end.

    with striking("before commit", strike):
        run(project, once=True)

`strike` is called at the moment, in the thread that writes: it raises, or kills the process. Nothing of this
is in the code that runs: it is put around it, and taken away at the end of the block. Klamm's own crash tests
and users' tests (`klamm.testing.pipelines`) use the same moments. They are those of Delta tables, in the
process of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from klamm.pipelines.sinks.table import TableWriter
from klamm.pipelines.tables import upkeep


class Moment(NamedTuple):
    """A moment of a batch: before or after a function is called."""

    owner: Any
    """The class or module that has the function."""
    function: str
    is_before: bool
    description: str


MOMENTS: Mapping[str, Moment] = {
    "before write": Moment(TableWriter, "write", True, "no file of the batch is written"),
    "after write": Moment(TableWriter, "_write_files", False, "the files are written, no commit names them"),
    "before commit": Moment(TableWriter, "_commit", True, "all is ready for the commit"),
    "after commit": Moment(TableWriter, "_commit", False, "the batch is in the table, and nobody knows"),
    "before checkpoint": Moment(TableWriter, "__call__", False, "Spark has not noted that the batch is done"),
    "before merge": Moment(upkeep, "keep_up", True, "the pipelines are done, small files are not merged"),
    "after merge": Moment(upkeep, "keep_up", False, "small files are merged"),
}


class FaultInjected(Exception):
    """Raised by a fault of a test at its moment."""


@contextmanager
def striking(
    moment: str,
    strike: Callable[[], None],
    *,
    after: int = 0,
    group: str | None = None,
    location: str | None = None,
) -> Iterator[None]:
    """Within the block, call `strike` each time that the moment is met, after the first `after` times.

    With `group`, the group of a pipeline (`Project.group_of`), and `location`, that of its table, only
    batches of this pipeline count. Raises ValueError if there is no such moment.
    """
    if moment not in MOMENTS:
        raise ValueError(f"{moment!r} is not a moment of a batch: there are {', '.join(MOMENTS)}")
    owner, name, is_before, _ = MOMENTS[moment]
    original = getattr(owner, name)
    met = 0

    def counts(subject: Any) -> bool:
        nonlocal met
        if isinstance(subject, TableWriter):
            is_meant = group is None or subject.group == group
        else:
            is_meant = location is None or subject.location == location
        met += is_meant
        return is_meant and met > after

    def wrapped(subject: Any, *arguments: Any, **named: Any) -> Any:
        strikes = counts(subject)
        if strikes and is_before:
            strike()
        result = original(subject, *arguments, **named)
        if strikes and not is_before:
            strike()
        return result

    setattr(owner, name, wrapped)
    try:
        yield
    finally:
        setattr(owner, name, original)
