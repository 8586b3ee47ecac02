"""`/livez` and `/readyz` of real brokers, also while they start and when their store is gone."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from klamm.config.loading import BrokerConfig
from klamm.config.rows import ConfigError
from klamm.coordination.engines import pause_thread
from klamm.node.broker import BrokerNode, CannotStart
from klamm.node.monitoring.health import Health
from klamm.testing import Broker, Cluster
from tests.metrics.scraping import HTTP, get, get_from, parse
from tests.waiting import until, wait_until


def test_a_broker_that_serves_is_alive_and_ready() -> None:
    with Broker(HTTP) as broker:
        assert get(broker, "/livez")[::2] == (200, "alive\n")
        assert get(broker, "/readyz")[::2] == (200, "ready\n")
        as_json = get(broker, "/readyz", Accept="application/json")
        assert as_json.content_type == "application/json" and json.loads(as_json.body) == {"status": "ready"}
        assert get(broker, "/").status == 404


def test_without_the_setting_nothing_is_served() -> None:
    with Broker() as broker:
        assert broker.node is not None and broker.node.monitoring is None


async def test_a_broker_that_starts_or_stops_says_so(tmp_path: Path) -> None:
    """The disk of this broker hangs while its logs are loaded: a file is a pipe that nobody writes."""
    pipe = tmp_path / "recovery-point-offset-checkpoint"
    os.mkfifo(pipe)
    node = BrokerNode(
        BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), **HTTP})
    )
    starting = asyncio.create_task(node.start())
    monitoring = node.monitoring
    assert monitoring is not None
    await until(lambda: "logs" in node.stage and monitoring.address)
    assert monitoring.address is not None
    for path, answer in (
        ("/livez", (200, "alive\n")),
        ("/readyz", (503, "the broker starts: it loads its logs\n")),
    ):
        got = await asyncio.to_thread(get_from, monitoring.address, path)
        assert (got.status, got.body) == answer
    early = parse((await asyncio.to_thread(get_from, monitoring.address, "/metrics")).body)
    assert early.value("process_resident_memory_bytes") > 0
    assert "kafka_server_replicamanager_leadercount" not in early.types
    await asyncio.to_thread(pipe.write_text, "0\n0\n")
    await starting
    assert (await asyncio.to_thread(get_from, monitoring.address, "/readyz")).status == 200
    pipe.unlink()
    stopping = asyncio.create_task(node.stop())
    await asyncio.sleep(0)
    assert await Health(node).why_not_ready() == "the broker stops"
    await stopping


def test_a_broker_whose_store_hangs_is_alive_and_not_ready() -> None:
    with Broker(HTTP) as broker:
        assert broker.node is not None
        goes_on = threading.Event()
        pause_thread(broker.node.store, goes_on.wait)
        try:
            got = wait_until(
                lambda: (answer := get(broker, "/readyz")).status == 503 and answer, "it is not ready"
            )
            assert got.body == "the coordination store has not answered within 2 s\n"
            assert get(broker, "/livez").status == 200
        finally:
            goes_on.set()
        wait_until(lambda: get(broker, "/readyz").status == 200, "it is ready again")


def test_a_broker_that_the_cluster_took_for_dead_is_not_ready() -> None:
    with Cluster(1, HTTP) as cluster:
        broker = cluster.broker(1)
        assert get(broker, "/readyz").status == 200
        assert broker.node is not None and broker.node.membership is not None
        broker.node.membership.broker_epoch = None
        got = get(broker, "/readyz", Accept="application/json")
        assert got.status == 503 and "not registered" in json.loads(got.body)["reason"]


def test_an_address_that_is_taken_is_named_with_its_option(tmp_path: Path) -> None:
    with Broker(HTTP) as other:
        assert other.node is not None and other.node.monitoring is not None
        taken = other.node.monitoring.address
        assert taken is not None
        with pytest.raises(CannotStart, match="--http-port"):
            Broker({"klamm.http.listener": taken}, data_dir=tmp_path).start()


@pytest.mark.parametrize("address", ["9404", ":9404", "PLAINTEXT://a:1", "a:b", "a:65536", "::1:9404"])
def test_addresses_that_are_not_valid(address: str) -> None:
    with pytest.raises(ConfigError, match=r"klamm\.http\.listener"):
        BrokerConfig({"klamm.http.listener": address})


def test_an_address_of_ipv6() -> None:
    listener = BrokerConfig({"klamm.http.listener": "[::1]:9404"}).http_listener
    assert listener is not None and (listener.host, listener.port) == ("::1", 9404)
