"""Pipelines: topics into Spark, to noop and Parquet, and back; triggers of streams; log files into a table.

All contestants use one Klamm broker in its own process and topics of six partitions. The two connectors are
two Spark sessions, `local[2]`, that both run all the time and take turns; confluent-kafka is a process
without Spark. The ceiling is, for reading, a Python source that fetches and decodes nothing, and for writing,
the same rows sent nowhere. The first pass of each contestant is not counted. The rows that are written to
topics have one literal value, which Spark makes while it writes, so that no reading is measured. The two
connectors are also compared with Apache Kafka as their broker, in reading and writing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.peers.kafka_jars import PeerMissing, find_connector_jars

from bench.java_tools import size_text
from bench.peers import KLAMM, Broker, KafkaBroker, KlammBroker, running, topic
from bench.runner import Bench, Comparison, Figures, Measure
from bench.spark import material
from bench.spark.children import SparkChild
from bench.spark.material import PARTITION_COUNT
from bench.workers import run_worker

SECTION = "spark"
OFFICIAL, CONFLUENT_ARROW, CEILING = "official connector", "confluent-kafka to Arrow", "ceiling"
CONTESTANTS = (CEILING, CONFLUENT_ARROW, OFFICIAL, KLAMM)
SOURCES = {KLAMM: "klamm", OFFICIAL: "kafka", CEILING: "ready_made"}

ROWS = {100: 6_000_000, 1024: 1_500_000}
QUICK_ROWS = {100: 300_000, 1024: 60_000}
SINKS = {"noop": "noop", "parquet": "Parquet"}
MOST_ROUNDS = 3  # one takes minutes

DECODE_CASE = "decode, one core, 100 B"
DECODE_ROWS = 500_000
LOG_CASE = "log file to Parquet"
LOG_BYTES, QUICK_LOG_BYTES = 1_000_000_000, 50_000_000
LOG_COLUMNS = ["CAST(value AS STRING) AS line", "timestamp"]
INGEST_TIMEOUT_SECONDS = 180.0
END_TO_END = "end to end MB/s"

TUNED, DEFAULTS = "our session's settings", "Spark's defaults"
TRIGGER_METRICS = {
    "batch_ms": "small batch ms",
    "batch_tasks_ms": "of it in tasks ms",
    "batch_offsets_ms": "of it finding offsets, planning ms",
    "batch_checkpoint_ms": "of it for the checkpoint ms",
    "idle_ms": "look for records, idle ms",
    "idle_cpu_percent": "idle CPU % of a core",
}
TRIGGER_PARTITIONS = (1, PARTITION_COUNT)
TRIGGER_RECORDS = 60


def read_case(sink: str, size: int, on: str = KLAMM) -> str:
    return f"topic to {SINKS[sink]}, {size_text(size)}{_on(on)}"


def table_case(size: int) -> str:
    """Ours to a table, beside the official connector to Parquet."""
    return f"topic to a table, {size_text(size)}"


def write_case(size: int, on: str = KLAMM) -> str:
    return f"rows to a topic, {size_text(size)}{_on(on)}"


def _on(broker: str) -> str:
    return "" if broker == KLAMM else f", on {broker}"


def trigger_case(partitions: int, settings: str) -> str:
    return f"stream, {partitions} partition{'s' * (partitions > 1)}, {settings}"


def case_count(bench: Bench) -> int:
    copies = len(ROWS) * (len(SINKS) + 1)
    on_both = 2 if KafkaBroker in bench.kinds else 1
    return 1 + copies * on_both + len(ROWS) + 2 * len(TRIGGER_PARTITIONS) + 1


def comparisons(bench: Bench) -> Iterator[Comparison]:
    children: dict[str, SparkChild] = {}
    try:
        bench.on_step(f"{SECTION}: starting Spark")
        start_sessions(bench, children)
        with running(KlammBroker, bench.work_dir) as broker:
            runs = Runs(bench, broker, children)
            yield from runs.compare_copies()
            for partitions in TRIGGER_PARTITIONS:
                for settings in (TUNED, DEFAULTS):
                    yield runs.compare_triggers(partitions, settings)
            yield runs.compare_logs()
        if KafkaBroker in bench.kinds:
            with running(KafkaBroker, bench.work_dir) as broker:
                yield from Runs(bench, broker, children).compare_copies()
    finally:
        for child in children.values():
            child.stop()


def start_sessions(bench: Bench, children: dict[str, SparkChild]) -> None:
    """All sessions at once; without its jars the run goes on without the official connector. The ceiling has
    a session of its own: in ours it would warm up the JVM for us."""
    children[CEILING] = SparkChild(bench.work_dir, "ceiling", [])
    children[KLAMM] = SparkChild(bench.work_dir, "ours", [])
    try:
        jars = find_connector_jars()
    except PeerMissing as missing:
        bench.note_failure(SECTION, "set-up", OFFICIAL, missing)
    else:
        children[OFFICIAL] = SparkChild(bench.work_dir, "official", jars)
    for child in children.values():
        child.wait_until_ready()


class Runs:
    """The contestants on one broker, and how each is measured."""

    def __init__(self, bench: Bench, broker: Broker, children: dict[str, SparkChild]) -> None:
        self._bench = bench
        self._broker = broker
        self._children = children
        self._rounds = min(bench.rounds, MOST_ROUNDS)

    @property
    def _connectors(self) -> list[str]:
        return [name for name in self._children if name != CEILING]

    @property
    def _has_all(self) -> bool:
        """On a broker that is not ours the connectors are compared, and nothing else."""
        return self._broker.name == KLAMM

    def compare_copies(self) -> Iterator[Comparison]:
        """Topics that are read, and topics that are written."""
        for size, rows in (QUICK_ROWS if self._bench.is_quick else ROWS).items():
            with topic(self._broker, PARTITION_COUNT) as name:
                self._bench.on_step(f"{SECTION}: filling a topic")
                material.fill(self._broker, name, rows, size)
                if self._has_all and size == min(ROWS):
                    yield self.compare_decoding(name, min(DECODE_ROWS, rows // PARTITION_COUNT))
                for sink in SINKS:
                    yield self.compare_reading(name, sink, rows, size)
                if self._has_all:
                    yield self.compare_tables(name, rows, size)
            yield self.compare_writing(rows, size)

    def _options(self, **given: object) -> dict[str, str]:
        named = {"kafka.bootstrap.servers": material.bootstrap(self._broker), **given}
        return {name: str(value) for name, value in named.items()}

    # ---- decoding

    def compare_decoding(self, name: str, rows: int) -> Comparison:
        return Comparison(DECODE_CASE, {KLAMM: functools.partial(self._decode, name, rows)}, self._rounds)

    def _decode(self, name: str, rows: int) -> Figures:
        seconds = 0.5 if self._bench.is_quick else 3.0
        arguments = {"topic": name, "rows": rows, "seconds": seconds}
        done = run_worker("bench.spark.decode_worker", "decode", self._addressed(arguments))
        return {
            "records/s": done["rows"] / done["seconds"],
            "CPU ns/record": done["cpu_seconds"] / done["rows"] * 1e9,
        }

    def _addressed(self, arguments: dict[str, object]) -> dict[str, object]:
        return {"bootstrap": material.bootstrap(self._broker), **arguments}

    # ---- reading

    def compare_reading(self, name: str, sink: str, rows: int, size: int) -> Comparison:
        measures: dict[str, Measure] = {}
        if self._has_all:
            ceiling = {"rows": str(rows), "size": str(size)}
            measures[CEILING] = self._reader(CEILING, SOURCES[CEILING], ceiling, sink, rows, size)
            measures[CONFLUENT_ARROW] = functools.partial(self._read_by_confluent, name, sink, rows, size)
        for contestant in self._connectors:
            options = self._options(subscribe=name)
            measures[contestant] = self._reader(contestant, SOURCES[contestant], options, sink, rows, size)
        case, writes_bytes = read_case(sink, size, self._broker.name), rows * size * (sink == "parquet")
        return Comparison(case, _warmed(measures), self._rounds, writes_bytes)

    def compare_tables(self, name: str, rows: int, size: int) -> Comparison:
        measures = {
            contestant: self._reader(
                contestant,
                SOURCES[contestant],
                self._options(subscribe=name),
                "table" if contestant == KLAMM else "parquet",
                rows,
                size,
            )
            for contestant in self._connectors
        }
        return Comparison(table_case(size), _warmed(measures), self._rounds, rows * size)

    def _reader(
        self, child: str, source: str, options: dict[str, str], sink: str, rows: int, size: int
    ) -> Measure:
        def measure() -> Figures:
            done = self._children[child].ask("read", source=source, options=options, sink=sink, rows=rows)
            return figures_of(done, size)

        return measure

    def _read_by_confluent(self, name: str, sink: str, rows: int, size: int) -> Figures:
        path = self._bench.work_dir / "confluent.parquet"
        arguments = {"topic": name, "partition_count": PARTITION_COUNT, "sink": sink, "path": str(path)}
        done = run_worker("bench.spark.confluent_arrow", "read", self._addressed({**arguments, "rows": rows}))
        return figures_of(done, size)

    # ---- writing

    def compare_writing(self, rows: int, size: int) -> Comparison:
        measures: dict[str, Measure] = {}
        if self._has_all:
            measures[CEILING] = functools.partial(self._write, CEILING, "noop", rows, size)
            measures[CONFLUENT_ARROW] = functools.partial(self._write_by_confluent, rows, size)
        for contestant in self._connectors:
            measures[contestant] = functools.partial(self._write, contestant, SOURCES[contestant], rows, size)
        case = write_case(size, self._broker.name)
        return Comparison(case, _warmed(measures), self._rounds, rows * size)

    def _write(self, child: str, source: str, rows: int, size: int) -> Figures:
        with self._target(rows if source != "noop" else 0) as name:
            options = self._options(topic=name)
            arguments = {"rows": rows, "size": size, "tasks": PARTITION_COUNT}
            done = self._children[child].ask("write", source=source, options=options, **arguments)
        return figures_of(done, size)

    def _write_by_confluent(self, rows: int, size: int) -> Figures:
        with self._target(rows) as name:
            arguments = {"topic": name, "rows": rows, "size": size}
            done = run_worker("bench.spark.confluent_arrow", "write", self._addressed(arguments))
        return figures_of(done, size)

    @contextlib.contextmanager
    def _target(self, rows: int) -> Iterator[str]:
        """An empty topic that has `rows` records in the end."""
        with topic(self._broker, PARTITION_COUNT) as name:
            yield name
            found = material.record_count(self._broker, name)
            if found != rows:
                raise RuntimeError(f"{found} instead of {rows} records are in the topic")

    # ---- streams

    def compare_triggers(self, partitions: int, settings: str) -> Comparison:
        measures = {
            contestant: functools.partial(self._trigger, contestant, partitions, settings)
            for contestant in self._connectors
        }
        # Each figure is a median already; Spark's defaults are there for comparison only.
        return Comparison(
            trigger_case(partitions, settings), measures, self._rounds if settings == TUNED else 1
        )

    def _trigger(self, contestant: str, partitions: int, settings: str) -> Figures:
        with topic(self._broker, partitions) as name:
            done = self._children[contestant].ask(
                "triggers",
                source=SOURCES[contestant],
                options=self._options(subscribe=name, startingOffsets="earliest"),
                tuned=settings == TUNED,
                partitions=partitions,
                batches=6 if self._bench.is_quick else 24,
                records=TRIGGER_RECORDS,
                idle_seconds=1.0 if self._bench.is_quick else 3.0,
            )
        return {metric: done[key] for key, metric in TRIGGER_METRICS.items()}

    # ---- from a log file to a table

    def compare_logs(self) -> Comparison:
        size = QUICK_LOG_BYTES if self._bench.is_quick else LOG_BYTES
        path = self._bench.work_dir / "access.log"
        lines = material.write_log(path, size)
        measures: dict[str, Measure] = {
            contestant: functools.partial(self._log_to_table, contestant, path, lines)
            for contestant in self._connectors
        }
        return Comparison(LOG_CASE, _warmed(measures), self._rounds, 2 * size)

    def _log_to_table(self, contestant: str, path: Path, lines: int) -> Figures:
        megabytes = path.stat().st_size / 1e6
        with self._target(lines) as name:
            whole_seconds, own_seconds = self._ingest(path, name)
            done = self._children[contestant].ask(
                "read",
                source=SOURCES[contestant],
                options=self._options(subscribe=name),
                sink="parquet",
                rows=lines,
                columns=LOG_COLUMNS,
            )
        return {
            "ingest MB/s": megabytes / whole_seconds,
            "ingest MB/s, once started": megabytes / own_seconds,
            "topic to Parquet MB/s": megabytes / done["seconds"],
            END_TO_END: megabytes / (whole_seconds + done["seconds"]),
        }

    def _ingest(self, path: Path, name: str) -> tuple[float, float]:
        """Seconds of the whole process, and of its work alone."""
        state = self._bench.work_dir / f"ingest-{name}-{time.monotonic_ns()}"
        command = [str(Path(sys.executable).with_name("klamm")), "ingest", "tail", str(path), "--once"]
        command += ["--topic", name, "--bootstrap", material.bootstrap(self._broker)]
        command += ["--state", str(state), "--output", "json"]
        started = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INGEST_TIMEOUT_SECONDS, check=False
        )
        seconds = time.perf_counter() - started
        if done.returncode != 0:
            raise RuntimeError(f"klamm ingest failed: {done.stderr.strip()}")
        return seconds, json.loads(done.stdout)["seconds"]


def figures_of(done: dict[str, float], size: int) -> Figures:
    """CPU is that of the whole contestant, all its processes included; not that of the broker."""
    rows, seconds = done["rows"], done["seconds"]
    return {
        "rows/s": rows / seconds,
        "MB/s": rows * size / seconds / 1e6,
        "CPU µs/row": done["cpu_seconds"] / rows * 1e6,
    }


def _warmed(measures: dict[str, Measure]) -> dict[str, Measure]:
    """Each is run once before its first round."""
    return {contestant: _after_one(measure) for contestant, measure in measures.items()}


def _after_one(measure: Callable[[], Figures]) -> Measure:
    is_warm = False

    def measured() -> Figures:
        nonlocal is_warm
        if not is_warm:
            measure()
            is_warm = True
        return measure()

    return measured
