"""Files wherever Spark reads and writes them: Hadoop's FileSystem, called in the driver's JVM.

Locations are paths of this machine or URIs. What a file system can do differs, and tables are written
accordingly: see `Kind`.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Kind(Enum):
    """What renaming means on a file system."""

    LOCAL = "local"
    """This machine's: folders are renamed, and exchanged, in one step."""
    FOLDERS = "folders"
    """A folder is renamed in one step (HDFS and what behaves like it), but two cannot be exchanged."""
    OBJECTS = "objects"
    """There are no folders: renaming one copies its objects one after the other. One object appears whole."""


# Schemes of Hadoop's connectors to object stores. abfs has real folders when its account has them, which
# nobody here can know.
_OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "wasb", "wasbs", "abfs", "abfss", "oss", "cosn", "obs"})


def local_path(location: str) -> Path | None:
    """The path of a location on this machine; None when it is somewhere else."""
    parts = urlsplit(location)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if len(parts.scheme) > 1:  # one letter is a drive
        return None
    return Path(os.path.abspath(location))


def kind_of(location: str) -> Kind:
    """What kind of file system a location is on."""
    if local_path(location) is not None:
        return Kind.LOCAL
    return Kind.OBJECTS if urlsplit(location).scheme.lower() in _OBJECT_STORES else Kind.FOLDERS


def joined(location: str, *names: str) -> str:
    return "/".join([location.rstrip("/"), *names])


def parent(location: str) -> str:
    return location.rstrip("/").rpartition("/")[0]


class RemoteFiles:
    """The files below one location. Every call goes to the JVM, and from there to the file system."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._jvm: Any = spark._jvm
        assert self._jvm is not None
        configuration = spark._jsc.hadoopConfiguration()
        self._system: Any = self._path(location).getFileSystem(configuration)

    def exists(self, location: str) -> bool:
        return bool(self._system.exists(self._path(location)))

    def names(self, location: str) -> list[str]:
        """What lies in a folder; nothing when there is none."""
        if not self.exists(location):
            return []
        return [str(status.getPath().getName()) for status in self._system.listStatus(self._path(location))]

    def make_folder(self, location: str) -> None:
        if not self._system.mkdirs(self._path(location)):
            raise OSError(f"the folder {location} could not be made; its file system does not say why")

    def rename(self, old: str, new: str) -> None:
        # Hadoop would move the folder into one that is there already.
        if self.exists(new):
            raise FileExistsError(f"{new} is there already")
        if not self._system.rename(self._path(old), self._path(new)):
            raise OSError(f"{old} could not be renamed to {new}; the file system does not say why")

    def delete(self, location: str) -> None:
        """Remove a file, or a folder with all that is in it. What is not there stays away."""
        self._system.delete(self._path(location), True)

    def read_text(self, location: str) -> str:
        stream = self._system.open(self._path(location))
        try:
            return bytes(self._jvm.org.apache.hadoop.io.IOUtils.readFullyToByteArray(stream)).decode()
        finally:
            stream.close()

    def _path(self, location: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(location)
