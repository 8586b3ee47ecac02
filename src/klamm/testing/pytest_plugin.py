"""Fixtures for users' tests; pytest finds them by itself where Klamm is installed.

`klamm`: a broker of the test's own. `klamm_session`: one for the whole session, shared by all tests that
ask for it. Both are `klamm.testing.Broker`; settings come from the marker `klamm_config`:

    @pytest.mark.klamm_config({"auto.create.topics.enable": False})
    def test_orders(klamm): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from klamm.testing.broker import Broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "klamm_config(settings): broker settings, by Kafka's names, for the `klamm` fixture"
    )


@pytest.fixture
def klamm(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A real broker, for this test alone."""
    # Imported here: the plugin is loaded by every pytest run, also by those that want no broker.
    from klamm.testing.broker import Broker

    marker = request.node.get_closest_marker("klamm_config")
    with Broker(marker.args[0] if marker else None) as broker:
        yield broker


@pytest.fixture(scope="session")
def klamm_session() -> Iterator[Broker]:
    """A real broker, shared by the whole session: use topic names of your own."""
    from klamm.testing.broker import Broker

    with Broker() as broker:
        yield broker
