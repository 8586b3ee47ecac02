"""Fixtures for users' tests. pytest loads them automatically if Klamm is installed.

`klamm` is a broker for one test. `klamm_session` is one broker for the whole session, shared by all tests
that use it. Both are a `klamm.testing.Broker`. `klamm_cluster` is a `klamm.testing.Cluster` of three brokers
for one test. The marker `klamm_config` sets the configuration of `klamm` and of `klamm_cluster`:

    @pytest.mark.klamm_config({"auto.create.topics.enable": False})
    def test_orders(klamm): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from klamm.testing.broker import Broker
    from klamm.testing.cluster import Cluster


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
