"""Runs the pipelines of a project in one Spark session, continuously or until they have caught up.

Each pipeline is one streaming query. A query that fails is started again after a pause, as often as `[run]
retries` says (`retrying.py`); the others go on meanwhile. A pipeline that is given up ends the run, unless
the run is one with `once`, or `[run] on_failure` says that the others go on.

Meanwhile this thread polls the queries: it reads Spark's progress reports, writes the status files, and calls
`on_status`. A thread of its own looks after the tables (`tables/upkeep.py`).

A stop (the event, SIGINT or SIGTERM) cancels the batches that run. The next run runs them again, and tables
still have each row once (`sinks/`).
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from itertools import combinations
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, IllegalArgumentException

from klamm.client.errors import ClientError, ConnectionFailed, TimedOut
from klamm.pipelines import frames
from klamm.pipelines.attempts import current_attempt, present_starts
from klamm.pipelines.callbacks import ensure_callbacks
from klamm.pipelines.definitions import (
    Definitions,
    IcebergSink,
    Otherwise,
    ParquetSink,
    Pipeline,
    TableSink,
)
from klamm.pipelines.deploying.sending import session_settings
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import (
    DecoderUnavailable,
    DefinitionError,
    PipelineError,
    ProjectError,
    SamplingFailed,
)
from klamm.pipelines.failures import Failure, explain
from klamm.pipelines.graph import order, sources_of
from klamm.pipelines.lineage import Read, tables_read, writers_first
from klamm.pipelines.locations import local_path, overlap, table_location
from klamm.pipelines.progress import ENDED, PipelineStatus, Tally, rule_name, unseen
from klamm.pipelines.project import Project
from klamm.pipelines.retrying import Retries, heals
from klamm.pipelines.sinks.kinds import counts_itself, place_of_table, sink_text
from klamm.pipelines.sinks.writing import start_query
from klamm.pipelines.spark_sessions import session_meanwhile
from klamm.pipelines.state import State
from klamm.pipelines.status import is_due, tidy_up, write_status
from klamm.pipelines.tables.table import Table
from klamm.pipelines.tables.upkeep import Upkeep, UpkeepPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

LOOK_S = 0.2
"""How often the queries are polled: often enough for a live display, and cheap beside a batch."""

START_S = 30.0
"""How long to wait for a query to begin reading before the next one is started. Queries start one at a time,
since each starts Python processes, and Spark waits only ten seconds for each of them."""

TABLE_LOOK_S = 1.0
"""How often to look whether a table is there for which pipelines wait."""

START_TRIES = 5
"""How often to start a query whose Python process does not connect in time, which happens under load."""

STOP_S = 10.0
"""How long a query may take to end after its jobs were cancelled."""

SETTINGS: Mapping[str, str] = {
    "spark.scheduler.mode": "FAIR",
    # All readers of Parquet understand these, unlike Spark's older 96-bit timestamps.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # How often an idle query reports progress, so that its rate and lag stay current.
    "spark.sql.streaming.noDataProgressEventInterval": "2000",
    "spark.sql.streaming.stopTimeout": f"{STOP_S:.0f}s",
    # What Spark infers of the values of columns. Joins gain a little by it (they skip nulls); everything else
    # would only be planned more slowly, at every batch.
    "spark.sql.constraintPropagation.enabled": "false",
}

# Errors of Spark about a plan or an option: the next start would fail in the same way.
_OF_THE_PLAN = (AnalysisException, IllegalArgumentException)

_SLOW_WORKER = "Python worker failed to connect back"

OnStatus = Callable[[Sequence[PipelineStatus]], None]


def run(
    project: Project,
    *,
    once: bool = False,
    names: Sequence[str] | None = None,
    on_status: OnStatus | None = None,
    stop: threading.Event | None = None,
    upkeep: UpkeepPolicy | None = UpkeepPolicy(),  # noqa: B008 (it is frozen)
    spark: SparkSession | None = None,
    clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> list[PipelineStatus]:
    """Run all pipelines, or those named, until they end or `stop` is set. Returns their last status.

    With `once` each reads the records that are in its topics now, and ends; a pipeline that reads a table
    starts when those that write it have ended. Without `once` it starts when the table exists. A pipeline
    that failed has the state "failed"; unless klamm.toml says otherwise, its end is that of the run.
    `upkeep=None` leaves the files of tables as they are. A given session is used, and not stopped at the end.
    `clock_ms` is what retries wait by. Raises PipelineError if nothing can be run at all.
    """
    check_places(project)
    definitions = load_definitions(project)
    chosen = _chosen(project, definitions, names)
    state = State(project)
    stop = stop or threading.Event()
    with state.lock("running its pipelines"), ExitStack() as stack:
        session = stack.enter_context(session_meanwhile(project, make_session, spark))
        ensure_callbacks(session)
        stack.enter_context(_held(state.lock_driver(session)))
        stack.enter_context(_stopping_on_signals(stop))
        tidy_up(state, definitions.pipelines, [pipeline.name for pipeline in chosen])
        keeper = Upkeep(upkeep) if upkeep is not None else None
        running = _Run(project, definitions, state, session, once, on_status, keeper, clock_ms)
        return running.run(chosen, stop)


def make_session(project: Project) -> SparkSession:
    """A Spark session with the settings of the project's klamm.toml."""
    import pyspark_klamm

    return pyspark_klamm.session(project.name, project.master, {**SETTINGS, **session_settings(project)})


