"""The log of a table's batches: one line of JSON per published batch, or per run of merged batches.

A replay reads the log to find which batches to remove from the table and at which offsets to begin. A line is
added after its batch was published and before Spark counts the batch as done. If the process crashes in
between, Spark runs the batch again, the batch is found published, and its line is added then. A last line
that a crash cut off is dropped when the file is read.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from klamm.pipelines.positions import Position
from klamm.pipelines.sinks.layout import BatchFolder
from klamm.pipelines.state import write_whole


@dataclass(frozen=True)
class BatchEntry:
    """The records from `start` to `end` are in the batches `first` to `last`, as `rows` rows."""

    attempt: int
    first: int
    last: int
    start: Position
    end: Position
    rows: int
    published_ms: int


class BatchLog:
    """The log of one pipeline. The query's thread adds lines, the compaction thread merges them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changing = threading.RLock()
        self._entries: list[BatchEntry] | None = None

    @property
    def entries(self) -> list[BatchEntry]:
        if self._entries is None:
            self._entries, cut = _read(self._file)
            if cut:
                self._rewrite()
        return self._entries

    def last(self, attempt: int) -> BatchEntry | None:
        return next((entry for entry in reversed(self.entries) if entry.attempt == attempt), None)

    def holds(self, attempt: int, batch: int) -> bool:
        last = self.last(attempt)
        return last is not None and batch <= last.last

    def rows_in(self, folder: BatchFolder) -> int:
        return sum(entry.rows for entry in self.entries if _inside(entry, folder))

    def add(self, entry: BatchEntry) -> None:
        with self._changing:
            self.entries.append(entry)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as stream:
                stream.write(_line(entry))
                stream.flush()
                os.fsync(stream.fileno())

    def merge(self, folder: BatchFolder) -> None:
        """Replace the lines of the batches that were merged into `folder` by one line."""
        with self._changing:
            inside = [entry for entry in self.entries if _inside(entry, folder)]
            if len(inside) < 2:
                return
            whole = BatchEntry(
                attempt=folder.attempt,
                first=inside[0].first,
                last=inside[-1].last,
                start=inside[0].start,
                end=inside[-1].end,
                rows=sum(entry.rows for entry in inside),
                published_ms=inside[-1].published_ms,
            )
            position = self.entries.index(inside[0])
            self.entries[position : position + len(inside)] = [whole]
            self._rewrite()

    def cut(self, attempt: int, first: int) -> None:
        """Forget the batch `first` of `attempt` and all later ones, after they were removed from the
        table."""
        with self._changing:
            self._entries = [
                entry for entry in self.entries if (entry.attempt, entry.first) < (attempt, first)
            ]
            self._rewrite()

    def _rewrite(self) -> None:
        write_whole(self._file, "".join(map(_line, self.entries)))


def _inside(entry: BatchEntry, folder: BatchFolder) -> bool:
    return folder.holds(entry.attempt, entry.first) and folder.holds(entry.attempt, entry.last)


def _line(entry: BatchEntry) -> str:
    value = asdict(entry)
    return json.dumps({"generation": value.pop("attempt"), **value}, separators=(",", ":")) + "\n"


def _read(file: Path) -> tuple[list[BatchEntry], bool]:
    """The entries of the file, and whether its last line is cut off."""
    try:
        lines = file.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return [], False
    cut = bool(lines) and not lines[-1].endswith("\n")
    return [_entry(line) for line in (lines[:-1] if cut else lines)], cut


def _entry(line: str) -> BatchEntry:
    value = json.loads(line)
    return BatchEntry(attempt=value.pop("generation"), **value)
