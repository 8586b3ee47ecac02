"""Files on any file system that Spark supports, through Hadoop's FileSystem in the driver's JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RemoteFiles:
    """The file system of one location. Every call goes to the JVM, and from there to the file system."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._jvm: Any = spark._jvm
        assert self._jvm is not None
        configuration = spark._jsc.hadoopConfiguration()
        self._system: Any = self._path(location).getFileSystem(configuration)

    def exists(self, location: str) -> bool:
        return bool(self._system.exists(self._path(location)))

    def names(self, location: str) -> list[str]:
        """The names in a folder; empty if the folder does not exist."""
        if not self.exists(location):
            return []
        return [str(status.getPath().getName()) for status in self._system.listStatus(self._path(location))]

    def make_folder(self, location: str) -> None:
        if not self._system.mkdirs(self._path(location)):
            raise OSError(f"the folder {location} could not be created; its file system does not say why")

    def rename(self, old: str, new: str) -> None:
        # Hadoop would move the folder into an existing one.
        if self.exists(new):
            raise FileExistsError(f"{new} already exists")
        if not self._system.rename(self._path(old), self._path(new)):
            raise OSError(f"{old} could not be renamed to {new}; the file system does not say why")

    def delete(self, location: str) -> None:
        """Remove a file, or a folder with everything in it. Does nothing if it does not exist."""
        self._system.delete(self._path(location), True)

    def read_text(self, location: str) -> str:
        stream = self._system.open(self._path(location))
        try:
            return bytes(self._jvm.org.apache.hadoop.io.IOUtils.readFullyToByteArray(stream)).decode()
        finally:
            stream.close()

    def _path(self, location: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(location)
