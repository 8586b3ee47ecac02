"""A project on a cluster of two workers that share no folder, with tables and checkpoints in real stores:
executors die in the middle of a batch, the driver dies and goes on from another folder, and each row is in
the tables once, whoever looks and whenever."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.cli.commands import KLAMM, clean_environment
from tests.conftest import cannot_run
from tests.peers.hdfs import Hdfs
from tests.peers.kafka_jars import PeerMissing
from tests.peers.s3_server import S3Server
from tests.pipelines.reading import complaint
from tests.pipelines.running import Shop
from tests.pipelines.standalone import StandaloneCluster, bare_python
from tests.pipelines.striking_daemon import MOMENTS
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

BATCH_S = 240.0
"""A batch, on a busy machine: it may have to wait for an executor that unpacks its packages."""

PIPELINES = """
from pyspark.sql import functions as F

@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 20})
def orders(rows):
    return rows.withWatermark("_timestamp", "1 day")

@pipeline(to=to_table("plain"))
def plain(orders):
    twice = F.udf(lambda n: n * 2, "BIGINT")
    return orders.withColumn("twice", twice("n"))

@pipeline(to=to_table("distinct"))
def distinct(orders):
    return orders.dropDuplicatesWithinWatermark(["n"])
"""

SETTINGS = """
packages = "send"
spark.executor.memory = "512m"
spark.executor.cores = 1
spark.driver.host = "127.0.0.1"
spark.sql.shuffle.partitions = 2
spark.python.daemon.module = "striking_daemon"
spark.executorEnv.STRIKES = "{strikes}"
"""


class Stores(NamedTuple):
    """Where tables and checkpoints lie, and the options of the tables' store."""

    tables: str
    checkpoints: str
    options: Mapping[str, str]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    try:
        server = Hdfs(tmp_path_factory.mktemp("hdfs"))
    except PeerMissing as problem:
        cannot_run(problem)
    with server:
        yield server


@pytest.fixture(params=["s3", "hdfs"])
def stores(
    request: pytest.FixtureRequest, hdfs: Hdfs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stores]:
    checkpoints = f"{hdfs.uri}/{request.param}/checkpoints"
    if request.param == "hdfs":
        yield Stores(f"{hdfs.uri}/tables", checkpoints, {})
        return
    try:
        server = S3Server(tmp_path_factory.mktemp("s3"))
    except PeerMissing as problem:
        cannot_run(problem)
    with server:
        yield Stores("s3://bucket/tables", checkpoints, server.options)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster", bare_python(tmp_path / "python")) as started:
        yield started


class Driver:
    """`klamm pipeline run` in a folder, in a process of its own with its JVM."""

    def __init__(self, folder: Path, master: str, *options: str) -> None:
        self._log = folder / "run.log"
        with self._log.open("w") as output:
            self.process = subprocess.Popen(
                [KLAMM, "pipeline", "run", "--master", master, *options],
                cwd=folder,
                env=clean_environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self) -> str:
        spark = list(self._log.parent.glob(".klamm/logs/*.log"))
        return "\n".join(file.read_text()[-3000:] for file in (*spark, self._log))

    def kill(self) -> None:
        """Kill it with its JVM and all else that it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Reader(threading.Thread):
    """Reads a table again and again while it is written; `complaints` is empty if all was well."""

    def __init__(self, location: str, options: Mapping[str, str], shop: Shop) -> None:
        super().__init__(daemon=True)
        self._location, self._options, self._shop = location, dict(options), shop
        self._ended = threading.Event()
        self.numbers: list[int] = []
        self.complaints: list[str] = []
        self.reads = 0

    def read(self) -> list[int]:
        try:
            table = DeltaTable(self._location, storage_options=self._options)
        except TableNotFoundError:
            return []
        return [int(n) for n in table.to_pyarrow_table(columns=["n"])["n"].to_pylist()]

    def run(self) -> None:
        while not self._ended.wait(0.3):
            try:
                found = self.read()
            except Exception as error:  # each is a failure of the table
                self.complaints.append(f"{type(error).__name__}: {error}")
                continue
            self.reads += 1
            missing = set(self.numbers) - set(found)
            if problem := complaint(found, 0, self._shop.sent) or (missing and f"rows gone: {missing}"):
                self.complaints.append(str(problem))
            self.numbers = found

    def stop(self) -> None:
        self._ended.set()
        self.join(60)


@contextmanager
def reading(shop: Shop, stores: Stores) -> Iterator[dict[str, Reader]]:
    readers = {
        name: Reader(f"{stores.tables}/{name}", stores.options, shop) for name in ("plain", "distinct")
    }
    for reader in readers.values():
        reader.start()
    try:
        yield readers
    finally:
        for reader in readers.values():
            reader.stop()


def test_executors_and_drivers_die_and_each_row_is_there_once(
    cluster: StandaloneCluster, stores: Stores, klamm_bootstrap: str, tmp_path: Path
) -> None:
    strikes = tmp_path / "strikes"
    strikes.mkdir()
    places = f'{stores.tables}"\ncheckpoints = "{stores.checkpoints}'
    settings = SETTINGS.replace("{strikes}", str(strikes))
    shop = Shop(
        tmp_path / "here", klamm_bootstrap, PIPELINES, spark=settings, tables=places, storage=stores.options
    )
    with ExitStack() as stack:
        readers = stack.enter_context(reading(shop, stores))

        def all_there() -> bool:
            assert driver.process.poll() is None, driver.log()
            return all(len(reader.numbers) == shop.sent for reader in readers.values())

        def until_all_there() -> None:
            wait_until(all_there, driver.log, BATCH_S)

        shop.send(40)
        driver = Driver(shop.root, cluster.master)
        stack.callback(driver.process.kill)
        until_all_there()
        moments = MOMENTS[::2] if stores.options else MOMENTS[1::2]  # so that no test takes too long
        for moment in moments:
            (strikes / moment).touch()
            shop.send(20)
            until_all_there()
            assert not (strikes / moment).exists(), moment
        shop.send(20)
        cluster.kill_executor()
        until_all_there()

        # The driver dies between two batches, or in one; another one goes on, in another folder.
        shop.send(60)
        wait_until(lambda: len(readers["plain"].numbers) > shop.sent - 60, driver.log, BATCH_S)
        driver.kill()
        moved = tmp_path / "there"
        shutil.copytree(shop.root, moved, ignore=shutil.ignore_patterns(".klamm", "run.log"))
        shop.send_raw(json.dumps({"n": n}).encode() for n in range(30))  # a second time
        driver = Driver(moved, cluster.master, "--once")
        assert driver.process.wait(BATCH_S) == 0, driver.log()
        found = {name: reader.read() for name, reader in readers.items()}
    assert sorted(found["distinct"]) == list(range(shop.sent)), "the state of before is known"
    assert sorted(found["plain"]) == sorted([*range(shop.sent), *range(30)])
    # Those thirty are twice in the topic, and so in the plain table.
    assert readers["distinct"].complaints == [] and readers["distinct"].reads
    assert {each for each in readers["plain"].complaints if "twice" not in each} == set()
    folders = [len(cluster.executor_folders(worker)) for worker in range(2)]
    assert min(folders) >= 2 and sum(folders) >= len(moments) + 5, folders
