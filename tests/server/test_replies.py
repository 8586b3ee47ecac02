"""Replies are completed by anybody, at any time and in any order."""

from __future__ import annotations

import asyncio
import gc

import pytest

from klamm.apis.registry import CloseConnection
from klamm.server import work as work_module
from klamm.server.connection import Connection
from klamm.server.replies import ReplyInLine
from tests.server.fakes import FakeServer, eventually, fake_server, frame


async def parked(server: FakeServer, count: int) -> list[ReplyInLine]:
    """So many requests whose replies are open."""
    await server.send(b"".join(frame(number, "p") for number in range(count)))
    await server.until_handled(count)
    return [server.dispatcher.parked[number] for number in range(count)]


async def test_only_the_first_answer_counts() -> None:
    async with fake_server() as server:
        reply, other = await parked(server, 2)
        reply.complete(b"first")
        reply.complete(b"second")
        reply.fail(RuntimeError("too late"))
        assert not reply.is_open and reply.on_drop is None
        other.complete(b"other")
        assert [await server.receive() for _ in range(2)] == [(0, b"first"), (1, b"other")]


async def test_an_encoded_answer_is_sent_as_it_is() -> None:
    async with fake_server() as server:
        (reply,) = await parked(server, 1)
        reply.complete_encoded([b"\0\0\0\x06\0\0\0\0", b"ab"])
        assert await server.receive() == (0, b"ab")


async def test_answers_of_one_iteration_of_the_loop_are_sent_together() -> None:
    """Whoever completes many replies is not interrupted by sockets, and each connection sends once."""
    async with fake_server() as server:
        replies = await parked(server, 100)
        for reply in replies:
            reply.complete(b"x")
        with pytest.raises(BlockingIOError):
            server.client.recv(1)
        await eventually(lambda: not server.connection._line)
        await asyncio.sleep(0)
        assert len(server.client.recv(10_000)) == 100 * 9


async def test_a_failed_reply_lets_earlier_answers_leave_first() -> None:
    async with fake_server() as server:
        replies = await parked(server, 3)
        replies[0].complete(b"fine")
        replies[1].fail(CloseConnection("as told"))
        assert await server.receive() == (0, b"fine")
        assert await server.is_hung_up()
        assert server.dispatcher.dropped == [1, 2]
        assert not any(reply.is_open for reply in replies)


async def test_those_who_wait_are_told_when_the_connection_closes() -> None:
    async with fake_server() as server:
        replies = await parked(server, 3)
        replies[1].complete(b"done")
        server.connection.close()
        assert server.dispatcher.dropped == [0, 2]
        for reply in replies:
            reply.complete(b"dropped")
            reply.complete_encoded([b"dropped"])
            reply.fail(RuntimeError("dropped"))
            assert reply.reserve_files(1) == 0


async def test_files_are_reserved_until_there_is_an_answer() -> None:
    async with fake_server() as server:
        first, second, third = await parked(server, 3)
        left = server.unsent.files_left
        assert first.reserve_files(7) == 7
        assert first.reserve_files(7) == 7, "an answer that is tried again keeps what it has"
        assert first.reserve_files(9) == 9
        assert second.reserve_files(4) == 4
        assert server.unsent.files_left == left - 13
        second.complete(b"")
        assert server.unsent.files_left == left - 9
        third.reserve_files(5)
        server.connection.close()
        assert server.unsent.files_left == left


async def test_a_large_request_holds_its_connection_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_module, "LONGEST_RUN_S", 0.0)
    async with fake_server() as server:
        await server.send(frame(1, "P", bytes(2_000_000)) + frame(2, "e", b"next"))
        await server.until_handled(1)
        await server.let_it_read()
        assert [each[:1] for each in server.dispatcher.handled] == [b"P"]
        assert server.connection._large is None, "the frame is not needed any longer"
        server.dispatcher.parked[1].complete(b"large")
        assert [await server.receive() for _ in range(2)] == [(1, b"large"), (2, b"next")]


async def test_steps_may_have_their_reply_completed_before_they_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_module, "LONGEST_RUN_S", 0.0)
    async with fake_server() as server:
        await server.send(frame(1, "C", bytes(2_000_000)) + frame(2, "e", b"next"))
        assert len((await server.receive())[1]) == 2_000_000
        assert await server.receive() == (2, b"next")
        await eventually(lambda: server.connection._large is None)
        assert (server.connection._line.hold_count, server.connection._line.job_count) == (0, 0)


async def test_a_frame_in_a_large_buffer_is_given_back_after_the_steps_of_a_small_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_module, "LONGEST_RUN_S", 0.0)
    async with fake_server(limit_bytes=3_000_000) as server:
        for number in range(5):
            await server.send(frame(number, "g", bytes(2_000_000)))
            assert len((await server.receive())[1]) == 2_000_000
        await eventually(lambda: server.connection._large is None)


async def test_an_answer_that_comes_later_may_be_made_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "LONGEST_RUN_S", 0.0)
    async with fake_server() as server:
        first, second = await parked(server, 2)
        second.complete(server.dispatcher._in_steps(b"second"))
        first.complete(server.dispatcher._in_steps(b"first"))
        await server.send(frame(2, "e", b"third"))
        assert [await server.receive() for _ in range(3)] == [(0, b"first"), (1, b"second"), (2, b"third")]
        assert (server.connection._line.hold_count, server.connection._line.job_count) == (0, 0)


async def test_a_closed_connection_is_freed_without_a_collection() -> None:
    server = FakeServer()
    await parked(server, 2)
    server.dispatcher.parked.clear()
    gone = id(server.connection)
    server.client.close()
    server.connection.close()
    server.forgotten.clear()
    gc.disable()
    try:
        del server.connection
        await asyncio.sleep(0)
        assert not [each for each in gc.get_objects() if isinstance(each, Connection) and id(each) == gone]
    finally:
        gc.enable()


@pytest.mark.parametrize("letter", ["p", "g", "s"])
async def test_a_reply_that_is_over_is_freed_without_a_collection(letter: str) -> None:
    others = {id(each) for each in gc.get_objects() if isinstance(each, ReplyInLine)}
    async with fake_server() as server:
        gc.disable()
        await server.send(frame(1, letter, b"x"))
        await server.until_handled(1)
        if letter == "p":
            server.dispatcher.parked.pop(1).complete(b"x")
        if letter == "s":
            server.dispatcher.serial_gates[1].set()
        try:
            assert await server.receive() == (1, b"x")
            await server.let_it_read()
            replies = [each for each in gc.get_objects() if isinstance(each, ReplyInLine)]
            # Brokers of other tests in this process have open ones meanwhile.
            assert not [each for each in replies if id(each) not in others and not each.is_open]
        finally:
            gc.enable()
