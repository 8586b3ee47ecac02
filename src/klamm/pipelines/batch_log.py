"""Which records a table's batches hold: one line of JSON per published batch, or per run of merged ones.

A replay finds by it what to take out of the table and where to begin again. A line is added after its batch
was published and before Spark counts it as done; when a crash comes in between, the batch is tried again,
found published, and gets its line then. A line that a crash cut off is dropped when the file is read.
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

    generation: int
    first: int
    last: int
    start: Position
    end: Position
    rows: int
    published_ms: int


class BatchLog:
    """The log of one pipeline. The thread of its query adds to it, that of compaction merges lines."""

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

    def last(self, generation: int) -> BatchEntry | None:
        return next((entry for entry in reversed(self.entries) if entry.generation == generation), None)

    def holds(self, generation: int, batch: int) -> bool:
        last = self.last(generation)
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
        """One line for the batches of a folder that they were merged into."""
        with self._changing:
            inside = [entry for entry in self.entries if _inside(entry, folder)]
            if len(inside) < 2:
                return
            whole = BatchEntry(
                generation=folder.generation,
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

    def cut(self, generation: int, first: int) -> None:
        """Forget a batch and all later ones, after they were taken out of the table."""
        with self._changing:
            self._entries = [
                entry for entry in self.entries if (entry.generation, entry.first) < (generation, first)
            ]
            self._rewrite()

    def _rewrite(self) -> None:
        write_whole(self._file, "".join(map(_line, self.entries)))


def _inside(entry: BatchEntry, folder: BatchFolder) -> bool:
    return folder.holds(entry.generation, entry.first) and folder.holds(entry.generation, entry.last)


def _line(entry: BatchEntry) -> str:
    return json.dumps(asdict(entry), separators=(",", ":")) + "\n"


def _read(file: Path) -> tuple[list[BatchEntry], bool]:
    """What the file has, and whether its last line is cut off."""
    try:
        lines = file.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return [], False
    cut = bool(lines) and not lines[-1].endswith("\n")
    return [BatchEntry(**json.loads(line)) for line in (lines[:-1] if cut else lines)], cut
