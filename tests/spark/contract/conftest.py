"""Each test of the suite runs for both connectors, on both brokers.

`make test` runs all of them for our connector on Klamm. `make test-long` runs the rest.

What the brokers have no part in runs on Klamm alone, and our connector under its other name, which is the
same code behind another class, only once for each kind of use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm
from tests.client.topics import make_topic
from tests.conftest import SPARK_SETTINGS, cannot_run
from tests.peers.kafka_jars import PeerMissing, find_connector_jars
from tests.spark.contract.connectors import Connector, OfficialProcess, in_session

HEADERS = [("trace", b"1"), ("trace", b"2")]


@dataclass(frozen=True)
class Place:
    """A connector, and the broker it talks to."""

    connector: Connector
    bootstrap: str
    numbers: str
    """A topic of two partitions. Partition 0 has the values 0 to 9, at 1,000 ms and so on, 1 has 10 to 14."""

    def options(self, **given: object) -> dict[str, str]:
        named = {name.replace("__", "."): str(value) for name, value in given.items()}
        return {"kafka.bootstrap.servers": self.bootstrap, **named}


ON_KLAMM = ("klamm-on-klamm", "official-on-klamm")
ON_APACHE = ("klamm-on-apache", "official-on-apache")
ALIAS = "kafka-on-klamm"
BROKERS = {"klamm": "klamm_bootstrap", "apache": "apache_kafka"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and isinstance(item, pytest.Function):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            place = parameters.get("place", "klamm-on-klamm")
            needs_others = parameters.get("broker") == "apache_kafka" or "official" in item.fixturenames
            if place != ON_KLAMM[0] or needs_others:
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connector]:
    try:
        jars = find_connector_jars()
    except PeerMissing as problem:
        cannot_run(problem)
    local = {"spark.local.dir": str(tmp_path_factory.mktemp("official"))}
    process = OfficialProcess(jars, SPARK_SETTINGS | local)
    yield Connector("official", "kafka", process.call)
    process.stop()


@pytest.fixture(scope="session")
def ours(spark: SparkSession) -> Connector:
    return Connector("klamm", "klamm", in_session(spark))


@pytest.fixture(scope="session")
def ours_as_kafka(spark: SparkSession) -> Connector:
    return Connector("kafka", "kafka", in_session(spark))


CONNECTORS = {"klamm": "ours", "kafka": "ours_as_kafka", "official": "official"}


@pytest.fixture(scope="session", params=[*ON_KLAMM, *ON_APACHE])
def place(request: pytest.FixtureRequest) -> Place:
    connector, broker = request.param.split("-on-")
    bootstrap = str(request.getfixturevalue(BROKERS[broker]))
    return Place(request.getfixturevalue(CONNECTORS[connector]), bootstrap, _numbers(bootstrap))


_made: dict[str, str] = {}


def _numbers(bootstrap: str) -> str:
    """The topic that all tests read, made once per broker."""
    if bootstrap not in _made:
        # These records are from 1970, which is more than a week ago.
        topic = make_topic(bootstrap, partitions=2, configs={"retention.ms": -1})
        with klamm.Producer(bootstrap) as producer:
            for number in range(15):
                producer.send(
                    topic,
                    b"%d" % number,
                    key=None if number == 3 else b"k%d" % number,
                    headers=HEADERS if number == 4 else None,
                    partition=number // 10,
                    timestamp=1000 * (number % 10 + 1),
                )
        _made[bootstrap] = topic
    return _made[bootstrap]


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
