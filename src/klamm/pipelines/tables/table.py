"""A Delta table and its log: which batches of a pipeline are in it, and how a batch is added.

A batch is one commit. The commit names the files that its tasks have written, and in app transactions, which
stay in the log for good, what the pipeline has reached:

    klamm/<owner>/attempt                      the pipeline's attempt
    klamm/<owner>/batch/<attempt>              the last batch of that attempt
    klamm/<owner>/offset/<topic>/<partition>   the offset of the next record to read
    klamm/<owner>/stateful                     1 if the pipeline keeps state in its checkpoint
    klamm/<owner>/created                      1 if the pipeline created the table without rows
    klamm/<owner>/replay…                      ranges that were replayed (`range_replacing.py`)

The owner is `<project>.<pipeline>`. The commit's metadata has the same for people, under `klamm`; Delta
removes old metadata after a month.

Invariants. A batch is in the table once and as a whole, or not at all: of two commits with the same batch,
the second one fails (`BatchCommittedElsewhere`). On a disk of this machine a commit returns when the commit
would survive a power loss.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from klamm.pipelines.errors import PipelineError, Place
from klamm.pipelines.locations import local_path
from klamm.pipelines.positions import Position, records_between
from klamm.pipelines.syncing import sync
from klamm.pipelines.tables.columns import Fitted, arrow_schema, check_columns, delta_schema, fit
from klamm.pipelines.tables.files import FILE_PREFIX, Store, Target

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

SETTINGS: Mapping[str, str | None] = {
    # A reader reads the newest checkpoint of the log and at most so many commits after it.
    "delta.checkpointInterval": "20",
}
"""The properties of a new table."""

TRIES = 10
"""How often a commit is tried that removes files, if others have changed the same files meanwhile."""

HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""What deltalake does after a commit. By default it also looks for old versions to remove from the log, at
each commit: that lists the log, and takes most of a commit's time once there are thousands of versions. So
`upkeep.py` does it instead."""

METADATA = "klamm"
"""The key of our entry in a commit's metadata."""


class BatchCommittedElsewhere(PipelineError):
    """Another run of the pipeline has committed the batch."""


class WrittenFile(NamedTuple):
    """A file that a task has written, as `files.REPORT` tells of it."""

    path: str
    bytes: int
    rows: int
    partition_values: Mapping[str, str | None]
    statistics: str
    written_ms: int

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> WrittenFile:
        return cls(
            path=str(report["path"]),
            bytes=int(report["bytes"]),
            rows=int(report["rows"]),
            partition_values=json.loads(report["partition_values"]),
            statistics=str(report["statistics"]),
            written_ms=int(report["written_ms"]),
        )

    def add(self) -> AddAction:
        values = dict(self.partition_values)
        return AddAction(self.path, self.bytes, values, self.written_ms, True, self.statistics)


class Commit(ABC):
    """Rows that a pipeline adds to its table in one commit, exactly once."""

    owner: str

    @property
    @abstractmethod
    def label(self) -> str:
        """What the names of its files begin with."""

    @property
    @abstractmethod
    def records(self) -> int:
        """From how many records the rows are made."""

    @abstractmethod
    def transactions(self) -> list[Transaction]:
        """What the log keeps for good. Of two commits with the same transactions the second one fails."""

    @abstractmethod
    def metadata(self, rows: int) -> dict[str, Any]:
        """What the log says for people, under `klamm`."""

    @abstractmethod
    def is_in(self, table: Table) -> bool:
        """True if the table has it already."""

    def properties(self, rows: int) -> CommitProperties:
        """What the commit says, with its count of rows."""
        return CommitProperties(custom_metadata=self.metadata(rows), app_transactions=self.transactions())


