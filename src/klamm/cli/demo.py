"""`make demo`: three brokers with live topics to point a client at, and pipelines on Spark that read them.

The brokers are one cluster, run as `klamm up --brokers 3` does: one that dies is started again. Three topics
get new records all the time, and one consumer group commits more slowly than they arrive, so that it has
lag. The pipelines are the project of `klamm pipeline init` and one more, run by `klamm pipeline run` in a
process of its own, which shows their status; without Spark or Java that process says what is missing, and
the brokers run on. The data is in a temporary directory, which is deleted at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from klamm.cli.console import DEFAULT_HOST
from klamm.cli.console_child import choose_port, console_words, is_installed
from klamm.cli.pipelines.events import Event, click, order
from klamm.cli.pipelines.scaffold import make_project
from klamm.cli.supervisor import (
    CannotRun,
    RunningBroker,
    Supervisor,
    check_ports,
    plan_brokers,
    this_program,
)
from klamm.client.admin.types import NewTopic
from klamm.client.errors import ClientError
from klamm.client.plain.admin import Admin
from klamm.client.plain.producer import Producer
from klamm.pipelines.project import Project

BROKERS = 3
HOST = "127.0.0.1"
PREFERRED_PORT = 9092
REPLICAS = 3
FEWEST_IN_SYNC = 2
SETTINGS = {
    "default.replication.factor": REPLICAS,
    "min.insync.replicas": FEWEST_IN_SYNC,
    # Whoever tries a consumer sees its records at once.
    "group.initial.rebalance.delay.ms": 0,
}
PARTITIONS = 3
TICK_S = 0.2
LAGGING_GROUP = "demo-billing"
LAGGING_TOPIC = "orders"
COMMIT_EVERY_TICKS = 25
COMMIT_PATIENCE_S = 5.0
PROJECT = "shop"
LOG_FILE = "brokers.log"

STOP_PATIENCE_S = 12.0
"""How long the pipelines may take to stop; after that they are killed, as their data is deleted anyway."""

CLICKS = '''\
"""Clicks from a topic: how often each page was seen, every ten seconds."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from klamm.pipelines import pipeline, source, topic


