"""Every test of this folder abuses one broker, and then has to leave it whole: see `abused`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import BrokerProcess, raise_descriptor_limit
from tests.abuse.neighbour import Neighbour
from tests.abuse.stalls import Stalls

LONGEST_ROUND_TRIP_S = 20.0
"""For a produce and a fetch of the neighbour; long, because machines that run tests are busy."""

PEAK_GROWTH_BYTES = 200 * 1024 * 1024
"""How much more memory a broker may hold while it is abused than before."""


class Abused:
    """The broker under abuse. `allowed_growth_bytes` is what the test at hand may cost it at most."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.bootstrap = process.bootstrap
        self.allowed_growth_bytes = PEAK_GROWTH_BYTES

    def connect(self, timeout_s: float = 30.0) -> WireConnection:
        return WireConnection(self.bootstrap, client_id="abuser", timeout_s=timeout_s)


@pytest.fixture(scope="module")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    raise_descriptor_limit()
    directory: Path = tmp_path_factory.mktemp("abused")
    with BrokerProcess(directory / "data", directory / "broker.log") as process:
        yield process


@pytest.fixture(scope="module")
def stalls(tmp_path_factory: pytest.TempPathFactory) -> Stalls:
    """For a broker that is started under `watched_broker.py` with `stalls.file`."""
    file = tmp_path_factory.mktemp("stalls") / "stalls"
    file.touch()
    return Stalls(file)


@pytest.fixture(scope="module")
def neighbour(broker_process: BrokerProcess) -> Iterator[Neighbour]:
    """Whoever uses it has its records checked at the end, if the broker is still there then."""
    neighbour = Neighbour(broker_process.bootstrap)
    yield neighbour
    if broker_process.is_running:
        neighbour.check_all()


@pytest.fixture
def abused(broker_process: BrokerProcess, neighbour: Neighbour) -> Iterator[Abused]:
    """The broker, with a neighbour at work. Afterwards: the neighbour was served in time, nothing that was
    acknowledged is gone, memory stayed within bounds, and the log holds no failure of the broker's own."""
    broker = Abused(broker_process)
    broker_process.reset_peak()
    log_start = len(broker_process.log())
    before_bytes = broker_process.resident_bytes()
    with neighbour:
        yield broker
    assert broker_process.is_running, f"the broker died\n{broker_process.log()[-3000:]}"
    broker_process.check_log(log_start)
    assert neighbour.slowest_s < LONGEST_ROUND_TRIP_S, f"the neighbour waited {neighbour.slowest_s:.1f} s"
    growth_bytes = broker_process.peak_resident_bytes() - before_bytes
    assert growth_bytes < broker.allowed_growth_bytes, f"memory grew by {growth_bytes >> 20} MB"
    neighbour.check()