@dataclass(frozen=True)
class Batch(Commit):
    """One batch of a pipeline: which one, and the offsets from which it was made."""

    owner: str
    attempt: int
    number: int
    start: Position = field(default_factory=dict)
    end: Position = field(default_factory=dict)
    epoch: str = ""
    keeps_state: bool = False

    def transactions(self) -> list[Transaction]:
        mine = f"klamm/{self.owner}"
        found = [
            Transaction(f"{mine}/attempt", self.attempt),
            Transaction(f"{mine}/batch/{self.attempt}", self.number),
            Transaction(f"{mine}/stateful", int(self.keeps_state)),
        ]
        for topic, partitions in self.end.items():
            for partition, offset in partitions.items():
                found.append(Transaction(f"{mine}/offset/{topic}/{partition}", offset))
        return found

    def metadata(self, rows: int) -> dict[str, Any]:
        return {
            METADATA: {
                "pipeline": self.owner,
                "attempt": self.attempt,
                "batch": self.number,
                "epoch": self.epoch,
                "rows": rows,
                "start": self.start,
                "end": self.end,
            }
        }

    @property
    def label(self) -> str:
        return f"{self.attempt}-{self.number:08d}"

    @property
    def records(self) -> int:
        return records_between(self.start, self.end)

    def is_in(self, table: Table) -> bool:
        """Also true if the table has a later attempt: then this run goes on although another took over."""
        reached = table.reached(self.owner)
        return reached is not None and reached[:2] >= (self.attempt, self.number)

    def __str__(self) -> str:
        return f"batch {self.number} of attempt {self.attempt}"


class Reached(NamedTuple):
    """How far a pipeline has come, as its table says: `batch` is the last batch of `attempt`."""

    attempt: int
    batch: int
    keeps_state: bool


