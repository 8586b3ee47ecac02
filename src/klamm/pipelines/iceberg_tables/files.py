"""Where the files of Iceberg tables are written: by tasks, and by pyiceberg in the driver.

On a disk of this machine all files are synced before the catalog names them, so that a commit survives a
power loss. Other stores keep files once they are closed; their credentials are pyiceberg's.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pyiceberg.io import OutputStream, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from klamm.pipelines.locations import joined, local_path
from klamm.pipelines.syncing import sync
from klamm.pipelines.tables.files import Store, TaskStore


def open_store(location: str, properties: Mapping[str, str]) -> TaskStore:
    """The store of a table's data files, for tasks. `properties` are those of pyiceberg's FileIO."""
    return Store(location, {}) if local_path(location) is not None else _RemoteStore(location, properties)


class _RemoteStore:
    """A store that pyiceberg knows."""

    def __init__(self, location: str, properties: Mapping[str, str]) -> None:
        self._location = location
        self._io = load_file_io(dict(properties), location)

    def create(self, path: str) -> Any:
        return self._io.new_output(joined(self._location, path)).create(overwrite=True)

    def sync(self, path: str) -> None:
        """Nothing: the store keeps a file once it is closed."""


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's FileIO, which syncs the metadata that it writes to this machine's disk."""

    def new_output(self, location: str) -> PyArrowFile:
        path = local_path(location)
        if path is None:
            return super().new_output(location)
        return _SyncedFile(location, str(path), self.fs_by_scheme("file", ""))


class _SyncedFile(PyArrowFile):
    """A file on this machine's disk."""

    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _SyncedStream(path, "wb" if overwrite else "xb")


class _SyncedStream(io.BufferedWriter):
    """A stream to a file, which is synced with its folder when it is closed."""

    def __init__(self, path: Path, mode: Literal["wb", "xb"]) -> None:
        super().__init__(io.FileIO(path, mode))
        self._path = path

    def close(self) -> None:
        is_open = not self.closed
        super().close()
        if is_open:
            sync(self._path)
            sync(self._path.parent)
