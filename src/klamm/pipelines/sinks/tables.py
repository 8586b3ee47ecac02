"""A table's folder: what is published in it, and the steps that change it. Each is one rename.

What is not published yet lies beside the table, on the same file system but outside of its folder: readers
list all that is in a table, whatever they know of it.

Invariants. A batch is in the table once and whole, or not at all. Nothing that was listed in a table is gone
while other names of that listing still are there (see `layout.py`). One process changes the tables of a
project (`state.py` holds its lock), and in it one thread at a time (`Table.changing`).
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
    """Where a table is: a name lies below the project's tables; a path or a URI is taken as it is.

    A place of this machine has one location, however it is written: two pipelines must not share one.
    """
    location = table.rstrip("/") if ":/" in table or table.startswith("/") else joined(tables, table)
    path = local_path(location)
    return location if path is None else str(path)


def overlap(location: str, other: str) -> bool:
    """Whether two tables are the same, or one lies in the other, whose readers would find its rows, too."""
    return f"{location}/".startswith(f"{other}/") or f"{other}/".startswith(f"{location}/")


def open_table(spark: SparkSession | None, location: str) -> Table:
    """The table at a location. It need not be there yet. One of this machine needs no session."""
    path = local_path(location)
    if path is not None:
        return LocalTable(path)
    assert spark is not None, "only the JVM can look at other file systems"
    return RemoteTable(RemoteFiles(spark, location), location)


class Table(ABC):
    """What both kinds of tables have in common."""

    def __init__(self, location: str, kind: Kind) -> None:
        self.location = location
        self.kind = kind
        self.changing = threading.RLock()
        """Held while the folder is changed: publishing and rebuilding exclude one another."""
        self._name = location.rstrip("/").rpartition("/")[2]

    def find(self, attempt: int, batch: int) -> BatchFolder | None:
        """The folder that a batch is published in, by itself or merged with others."""
        return next((folder for folder in self.folders() if folder.holds(attempt, batch)), None)

    def holds(self, attempt: int, batch: int) -> bool:
        return self.find(attempt, batch) is not None

    def new_staging(self, label: str) -> str:
        """A place to write to that no other attempt, not even one that was given up, writes to."""
        return joined(self._beside(STAGING), f"{label}-{uuid.uuid4().hex}")

    def retired(self, attempt: int) -> str:
        """Where the folders go that a replay takes out, when it starts this attempt."""
        return joined(self._beside(RETIRED), str(attempt))

    def _beside(self, folder: str) -> str:
        return joined(parent(self.location), folder, self._name)

    @abstractmethod
    def folders(self) -> list[BatchFolder]:
        """What is published, in order."""

    @abstractmethod
    def publish(self, staged: str, folder: BatchFolder) -> None:
        """Make a written folder a part of the table, in one step."""

    @abstractmethod
    def retire(self, folders: Iterable[BatchFolder], attempt: int) -> None:
        """Take folders out of the table, into `retired(attempt)`. What is not in it is left out."""

    @abstractmethod
    def discard(self, staged: str) -> None:
        """Remove what was written and shall not be published."""

    @abstractmethod
    def clean_up(self) -> None:
        """Remove what runs that were killed have left beside the table."""


class LocalTable(Table):
    """A table on a file system of this machine: it can be rebuilt while others read it."""

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
                # The last first: what is left is always a table as it was at some time.
                for folder in sorted(found, reverse=True):
                    os.rename(self.path / folder.name, target / folder.name)
                return
            old = self._rebuild(found, {})
            for folder in found:
                os.rename(old / folder.name, target / folder.name)
            shutil.rmtree(old)

    def replace(self, merged: Iterable[BatchFolder], staged: str, folder: BatchFolder) -> BatchFolder:
        """Let one folder take the place of those that were merged into it, in one step; return its name.

        Raises ExchangeImpossible where the file system cannot do that.
        """
        _leave_data_only(Path(staged))
        _sync_tree(Path(staged))
        with self.changing:
            old = self._rebuild(merged, {folder: Path(staged)})
        shutil.rmtree(old)
        return next(each for each in self.folders() if each[:3] == folder[:3])

    def _rebuild(self, without: Iterable[BatchFolder], added: Mapping[BatchFolder, Path]) -> Path:
        """Exchange the table for one without some folders and with others; return where the old one is now.

        The new one is made of hard links, so that it costs no space and little time.
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
    """A table on HDFS, in an object store, or wherever else Hadoop's FileSystem comes to."""

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
    """Remove what Hadoop writes beside the data: checksums by file, and marks that a job is done."""
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
    """Have the disk keep a tree before anything says that it is there."""
    for path in folder.rglob("*"):
        if files or path.is_dir():
            sync(path)
    sync(folder)