class Table:
    """A table, which need not exist yet. One thread uses an object; others make their own."""

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self.location = location
        self.options = dict(options or {})
        self._path = local_path(location)
        self._handle: DeltaTable | None = None
        self._transactions: dict[str, int | None] = {}
        """What is known of the transactions of the version `_known_at`. To look one up, deltalake reads all
        commits since the log's checkpoint."""
        self._known_at = -1

    def newest(self) -> DeltaTable | None:
        """The table as it is now; None if there is none."""
        if self._handle is None:
            try:
                self._handle = DeltaTable(self.where, storage_options=self.options)
            except TableNotFoundError:
                return None
        elif not self._is_newest(self._handle.version()):
            self._handle.update_incremental()
        return self._handle

    def _is_newest(self, version: int) -> bool:
        """True if two files tell that a version is the newest one. To list a log of thousands of versions
        takes milliseconds on a disk; stores list what is behind a version quickly themselves."""
        if self._path is None:
            return False
        there, next_one = (self._path / commit_file(each) for each in (version, version + 1))
        return there.exists() and not next_one.exists()

    def at(self, version: int | None) -> DeltaTable:
        """A version of the table, or the newest one, in an object of its own. Raises DeltaError."""
        return DeltaTable(self.where, version=version, storage_options=self.options)

    def fit(self, rows: StructType, partition_by: Sequence[str], place: Place) -> Fitted | None:
        """How rows fit the table; None if there is none. Raises TableRefused if they do not."""
        table = self.newest()
        if table is None:
            return None
        its_partitions = table.metadata().partition_columns
        return fit(rows, partition_by, table.schema(), its_partitions, self.location, place)

    def check(self, rows: StructType, partition_by: Sequence[str], who: str, place: Place) -> None:
        """Raise TableRefused if the rows of a pipeline (`who`) cannot be written to the table."""
        check_columns(rows, partition_by, who, place)
        self.fit(rows, partition_by, place)

    def adapt(
        self, rows: StructType, partition_by: Sequence[str], owner: str, place: Place
    ) -> Mapping[str, str]:
        """Add the columns that the table does not have. Returns the names to give to columns that the table
        spells otherwise. Raises TableRefused if the rows do not fit."""
        fitted = self.fit(rows, partition_by, place)
        if fitted is None:
            return {}
        if fitted.new:
            self.add_columns(fitted.new)
        return fitted.renamed

    def target(self, rows: StructType, partition_by: Sequence[str], label: str) -> Target:
        """Where and how tasks write these rows."""
        return Target(self.location, arrow_schema(rows), tuple(partition_by), label, self.options)

    def is_there(self) -> bool:
        return self.newest() is not None

    def has_other_files(self) -> bool:
        """True if there is no table, but something else at its location."""
        return not self.is_there() and Store(self.location, self.options).has_files()

    # ---- what a pipeline has written

    def reached(self, owner: str) -> Reached | None:
        """How far a pipeline has come; None if it has not committed anything."""
        table = self.newest()
        attempt = self._look_up(table, f"klamm/{owner}/attempt") if table is not None else None
        if table is None or attempt is None:
            return None
        batch = self._look_up(table, f"klamm/{owner}/batch/{attempt}")
        assert batch is not None, "attempt and batch are committed together"
        return Reached(attempt, batch, bool(self._look_up(table, f"klamm/{owner}/stateful")))

    def epochs(self, owner: str) -> list[tuple[str, Position]]:
        """The pipeline's epochs that the log still knows, the oldest first: their names, and where each
        began."""
        table = self.newest()
        found: dict[str, Position] = {}
        for entry in reversed(table.history()) if table is not None else ():
            about = entry.get(METADATA) or {}
            if about.get("pipeline") == owner and about.get("epoch"):
                found.setdefault(about["epoch"], about.get("start") or {})
        return list(found.items())

    def last_batch(self, owner: str, attempt: int) -> int | None:
        return self.transaction(f"klamm/{owner}/batch/{attempt}")

    def transaction(self, name: str) -> int | None:
        """The last value of one of the log's transactions."""
        table = self.newest()
        return None if table is None else self._look_up(table, name)

    def _look_up(self, table: DeltaTable, name: str) -> int | None:
        """A transaction in the version that the handle has: a commit that was decided by it fails if the log
        has gone on meanwhile."""
        if self._known_at != table.version():
            self._transactions.clear()
            self._known_at = table.version()
        if name not in self._transactions:
            self._transactions[name] = table.transaction_version(name)
        return self._transactions[name]

    def offsets(self, owner: str, partitions: Mapping[str, Sequence[str]]) -> Position:
        """The offsets of the next records to read, for those of the partitions that a batch has read."""
        table = self.newest()
        position: Position = {}
        if table is None:
            return position
        for topic, numbers in partitions.items():
            for number in numbers:
                offset = self._look_up(table, f"klamm/{owner}/offset/{topic}/{number}")
                if offset is not None:
                    position.setdefault(topic, {})[number] = offset
        return position

    # ---- changes

    def append(
        self, files: Sequence[WrittenFile], batch: Commit, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        """Add the files of a batch. Creates the table if there is none."""
        self._commit(files, batch, schema, partition_by, "append")

    def replace_all(
        self, files: Sequence[WrittenFile], batch: Commit, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        """Make the files of a batch the whole table."""
        self._commit(files, batch, schema, partition_by, "overwrite")

    def _commit(
        self,
        files: Sequence[WrittenFile],
        batch: Commit,
        schema: pa.Schema,
        partition_by: Sequence[str],
        mode: str,
    ) -> None:
        properties = batch.properties(sum(file.rows for file in files))
        adds = [file.add() for file in files]

        def commit(table: DeltaTable) -> None:
            table.create_write_transaction(
                list(adds),
                mode,
                table.schema(),
                list(partition_by),
                commit_properties=properties,
                post_commithook_properties=HOOKS,
            )

        table = self.newest()
        before = -1 if table is None else table.version()
        if table is None:
            self._create(adds, delta_schema(schema), partition_by, properties)
        else:
            self._try(commit, lambda: self.refuse_if_there(batch))
        self._sync_log()
        self._note(batch.transactions(), before + 1)

    def _note(self, transactions: Sequence[Transaction], version: int) -> None:
        """Note the transactions of our commit, unless another commit came before it or after it."""
        table = self.newest()
        if table is None or table.version() != version:
            return
        if self._known_at != version - 1:
            self._transactions.clear()
        self._transactions.update({each.app_id: each.version for each in transactions})
        self._known_at = version

    def create_empty(self, schema: Schema, partition_by: Sequence[str], owner: str) -> None:
        """Create the table of a pipeline, for a commit that needs one. If the process is killed in between,
        the next run finds that the table is its own (`is_created_by`)."""
        created = CommitProperties(app_transactions=[Transaction(f"klamm/{owner}/created", 1)])
        self._create([], schema, partition_by, created)
        self._sync_log()

    def is_created_by(self, owner: str) -> bool:
        return self.transaction(f"klamm/{owner}/created") is not None

    def _create(
        self,
        actions: list[AddAction],
        schema: Schema,
        partition_by: Sequence[str],
        properties: CommitProperties,
    ) -> None:
        if self._path is not None:
            self._path.mkdir(parents=True, exist_ok=True)
        create_table_with_add_actions(
            self.where,
            schema,
            actions,
            partition_by=list(partition_by),
            configuration=dict(SETTINGS),
            storage_options=self.options,
            commit_properties=properties,
        )

    def add_columns(self, columns: Sequence[Field]) -> None:
        """Add columns to the table. Rows that are there have nulls in them."""
        names = [column.name for column in columns]
        properties = CommitProperties(custom_metadata={METADATA: {"added columns": names}})
        self._try(
            lambda table: table.alter.add_columns(
                list(columns), commit_properties=properties, post_commithook_properties=HOOKS
            )
        )
        self._sync_log()

    def change(
        self,
        change: Callable[[DeltaTable], Any],
        check: Callable[[], None] | None = None,
        tries: int = TRIES,
    ) -> Any:
        """Change the table by a function that makes one commit. Tries again if others have changed what the
        function has read. `check` is called before every try, and raises if there is nothing to change."""
        result = self._try(change, check, tries)
        self._sync_log()
        return result

    def _try(
        self,
        change: Callable[[DeltaTable], Any],
        check: Callable[[], None] | None = None,
        tries: int = TRIES,
    ) -> Any:
        for attempt in range(1, tries + 1):
            table = self.newest()
            assert table is not None, "a table that was there is there"
            if check is not None:
                check()
            try:
                return change(table)
            except CommitFailedError as error:
                if attempt == tries:
                    raise
                logger.info("the table %s was changed meanwhile, trying again: %s", self.location, error)
        raise AssertionError

    def refuse_if_there(self, commit: Commit) -> None:
        """Raise if another process has committed it."""
        if commit.is_in(self):
            raise BatchCommittedElsewhere(
                f"another run of {commit.owner} has committed {commit}, or a later attempt, to "
                f"{self.location}: two runs of the project are active",
                advice="Stop one of them; this one has written nothing",
            )

    def _sync_log(self) -> None:
        """Make the newest commits survive a power loss, and files that deltalake has written for them. Object
        stores do that themselves."""
        before = self._handle.version() if self._handle is not None else -1
        table = self.newest()
        if self._path is None or table is None:
            return
        folders = {self._path.parent, self._path, self._path / "_delta_log"}
        for version in range(max(0, before), table.version() + 1):
            commit = self._path / commit_file(version)
            if not commit.exists():
                continue
            for file in _added_by_deltalake(commit.read_text()):
                if (self._path / file).exists():
                    sync(self._path / file)
                    folders.add((self._path / file).parent)
            sync(commit)
        for folder in folders:
            sync(folder)

    @property
    def where(self) -> str:
        """The location as deltalake takes it."""
        return self.location if self._path is None else str(self._path)


def commit_file(version: int) -> str:
    """The file of a version in the log, below the table's location."""
    return f"_delta_log/{version:020d}.json"


def _added_by_deltalake(commit: str) -> list[str]:
    """The files of a commit that deltalake has written, by merging or upserting. Files of tasks are synced by
    the tasks."""
    lines = [json.loads(line) for line in commit.splitlines() if line.startswith('{"add"')]
    paths = [unquote(str(line["add"]["path"])) for line in lines]
    return [path for path in paths if not path.rpartition("/")[2].startswith(f"{FILE_PREFIX}-")]
