"""Taking segments out of a log and putting compacted ones in, by renames that a crash cannot tear.

A deleted segment's files are renamed first and removed later: whoever opens the directory after a crash
knows that they are gone, and whoever still reads them is not disturbed. Compacted segments go from
`.cleaned` to `.swap`, the log file last; from then on, opening the directory completes the exchange.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from klamm.storage.files import remove_if_there, sync_directory
from klamm.storage.recovery import DELETED_SUFFIX, SWAP_SUFFIX
from klamm.storage.segments.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    Segment,
)

_LOG_FILE_LAST = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)


_lock = threading.Lock()
"""Of all logs: it is held for a moment only, and never while a file is touched."""


class DeletedFiles:
    """Files that have their `.deleted` names and wait to be removed."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def take_over(self, segments: Sequence[Segment], due_ms: int) -> None:
        """Rename the files of `segments`; they may be removed at `due_ms`."""
        for segment in segments:
            segment.retire()  # before its files are renamed
            for suffix in SEGMENT_SUFFIXES:
                path = segment.path(suffix)
                with contextlib.suppress(FileNotFoundError):
                    os.rename(path, path + DELETED_SUFFIX)
                    with _lock:
                        self._entries.append((due_ms, path + DELETED_SUFFIX))

    def remove_due(self, now_ms: int) -> int | None:
        """Remove what is due; returns when the next is, if any is left."""
        with _lock:
            due = [path for due_ms, path in self._entries if due_ms <= now_ms]
            self._entries = [entry for entry in self._entries if entry[0] > now_ms]
            next_ms = min((due_ms for due_ms, _ in self._entries), default=None)
        for path in due:
            remove_if_there(path)
        return next_ms


def stage(cleaned: Segment) -> None:
    """Make its `.cleaned` files `.swap`: once this is on the disk, the old segments count no more."""
    for suffix in _LOG_FILE_LAST:
        os.rename(cleaned.path(suffix + CLEANED_SUFFIX), cleaned.path(suffix + SWAP_SUFFIX))
    sync_directory(cleaned.directory)


def unstage(cleaned: Segment) -> None:
    """Remove the `.swap` files of a segment whose predecessors are gone. The log file goes first: without it
    the others do not count."""
    for suffix in reversed(_LOG_FILE_LAST):
        remove_if_there(cleaned.path(suffix + SWAP_SUFFIX))


def put_in_place(cleaned: Segment) -> None:
    """Give its `.swap` files their names, after the old ones have given them up."""
    for suffix in _LOG_FILE_LAST:
        os.rename(cleaned.path(suffix + SWAP_SUFFIX), cleaned.path(suffix))
