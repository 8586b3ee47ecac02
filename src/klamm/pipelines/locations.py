"""Where tables and checkpoints are: paths on this machine, or URIs. A table may also be a name in the
project's tables folder."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Kind(Enum):
    """What a rename does on a file system, for sinks that publish by renaming."""

    LOCAL = "local"
    FOLDERS = "folders"
    """HDFS and the like: a folder is renamed in one step, as on this machine's disk."""
    OBJECTS = "objects"
    """Object stores: renaming a folder copies its objects one by one. A single object appears as a whole."""


# Schemes of object stores. abfs may have real folders, but that cannot be known here.
_OBJECT_STORES = frozenset(
    {"s3", "s3a", "s3n", "gs", "az", "adl", "wasb", "wasbs", "abfs", "abfss", "oss", "cosn", "obs"}
)


def local_path(location: str) -> Path | None:
    """The path of a location on this machine; None if it is elsewhere."""
    parts = urlsplit(location)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if len(parts.scheme) > 1:  # a single letter is a drive
        return None
    return Path(os.path.abspath(location))


def kind_of(location: str) -> Kind:
    """The kind of file system of a location."""
    if local_path(location) is not None:
        return Kind.LOCAL
    return Kind.OBJECTS if urlsplit(location).scheme.lower() in _OBJECT_STORES else Kind.FOLDERS


def joined(location: str, *names: str) -> str:
    return "/".join([location.rstrip("/"), *names])


def parent(location: str) -> str:
    return location.rstrip("/").rpartition("/")[0]


def table_location(tables: str, table: str) -> str:
    """Where a table is. A name lies in the project's tables folder; a path or a URI is used as it is.

    Local paths are normalized, so that two pipelines that share a table are found.
    """
    location = table.rstrip("/") if ":/" in table or table.startswith("/") else joined(tables, table)
    path = local_path(location)
    return location if path is None else str(path)


def overlap(location: str, other: str) -> bool:
    """True if two tables are the same, or one lies inside the other."""
    return f"{location}/".startswith(f"{other}/") or f"{other}/".startswith(f"{location}/")
