"""Takes away from a data directory what a loss of power may take, as the ledger of its broker says.

A file keeps the bytes up to the length at which it was last synced. What lies beyond may be there, be cut off
anywhere, be zeros or be garbage. An end that was cut off may be back, unless the file was synced since. A new
name, a rename or a removal holds once the directory was synced after it; of those that come later in a
directory, some of the first hold and the others never happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from tests.waiting import wait_until

LAUNCHER = Path(__file__).with_name("ledger.py")
LINE_BEGINS = '{"event": '
KINDS = ("keep", "cut", "zeros", "garble")
_STORE_SUFFIXES = (".sqlite", ".sqlite-shm", ".lock")
"""What SQLite has brought to the disk by itself, and files that hold nothing."""

Event = dict[str, Any]


def events_of(ledger: str) -> list[Event]:
    """A kill may cut a line that goes on in another page of the file; another process may write behind it.
    That event has not happened, or nobody has been told of it."""
    lines = ledger.split("\n")[:-1]
    return [json.loads(line[line.rindex(LINE_BEGINS) :]) for line in lines]


class PowerSupply:
    """Of the machine of one broker. `wrapper` starts the broker's command under a ledger."""

    def __init__(self, directory: Path, data_dir: Path, seed: int, kinds: tuple[str, ...] = KINDS) -> None:
        self._data_dir = data_dir
        self._ledger = directory / "ledger"
        self._kept = directory / "kept"
        self._random = Random(seed)
        self._kinds = kinds
        self._lengths: dict[int, int] = {}
        """How many bytes of each file are on the disk, by inode."""
        self._lost_ends: dict[int, tuple[int, str]] = {}
        """What was cut off and may come back, by inode: from where on, and a copy of it."""
        self.was_taken: list[str] = []
        """What the last loss of power took, for whoever looks into a failed test."""
        self.turn_on()

    @property
    def wrapper(self) -> list[str]:
        return [sys.executable, str(LAUNCHER), str(self._ledger), str(self._kept), str(self._data_dir)]

    def turn_on(self) -> None:
        """Count everything that the files hold now as on the disk."""
        self._ledger.unlink(missing_ok=True)
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        self._lost_ends = {}
        self._lengths = {
            path.stat().st_ino: path.stat().st_size for path in self._data_dir.rglob("*") if path.is_file()
        }

    def cut(self) -> None:
        """The broker has just been killed: take away what was not brought to the disk."""
        for event in events_of(self._ledger.read_text()):
            if event["event"] == "process":  # the one that compacts notices the end of the broker by itself
                wait_until(lambda pid=event["pid"]: not os.path.exists(f"/proc/{pid}"), "all have ended")
        events = events_of(self._ledger.read_text())
        self.was_taken = []
        self._undo_names(_unsynced_names(events))
        self._note_lengths(events)
        for path in sorted(self._data_dir.rglob("*")):
            if path.is_file() and not path.name.endswith(_STORE_SUFFIXES) and not self._bring_back_end(path):
                self._damage(path)
        self.turn_on()

    def _undo_names(self, unsynced: dict[str, list[Event]]) -> None:
        for directory in sorted(unsynced):
            events = unsynced[directory]
            held = self._random.randint(0, len(events))
            for event in reversed(events[held:]):
                self.was_taken.append(f"undid {event}")
                _undo(event)

    def _note_lengths(self, events: list[Event]) -> None:
        for event in events:
            inode = event.get("inode")
            if event["event"] == "create":
                self._lengths[inode] = 0
                self._lost_ends.pop(inode, None)
            elif event["event"] == "sync":
                self._lengths[inode] = event["size"]
                self._lost_ends.pop(inode, None)
            elif event["event"] == "shrink":
                self._lengths[inode] = min(event["size"], self._lengths.get(inode, 0))
                if event.get("kept") is not None:
                    self._lost_ends[inode] = event["size"], event["kept"]

    def _bring_back_end(self, path: Path) -> bool:
        """Undo, by chance, that the file was cut, if nothing was written to it since."""
        status = path.stat()
        size, kept = self._lost_ends.get(status.st_ino, (-1, ""))
        if status.st_size != size or self._random.random() < 0.5:
            return False
        self.was_taken.append(f"the end of {path} from {size} on is back")
        with path.open("ab") as file:
            file.write(Path(kept).read_bytes())
        return True

    def _damage(self, path: Path) -> None:
        size = path.stat().st_size
        safe = min(size, self._lengths.get(path.stat().st_ino, 0))
        kind = self._random.choice(self._kinds)
        if size == safe or kind == "keep":
            return
        self.was_taken.append(f"{kind} of {path} from {safe} on, of {size}")
        if kind == "cut":
            os.truncate(path, self._random.randint(safe, size))
            return
        lost = bytes(size - safe) if kind == "zeros" else self._random.randbytes(size - safe)
        with path.open("r+b") as file:
            file.seek(safe)
            file.write(lost)


def _unsynced_names(events: list[Event]) -> dict[str, list[Event]]:
    """By directory: the changes of names after which it was not synced, oldest first."""
    pending: dict[str, list[Event]] = defaultdict(list)
    begun: dict[tuple[int, int], tuple[str, int]] = {}
    for event in events:
        if event["event"] in ("create", "rename", "unlink", "mkdir"):
            pending[os.path.dirname(event["path"])].append(event)
        elif event["event"] == "sync begins":
            begun[tuple(event["id"])] = event["path"], len(pending[event["path"]])
        elif event["event"] == "sync ends":
            directory, count = begun.pop(tuple(event["id"]))
            del pending[directory][:count]
            for key, (other, others_count) in begun.items():
                if other == directory:
                    begun[key] = other, max(0, others_count - count)
    return pending


def _undo(event: Event) -> None:
    path = event["path"]
    with contextlib.suppress(FileNotFoundError):
        if event["event"] == "create":
            os.unlink(path)
        elif event["event"] == "mkdir":
            shutil.rmtree(path)
        elif event["event"] == "rename":
            os.rename(path, event["source"])
    if event.get("kept") is not None:
        with contextlib.suppress(FileNotFoundError):
            os.rename(event["kept"], path)
