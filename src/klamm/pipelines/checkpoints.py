"""Reads Spark's checkpoints, in which Spark notes the offsets of a batch before it runs the batch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.pipelines.hadoop import RemoteFiles
from klamm.pipelines.locations import joined, local_path
from klamm.pipelines.positions import Position, parse_offset_log
from klamm.pipelines.syncing import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Checkpoint:
    """The checkpoint of one attempt of one pipeline, on this machine or wherever Spark keeps it."""

    def __init__(self, spark: SparkSession | None, location: str) -> None:
        self.location = location
        self._path = local_path(location)
        self._files: RemoteFiles | None = None
        if self._path is None:
            assert spark is not None, "only the JVM can read other file systems"
            self._files = RemoteFiles(spark, location)

    def ends(self, batch: int) -> list[Position]:
        """The end of a batch, for each source; empty if the checkpoint does not know the batch (any more)."""
        try:
            text = self._read("offsets", str(batch))
        except FileNotFoundError:
            return []
        return parse_offset_log(text)

    def unfinished(self) -> int | None:
        """The batch that Spark has begun and not finished, if there is one. Spark will run it again."""
        begun, done = self.last_begun(), self.last_finished()
        return begun if begun is not None and (done is None or begun > done) else None

    def last_begun(self) -> int | None:
        """The last batch whose offsets Spark has noted."""
        return self._last("offsets")

    def last_finished(self) -> int | None:
        """The last batch that Spark has noted as done."""
        return self._last("commits")

    def _last(self, folder: str) -> int | None:
        return max((int(name) for name in self._names(folder) if name.isdigit()), default=None)

    def drops_late_rows(self) -> bool:
        """True if the query has state and a watermark, so that it drops rows that are older."""
        return self.watermark_ms() is not None and self.keeps_state()

    def watermark_ms(self) -> int | None:
        """The watermark of the last batch that Spark has begun; None if the query has none yet."""
        last = self.last_begun()
        if last is None:
            return None
        lines = self._read("offsets", str(last)).splitlines()
        settings = json.loads(lines[1]) if len(lines) > 1 else {}
        return int(settings.get("batchWatermarkMs") or 0) or None

    def sync(self, batch: int) -> None:
        """fsync the offsets of a batch, before its rows are published.

        Spark does not. If the machine fails and the file is lost, Spark plans another batch with the same
        number, which would look like the published one. Remote file systems keep files once they are closed.
        """
        if self._path is None:
            return
        folder = self._path / "offsets"
        for path in (folder / str(batch), folder):
            if path.exists():
                sync(path)

    def delete(self) -> None:
        """Remove the checkpoint, if it exists."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        elif self._files is not None:
            self._files.delete(self.location)

    def keeps_state(self) -> bool:
        """True if the query has operators with state. These need every batch to run, even a second time."""
        return bool(self._names("state"))

    def update_state(self, frame: DataFrame) -> None:
        """Run a batch that its sink already has, for the operators with state alone."""
        if self.keeps_state():
            frame.write.format("noop").mode("overwrite").save()

    def _read(self, *names: str) -> str:
        if self._path is not None:
            return Path(self._path, *names).read_text()
        assert self._files is not None
        location = joined(self.location, *names)
        if not self._files.exists(location):
            raise FileNotFoundError(location)
        return self._files.read_text(location)

    def _names(self, folder: str) -> list[str]:
        if self._path is not None:
            path = self._path / folder
            return [each.name for each in path.iterdir()] if path.is_dir() else []
        assert self._files is not None
        return self._files.names(joined(self.location, folder))
