"""One ZooKeeper for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coordination.engines import start_zookeeper
from tests.peers.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with start_zookeeper() as zookeeper:
        yield zookeeper
