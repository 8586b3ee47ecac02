"""What `klamm.testing` promises to users' tests."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import klamm
from klamm.config.loading import ConfigError
from klamm.node.broker import CannotStart
from klamm.testing import Broker
from klamm.testing.broker import MOST_OPEN_FILES
from tests.descriptors import open_below

pytest_plugins = ["pytester"]

START_CPU_LIMIT_S = 0.1


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def test_serves_a_real_client() -> None:
    with Broker() as broker:
        produce(broker.bootstrap, "greetings", [b"hello", b"again"])
        assert consume(broker.bootstrap, "greetings", 2) == [b"hello", b"again"]


def test_starts_with_under_a_tenth_of_a_second_of_processor_time() -> None:
    """The least of five starts, because threads of other tests count too. A busy machine changes little."""

    def start_cpu_s() -> float:
        broker = Broker()
        before = time.process_time()
        with broker:
            return time.process_time() - before

    assert min(start_cpu_s() for _ in range(5)) < START_CPU_LIMIT_S


def test_leaves_nothing_behind() -> None:
    threads = set(threading.enumerate())
    with Broker() as broker:
        data_dir, port = broker.data_dir, broker.port
        produce(broker.bootstrap, "gone", [b"soon"])
        assert (data_dir / "gone-0").is_dir()
    assert not data_dir.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    left = {thread.name for thread in set(threading.enumerate()) - threads}
    assert not [name for name in left if name.startswith("klamm")]


def test_keeps_a_directory_that_was_given(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        produce(broker.bootstrap, "kept", [b"one"])
    with Broker(data_dir=tmp_path) as broker:
        assert consume(broker.bootstrap, "kept", 1) == [b"one"]


def test_restart_carries_on_with_port_and_data() -> None:
    with Broker() as broker:
        produce(broker.bootstrap, "stays", [b"before"])
        port = broker.port
        broker.restart()
        assert broker.port == port
        produce(broker.bootstrap, "stays", [b"after"])
        assert consume(broker.bootstrap, "stays", 2) == [b"before", b"after"]


def test_several_brokers_in_one_process() -> None:
    with Broker() as first, Broker() as second:
        produce(first.bootstrap, "here", [b"1"] * 50)
        produce(second.bootstrap, "here", [b"2"] * 50)
        assert set(consume(first.bootstrap, "here", 50)) == {b"1"}
        assert set(consume(second.bootstrap, "here", 50)) == {b"2"}


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path), pytest.raises(CannotStart, match="in use"):
        Broker(data_dir=tmp_path).start()


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker({"num.partition": 3}).start()


def test_leaves_descriptors_to_the_test(tmp_path: Path) -> None:
    partitions = 400
    broker = Broker({"num.partitions": partitions}, data_dir=tmp_path)
    with broker, klamm.Producer(broker.bootstrap) as producer:
        for number in range(partitions):
            producer.send("wide", b"%d" % number, partition=number)
        producer.flush()
        assert MOST_OPEN_FILES <= open_below(tmp_path) < MOST_OPEN_FILES + 50
        with klamm.Consumer(broker.bootstrap, start="earliest") as consumer:
            consumer.assign([("wide", number) for number in range(partitions)])
            values = {record.value for record in itertools.islice(consumer, partitions)}
        assert values == {b"%d" % number for number in range(partitions)}


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket
        import pytest

        seen = []

        def connect(broker):
            host, port = broker.bootstrap.split(":")
            socket.create_connection((host, int(port)), timeout=5).close()

        def test_own(klamm):
            connect(klamm)
            seen.append(klamm)

        @pytest.mark.klamm_config({"num.partitions": 7})
        def test_another_of_its_own(klamm):
            assert klamm not in seen
            assert klamm.node.config["num.partitions"] == 7

        def test_shared(klamm_session):
            connect(klamm_session)
            seen.append(klamm_session)

        def test_still_shared(klamm_session):
            assert klamm_session in seen

        @pytest.mark.klamm_config({"num.partitions": 7})
        def test_cluster(klamm_cluster):
            for address in klamm_cluster.bootstrap.split(","):
                host, port = address.split(":")
                socket.create_connection((host, int(port)), timeout=5).close()
            assert klamm_cluster.broker(3).node.config["num.partitions"] == 7
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=5)