@source(topic="clicks", schema="visitor STRING, page STRING, milliseconds INT, clicked_at TIMESTAMP")
def clicks(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("clicked_at", "1 minute")


@pipeline(to=topic("page-views", key="page"), mode="update", trigger="2 seconds")
def page_views(clicks: DataFrame) -> DataFrame:
    seen = clicks.groupBy(F.window("clicked_at", "10 seconds"), "page").agg(F.count("*").alias("views"))
    return seen.select(F.col("window.start").alias("since"), "page", "views")
'''


def _order(number: int, chance: random.Random) -> tuple[str, Event]:
    event = order(number, datetime.now(UTC), chance)
    return str(event["customer"]), event


def _click(number: int, chance: random.Random) -> tuple[str, Event]:
    event = click(number, datetime.now(UTC), chance)
    return str(event["visitor"]), event


def _reading(number: int, chance: random.Random) -> tuple[str, Event]:
    city = chance.choice(("Vienna", "Prague", "Graz", "Brno", "Linz"))
    return city, {"celsius": round(chance.gauss(12, 4), 1)}


TOPICS: Mapping[str, tuple[Callable[[int, random.Random], tuple[str, Event]], int]] = {
    "orders": (_order, 4),
    "clicks": (_click, 20),
    "temperatures": (_reading, 2),
}
"""Topic: (how to make a record, records a tick)."""

MADE_TOPICS = ("revenue", "page-views")
"""The topics that the pipelines write to."""


def main() -> int:
    stop = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="klamm-demo-") as folder:
        cluster = _Cluster(Path(folder), _choose_port())
        try:
            brokers = cluster.wait_until_ready(stop)
            if brokers:
                _run(brokers, Path(folder) / PROJECT, stop)
        except CannotRun as error:
            print(f"klamm: {error}", file=sys.stderr)
            return 1
        finally:
            cluster.stop()
    print("\nThe demo is over; its data is gone.", flush=True)
    return 0


def _choose_port() -> int:
    """The port of the first broker; 0 has each broker choose one."""
    try:
        check_ports(BROKERS, HOST, PREFERRED_PORT)
    except CannotRun:
        last = PREFERRED_PORT + BROKERS - 1
        print(f"Not all of the ports {PREFERRED_PORT} to {last} are free, so the demo uses others.")
        return 0
    return PREFERRED_PORT


class _Cluster:
    """The brokers' processes, watched by an event loop in a thread of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
        self._log_file = folder / LOG_FILE
        self._log = self._log_file.open("ab")
        self._supervisor = Supervisor(
            plan_brokers(BROKERS, HOST, port, folder, settings, this_program()),
            restarts=True,
            say=lambda line: print(line, flush=True),
            ready=self._note_brokers,
            log=self._log,
        )
        self._loop = asyncio.new_event_loop()
        self._brokers: Sequence[RunningBroker] = ()
        self._failure: CannotRun | None = None
        self._is_settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brokers")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._supervisor.run())
        except CannotRun as failure:
            self._failure = failure
        finally:
            self._is_settled.set()
            self._loop.close()
            self._log.close()

    def _note_brokers(self, brokers: Sequence[RunningBroker]) -> None:
        self._brokers = brokers
        self._is_settled.set()

    def wait_until_ready(self, stop: threading.Event) -> Sequence[RunningBroker]:
        """The brokers once they serve; none if the demo was stopped before. CannotRun if one ends at once."""
        while not self._is_settled.wait(TICK_S):
            if stop.is_set():
                return ()
        if self._failure is not None:
            said = self._log_file.read_text(errors="replace").strip().rpartition("\n")[2]
            raise CannotRun(f"{self._failure}: {said}") from self._failure
        return self._brokers

    def stop(self) -> None:
        """Stop the brokers one after the other."""
        with suppress(RuntimeError):  # the loop is closed: they have ended already
            self._loop.call_soon_threadsafe(self._supervisor.stop)
        self._thread.join()


def _run(brokers: Sequence[RunningBroker], project: Path, stop: threading.Event) -> None:
    """Create the topics, start the pipelines, and send events until the demo is stopped."""
    bootstrap = ",".join(broker.address for broker in brokers)
    make_demo_project(bootstrap, project)
    with Admin(bootstrap) as admin, Producer(bootstrap, acks="all") as producer:
        admin.create_topics([NewTopic(name, partitions=PARTITIONS) for name in (*TOPICS, *MADE_TOPICS)])
        feed = _Feed(admin, producer)
        feed.tick()
        console = _Console(bootstrap, project)
        _print_welcome(brokers, project, console.address)
        pipelines = _Pipelines(project)
        try:
            while not stop.wait(TICK_S):
                feed.tick()
                pipelines.look()
        finally:
            console.stop()
            pipelines.stop()


def make_demo_project(bootstrap: str, folder: Path) -> Project:
    """The project of `klamm pipeline init`, and one more pipeline."""
    make_project(folder, name=PROJECT, bootstrap=bootstrap, with_sample=False)
    (folder / "pipelines/clicks.py").write_text(CLICKS)
    return Project.load(folder)


class _Feed:
    """New records, tick by tick."""

    def __init__(self, admin: Admin, producer: Producer) -> None:
        self._admin = admin
        self._producer = producer
        self._chance = random.Random()
        self._ticks = 0

    def tick(self) -> None:
        for topic, (make, count) in TOPICS.items():
            for index in range(count):
                key, value = make(self._ticks * count + index, self._chance)
                self._producer.send(topic, json.dumps(value).encode(), key=key.encode())
        self._ticks += 1
        if self._ticks % COMMIT_EVERY_TICKS == 0:
            # Commit half of the new records: a partition gets about a third of a topic's records.
            offset = self._ticks * TOPICS[LAGGING_TOPIC][1] // (2 * PARTITIONS)
            offsets = {(LAGGING_TOPIC, number): offset for number in range(PARTITIONS)}
            with suppress(ClientError):  # too many brokers are down; the next commit will do
                self._admin.alter_group_offsets(LAGGING_GROUP, offsets, timeout=COMMIT_PATIENCE_S)


class _Pipelines:
    """Start `klamm pipeline run` in a process of its own, on this terminal. We pass Ctrl-C on to it."""

    def __init__(self, project: Path) -> None:
        program = "from klamm.cli.main import main; main()"
        words = [sys.executable, "-c", program, "pipeline", "run", "--project", str(project)]
        # In a new session, or Ctrl-C would reach it twice, and a second Ctrl-C kills it.
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        self._has_ended = False

    def look(self) -> None:
        """Print once that the pipelines have ended by themselves."""
        if not self._has_ended and self._process.poll() is not None:
            self._has_ended = True
            print(
                "The pipelines do not run; the brokers and their topics go on. Ctrl-C ends the demo.",
                flush=True,
            )

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)  # with the Java of Spark
                self._process.wait()


class _Console:
    """The web console in a process of its own. It ends with us: its standard input is a pipe from here."""

    def __init__(self, bootstrap: str, project: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.address = "not there: pip install 'klamm[console]'"
        if is_installed():
            port = choose_port(None)
            self.address = f"http://{DEFAULT_HOST}:{port}"
            self._process = subprocess.Popen(
                console_words(bootstrap, port, project),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _print_welcome(brokers: Sequence[RunningBroker], project: Path, console: str) -> None:
    python = Path(sys.executable)
    klamm = python.with_name("klamm")
    table = project / "tables/orders"
    bootstrap = brokers[0].address
    victim = brokers[-1]
    rows = "\n                ".join(
        f"{broker.id}  {broker.address}  process {broker.process_id}" for broker in brokers
    )
    print(
        f"""
Klamm is running: {BROKERS} brokers as one cluster.

  console       {console}
  brokers       {rows}
  topics        {", ".join(TOPICS)}   (new records arrive all the time)
                each has {REPLICAS} replicas, and min.insync.replicas={FEWEST_IN_SYNC}: any one broker may die
  group         {LAGGING_GROUP}   (reads {LAGGING_TOPIC}, and falls behind)
  log           {project.with_name(LOG_FILE)}

See the cluster, kill a broker, and see the others take over. It is started again, and catches up:

  {klamm} cluster status --bootstrap {bootstrap}
  kill -9 {victim.process_id}   # broker {victim.id}

Point any Kafka client at one of the brokers. For example, in Python:

  import klamm
  with klamm.Consumer("{bootstrap}", group="me", topics=["orders"], start="earliest") as consumer:
      for record in consumer:
          print(record.key, record.value)

or with kcat:   kcat -b {bootstrap} -t orders -C

Pipelines on Spark are starting; that takes a while. They are in {project}/pipelines:

  orders_table  orders, cleaned, in the Delta table {table}
  revenue       what each minute and item brought, to the topic revenue
  page_views    how often each page was seen, to the topic page-views
  bad orders    go to the topic {PROJECT}.dead-letters

When rows have come out, ask for them in another terminal:

  {python} -c "from deltalake import DeltaTable; print(DeltaTable('{table}').to_pyarrow_table().group_by('item').aggregate([('amount', 'sum')]).to_pylist())"
  {klamm} table history orders --project {project}
  {klamm} pipeline status --project {project}

Ctrl-C ends the demo.
""",  # noqa: E501 (a command to copy is one line)
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
