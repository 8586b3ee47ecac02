"""The folder of a `parquet()` sink: which batches are published in it. Publishing a batch is one rename.

Data that is not published yet lies beside the folder, on the same file system but outside of it, since
readers list everything in it. Nothing that is published is changed or removed.
"""

from __future__ import annotations

import os
import shutil
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.pipelines.hadoop import RemoteFiles
from klamm.pipelines.locations import Kind, joined, kind_of, local_path, parent
from klamm.pipelines.sinks.layout import BatchFolder, parse_folders
from klamm.pipelines.syncing import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGING = ".klamm-staging"


def open_folders(spark: SparkSession | None, location: str) -> BatchFolders:
    """The folders at a location, which need not exist yet. On this machine no session is needed."""
    path = local_path(location)
    if path is not None:
        return LocalFolders(path)
    assert spark is not None, "only the JVM can read other file systems"
    return RemoteFolders(RemoteFiles(spark, location), location)


class BatchFolders(ABC):
    """What local and remote folders have in common."""

    def __init__(self, location: str, kind: Kind) -> None:
        self.location = location
        self.kind = kind
        self._name = location.rstrip("/").rpartition("/")[2]

    def last_batch(self, attempt: int) -> int | None:
        """The number of the newest published batch of an attempt."""
        return max((folder.last for folder in self.published() if folder.attempt == attempt), default=None)

    def new_staging(self, label: str) -> str:
        """A new folder to write to. Tasks of a batch that was given up may still write to theirs."""
        return joined(self._staging, f"{label}-{uuid.uuid4().hex}")

    @property
    def _staging(self) -> str:
        return joined(parent(self.location), STAGING, self._name)

    @abstractmethod
    def published(self) -> list[BatchFolder]:
        """The published folders, in order."""

    @abstractmethod
    def publish(self, staged: str, folder: BatchFolder) -> None:
        """Make a written folder visible to readers, in one step."""

    @abstractmethod
    def discard(self, staged: str) -> None:
        """Remove a written folder that is not to be published."""

    @abstractmethod
    def clean_up(self) -> None:
        """Remove what killed runs have left beside the folder."""


class LocalFolders(BatchFolders):
    """On a file system of this machine."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Kind.LOCAL)
        self.path = path

    def published(self) -> list[BatchFolder]:
        try:
            return parse_folders(os.listdir(self.path))
        except FileNotFoundError:
            return []

    def publish(self, staged: str, folder: BatchFolder) -> None:
        _leave_data_only(Path(staged))
        _sync_tree(Path(staged))
        self.path.mkdir(parents=True, exist_ok=True)
        os.rename(staged, self.path / folder.name)
        sync(self.path)

    def discard(self, staged: str) -> None:
        shutil.rmtree(staged, ignore_errors=True)

    def clean_up(self) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)


class RemoteFolders(BatchFolders):
    """On HDFS, in an object store, or on another file system that Hadoop supports."""

    def __init__(self, files: RemoteFiles, location: str) -> None:
        super().__init__(location, kind_of(location))
        self._files = files

    def published(self) -> list[BatchFolder]:
        return parse_folders(self._files.names(self.location))

    def publish(self, staged: str, folder: BatchFolder) -> None:
        self._files.make_folder(self.location)
        self._files.rename(staged, joined(self.location, folder.name))

    def discard(self, staged: str) -> None:
        self._files.delete(staged)

    def clean_up(self) -> None:
        self._files.delete(self._staging)


def _leave_data_only(folder: Path) -> None:
    """Remove the files that Hadoop writes beside the data: checksums, and markers of finished jobs."""
    for file in folder.rglob("*"):
        if file.is_file() and file.name.startswith((".", "_")):
            file.unlink()


def _sync_tree(folder: Path) -> None:
    """fsync a tree of folders and files."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)