def check_places(project: Project) -> None:
    """Raise if executors run on other machines and the tables or checkpoints are in a folder of this one."""
    if project.master.startswith("local"):
        return
    places = {"tables": project.tables, "checkpoints": project.checkpoints}
    for name, settings in project.iceberg.items():
        if settings.get("type") == "sql" and "warehouse" in settings:
            places[f"[iceberg.{name}] warehouse"] = settings["warehouse"]
    for key, location in places.items():
        if local_path(location) is not None and not location.startswith("file:"):
            raise ProjectError(
                f"{key} = {location} is a folder of this machine, but {project.master} runs on others",
                advice=f"Set {key} to a URI that all machines reach: s3://…, hdfs://…, or file:///… for a "
                "folder that all machines have mounted",
            )


class _Run:
    """One run: the query and the tally of each pipeline."""

    def __init__(
        self,
        project: Project,
        definitions: Definitions,
        state: State,
        spark: SparkSession,
        once: bool,
        on_status: OnStatus | None,
        upkeep: Upkeep | None,
        clock_ms: Callable[[], int],
    ) -> None:
        self._project = project
        self._definitions = definitions
        self._state = state
        self._spark = spark
        self._once = once
        self._on_status = on_status
        self._upkeep = upkeep
        self._now_ms = clock_ms
        self._retries: dict[str, Retries] = {}
        self._tallies: dict[str, Tally] = {}
        self._queries: dict[str, StreamingQuery] = {}
        self._seen: dict[str, str] = {}
        self._tries: dict[str, int] = {}
        self._is_stopping = False
        self._no_broker: Failure | None = None
        self._waiting: list[Pipeline] = []
        """Pipelines that are to be started, for the first time or again, each as soon as the tables that it
        reads are there."""
        self._looked_at = float("-inf")
        self._told: dict[str, PipelineStatus] = {}
        self._written: dict[str, PipelineStatus] = {}
        # Changes to the tallies from other threads: a few per batch, applied at every poll.
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self, pipelines: Sequence[Pipeline], stop: threading.Event) -> list[PipelineStatus]:
        for pipeline in pipelines:
            self._retries[pipeline.name] = Retries(self._project.run.retries)
            rules = _rules(self._definitions, pipeline)
            sink = pipeline.to
            self._tallies[pipeline.name] = Tally(
                pipeline.name, sink_text(sink), self._now_ms(), rules, counts_itself(sink)
            )
        self._tell()
        try:
            try:
                self._waiting = list(pipelines)
                self._start_those_ready(stop)
                if self._upkeep is not None and not self._once:
                    self._upkeep.start()
                while self._goes_on() and not stop.wait(LOOK_S):
                    self._look()
                    self._queue_retries()
                    self._start_those_ready(stop)
            finally:
                self._stop()
        except (Py4JNetworkError, ConnectionError) as error:
            if isinstance(error, ClientError):  # the connection to a broker, not to the JVM
                raise
            self._lose_the_jvm(error)
        if self._upkeep is not None and self._once and not stop.is_set():
            self._upkeep.look_at_all()
        self._tell()
        return [tally.status for tally in self._tallies.values()]

    def _start_those_ready(self, stop: threading.Event) -> None:
        """Start the pipelines whose tables are there, and end those for which no table will come."""
        if not self._waiting or time.monotonic() - self._looked_at < TABLE_LOOK_S:
            return
        self._no_broker = None
        for pipeline in list(self._waiting):
            if stop.is_set() or not self._goes_on():
                break
            if self._is_waiting(pipeline):
                continue
            self._waiting.remove(pipeline)
            if self._tallies[pipeline.name].status.state in (*ENDED, "retrying"):
                continue
            if self._no_broker is not None and self._reads_topics(pipeline):
                # Each would wait for the same brokers as long as the first one did.
                self._fail(pipeline.name, self._no_broker, heals=True)
            else:
                self._start(pipeline)
                self._wait_until_reading(pipeline.name, stop)
        self._looked_at = time.monotonic()
        self._tell()

    def _is_waiting(self, pipeline: Pipeline) -> bool:
        """True if the pipeline has to wait for a table. Ends the pipeline if nobody will write the table."""
        tally = self._tallies[pipeline.name]
        for read in tables_read(self._project, self._definitions, pipeline):
            writer = self._tallies.get(read.writer.name) if read.writer is not None else None
            is_written = writer is not None and writer.status.state not in ENDED
            if is_written and self._once:
                return True
            try:
                is_there = Table(read.location, self._project.storage).is_there()
            except Exception as error:  # its store does not answer, or refuses us
                failure = explain(str(error), self._project.root)._replace(place=pipeline.place)
                self._fail(pipeline.name, failure, heals=True)
                return False
            if is_there:
                continue
            if is_written:
                if not tally.status.note:
                    tally.noted(f"waits for the table {read.table}", self._now_ms())
                return True
            self._end_without(pipeline, read, writer)
            return False
        if tally.status.note:
            tally.noted("", self._now_ms())
        return False

    def _end_without(self, pipeline: Pipeline, read: Read, writer: Tally | None) -> None:
        """End a pipeline that reads a table which is not there, and which nobody is writing."""
        tally = self._tallies[pipeline.name]
        if writer is not None and writer.status.state == "finished":
            tally.noted(f"there is no table {read.table} yet: no row was written to it", self._now_ms())
            tally.ended("finished", self._now_ms())
            return
        if writer is not None:
            reason, advice = f"{writer.status.pipeline}, which writes it, has {writer.status.state}", ""
        elif read.writer is not None:
            reason, advice = "this run does not write it", f"Run {read.writer.name} first, or both"
        else:
            reason, advice = "no pipeline of the project writes it", "Correct its name, or write it first"
        error = PipelineError(f"there is no table {read.table}, and {reason}", advice=advice)
        self._fail(pipeline.name, Failure(error.text, pipeline.place, str(error)), heals=False)

    def _reads_topics(self, pipeline: Pipeline) -> bool:
        try:
            return bool(sources_of(pipeline.name, self._definitions.nodes))
        except PipelineError:  # reported when the pipeline is started
            return False

    def _start(self, pipeline: Pipeline) -> None:
        tally = self._tallies[pipeline.name]
        try:
            attempt = current_attempt(self._project, self._state, self._definitions, pipeline, self._spark)
            starts = present_starts(self._project, self._definitions, pipeline, attempt)
            frame = frames.build(
                pipeline,
                self._definitions,
                self._project,
                self._spark,
                streaming=True,
                starts=starts,
                attempt=attempt,
            )
            # Each pipeline gets its share of the cores, however long the batches of the others are.
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", pipeline.name)
            query = start_query(
                frame,
                pipeline,
                self._project,
                self._state,
                attempt,
                once=self._once,
                on_rows=lambda batch, rows: self._news.put(lambda: tally.wrote(batch, rows)),
            )
        except PipelineError as error:
            failure = Failure(error.text, error.place, str(error))
            if isinstance(error.__cause__, (ConnectionFailed, TimedOut)):
                self._no_broker = failure
            self._fail(pipeline.name, failure, heals=_has_a_cause_outside(error))
            return
        except Exception as error:
            failure = explain(str(error), self._project.root)
            failure = failure._replace(place=failure.place or pipeline.place)
            self._fail(pipeline.name, failure, heals=not isinstance(error, _OF_THE_PLAN))
            return
        self._queries[pipeline.name] = query
        self._seen.pop(pipeline.name, None)
        tally.started(attempt.number, self._now_ms())
        if self._upkeep is not None and isinstance(pipeline.to, TableSink):
            self._upkeep.add(
                table_location(self._project.tables, pipeline.to.table),
                self._project.storage,
                lambda note: self._news.put(lambda: tally.noted(note, self._now_ms())),
                merges=pipeline.mode != "complete",
            )

    def _wait_until_reading(self, name: str, stop: threading.Event) -> None:
        deadline = time.monotonic() + START_S
        while name in self._queries and time.monotonic() < deadline:
            self._look()
            message = str(self._queries[name].status["message"])
            reading = message.startswith(("Waiting", "Processing"))
            if reading or not self._is_running(name) or stop.wait(LOOK_S):
                break
        self._tell()

    def _queue_retries(self) -> None:
        """Have the pipelines started whose pause after a failure is over."""
        for name, retries in self._retries.items():
            if retries.waiting is None:
                continue
            now_ms = self._now_ms()
            if not retries.is_due(now_ms):
                self._tallies[name].waited(retries.waiting, now_ms)
                continue
            logger.info("starting the pipeline %s again: retry %d", name, retries.waiting.number)
            retries.begun()
            self._tallies[name].starting(now_ms)
            # Not at once: it may have failed before the tables that it reads were there.
            self._waiting.append(self._definitions.pipelines[name])
            self._looked_at = float("-inf")
        self._tell()

    def _is_running(self, name: str) -> bool:
        state = self._tallies[name].status.state
        return name in self._queries and state not in ENDED and state != "retrying"

    def _goes_on(self) -> bool:
        """False if no pipeline is left to run, or the failure of one is to end the run."""
        states = [tally.status.state for tally in self._tallies.values()]
        if "failed" in states and not self._once and self._project.run.on_failure == "stop":
            return False
        return any(state not in ENDED for state in states)

    def _look(self) -> None:
        for name, query in list(self._queries.items()):
            tally = self._tallies[name]
            if not self._is_running(name):
                continue
            # Checked before the progress is read: after the end no more progress follows.
            ended = not query.isActive
            self._read_progress(name, query, tally)
            tally.passed(self._now_ms())
            if ended:
                self._end(name, query, tally)
        self._tell()

    def _read_progress(self, name: str, query: StreamingQuery, tally: Tally) -> None:
        of_java: Any = query._jsq
        new, self._seen[name] = unseen(of_java.recentProgress(), self._seen.get(name, ""))
        # After the progress was read: the rows of a batch are told before its progress is.
        self._take_news()
        for progress in new:
            tally.apply(progress, self._now_ms())

    def _end(self, name: str, query: StreamingQuery, tally: Tally) -> None:
        error = query.exception()
        if error is None:
            tally.ended("finished" if self._once else "stopped", self._now_ms())
        elif (
            _SLOW_WORKER in str(error)
            and self._tries.get(name, 1) < START_TRIES
            and not self._is_stopping  # or the query would outlive the run
        ):
            self._tries[name] = self._tries.get(name, 1) + 1
            logger.warning("starting %s again: its Python process did not connect in time", name)
            self._start(self._definitions.pipelines[name])
        else:
            self._fail(name, explain(str(error), self._project.root), heals=heals(str(error)))

    def _fail(self, name: str, failure: Failure, *, heals: bool) -> None:
        """Note a failure. If the next try may succeed and one is left, the pipeline waits for it."""
        logger.error("the pipeline %s failed: %s", name, failure)
        tally, now_ms = self._tallies[name], self._now_ms()
        if heals and not self._is_stopping:
            retry = self._retries[name].failed(now_ms, tally.status.batch)
            if retry is not None:
                tally.retrying(retry, self._project.run.retries, now_ms, str(failure), failure.detail)
                return
        tally.ended("failed", now_ms, str(failure), failure.detail)

    def _lose_the_jvm(self, error: Exception) -> None:
        """Mark all pipelines as failed: the JVM is gone, and their queries with it."""
        text = "Spark's JVM is gone: it was killed, or ran out of memory (spark.driver.memory)"
        for name, tally in self._tallies.items():
            if tally.status.state not in ENDED:
                self._fail(name, Failure(text, None, f"{text}\n{error}"), heals=False)

    def _stop(self) -> None:
        """Stop all running queries at the same time: each may have a batch to cancel."""
        self._is_stopping = True
        active = {name: query for name, query in self._queries.items() if query.isActive}
        if self._upkeep is not None and not self._once:
            self._upkeep.stop()
        if active:
            with ThreadPoolExecutor(len(active), thread_name_prefix="klamm-stop") as pool:
                wait([pool.submit(_stop_query, name, each) for name, each in active.items()])
        for name, each in self._queries.items():
            tally = self._tallies[name]
            self._read_progress(name, each, tally)
            if not self._is_running(name):
                continue
            if name in active:
                tally.ended("stopped", self._now_ms())
            else:
                self._end(name, each, tally)
        for pipeline in self._waiting:
            self._tallies[pipeline.name].ended("stopped", self._now_ms())
        for tally in self._tallies.values():
            if tally.status.state == "retrying":  # its last try has failed
                tally.ended("failed", self._now_ms(), tally.status.error, tally.status.error_detail)

    def _tell(self) -> None:
        """Write the statuses that have changed into their files, and report all to `on_status`."""
        self._take_news()
        statuses = {name: tally.status for name, tally in self._tallies.items()}
        changed = [status for name, status in statuses.items() if self._told.get(name) != status]
        for name, status in statuses.items():
            if is_due(self._state, status, self._written.get(name)):
                write_status(self._state, status)
                self._written[name] = status
        self._told = statuses
        if changed and self._on_status is not None:
            self._on_status(list(statuses.values()))

    def _take_news(self) -> None:
        """Let the tallies hear what other threads have put into the queue."""
        while not self._news.empty():
            self._news.get()()


