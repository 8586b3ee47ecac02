"""What a project keeps between runs, in its state folder.

    lock                       held by the process that runs the project
    driver.lock                held by that process's JVM, which may outlive it for a moment
    redrive.lock               held by a redrive
    generations/<pipeline>.json         the pipeline's present attempt, and its epochs
    generations/<pipeline>.next.json    the attempt of a replay that is being prepared
    generations/<pipeline>.range.json   the replay of a range that is being prepared
    status/<pipeline>.json     how the pipeline is doing (`status.py`)

If the project's state is at a URI, attempts and status are there, and drivers on any machine go on from
them; locks belong to one machine and stay in a folder of it. Two drivers on two machines are not kept apart
by a lock then: of two that commit the same batch of a table the second one fails, and Spark refuses the
second one that writes to a checkpoint.

Checkpoints are Spark's, one folder per pipeline and attempt. They lie in the state folder too, unless the
project names another place.

An attempt is everything that a pipeline writes from one starting position on; a replay starts the next
attempt. Its number and its start are written to disk before its first batch, so that a start at "latest"
means the same offsets when that batch runs again.

An epoch begins with each attempt, and each time a batch runs again that was not done. A dead-letter record
names the epoch that wrote it.

On disk an attempt is called a generation, an epoch a life, and a pipeline's id its lineage.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from klamm.pipelines.errors import PipelineError
from klamm.pipelines.locations import joined
from klamm.pipelines.positions import EARLIEST_OFFSET, Position
from klamm.pipelines.project import Project
from klamm.pipelines.syncing import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_WAIT_S = 30.0
"""How long to wait for the JVM of a run that was killed. It ends by itself once its Python process is
gone."""

_DRIVER_POLL_S = 0.05


class ProjectBusy(PipelineError):
    """Another process runs or changes the project."""


MOST_EPOCHS = 200
"""How many epochs are kept. Nearly each stands for a batch that was interrupted."""


class Epoch(NamedTuple):
    """What a pipeline reads from `start` on. `start` has a position per source; `number` counts the
    epochs."""

    number: int
    start: Mapping[str, Position]


class EpochName(NamedTuple):
    """The name of an epoch, as dead-letter records have it."""

    pipeline_id: str
    replay: str
    """The token of a replay of a range, which ran beside this epoch."""
    number: int | None

    @classmethod
    def parse(cls, name: str) -> EpochName:
        pipeline_id, _, rest = name.partition(".")
        replay, _, number = rest.rpartition(".")
        return cls(pipeline_id, replay, int(number) if number.isdigit() else None)


@dataclass(frozen=True)
class Attempt:
    """What a pipeline writes between two replays, with a checkpoint of its own.

    `start` has the position at which each source begins. `table` is where the batches go, if they go to a
    table or to folders; it tells the pipeline's own table from another one.

    `pipeline_id` is drawn when a pipeline begins without a state. `epochs` has the epochs of all attempts,
    except those whose records a later epoch reads again as a whole.
    """

    number: int
    start: Mapping[str, Position] = field(default_factory=dict)
    table: str | None = None
    pipeline_id: str = ""
    epochs: tuple[Epoch, ...] = ()
    used_epochs: int = 0
    """The highest number of an epoch that a replay has used, also one that was given up: its dead-letter
    records must not look like those of a later epoch."""
    replay: str = ""
    """The token of a replay of a range, which reads and writes beside this attempt. Never kept."""

    @classmethod
    def first(cls, start: Mapping[str, Position], table: str | None = None) -> Self:
        return cls(1, start, table=table, pipeline_id=secrets.token_hex(4), epochs=(Epoch(1, start),))

    def next(self, start: Mapping[str, Position]) -> Self:
        """The attempt that a replay starts."""
        return replace(self.again(start), number=self.number + 1, start=start)

    def again(self, start: Mapping[str, Position]) -> Self:
        """The same attempt with a new epoch, which begins at `start`, the position of the batch to run
        again."""
        number = max(self.epochs[-1].number if self.epochs else 0, self.used_epochs) + 1
        kept = [epoch for epoch in self.epochs if not _covers(start, epoch.start)]
        return replace(self, epochs=(*kept[1 - MOST_EPOCHS :], Epoch(number, start)))

    def is_given_up(self, epoch: str) -> bool:
        """True if an epoch is one of a replay that failed or was killed. What it wrote does not count."""
        named = EpochName.parse(epoch)
        known = [each.number for each in self.epochs]
        if named.replay or named.pipeline_id != self.pipeline_id or named.number is None or not known:
            return False  # whether a replay of a range was finished is told by the table
        # Epochs below the first known one are left out, as there may have been too many to keep.
        return named.number > min(known) and named.number not in known

    def reads_anew(
        self, epoch: str, sources: Iterable[str], topic: str, partition: int | None, offset: int | None
    ) -> bool:
        """True if a later epoch than the one of this name reads a record, from one of these sources. An epoch
        with another pipeline id is older than all epochs of this one."""
        if offset is None or not epoch:
            return False
        name = EpochName.parse(epoch)
        written_in = (name.number or 0) if name.pipeline_id == self.pipeline_id else 0
        return any(
            each.number > written_in
            and source in each.start
            and each.start[source].get(topic, {}).get(str(partition), EARLIEST_OFFSET) <= offset
            for each in self.epochs
            for source in sources
        )

    @property
    def epoch(self) -> str:
        """The name of the present epoch. It is unique, even if the state is deleted and made again. A replay
        of a range has its token in it."""
        number = self.epochs[-1].number if self.epochs else 0
        return ".".join(filter(None, [self.pipeline_id, self.replay, str(number)]))


def _covers(start: Mapping[str, Position], other: Mapping[str, Position]) -> bool:
    """True if `start` lies at or before `other` in every partition. A partition that is not named is read
    from its oldest record."""
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
        self.is_shared = bool(project.shared_state)
        self.files = SharedFiles(project) if self.is_shared else LocalFiles(project.state)

    @contextmanager
    def lock(self, purpose: str, name: str = "lock") -> Iterator[None]:
        """Keep other processes from running or changing the project meanwhile. Raises ProjectBusy at once."""
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
        """Have the JVM hold a lock until it ends, or until the returned file is closed.

        The JVM of a process that was killed runs on for a moment, and could still write to checkpoints.
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

    def attempt(self, pipeline: str) -> Attempt | None:
        """The pipeline's present attempt; None before its first start."""
        return self._read_attempt(pipeline, _attempt_file(pipeline))

    def next_attempt(self, pipeline: str) -> Attempt | None:
        """The attempt of a replay that was not finished; None if there is none."""
        return self._read_attempt(pipeline, _next_attempt_file(pipeline))

    def _read_attempt(self, pipeline: str, file: str) -> Attempt | None:
        try:
            value = json.loads(self.files.read(file))
            return Attempt(
                int(value["number"]),
                value["start"],
                value.get("table"),
                value.get("lineage", ""),
                tuple(Epoch(int(number), start) for number, start in value.get("lives", ())),
                int(value.get("used_epochs", 0)),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise PipelineError(
                f"{self.files.where(file)} cannot be read: {error}",
                advice=f"Restore the file, or delete it if {pipeline} has no checkpoints",
            ) from None

    def keep_attempt(self, pipeline: str, attempt: Attempt) -> None:
        """Make this attempt the pipeline's present one."""
        self.files.write(_attempt_file(pipeline), _attempt_text(attempt))

    def keep_next_attempt(self, pipeline: str, attempt: Attempt | None) -> None:
        """Note the attempt of a replay that is being prepared; None if it was given up, or is the present
        one."""
        if attempt is None:
            self.files.delete(_next_attempt_file(pipeline))
        else:
            self.files.write(_next_attempt_file(pipeline), _attempt_text(attempt))

    def range_replay(self, pipeline: str) -> Attempt | None:
        """The replay of a range that was not finished; None if there is none."""
        file = _range_file(pipeline)
        found = self._read_attempt(pipeline, file)
        return (
            None if found is None else replace(found, replay=str(json.loads(self.files.read(file))["replay"]))
        )

    def keep_range_replay(self, pipeline: str, attempt: Attempt | None) -> None:
        """Note the replay of a range that begins; None when it has ended."""
        if attempt is None:
            self.files.delete(_range_file(pipeline))
        else:
            text = {**json.loads(_attempt_text(attempt)), "replay": attempt.replay}
            self.files.write(_range_file(pipeline), json.dumps(text, indent=1))

    def checkpoint(self, pipeline: str, attempt: Attempt) -> str:
        """The folder of the attempt's checkpoint. Its name has the pipeline's id, so that a pipeline whose
        state was deleted does not continue an old checkpoint."""
        name = "-".join(filter(None, [str(attempt.number), attempt.pipeline_id, attempt.replay]))
        return joined(self._project.checkpoints, pipeline, name)


class LocalFiles:
    """Small files in a folder of this machine, by their paths in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def where(self, name: str) -> str:
        return str(self._folder / name)

    def read(self, name: str) -> str:
        """Raises FileNotFoundError."""
        return (self._folder / name).read_text()

    def write(self, name: str, text: str, *, durable: bool = True) -> None:
        """Readers find the old text or the new text; if `durable`, also after a crash."""
        _write_whole(self._folder / name, text, durable)

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        found = self._folder / folder
        return sorted(os.listdir(found)) if found.is_dir() else []


class SharedFiles:
    """The same in the store of a URI. Each file is written as a whole, and kept once it is written."""

    def __init__(self, project: Project) -> None:
        from klamm.pipelines.tables.files import Store

        self._location = project.shared_state
        self._store = Store(project.shared_state, project.storage)

    def where(self, name: str) -> str:
        return joined(self._location, name)

    def read(self, name: str) -> str:
        if not self._store.exists(name):
            raise FileNotFoundError(self.where(name))
        return self._store.read_text(name)

    def write(self, name: str, text: str, *, durable: bool = True) -> None:
        self._store.write_text(name, text)

    def delete(self, name: str) -> None:
        if self._store.exists(name):
            self._store.delete(name)

    def names(self, folder: str) -> list[str]:
        return self._store.names(folder)


def _attempt_file(pipeline: str) -> str:
    return f"generations/{pipeline}.json"


def _next_attempt_file(pipeline: str) -> str:
    return f"generations/{pipeline}.next.json"


def _range_file(pipeline: str) -> str:
    return f"generations/{pipeline}.range.json"


def _attempt_text(attempt: Attempt) -> str:
    value = asdict(attempt)
    value.pop("replay")
    value["lineage"], value["lives"] = value.pop("pipeline_id"), value.pop("epochs")
    return json.dumps(value, indent=1)


def _write_whole(file: Path, text: str, durable: bool) -> None:
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


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
