"""A table's folder: which batches are published in it, and how it changes. Each change is one rename.

Data that is not published yet lies beside the table, on the same file system but outside of its folder, since
readers list everything in a table's folder.

Invariants. A batch is in the table once and as a whole, or not at all. If one name of a reader's listing is
gone, all names of that listing are (see `layout.py`), so that a reader fails instead of missing rows. One
process changes the tables of a project (`state.py` has its lock), and in it one thread at a time
(`Table.changing`).
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.pipelines.errors import PipelineError
from klamm.pipelines.hadoop import Kind, RemoteFiles, joined, kind_of, local_path, parent
from klamm.pipelines.sinks.exchange import exchange, why_impossible
from klamm.pipelines.sinks.layout import BatchFolder, parse_folders, rebuilt_names
from klamm.pipelines.state import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGING = ".klamm-staging"
RETIRED = ".klamm-retired"


class TableError(PipelineError):
    """A table cannot be written, read or changed."""


def table_location(tables: str, table: str) -> str:
    """Where a table is. A name lies in the project's tables folder; a path or a URI is used as it is.

    Local paths are normalized, so that two pipelines that share a table are found.
    """
    location = table.rstrip("/") if ":/" in table or table.startswith("/") else joined(tables, table)
    path = local_path(location)
    return location if path is None else str(path)


def overlap(location: str, other: str) -> bool:
    """True if two tables are the same, or one lies inside the other, whose readers would read both."""
    return f"{location}/".startswith(f"{other}/") or f"{other}/".startswith(f"{location}/")


def open_table(spark: SparkSession | None, location: str) -> Table:
    """The table at a location, which need not exist yet. A local table needs no session."""
    path = local_path(location)
    if path is not None:
        return LocalTable(path)
    assert spark is not None, "only the JVM can read other file systems"
    return RemoteTable(RemoteFiles(spark, location), location)


class Table(ABC):
    """What local and remote tables have in common."""

    def __init__(self, location: str, kind: Kind) -> None:
        self.location = location
        self.kind = kind
        self.changing = threading.RLock()
        """Held while the folder is changed: publishing and rebuilding exclude each other."""
        self._name = location.rstrip("/").rpartition("/")[2]

    def find(self, attempt: int, batch: int) -> BatchFolder | None:
        """The folder in which a batch is published, alone or merged with others."""
        return next((folder for folder in self.folders() if folder.holds(attempt, batch)), None)

    def holds(self, attempt: int, batch: int) -> bool:
        return self.find(attempt, batch) is not None

    def new_staging(self, label: str) -> str:
        """A new folder to write to. Tasks of a batch that was given up may still write to theirs."""
        return joined(self._beside(STAGING), f"{label}-{uuid.uuid4().hex}")

    def retired(self, attempt: int) -> str:
        """Where a replay that starts this attempt moves the folders that it removes."""
        return joined(self._beside(RETIRED), str(attempt))

    def _beside(self, folder: str) -> str:
        return joined(parent(self.location), folder, self._name)

    @abstractmethod
    def folders(self) -> list[BatchFolder]:
        """The published folders, in order."""

    @abstractmethod
    def publish(self, staged: str, folder: BatchFolder) -> None:
        """Make a written folder part of the table, in one step."""

    @abstractmethod
    def retire(self, folders: Iterable[BatchFolder], attempt: int) -> None:
        """Move folders out of the table into `retired(attempt)`. Folders that the table does not have are
        skipped."""

    @abstractmethod
    def discard(self, staged: str) -> None:
        """Remove a written folder that is not to be published."""

    @abstractmethod
    def clean_up(self) -> None:
        """Remove what killed runs have left beside the table."""


class LocalTable(Table):
    """A table on a file system of this machine. It can be rebuilt while others read it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Kind.LOCAL)
        self.path = path

    def folders(self) -> list[BatchFolder]:
        try:
            return parse_folders(os.listdir(self.path))
        except FileNotFoundError:
            return []

    def publish(self, staged: str, folder: BatchFolder) -> None:
        _leave_data_only(Path(staged))
        _sync_tree(Path(staged))
        with self.changing:
            self.path.mkdir(parents=True, exist_ok=True)
            os.rename(staged, self.path / folder.name)
            sync(self.path)

    def retire(self, folders: Iterable[BatchFolder], attempt: int) -> None:
        with self.changing:
            there = {folder[:3]: folder for folder in self.folders()}
            found = [there[folder[:3]] for folder in folders if folder[:3] in there]
            if not found:
                return
            target = Path(self.retired(attempt))
            target.mkdir(parents=True, exist_ok=True)
            if why_impossible(target) is not None:
                # The last one first, so that the table always looks as it did at some earlier time.
                for folder in sorted(found, reverse=True):
                    os.rename(self.path / folder.name, target / folder.name)
                return
            old = self._rebuild(found, {})
            for folder in found:
                os.rename(old / folder.name, target / folder.name)
            shutil.rmtree(old)

    def replace(self, merged: Iterable[BatchFolder], staged: str, folder: BatchFolder) -> BatchFolder:
        """Replace the folders that were merged by the merged one, in one step; return its name.

        Raises ExchangeImpossible if the file system cannot do that.
        """
        _leave_data_only(Path(staged))
        _sync_tree(Path(staged))
        with self.changing:
            old = self._rebuild(merged, {folder: Path(staged)})
        shutil.rmtree(old)
        return next(each for each in self.folders() if each[:3] == folder[:3])

    def _rebuild(self, without: Iterable[BatchFolder], added: Mapping[BatchFolder, Path]) -> Path:
        """Exchange the table's folder for one without some folders and with others; return the old folder.

        The new folder is made of hard links, so that it costs no space and little time.
        """
        folders = self.folders()
        gone = {folder.name for folder in without}
        rebuilds = 1 + max((folder.rebuilds for folder in folders), default=0)
        names = rebuilt_names([folder for folder in folders if folder.name not in gone], rebuilds)
        new_names = {old.name: new.name for old, new in names.items()}
        made = Path(self.new_staging("rebuilt"))
        made.mkdir(parents=True)
        shutil.copystat(self.path, made)
        for name in os.listdir(self.path):
            if name not in gone:
                _link_tree(self.path / name, made / new_names.get(name, name))
        for folder, path in added.items():
            os.rename(path, made / folder._replace(rebuilds=rebuilds).name)
        _sync_tree(made, files=False)
        exchange(self.path, made)
        sync(self.path.parent)
        return made

    def size_bytes(self, folder: BatchFolder) -> int:
        return sum(file.stat().st_size for file in (self.path / folder.name).rglob("*") if file.is_file())

    def discard(self, staged: str) -> None:
        shutil.rmtree(staged, ignore_errors=True)

    def clean_up(self) -> None:
        shutil.rmtree(self._beside(STAGING), ignore_errors=True)


