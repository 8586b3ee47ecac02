"""What a project remembers between runs, in its state folder on this machine.

    lock                       held by the process that runs the project
    driver.lock                held by that process's JVM, which may outlive it for a moment
    redrive.lock               held by a redrive
    generations/<pipeline>.json
    batches/<pipeline>.jsonl   what is published in the pipeline's table, with offsets (`batch_log.py`)
    status/<pipeline>.json     how the pipeline is doing (`status.py`)

Checkpoints are Spark's, one folder per pipeline and generation; they lie in the state folder too unless the
project says otherwise. A generation is one life of a pipeline, from a starting position on: a replay starts
the next one. Its number and its start are written before its first batch, so that a start at "latest" is the
same position again when that batch is tried again.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from klamm.pipelines.errors import PipelineError
from klamm.pipelines.hadoop import joined
from klamm.pipelines.positions import Position
from klamm.pipelines.project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_WAIT_S = 30.0
"""How long to wait for the JVM of a run that was killed: it ends itself when it finds its process gone."""

_DRIVER_POLL_S = 0.05


class ProjectBusy(PipelineError):
    """Another process runs the project, or changes it."""


FIRST_GENERATION = 1


@dataclass(frozen=True)
class Generation:
    """One life of a pipeline. `start` is where it begins, for each source by its name.

    `retire` are names of the table's folders that must be gone before it runs: a replay that was killed in
    between is finished by whoever comes next. `lineage` is new when a pipeline begins without a state;
    `former` are the starts of the lives before this one, in their order. `table` is where batches go, if they
    go to a table of ours, so that one of another is not taken for it.
    """

    number: int
    start: Mapping[str, Position] = field(default_factory=dict)
    retire: tuple[str, ...] = ()
    lineage: str = ""
    former: tuple[Mapping[str, Position], ...] = ()
    table: str | None = None

    @classmethod
    def first(cls, start: Mapping[str, Position], table: str | None = None) -> Self:
        return cls(FIRST_GENERATION, start, lineage=secrets.token_hex(4), table=table)

    def next(self, start: Mapping[str, Position], retire: tuple[str, ...]) -> Self:
        """The life that a replay begins."""
        return replace(
            self, number=self.number + 1, start=start, retire=retire, former=(*self.former, self.start)
        )

    @property
    def name(self) -> str:
        """Of this life and of no other, also not of one after the state was deleted."""
        return f"{self.lineage}.{self.number}"

    def lives(self) -> Iterator[tuple[int, Mapping[str, Position]]]:
        """The numbers and starts of all lives of this lineage."""
        starts = [*self.former, self.start]
        return zip(range(self.number - len(self.former), self.number + 1), starts, strict=True)


class State:
    """The state folder of one project."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.folder = project.state

    @contextmanager
    def lock(self, purpose: str, name: str = "lock") -> Iterator[None]:
        """Keep others from running or changing the project meanwhile. Raises ProjectBusy at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ProjectBusy(
                    f"the project {self._project.name} is in use: {_holder(descriptor)}",
                    advice="Stop that process, or wait until it is done",
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}, {purpose}".encode(), 0)
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def in_use(self) -> bool:
        """Whether a process runs or changes the project now."""
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def lock_driver(self, spark: SparkSession) -> Any:
        """Have the JVM hold a lock as long as it lives, or until what is returned is closed.

        A process that is killed leaves its JVM behind for a moment, and that could still write to
        checkpoints.
        """
        jvm: Any = spark._jvm
        self.folder.mkdir(parents=True, exist_ok=True)
        file = jvm.java.io.RandomAccessFile(str(self.folder / "driver.lock"), "rw")
        deadline = time.monotonic() + DRIVER_WAIT_S
        while file.getChannel().tryLock() is None:
            if time.monotonic() > deadline:
                file.close()
                raise ProjectBusy(
                    f"the JVM of a former run of {self._project.name} has not ended in {DRIVER_WAIT_S:.0f} s",
                    advice="End that Java process, then try again",
                )
            time.sleep(_DRIVER_POLL_S)
        return file

    def generation(self, pipeline: str) -> Generation | None:
        """The pipeline's present generation; None before its first start."""
        file = self._generation_file(pipeline)
        try:
            value = json.loads(file.read_text())
            return Generation(
                int(value["number"]),
                value["start"],
                tuple(value["retire"]),
                value.get("lineage", ""),
                tuple(value.get("former", ())),
                value.get("table"),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"{file} does not read as what it should be ({error})",
                advice=f"If checkpoints of {pipeline} are there, restore it; else remove it",
            ) from None

    def keep_generation(self, pipeline: str, generation: Generation) -> None:
        write_whole(self._generation_file(pipeline), json.dumps(asdict(generation), indent=1))

    def checkpoint(self, pipeline: str, generation: int) -> str:
        return joined(self._project.checkpoints, pipeline, str(generation))

    def batches_file(self, pipeline: str) -> Path:
        return self.folder / "batches" / f"{pipeline}.jsonl"

    def status_file(self, pipeline: str) -> Path:
        return self.folder / "status" / f"{pipeline}.json"

    def _generation_file(self, pipeline: str) -> Path:
        return self.folder / "generations" / f"{pipeline}.json"


def write_whole(file: Path, text: str, *, durable: bool = True) -> None:
    """Write a file so that readers find its old text or its new one; if `durable`, after a crash too."""
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".{file.name}.new")
    with made.open("w") as stream:
        stream.write(text)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
    os.replace(made, file)
    if durable:
        sync(file.parent)


def sync(path: Path) -> None:
    """Have the disk keep a file, or what a folder lists."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace") or "by another process"
