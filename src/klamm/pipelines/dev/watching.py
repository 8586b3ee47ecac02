"""Which files of a project were saved: how they look on disk, and when a change has settled.

The files are polled, which needs no library and works on every file system. An editor may write a file in
steps: it empties it and then fills it, or writes another one and renames that. A change therefore counts when
the files have not changed for a moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from klamm.pipelines.project import PROJECT_FILE, Project

Stamp: TypeAlias = tuple[int, int, int]
"""The time of a file's last change in nanoseconds, its size, and its inode, which a rename changes."""

Stamps: TypeAlias = Mapping[Path, Stamp]

SETTLED_S = 0.1
"""How long files must stay as they are: longer than an editor takes for one file."""

EMPTIED_S = 0.5
"""The same for a file that has become empty: it is probably about to be filled."""

LONGEST_S = 2.0
"""A change counts after this time at the latest, also while files go on changing."""


class Settling:
    """From looks at the files to settled changes. A core: callers pass the time."""

    def __init__(self, files: Stamps) -> None:
        self._known = self._seen = dict(files)
        self._quiet_since = 0.0
        self._first: float | None = None

    @property
    def is_pending(self) -> bool:
        """Whether files have changed and the change has not settled."""
        return self._first is not None

    def look(self, now: float, files: Stamps) -> frozenset[Path]:
        """The files that were changed, created or removed since the last settled change; nothing while they
        still change."""
        if files != self._seen:
            self._seen = dict(files)
            self._quiet_since = now
            if self._first is None:
                self._first = now
        if self._first is None:
            return frozenset()
        quiet_s = now - self._quiet_since
        changed = self._changed()
        wanted_s = EMPTIED_S if any(self._is_emptied(path) for path in changed) else SETTLED_S
        if quiet_s < wanted_s and now - self._first < LONGEST_S:
            return frozenset()
        self._known, self._first = self._seen, None
        return changed

    def _changed(self) -> frozenset[Path]:
        paths = {*self._known, *self._seen}
        return frozenset(path for path in paths if self._known.get(path) != self._seen.get(path))

    def _is_emptied(self, path: Path) -> bool:
        """Whether a file has lost all its bytes, or is gone: some editors move it away first."""
        was, is_now = self._known.get(path), self._seen.get(path)
        return was is not None and was[1] > 0 and (is_now is None or is_now[1] == 0)


def stamps(project: Project, others: Iterable[Path] = ()) -> dict[Path, Stamp]:
    """How the project's files look now: klamm.toml, Python files and schemas, and the files `others`."""
    paths = [project.root / PROJECT_FILE, *others]
    paths += _files_below(project.pipelines, ".py")
    paths += _files_below(project.schemas, "")
    found = {path: stamp_of(path) for path in paths}
    return {path: stamp for path, stamp in found.items() if stamp is not None}


def stamp_of(path: Path) -> Stamp | None:
    """How a file looks; None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _files_below(folder: Path, ending: str) -> Iterable[Path]:
    """The files without those that editors and Python keep for themselves."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            if name.endswith(ending) and not name.startswith(".") and not name.endswith("~"):
                yield Path(place, name)