class RemoteTable(Table):
    """A table on HDFS, in an object store, or on another file system that Hadoop supports."""

    def __init__(self, files: RemoteFiles, location: str) -> None:
        super().__init__(location, kind_of(location))
        self._files = files

    def folders(self) -> list[BatchFolder]:
        return parse_folders(self._files.names(self.location))

    def publish(self, staged: str, folder: BatchFolder) -> None:
        with self.changing:
            self._files.make_folder(self.location)
            self._files.rename(staged, joined(self.location, folder.name))

    def retire(self, folders: Iterable[BatchFolder], attempt: int) -> None:
        with self.changing:
            there = set(self.folders())
            target = self.retired(attempt)
            self._files.make_folder(target)
            for folder in sorted(there.intersection(folders), reverse=True):
                self._files.rename(joined(self.location, folder.name), joined(target, folder.name))

    def discard(self, staged: str) -> None:
        self._files.delete(staged)

    def clean_up(self) -> None:
        self._files.delete(self._beside(STAGING))


# ---- trees of files


def _leave_data_only(folder: Path) -> None:
    """Remove the files that Hadoop writes beside the data: checksums, and markers of finished jobs."""
    for file in folder.rglob("*"):
        if file.is_file() and file.name.startswith((".", "_")):
            file.unlink()


def _link_tree(old: Path, new: Path) -> None:
    if not old.is_dir():
        os.link(old, new, follow_symlinks=False)
        return
    new.mkdir()
    for name in os.listdir(old):
        _link_tree(old / name, new / name)


def _sync_tree(folder: Path, *, files: bool = True) -> None:
    """fsync a tree of folders and files."""
    for path in folder.rglob("*"):
        if files or path.is_dir():
            sync(path)
    sync(folder)
