"""An Iceberg table, and what its metadata knows of a pipeline: which batches are in it.

A batch is one commit of the catalog. It adds a snapshot with the files that the tasks have written, and sets
the table's property `klamm.<owner>`: JSON with the attempt, the batch, the offsets of the next records to
read, the epochs, and whether the pipeline keeps state. The owner is `<project>.<pipeline>`. The property and
not the snapshot is what counts: snapshots expire, and other writers add theirs. The snapshot's summary has
the same for people.

Invariants. A batch is in the table once and as a whole, or not at all. A commit names the snapshot that was
the newest one when the batch was found missing, and the catalog refuses it if there is a newer one. pyiceberg
would then try again by itself, and add a batch that another run has committed meanwhile: its retries are off,
and ours look at the property first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import UpdateSnapshot

from klamm.pipelines.errors import PipelineError, Place
from klamm.pipelines.iceberg_tables.columns import (
    Fitted,
    check_columns,
    file_schema,
    fit,
    iceberg_schema,
    partition_spec,
)
from klamm.pipelines.iceberg_tables.files import SyncedFileIO, open_store
from klamm.pipelines.locations import joined, local_path
from klamm.pipelines.positions import Position, merged
from klamm.pipelines.state import MOST_EPOCHS
from klamm.pipelines.tables.columns import TableRefused
from klamm.pipelines.tables.files import Target
from klamm.pipelines.tables.table import Batch, BatchCommittedElsewhere, Commit, Reached, WrittenFile

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

SETTINGS: Mapping[str, str] = {
    # Without it each batch adds a manifest for good, and planning a query opens all of them.
    "commit.manifest-merge.enabled": "true",
    # Each commit writes the metadata anew: without it all old ones stay.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""The properties of a new table."""

TRIES = 10
"""How often a commit is tried, if others have committed meanwhile."""

FOOTER_READERS = 8
"""So many files of a batch are looked at at the same time: a store answers after some milliseconds."""

_WITHOUT_RETRIES = {"commit.retry.num-retries": "0"}
_CREATED = "created"


class CatalogUnknown(PipelineError):
    """A catalog is not configured, or not as pyiceberg needs it."""


