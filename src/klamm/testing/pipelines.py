"""A project of pipelines inside a test: its own code and schemas, a broker, Spark, and a folder for tables.

    def test_bad_orders_do_not_reach_the_table(klamm_pipelines):
        project = klamm_pipelines("path/of/the/project")
        project.given("orders", [{"order_id": "1", "amount": 4.5}, {"order_id": "2", "amount": -1}])
        project.run_until_done()
        assert project.table("orders") == [{"order_id": "1", "amount": 4.5}]

The fixture is in the pytest plugin. The project's pipelines and schemas are used as they are; the brokers,
the tables, the catalogs, the state and the secrets that klamm.toml names are not touched. A pipeline that
writes to other places (a database, a table with a path or a URI) runs only if a test names it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm.client.errors import TopicExists
from klamm.client.plain.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.plain.producer import Producer
from klamm.client.results import Record, TopicPartition
from klamm.pipelines.addressing import OFFSET, SOURCE, TOPIC
from klamm.pipelines.definitions import (
    COORDINATES,
    IcebergSink,
    ParquetSink,
    Pipeline,
    Source,
    TableSink,
    TopicSink,
)
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import PipelineError, ProjectError
from klamm.pipelines.graph import order
from klamm.pipelines.lineage import tables_read
from klamm.pipelines.locations import overlap, table_location
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.project import Project
from klamm.pipelines.runner import SETTINGS, run
from klamm.pipelines.sinks.iceberg import open_iceberg
from klamm.pipelines.sinks.kinds import place_of_table, sink_text
from klamm.pipelines.tables.table import Table
from klamm.pipelines.tables.upkeep import UpkeepPolicy
from klamm.testing.faults import MOMENTS, FaultInjected, striking
from klamm.testing.given import Message, Value, encoded, messages

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["DeadLetterRecord", "FaultInjected", "Message", "PipelineFailed", "PipelinesProject"]

MASTER = "local[2]"
SPARK_SETTINGS: Mapping[str, str] = {
    **SETTINGS,
    # A test has few rows, and each partition of a shuffle costs more than they do.
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
UPKEEP = UpkeepPolicy(least_files=3)
"""Merges in tests, too: with the usual 20 small files a table of a test would never be merged."""

READ_TIMEOUT_S = 30.0
"""How long to wait for records that the broker says it has."""


class PipelineFailed(PipelineError):
    """A pipeline of the test has failed. The text has its error and the line of its code."""


@dataclass(frozen=True)
class DeadLetterRecord:
    """A record in the dead-letter topic: its value, why it is there, and where it came from."""

    value: Any
    rule: str
    error: str
    pipeline: str
    source: str
    topic: str
    partition: int | None
    offset: int | None


class PipelinesProject:
    """A project in a test. Made by the fixture `klamm_pipelines`."""

    def __init__(
        self,
        path: str | PathLike[str],
        folder: Path,
        bootstrap: str,
        spark: SparkSession,
        *,
        partitions: int = 1,
    ) -> None:
        """The project at `path`, which keeps all that it writes in `folder`. Topics that the test does not
        create get so many `partitions`."""
        found = Project.load(
            path, bootstrap=bootstrap, master=MASTER, without=("kafka", "storage", "iceberg")
        )
        if found.schemas.is_dir():  # a copy, because schemas that are inferred are written beside the others
            shutil.copytree(found.schemas, folder / "schemas")
        self.project = replace(
            found,
            tables=str(folder / "tables"),
            state=folder / "state",
            shared_state="",
            checkpoints=str(folder / "state/checkpoints"),
            schemas=folder / "schemas",
            run=replace(found.run, retries=0),  # a test sees each failure, and faults end the run
        )
        self.spark = spark
        self._catalogs = folder / "catalogs"
        self._partitions = partitions

    # ---- records in

    def given(self, topic: str, records: Iterable[Value | Message], *, key: str | None = None) -> None:
        """Send records to a topic, and wait until the broker has them.

        A record is a dictionary (sent as JSON, or in the format of the topic's source), text, bytes, None, or
        a Message, which also has a key, a time, a partition and headers. `key` names the field of
        dictionaries whose value is the key.
        """
        sources = [each for each in load_definitions(self.project).sources.values() if topic in each.topics]
        self._create([topic])
        with Producer(self.project.bootstrap) as producer:
            deliveries = [
                producer.send(
                    topic,
                    encoded(message.value, sources, self.project),
                    message.key.encode() if isinstance(message.key, str) else message.key,
                    message.headers,
                    message.partition,
                    message.timestamp,
                )
                for message in messages(records, key)
            ]
            for delivery in deliveries:
                delivery.result()

    # ---- runs

    def run_until_done(self, *names: str) -> dict[str, PipelineStatus]:
        """Run all pipelines, or those named, until they have read all records. Returns their statuses by
        name. Raises PipelineFailed if one fails."""
        pipelines = load_definitions(self.project).pipelines
        self._make_catalogs(pipelines.values())
        if not names:
            self._refuse_other_places(pipelines.values())
        self._create(self._topics_of([one for one in pipelines if not names or one in names]))
        with self._settings():
            statuses = run(self.project, once=True, names=names or None, upkeep=UPKEEP, spark=self.spark)
        failed = [status for status in statuses if status.state != "finished"]
        broken_off = self._broken_off(failed)
        if others := [status for status in failed if status.pipeline not in broken_off]:
            raise PipelineFailed("; ".join(f"{each.pipeline}: {each.error}" for each in others))
        if failed:
            raise FaultInjected(failed[0].error)
        return {status.pipeline: status for status in statuses}

    def moments(self) -> tuple[str, ...]:
        """The moments of a batch at which `fault` can break a run off, in their order."""
        return tuple(MOMENTS)

    @contextmanager
    def fault(self, moment: str, *, pipeline: str | None = None, after: int = 0) -> Iterator[None]:
        """Break runs off at a moment of a batch (see `moments`), as a crash there would.

        The block ends when a run in it has been broken off; a fault that never strikes fails the test. With
        `pipeline` only its batches count. `after` lets so many batches pass first.
        """
        group = location = None
        if pipeline is not None:
            sink = self._pipeline(pipeline).to
            if not isinstance(sink, TableSink | IcebergSink):
                raise ValueError(f"{pipeline} writes to {sink_text(sink)}: faults are for tables")
            group, location = self.project.group_of(pipeline), place_of_table(self.project, sink)
        struck = False

        def strike() -> None:
            nonlocal struck
            struck = True
            raise FaultInjected(f"a fault of the test, {moment}")

        with striking(moment, strike, after=after, group=group, location=location):
            try:
                yield
            except FaultInjected:
                return
        if not struck:
            raise AssertionError(
                f"the fault {moment!r} has not struck: no batch of {pipeline or 'a pipeline'} came to it"
            )

    # ---- what came out

    def table(
        self, name: str, *, sort_by: Sequence[str] = (), coordinates: bool = False
    ) -> list[dict[str, Any]]:
        """The rows of a table, sorted by `sort_by`, and then by all columns from the left. With `coordinates`
        the rows have `_topic`, `_partition`, `_offset` and `_timestamp`, too."""
        found = self.arrow(name)
        if not coordinates:
            found = found.drop_columns([column for column in COORDINATES if column in found.column_names])
        by = [*sort_by, *[column for column in found.column_names if column not in sort_by]]
        rows: list[dict[str, Any]] = found.to_pylist()
        return sorted(rows, key=lambda row: [_sortable(row[column]) for column in by])

    def arrow(self, name: str) -> pa.Table:
        """The table as an Arrow table."""
        pipelines = load_definitions(self.project).pipelines
        self._make_catalogs(pipelines.values())
        for pipeline in pipelines.values():
            if isinstance(pipeline.to, IcebergSink) and pipeline.to.table == name:
                there = open_iceberg(self.project, pipeline.to).newest()
                if there is not None:
                    return there.scan().to_arrow()
        table = Table(table_location(self.project.tables, name))
        if not table.is_there():
            raise ProjectError(
                f"there is no table {name} yet", advice="Run a pipeline that writes to it: run_until_done()"
            )
        return table.at(None).to_pyarrow_table()

    def topic(self, name: str) -> list[Any]:
        """The values of a topic: JSON as what it means, other text as text, other values as bytes."""
        return [_readable(record.value) for record in self.records(name)]

    def records(self, name: str) -> list[Record]:
        """The records of a topic with keys, times and headers, by partition and offset; none if there is no
        such topic."""
        with Admin(self.project.bootstrap) as admin:
            if name not in admin.list_topics():
                return []
            count = len(admin.describe_topic(name).partitions)
        found: list[Record] = []
        with Consumer(self.project.bootstrap) as consumer:
            partitions = [TopicPartition(name, number) for number in range(count)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(each) < end for each, end in ends.items()):
                records = consumer.poll(timeout=READ_TIMEOUT_S)
                if not records:
                    raise TimeoutError(f"the broker gave no more records of {name} in {READ_TIMEOUT_S:.0f} s")
                found += records
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def dead_letters(self) -> list[DeadLetterRecord]:
        """The records in the project's dead-letter topic."""
        return [_dead_letter(record) for record in self.records(self.project.dead_letters)]

    # ---- inside

    def _broken_off(self, failed: Iterable[PipelineStatus]) -> set[str]:
        """The pipelines that failed by a fault, or because they read the table of one that did: it may not
        be there. Writers come before readers."""
        definitions = load_definitions(self.project)
        found: set[str] = set()
        for status in failed:
            reads = tables_read(self.project, definitions, definitions.pipelines[status.pipeline])
            writers = {read.writer.name for read in reads if read.writer is not None}
            if status.error.startswith(FaultInjected.__name__) or writers & found:
                found.add(status.pipeline)
        return found

    def _pipeline(self, name: str) -> Pipeline:
        pipelines = load_definitions(self.project).pipelines
        if name not in pipelines:
            raise ValueError(f"there is no pipeline called {name!r}: there are {', '.join(pipelines)}")
        return pipelines[name]

    def _topics_of(self, pipelines: Iterable[str]) -> set[str]:
        """The topics that pipelines read and write."""
        definitions = load_definitions(self.project)
        topics: set[str] = set()
        for name in pipelines:
            for node in order(name, definitions.nodes):
                if isinstance(node, Source):
                    topics.update(node.topics)
                elif isinstance(node, Pipeline) and isinstance(node.to, TopicSink):
                    topics.add(node.to.topic)
        return topics

    def _create(self, topics: Iterable[str]) -> None:
        """Create the topics that are not there."""
        with Admin(self.project.bootstrap) as admin:
            for topic in sorted(set(topics) - set(admin.list_topics())):
                try:
                    admin.create_topic(topic, self._partitions)
                except TopicExists:
                    continue

    def _make_catalogs(self, pipelines: Iterable[Pipeline]) -> None:
        """Let the catalogs of Iceberg tables be files of the test."""
        names = {each.to.catalog for each in pipelines if isinstance(each.to, IcebergSink)}
        settings = {}
        for name in names:
            folder = self._catalogs / name
            folder.mkdir(parents=True, exist_ok=True)
            settings[name] = {
                "type": "sql",
                "uri": f"sqlite:///{folder / 'catalog.db'}",
                "warehouse": str(folder),
            }
        self.project = replace(self.project, iceberg=settings)

    def _refuse_other_places(self, pipelines: Iterable[Pipeline]) -> None:
        for pipeline in pipelines:
            sink = pipeline.to
            if isinstance(sink, TableSink | ParquetSink):
                is_here = overlap(table_location(self.project.tables, sink.table), self.project.tables)
            else:
                is_here = isinstance(sink, TopicSink | IcebergSink)
            if not is_here:
                raise ProjectError(
                    f"{pipeline.name} writes to {sink_text(sink)}, which is not a place of the test",
                    advice="Name the pipelines that are to run: run_until_done('…')",
                    place=pipeline.place,
                )

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """The shared session with those settings of the project's [spark] that can be changed in it."""
        conf = self.spark.conf
        before: dict[str, str | None] = {}
        for key, value in self.project.spark.items():
            if conf.isModifiable(key):
                before[key] = conf.get(key, None)
                conf.set(key, value)
        try:
            yield
        finally:
            for key, earlier in before.items():
                conf.unset(key) if earlier is None else conf.set(key, earlier)


def make_session(folder: Path) -> tuple[SparkSession, bool]:
    """The running Spark session, or a new one for tests; and whether it is new. Spark's own files go to
    `folder`."""
    from pyspark import SparkContext

    import pyspark_klamm

    is_new = SparkContext._active_spark_context is None
    places = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
    }
    session = pyspark_klamm.session("tests", MASTER, {**SPARK_SETTINGS, **places} if is_new else {})
    if is_new:
        session.sparkContext.setLogLevel("ERROR")
    return session, is_new


def close_kept_clients() -> None:
    """Close the clients that Klamm's data source keeps in this process: their broker is about to end."""
    from pyspark_klamm.connections import close_connections
    from pyspark_klamm.sink import close_producers

    close_connections()
    close_producers()


def _sortable(value: Any) -> tuple[int, Any]:
    """Nulls first; values that cannot be compared by their text."""
    if value is None:
        return 0, ""
    return (2, repr(value)) if isinstance(value, dict | list) else (1, value)


def _readable(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value
    try:
        return json.loads(text)
    except ValueError:
        return text


def _dead_letter(record: Record) -> DeadLetterRecord:
    from klamm.pipelines.dead_letters import ERROR, PARTITION, PIPELINE, RULE

    headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers}

    def number(name: str) -> int | None:
        return int(headers[name]) if name in headers else None

    return DeadLetterRecord(
        _readable(record.value),
        headers.get(RULE, ""),
        headers.get(ERROR, ""),
        headers.get(PIPELINE, ""),
        headers.get(SOURCE, ""),
        headers.get(TOPIC, ""),
        number(PARTITION),
        number(OFFSET),
    )