def _stop_query(name: str, query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception as error:
        # The process is about to end, and the next run runs the batch again.
        logger.warning("stopping the pipeline %s failed: %s", name, error)


def _chosen(project: Project, definitions: Definitions, names: Sequence[str] | None) -> list[Pipeline]:
    pipelines = definitions.pipelines
    if not pipelines:
        raise ProjectError("the project has no pipeline", advice="Decorate a function with @pipeline(to=…)")
    for name in names or ():
        if name not in pipelines:
            raise ProjectError(
                f"there is no pipeline called {name!r}", advice=f"There are {', '.join(pipelines)}"
            )
    _refuse_shared_tables(project, pipelines.values())
    chosen = [pipeline for name, pipeline in pipelines.items() if names is None or name in names]
    return writers_first(project, definitions, chosen)


def _refuse_shared_tables(project: Project, pipelines: Iterable[Pipeline]) -> None:
    """Raise if two pipelines write to one table: batches of the second would look published by their number,
    and a replay of one would remove the rows of the other."""
    tables = [
        (pipeline, place_of_table(project, pipeline.to))
        for pipeline in pipelines
        if isinstance(pipeline.to, (TableSink, IcebergSink, ParquetSink))
    ]
    for (one, location), (other, its_location) in combinations(tables, 2):
        if overlap(location, its_location):
            raise DefinitionError(
                f"{one.name} and {other.name} write to the same table, or to one inside the other: "
                f"{location} and {its_location}",
                advice="Give each a table of its own, or union their rows in one pipeline",
                place=other.place,
            )


def _rules(definitions: Definitions, pipeline: Pipeline) -> dict[str, Otherwise]:
    try:
        nodes = order(pipeline.name, definitions.nodes)
    except PipelineError:  # reported when the pipeline is started
        return {}
    return {rule_name(node.name, rule.name): rule.otherwise for node in nodes for rule in node.expectations}


@contextmanager
def _held(lock: Any) -> Iterator[None]:
    try:
        yield
    finally:
        # If the JVM is gone, so is the lock.
        with suppress(OSError, Py4JError):
            lock.close()


@contextmanager
def _stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run; a second signal ends the process as usual.

    Used after the session was made, since PySpark installs a handler that cancels all jobs on SIGINT, and the
    queries would fail.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_a_cause_outside(error: PipelineError) -> bool:
    """True if an error that keeps a pipeline from starting may be gone at the next try: a broker, a store or
    a registry did not answer."""
    if isinstance(error, (DecoderUnavailable, SamplingFailed)):
        return True
    return isinstance(error.__cause__, (ClientError, OSError, DeltaError))
