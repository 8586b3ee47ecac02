"""The proxy does what it is told: a fault that does not happen proves nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k03_metadata import MetadataRequest
from klamm.testing.wire import WireConnection
from tests.client.faults.plans import cut, now_and_then
from tests.client.faults.proxy import (
    CUT,
    PASS,
    SWALLOW,
    Answer,
    FaultProxy,
    Verdict,
    cut_in_the_middle,
    pass_all,
)
from tests.client.faults.stands import InProcessStand, connect
from tests.client.leaks import nothing_leaks

SHORT_S = 0.3


@pytest.fixture
def stand() -> Iterator[InProcessStand]:
    with FaultProxy() as proxy:
        stand = InProcessStand(proxy)
        yield stand
        stand.close()


def client(stand: InProcessStand) -> WireConnection:
    return WireConnection(stand.proxy.bootstrap, timeout_s=SHORT_S)


def test_it_is_advertised_to_its_own_clients_only(stand: InProcessStand) -> None:
    with client(stand) as connection, connect(stand) as checker:
        through = connection.call(MetadataRequest(topics=[])).brokers[0]
        past = checker.call(MetadataRequest(topics=[])).brokers[0]
    assert f"{through.host}:{through.port}" == stand.proxy.bootstrap
    assert f"{past.host}:{past.port}" == stand.direct


def test_it_knows_which_answer_is_which(stand: InProcessStand) -> None:
    seen: list[Answer] = []

    def plan(answer: Answer) -> Verdict:
        seen.append(answer)
        return PASS

    stand.proxy.plan = plan
    for _ in range(2):
        with client(stand) as connection:
            for version in (11, 12):
                connection.call(MetadataRequest(topics=[]), version)
    assert [(one.connection, one.number, one.api_key, one.version) for one in seen] == [
        (connection, number, ApiKey.METADATA, 11 + number)
        for connection, number in itertools.product(range(2), range(2))
    ]


def test_cut_swallowed_and_halved_answers(stand: InProcessStand) -> None:
    stand.proxy.plan = lambda answer: CUT
    with client(stand) as connection, pytest.raises(ConnectionError):
        connection.call(MetadataRequest(topics=[]))
    stand.proxy.plan = lambda answer: SWALLOW
    with client(stand) as connection, pytest.raises(TimeoutError):
        connection.call(MetadataRequest(topics=[]))
    stand.proxy.plan = cut_in_the_middle
    with client(stand) as connection:
        connection.send(MetadataRequest(topics=[]))
        received = connection.socket.recv(10_000)
        assert received and connection.socket.recv(10_000) == b""
    stand.proxy.plan = pass_all
    with client(stand) as connection:
        connection.send(MetadataRequest(topics=[]))
        assert len(connection.socket.recv(10_000)) in (2 * len(received), 2 * len(received) + 1)
    assert stand.proxy.harmed_count == 3


def test_delays_pauses_and_refusals(stand: InProcessStand) -> None:
    stand.proxy.plan = lambda answer: Verdict(delay_s=0.1)
    started = time.monotonic()
    with client(stand) as connection:
        connection.call(MetadataRequest(topics=[]))
        assert time.monotonic() - started >= 0.1
        stand.proxy.plan = pass_all
        with stand.proxy.paused():
            connection.send(MetadataRequest(topics=[]))
            with pytest.raises(TimeoutError):
                connection.receive()
        assert connection.receive().brokers
        with stand.proxy.refusing():
            with pytest.raises(ConnectionError):
                connection.call(MetadataRequest(topics=[]))
            with pytest.raises(ConnectionRefusedError):
                client(stand)
    with client(stand) as connection:
        assert connection.call(MetadataRequest(topics=[])).brokers
        stand.proxy.cut_connections()
        with pytest.raises(ConnectionError):
            connection.call(MetadataRequest(topics=[]))


def test_a_slow_line(stand: InProcessStand) -> None:
    stand.proxy.request_bytes_per_second = 200
    started = time.monotonic()
    with client(stand) as connection:
        connection.socket.settimeout(30)
        connection.call(MetadataRequest(topics=[]))
    assert time.monotonic() - started > 0.05


def test_a_restarted_broker_is_found_again(stand: InProcessStand) -> None:
    with client(stand) as connection:
        stand.restart()
        with pytest.raises(ConnectionError):
            connection.call(MetadataRequest(topics=[]))
    with client(stand) as connection:
        assert connection.call(MetadataRequest(topics=[])).brokers


def test_plans_decide_by_their_seed() -> None:
    def decisions(seed: int) -> list[bool]:
        plan = now_and_then(seed, 10, cut)
        return [
            plan(Answer(connection, number, 3, 12, b"")) is PASS
            for connection, number in itertools.product(range(10), range(50))
        ]

    assert decisions(1) == decisions(1) != decisions(2)
    assert 20 <= decisions(1).count(False) <= 80


def test_connections_that_end_leave_nothing_in_the_proxy(stand: InProcessStand) -> None:
    with nothing_leaks():
        for plan in (pass_all, lambda answer: CUT, cut_in_the_middle):
            stand.proxy.plan = plan
            with client(stand) as connection:
                try:
                    connection.call(MetadataRequest(topics=[]))
                except ConnectionError:
                    assert plan is not pass_all


def test_a_leak_is_seen() -> None:
    """The check that all the others end with can fail."""
    with FaultProxy(target="127.0.0.1:1") as proxy:
        leaked: list[WireConnection] = []
        with pytest.raises(AssertionError, match="sockets"), nothing_leaks(patience_s=SHORT_S):
            leaked.append(WireConnection(proxy.bootstrap))
        leaked[0].close()
