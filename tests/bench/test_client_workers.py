"""Every client that the bench compares goes through every task, in small, in a process of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from bench.python_clients import CLIENTS, CONFLUENT, PLAIN, WORKERS, addressed, figures_of, run_client
from bench.workers import finish_worker, start_worker, wait_until_ready

import klamm.testing
from bench import client_memory, client_round_trip
from tests.long import cases

pytestmark = pytest.mark.klamm_config({"num.partitions": 3})
RECORD_SIZE = 100
RECORD_COUNT = 10_000


def is_short(client: str) -> bool:
    return client in (PLAIN, CONFLUENT)


@pytest.fixture
def broker(klamm: klamm.testing.Broker) -> Any:
    """What the bench knows of a broker: where it listens."""
    return SimpleNamespace(port=int(klamm.bootstrap.rpartition(":")[2]))


@pytest.mark.parametrize("client", cases(CLIENTS, is_short))
def test_send_and_poll(broker: Any, client: str) -> None:
    limits = {"seconds": 30.0, "max_records": RECORD_COUNT}
    sent = run_client(client, "send", broker, "numbers", {"record_size": RECORD_SIZE, **limits})
    assert sent["records"] == RECORD_COUNT
    written = 2 * RECORD_COUNT  # with the warm-up
    polled = run_client(client, "poll", broker, "numbers", {"record_count": written, "seconds": 30.0})
    assert 0 <= polled["records"] < written, "what was there first is not counted"
    assert figures_of(sent, RECORD_SIZE)["records/s"] > 0


@pytest.mark.parametrize("client", cases(client_round_trip.CLIENTS, is_short))
def test_round_trip(broker: Any, client: str) -> None:
    took = run_client(client, "round_trip", broker, "numbers", {"record_size": RECORD_SIZE, "count": 50})
    assert took.keys() == client_round_trip.METRICS.keys()
    assert 0 < took["acknowledged_p50_us"] <= took["acknowledged_p99_us"]
    assert 0 < took["arrived_p50_us"] <= took["arrived_p99_us"]


@pytest.mark.parametrize("client", cases(client_memory.CLIENTS, is_short))
def test_feed(broker: Any, client: str) -> None:
    arguments = {"record_size": RECORD_SIZE, "seconds": 0.2, "buffer_bytes": client_memory.BUFFER_BYTES}
    worker = start_worker(WORKERS[client], "feed", {**addressed(broker, "numbers"), **arguments})
    wait_until_ready(worker)
    done = finish_worker(worker, 60.0)
    assert done["records"] > 0
    assert done["most_counted_mb"] <= client_memory.BUFFER_BYTES / 1e6
