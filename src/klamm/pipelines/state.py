"""What a project remembers between runs, in its state folder on this machine.

    lock                       held by the process that runs the project
    driver.lock                held by that process's JVM, which may outlive it for a moment
    redrive.lock               held by a redrive
    generations/<pipeline>.json
    batches/<pipeline>.jsonl   what is published in the pipeline's table, with offsets (`batch_log.py`)
    status/<pipeline>.json     how the pipeline is doing (`status.py`)

Checkpoints are Spark's, one folder per pipeline and generation; they lie in the state folder too unless the
project says otherwise. A generation is what a pipeline writes from a starting position on: a replay starts
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
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from klamm.pipelines.errors import PipelineError
from klamm.pipelines.hadoop import joined
from klamm.pipelines.positions import EARLIEST_OFFSET, Position
from klamm.pipelines.project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_WAIT_S = 30.0
"""How long to wait for the JVM of a run that was killed: it ends itself when it finds its process gone."""

_DRIVER_POLL_S = 0.05


class ProjectBusy(PipelineError):
    """Another process runs the project, or changes it."""


MOST_LIVES = 200
"""How many are kept: nearly each is a batch that was broken off, and counts for what that had refused."""


class Life(NamedTuple):
    """What a pipeline reads from `start` on, for each source by its name; `number` counts them."""

    number: int
    start: Mapping[str, Position]


@dataclass(frozen=True)
class Generation:
    """What a pipeline writes between two replays, with a checkpoint of its own.

    It begins at `start`, for each source by its name. A replay that was killed is finished by whoever comes
    next: the folders `retire` of the table must be gone before it runs, and what its log has from the batch
    `cut` on (generation and number). `table` is where batches go, if they go to a table of ours, so that one
    of another is not taken for it.

    `lineage` is new when a pipeline begins without a state. A life begins with each generation, and each
    time a batch is read again that was not done: `lives` has those of all generations, without such that
    a later one has wholly read again.
    """

    number: int
    start: Mapping[str, Position] = field(default_factory=dict)
    retire: tuple[str, ...] = ()
    cut: tuple[int, int] | None = None
    table: str | None = None
    lineage: str = ""
    lives: tuple[Life, ...] = ()

    @classmethod
    def first(cls, start: Mapping[str, Position], table: str | None = None) -> Self:
        return cls(1, start, table=table, lineage=secrets.token_hex(4), lives=(Life(1, start),))

    def next(
        self, start: Mapping[str, Position], retire: tuple[str, ...] = (), cut: tuple[int, int] | None = None
    ) -> Self:
        """The generation that a replay begins."""
        begun = self.again(start)
        return replace(begun, number=self.number + 1, start=start, retire=retire, cut=cut)

    def again(self, start: Mapping[str, Position]) -> Self:
        """The same one, with a life that begins with a batch that was not done."""
        number = self.lives[-1].number + 1 if self.lives else 1
        kept = [life for life in self.lives if not _covers(start, life.start)]
        return replace(self, lives=(*kept[1 - MOST_LIVES :], Life(number, start)))

    @property
    def life(self) -> str:
        """The name of the present life, and of no other, also not of one after the state was deleted."""
        return f"{self.lineage}.{self.lives[-1].number if self.lives else 0}"


def _covers(start: Mapping[str, Position], other: Mapping[str, Position]) -> bool:
    """Whether everything that is read from `other` on is read from `start` on. Partitions that are not named
    are read from their oldest record on."""
    for source, position in other.items():
        if source not in start:
            return False
        for topic in {*position, *start[source]}:
            ours, theirs = start[source].get(topic, {}), position.get(topic, {})
            for partition in {*ours, *theirs}:
                if ours.get(partition, EARLIEST_OFFSET) > theirs.get(partition, EARLIEST_OFFSET):
                    return False
    return True


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
            cut = value.get("cut")
            return Generation(
                int(value["number"]),
                value["start"],
                tuple(value["retire"]),
                (int(cut[0]), int(cut[1])) if cut else None,
                value.get("table"),
                value.get("lineage", ""),
                tuple(Life(int(number), start) for number, start in value.get("lives", ())),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise PipelineError(
                f"{file} does not read as what it should be ({error})",
                advice=f"If checkpoints of {pipeline} are there, restore it; else remove it",
            ) from None

    def keep_generation(self, pipeline: str, generation: Generation) -> None:
        write_whole(self._generation_file(pipeline), json.dumps(asdict(generation), indent=1))

    def checkpoint(self, pipeline: str, generation: Generation) -> str:
        """With the lineage in its name: what begins without a state must not go on with an old checkpoint."""
        name = "-".join(filter(None, [str(generation.number), generation.lineage]))
        return joined(self._project.checkpoints, pipeline, name)

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