class TableName(NamedTuple):
    """`catalog.namespace.table`; the namespace may have several parts."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        catalog, *namespace, table = text.split(".")
        return cls(catalog, tuple(namespace), table)

    @property
    def identifier(self) -> tuple[str, ...]:
        """The name in its catalog."""
        return (*self.namespace, self.table)


class IcebergTable:
    """A table of a catalog, which need not exist yet. One thread uses an object; others make their own."""

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        """`settings` are the catalog's, in pyiceberg's words."""
        self.location = name
        self._name = TableName.parse(name)
        self._settings = settings
        self._catalog: Catalog | None = None
        self._handle: Table | None = None

    def newest(self) -> Table | None:
        """The table as it is now; None if there is none."""
        try:
            self._handle = self._open().load_table(self._name.identifier)
        except NoSuchTableError:
            self._handle = None
        return self._handle

    def fit(self, rows: StructType, partition_by: Sequence[str], place: Place) -> Fitted | None:
        """How rows fit the table; None if there is none. Raises TableRefused if they do not."""
        table = self.newest()
        if table is None:
            return None
        return fit(rows, partition_by, table.schema(), table.spec(), self.location, place)

    def check(self, rows: StructType, partition_by: Sequence[str], who: str, place: Place) -> None:
        """Raise TableRefused if the rows of a pipeline (`who`) cannot be written to the table."""
        check_columns(rows, partition_by, who, place)
        self.fit(rows, partition_by, place)

    # ---- what a pipeline has written

    def is_there(self) -> bool:
        return self.newest() is not None

    def is_created_by(self, owner: str) -> bool:
        """True if the pipeline has created the table, or nobody has written to it yet."""
        table = self.newest()
        return table is not None and (_key(owner) in table.properties or table.current_snapshot() is None)

    def has_other_files(self) -> bool:
        """False: the catalog gives each table a place of its own."""
        return False

    def reached(self, owner: str) -> Reached | None:
        """How far a pipeline has come; None if it has not committed anything."""
        known = self._known(owner)
        if "batch" not in known:
            return None
        return Reached(known["attempt"], known["batch"], known["stateful"])

    def last_batch(self, owner: str, attempt: int) -> int | None:
        reached = self.reached(owner)
        return reached.batch if reached is not None and reached.attempt == attempt else None

    def epochs(self, owner: str) -> list[tuple[str, Position]]:
        """The pipeline's epochs, the oldest first: their names, and where each began."""
        return [(name, start) for name, start in self._known(owner).get("epochs", [])]

    def offsets(self, owner: str, partitions: Mapping[str, Sequence[str]]) -> Position:
        """The offsets of the next records to read, for those of the partitions that a batch has read."""
        known: Position = self._known(owner).get("offsets", {})
        return {
            topic: {number: known[topic][number] for number in numbers if number in known[topic]}
            for topic, numbers in partitions.items()
            if topic in known
        }

    def _known(self, owner: str) -> dict[str, Any]:
        table = self.newest()
        return {} if table is None else _property(table, owner)

    # ---- changes

    def adapt(
        self, rows: StructType, partition_by: Sequence[str], owner: str, place: Place
    ) -> Mapping[str, str]:
        """Create the table if there is none, and add the columns that the table does not have. Returns the
        names to give to columns that the table spells otherwise."""
        for attempt in range(1, TRIES + 1):
            fitted = self.fit(rows, partition_by, place)
            if fitted is None:
                self._create(rows, partition_by, owner)
                fitted = self.fit(rows, partition_by, place)
            assert fitted is not None and self._handle is not None, "a table that was created is there"
            if not fitted.new:
                return fitted.renamed
            try:
                with self._handle.update_schema() as update:
                    for name, kind in fitted.new.items():
                        update.add_column(name, kind)
            except CommitFailedException as error:
                if attempt == TRIES:
                    raise
                logger.info("the table %s was changed meanwhile, trying again: %s", self.location, error)
        raise AssertionError

    def target(self, rows: StructType, partition_by: Sequence[str], label: str) -> Target:
        """Where and how tasks write these rows. To be called after `adapt`."""
        table = self._handle
        assert table is not None
        return Target(
            table.location_provider().data_path,
            file_schema(table.schema(), rows.names),
            tuple(partition_by),
            label,
            # With the credentials that the catalog has lent, if it lends any.
            {name: str(value) for name, value in table.io.properties.items()},
            keeps_partition_columns=True,
            open_store=open_store,
        )

    def append(
        self, files: Sequence[WrittenFile], batch: Commit, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        """Add the files of a batch."""
        self._commit(files, batch, partition_by, _append)

    def replace_all(
        self, files: Sequence[WrittenFile], batch: Commit, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        """Make the files of a batch the whole table."""
        self._commit(files, batch, partition_by, _replace)

    def _commit(
        self,
        files: Sequence[WrittenFile],
        batch: Commit,
        partition_by: Sequence[str],
        change: Callable[[UpdateSnapshot, Table, Sequence[DataFile]], None],
    ) -> None:
        assert isinstance(batch, Batch), "dead-letter records of Iceberg tables go back to their topics"
        for attempt in range(1, TRIES + 1):
            # `adapt` has loaded it: if anybody has added a snapshot since, the catalog refuses the commit.
            table = self._handle if attempt == 1 else self.newest()
            assert table is not None, "a table that was there is there"
            self._refuse_if_there(table, batch)
            transaction = _without_retries(table).transaction()
            found = self._data_files(files, transaction, table, partition_by)
            change(transaction.update_snapshot(_summary(batch)), table, found)
            transaction.set_properties({_key(batch.owner): _next(_property(table, batch.owner), batch)})
            try:
                transaction.commit_transaction()
                return
            except CommitFailedException as error:
                if attempt == TRIES:
                    raise
                logger.info("the table %s was changed meanwhile, trying again: %s", self.location, error)

    def _refuse_if_there(self, table: Table, batch: Batch) -> None:
        """Raise if another process has committed the batch."""
        known = _property(table, batch.owner)
        if "batch" in known and (known["attempt"], known["batch"]) >= (batch.attempt, batch.number):
            raise BatchCommittedElsewhere(
                f"another run of {batch.owner} has committed {batch}, or a later attempt, to "
                f"{self.location}: two runs of the project are active",
                advice="Stop one of them; this one has written nothing",
            )

    def _data_files(
        self,
        files: Sequence[WrittenFile],
        transaction: Transaction,
        table: Table,
        partition_by: Sequence[str],
    ) -> list[DataFile]:
        """The files as Iceberg describes them, as pyiceberg's `add_files` does it: sizes, statistics and
        partition values are those of the files themselves."""
        where = table.location_provider().data_path
        describe = partial(parquet_file_to_data_file, table.io, transaction.table_metadata)
        with ThreadPoolExecutor(FOOTER_READERS, thread_name_prefix="klamm-footers") as pool:
            found = list(pool.map(describe, [joined(where, file.path) for file in files]))
        for file, described in zip(files, found, strict=True):
            for number, column in enumerate(partition_by):
                # Values are told from statistics. If a column has none, pyiceberg takes the value for null.
                if described.partition[number] is None and file.partition_values[column] is not None:
                    raise TableRefused(
                        f"the file {file.path} of the table {self.location} has no statistics of the "
                        f"partition column {column}: its values are too long, or the table's properties "
                        "(write.metadata.metrics…) leave it out",
                        advice="Partition by shorter values, or correct the properties",
                    )
        return found

    def _create(self, rows: StructType, partition_by: Sequence[str], owner: str) -> None:
        catalog = self._open()
        for parts in range(1, len(self._name.namespace) + 1):
            catalog.create_namespace_if_not_exists(self._name.namespace[:parts])
        schema = iceberg_schema(rows)
        properties = {**SETTINGS, _key(owner): json.dumps({_CREATED: True})}
        spec = partition_spec(schema, partition_by)
        try:
            catalog.create_table(self._name.identifier, schema, partition_spec=spec, properties=properties)
        except TableAlreadyExistsError:
            logger.info("the table %s was created meanwhile", self.location)

    def _open(self) -> Catalog:
        if self._catalog is None:
            settings = dict(self._settings)
            if local_path(settings.get("warehouse", "")) is not None:
                settings.setdefault("py-io-impl", f"{SyncedFileIO.__module__}.{SyncedFileIO.__name__}")
            try:
                self._catalog = load_catalog(self._name.catalog, **settings)
            except (ValueError, KeyError) as error:
                raise CatalogUnknown(
                    f"the catalog {self._name.catalog} of the table {self.location} is not known: {error}",
                    advice=f"Set type, uri and warehouse under [iceberg.{self._name.catalog}] in klamm.toml",
                ) from error
        return self._catalog


def _append(update: UpdateSnapshot, table: Table, files: Sequence[DataFile]) -> None:
    with update.merge_append() as snapshot:
        for file in files:
            snapshot.append_data_file(file)


def _replace(update: UpdateSnapshot, table: Table, files: Sequence[DataFile]) -> None:
    with update.overwrite() as snapshot:
        for task in table.scan().plan_files():
            snapshot.delete_data_file(task.file)
        for file in files:
            snapshot.append_data_file(file)


def _without_retries(table: Table) -> Table:
    """The table, with pyiceberg's own retries off. That changes nothing in the catalog: a commit sends what
    it changes, and not the metadata."""
    properties = {**table.metadata.properties, **_WITHOUT_RETRIES}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def _key(owner: str) -> str:
    return f"klamm.{owner}"


def _property(table: Table, owner: str) -> dict[str, Any]:
    """What the table knows of a pipeline."""
    found: dict[str, Any] = json.loads(table.properties.get(_key(owner), "{}"))
    return found


def _next(known: Mapping[str, Any], batch: Batch) -> str:
    """What the table knows of a pipeline after a batch."""
    epochs: list[Any] = list(known.get("epochs", []))
    if batch.epoch and batch.epoch not in [name for name, _ in epochs]:
        epochs.append([batch.epoch, batch.start])
    offsets = merged([known.get("offsets", {}), batch.end], lambda before, now: now)
    after = {
        "attempt": batch.attempt,
        "batch": batch.number,
        "stateful": batch.keeps_state,
        "offsets": offsets,
        "epochs": epochs[-MOST_EPOCHS:],
    }
    return json.dumps(after, separators=(",", ":"))


def _summary(batch: Batch) -> dict[str, str]:
    """What a snapshot says of its batch."""
    return {
        "klamm.pipeline": batch.owner,
        "klamm.attempt": str(batch.attempt),
        "klamm.batch": str(batch.number),
        "klamm.epoch": batch.epoch,
        "klamm.start": json.dumps(batch.start),
        "klamm.end": json.dumps(batch.end),
    }
