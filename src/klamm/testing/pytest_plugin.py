"""Fixtures for users' tests. pytest loads them automatically if Klamm is installed.

`klamm` is a broker for one test. `klamm_session` is one broker for the whole session, shared by all tests
that use it. Both are a `klamm.testing.Broker`. `klamm_cluster` is a `klamm.testing.Cluster` of three brokers
for one test. `klamm_pipelines` makes a `klamm.testing.pipelines.PipelinesProject` of the folder of a project.
The marker `klamm_config` sets the configuration of `klamm` and of `klamm_cluster`:

    @pytest.mark.klamm_config({"auto.create.topics.enable": False})
    def test_orders(klamm): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from klamm.testing.broker import Broker
    from klamm.testing.cluster import Cluster
    from klamm.testing.pipelines import PipelinesProject


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "klamm_config(settings): broker settings, by Kafka's names, for the fixtures `klamm` and "
        "`klamm_cluster`",
    )


@pytest.fixture
def klamm(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A real broker for one test."""
    # Imported here, because pytest loads the plugin in every run, also without these fixtures.
    from klamm.testing.broker import Broker

    marker = request.node.get_closest_marker("klamm_config")
    with Broker(marker.args[0] if marker else None) as broker:
        yield broker


@pytest.fixture
def klamm_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three real brokers as one cluster, for one test."""
    from klamm.testing.cluster import Cluster

    marker = request.node.get_closest_marker("klamm_config")
    with Cluster(3, marker.args[0] if marker else None) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def klamm_session() -> Iterator[Broker]:
    """A real broker, shared by all tests of the session: give each test its own topic names."""
    from klamm.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def klamm_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session, shared by all tests of the run. Define a fixture of this name to use your own."""
    from klamm.testing.pipelines import make_session

    session, is_new = make_session(tmp_path_factory.mktemp("spark"))
    yield session
    if is_new:
        session.stop()


@pytest.fixture
def klamm_pipelines(
    klamm: Broker, klamm_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., PipelinesProject]]:
    """Makes projects in a test, by the folder of their klamm.toml: they share an empty broker and Spark."""
    from klamm.testing.pipelines import PipelinesProject, close_kept_clients

    def make(path: str | PathLike[str], *, partitions: int = 1) -> PipelinesProject:
        folder = tmp_path_factory.mktemp("project")
        return PipelinesProject(path, folder, klamm.bootstrap, klamm_spark, partitions=partitions)

    yield make
    close_kept_clients()
