from __future__ import annotations

import asyncio

import pytest

from klamm.server import connection as connection_module
from klamm.server.turns import ITERATION_LIMIT_S, Turns
from tests.server.fakes import fake_server, frame


async def test_one_in_line_goes_on_in_an_iteration() -> None:
    turns, gone_on = Turns(), []
    for name in "abc":
        turns.wait(0.0, lambda name=name: gone_on.append(name))
    for expected in (["a"], ["a", "b"], ["a", "b", "c"]):
        await asyncio.sleep(0)
        assert gone_on == expected


async def test_the_time_of_an_iteration_is_used_up_until_the_next_one() -> None:
    turns = Turns()
    turns.wait(ITERATION_LIMIT_S / 2, lambda: None)
    assert not turns.is_used_up
    turns.wait(ITERATION_LIMIT_S / 2, lambda: None)
    assert turns.is_used_up
    await asyncio.sleep(0)
    assert not turns.is_used_up


async def test_nothing_is_read_in_an_iteration_whose_time_is_used_up() -> None:
    async with fake_server() as server:
        server.client.send(frame(1, "e", b"x"))
        server.turns.wait(ITERATION_LIMIT_S, lambda: None)
        server.connection._on_readable()
        assert server.dispatcher.handled == []
        assert await server.receive() == (1, b"x")


async def test_a_connection_whose_request_took_long_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "LONG_S", 0.0)
    async with fake_server() as server:
        for _ in range(3):  # others are before it in line
            server.turns.wait(0.0, lambda: None)
        server.client.send(frame(1, "e", b"x"))
        server.connection._on_readable()
        assert server.dispatcher.handled == [b"ex"]
        server.client.send(frame(2, "e", b"y"))
        for _ in range(3):
            await asyncio.sleep(0)
            assert server.dispatcher.handled == [b"ex"]
        await server.until_handled(2)
