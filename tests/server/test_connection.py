from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import socket
import struct
from pathlib import Path

import pytest
import uvloop

from klamm.server import connection as connection_module
from klamm.server import sending
from klamm.server import unsent as unsent_module
from klamm.server import work as work_module
from klamm.server.connection import MAX_REQUESTS_IN_FLIGHT, MAX_UNSENT_BYTES
from klamm.server.receiving import LARGE_FRAME_BYTES, SHARED_BUFFER_BYTES
from klamm.server.unsent import UnsentAnswers
from klamm.storage.segments.open_files import FileHandle
from klamm.storage.segments.segment import FileSlice
from tests.server.fakes import MAX_REQUEST_BYTES, eventually, fake_server, frame


async def test_answers_a_request() -> None:
    async with fake_server() as server:
        await server.send(frame(7, "e", b"hello"))
        assert await server.receive() == (7, b"hello")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with fake_server() as server:
        await server.send(b"".join(frame(number, "e", b"%d" % number) for number in range(500)))
        assert [await server.receive() for _ in range(500)] == [(n, b"%d" % n) for n in range(500)]


@pytest.mark.parametrize("piece_size", [1, 3, 7])
async def test_frames_may_arrive_in_any_pieces(piece_size: int) -> None:
    async with fake_server() as server:
        data = b"".join(frame(number, "e", b"x" * number) for number in range(20))
        for start in range(0, len(data), piece_size):
            await server.send(data[start : start + piece_size])
            await asyncio.sleep(0)
        assert [await server.receive() for _ in range(20)] == [(n, b"x" * n) for n in range(20)]


@pytest.mark.parametrize(
    "size",
    [LARGE_FRAME_BYTES - 10, LARGE_FRAME_BYTES, LARGE_FRAME_BYTES + 1, SHARED_BUFFER_BYTES, 3_000_000],
)
async def test_large_frames_among_small_ones(size: int) -> None:
    async with fake_server() as server:
        value = random.Random(size).randbytes(size)
        sending = asyncio.create_task(
            server.send(frame(1, "e", b"before") + frame(2, "e", value) + frame(3, "e", b"after"))
        )
        assert await server.receive() == (1, b"before")
        assert await server.receive() == (2, value)
        assert await server.receive() == (3, b"after")
        await sending


async def test_a_parked_response_holds_up_answers_but_not_handling() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "p") + frame(2, "e", b"second") + frame(3, "p") + frame(4, "e", b"fourth"))
        await server.until_handled(4)
        server.dispatcher.parked[3].complete(b"third")
        await server.let_it_read()
        with pytest.raises(BlockingIOError):
            server.client.recv(1)
        server.dispatcher.parked[1].complete(b"first")
        assert [await server.receive() for _ in range(4)] == [
            (1, b"first"),
            (2, b"second"),
            (3, b"third"),
            (4, b"fourth"),
        ]


async def test_a_serial_handler_holds_up_what_follows() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "s", b"first") + frame(2, "e", b"second"))
        await server.until_handled(1)
        await server.send(frame(3, "e", b"third"))
        await server.let_it_read()
        assert server.dispatcher.handled == [b"sfirst"]
        server.dispatcher.serial_gates[1].set()
        assert [await server.receive() for _ in range(3)] == [(1, b"first"), (2, b"second"), (3, b"third")]


async def test_a_stop_closes_a_serial_handler_that_has_not_begun() -> None:
    """Else Python says of it, somewhere and later: coroutine 'handle' was never awaited."""
    async with fake_server() as server:
        handler = server.dispatcher._serve_serially(1, b"")
        server.dispatcher._answer = lambda *_: handler
        server.connection._handle(memoryview(frame(1, "s")[4:]))  # its task has not begun yet
        server.connection.abandon()
        await eventually(lambda: inspect.getcoroutinestate(handler) == inspect.CORO_CLOSED)


async def test_requests_without_an_answer_leave_no_gap() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "n") + frame(2, "p") + frame(3, "n") + frame(4, "e", b"x"))
        await server.until_handled(4)
        server.dispatcher.parked[2].complete(b"y")
        assert [await server.receive(), await server.receive()] == [(2, b"y"), (4, b"x")]


async def test_no_more_requests_wait_than_the_limit() -> None:
    async with fake_server() as server:
        extra = 50
        requests = [frame(number, "p") for number in range(MAX_REQUESTS_IN_FLIGHT + extra)]
        await server.send(b"".join(requests))
        await server.until_handled(MAX_REQUESTS_IN_FLIGHT)
        await server.let_it_read()
        assert len(server.dispatcher.handled) == MAX_REQUESTS_IN_FLIGHT
        for number in range(MAX_REQUESTS_IN_FLIGHT):
            server.dispatcher.parked[number].complete(b"%d" % number)
        await server.until_handled(MAX_REQUESTS_IN_FLIGHT + extra)
        for number in range(MAX_REQUESTS_IN_FLIGHT):
            assert await server.receive() == (number, b"%d" % number)


async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    async with fake_server() as server:
        size = 1_000_000
        count = 3 * MAX_UNSENT_BYTES // size
        await server.send(b"".join(frame(number, "z", b"%d" % size) for number in range(count)))
        await server.let_it_read()
        handled = len(server.dispatcher.handled)
        assert handled <= MAX_UNSENT_BYTES // size + 2
        for number in range(count):
            assert await server.receive() == (number, bytes(size))


async def test_frames_held_up_are_handled_when_the_answers_left_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing more comes from the socket, so nothing but the connection itself can remember them."""
    monkeypatch.setattr(connection_module, "MAX_UNSENT_BYTES", 100)
    async with fake_server() as server:
        await server.send(b"".join(frame(number, "z", b"200") for number in range(10)))
        assert [await server.receive() for _ in range(10)] == [(number, bytes(200)) for number in range(10)]


async def test_answers_that_wait_for_an_earlier_one_count_as_unsent() -> None:
    async with fake_server() as server:
        size = 1_000_000
        count = 3 * MAX_UNSENT_BYTES // size
        requests = [frame(0, "p")] + [frame(number, "z", b"%d" % size) for number in range(1, count)]
        await server.send(b"".join(requests))
        await server.let_it_read()
        assert len(server.dispatcher.handled) <= MAX_UNSENT_BYTES // size + 3
        server.dispatcher.parked[0].complete(b"")
        assert await server.receive() == (0, b"")
        for number in range(1, count):
            assert await server.receive() == (number, bytes(size))


@pytest.mark.parametrize("size", [-1, -(2**31), MAX_REQUEST_BYTES + 1, 2**31 - 1])
async def test_an_impossible_length_ends_the_connection(size: int) -> None:
    async with fake_server() as server:
        await server.send(struct.pack(">i", size) + b"x")
        assert await server.is_hung_up()
        assert server.forgotten == [server.connection]


@pytest.mark.parametrize("letter", ["m", "c"])
async def test_what_was_answered_before_a_fault_is_still_sent(letter: str) -> None:
    async with fake_server() as server:
        await server.send(frame(1, "e", b"fine") + frame(2, letter))
        assert await server.receive() == (1, b"fine")
        assert await server.is_hung_up()


@pytest.mark.parametrize("letter", ["x", "u"])
async def test_a_fault_of_ours_is_logged_and_ends_the_connection(
    letter: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_server() as server:
        with caplog.at_level(logging.ERROR):
            await server.send(frame(1, letter))
            assert await server.is_hung_up()
        assert any(record.exc_info for record in caplog.records)


async def test_a_late_answer_that_cannot_be_encoded_ends_the_connection() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "p"))
        await server.until_handled(1)
        server.dispatcher.parked[1].complete(object())
        assert await server.is_hung_up()


async def test_a_parked_request_that_fails_ends_the_connection() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "p"))
        await server.until_handled(1)
        server.dispatcher.parked[1].fail(RuntimeError("as told"))
        assert await server.is_hung_up()


async def test_a_client_that_leaves_abandons_its_parked_requests() -> None:
    async with fake_server() as server:
        closed = asyncio.Event()
        server.connection.on_close(closed.set)
        await server.send(frame(1, "p"))
        await server.until_handled(1)
        server.client.close()
        await asyncio.wait_for(closed.wait(), 10)
        assert server.dispatcher.dropped == [1]
        assert not server.dispatcher.parked[1].is_open
        server.dispatcher.parked[1].complete(b"too late")
        assert server.connection.is_closed


async def test_a_serial_handler_finishes_though_its_client_is_gone() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "s"))
        await server.until_handled(1)
        server.connection.close()
        server.dispatcher.serial_gates[1].set()
        await eventually(lambda: server.dispatcher.serial_done)


async def test_half_closing_ends_the_connection_after_the_answers() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "e", b"last words"))
        server.client.shutdown(socket.SHUT_WR)
        assert await server.receive() == (1, b"last words")
        assert await server.is_hung_up()


async def test_announcing_much_costs_nothing_to_others() -> None:
    """The limit counts bytes that came, so an announcement alone does not use it up."""
    async with fake_server(limit_bytes=2_000_000) as server:
        announced = struct.pack(">i", MAX_REQUEST_BYTES)
        await server.send(announced + b"x" * 10)
        await server.let_it_read()
        server.large_buffers.count_received(1_900_000)
        server.large_buffers.give_back(server.large_buffers.take(1_900_000), 1_900_000)


async def test_large_frames_beyond_the_limit_end_their_connection() -> None:
    async with fake_server(limit_bytes=1_000_000) as server:
        sending = asyncio.create_task(server.send(frame(1, "e", bytes(2_000_000))))
        assert await server.is_hung_up()
        await asyncio.gather(sending, return_exceptions=True)
        # All that it had counted is free again.
        server.large_buffers.count_received(1_000_000)


async def test_nothing_is_left_of_a_frame_whose_client_left() -> None:
    async with fake_server(limit_bytes=1_000_000) as server:
        await server.send(struct.pack(">i", 900_000) + bytes(100_000))
        await server.let_it_read()
        server.client.close()
        await eventually(lambda: server.connection.is_closed)
        server.large_buffers.count_received(1_000_000)


class ColdFile:
    """A file that is answered with, and whose pages leave the page cache when the test says so."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.content = random.Random(1).randbytes(3_000_000)
        path.write_bytes(self.content)
        self.slice = FileSlice(FileHandle(str(path)), 0, len(self.content), None)
        self.is_cold = False
        monkeypatch.setattr(sending, "is_resident", lambda *_: not self.is_cold)


async def test_a_slow_client_s_range_is_brought_back_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "TRUSTED_S", 0)
    file = ColdFile(tmp_path / "segment", monkeypatch)
    async with fake_server() as server:
        server.dispatcher.file_slice = file.slice
        await server.send(frame(1, "f"))
        await server.until_handled(1)
        await server.let_it_read()
        file.is_cold = True
        received = await server.receive_available()
        await eventually(lambda: server.disk_reads == 1)
        await server.send(frame(2, "e", b"after"))
        await server.until_handled(2)
        await server.let_it_read()
        received += await server.receive_available()
        assert len(received) < len(file.content), "nothing is sent while the disk works"
        assert server.disk_reads == 1
        server.disk_gate.set()
        while len(received) < 8 + len(file.content):
            received += await asyncio.wait_for(
                asyncio.get_running_loop().sock_recv(
                    server.client, min(1 << 20, 8 + len(file.content) - len(received))
                ),
                10,
            )
        assert received == struct.pack(">ii", len(file.content) + 4, 1) + file.content
        assert await server.receive() == (2, b"after")


async def test_a_connection_may_close_while_its_range_is_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "TRUSTED_S", 0)
    file = ColdFile(tmp_path / "segment", monkeypatch)
    async with fake_server() as server:
        server.dispatcher.file_slice = file.slice
        await server.send(frame(1, "f"))
        await server.until_handled(1)
        file.is_cold = True
        await server.receive_available()
        await eventually(lambda: server.disk_reads == 1)
        server.connection.close()
        server.disk_gate.set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*others), 10)
        assert server.forgotten == [server.connection]


async def test_a_range_that_cannot_be_brought_back_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ColdFile(tmp_path / "segment", monkeypatch)
    file.slice.file = FileHandle(str(tmp_path / "segment"), os.O_WRONLY)  # reading fails, as on a bad disk

    def send_nothing(*_: object) -> int:
        raise BlockingIOError

    async with fake_server() as server:
        monkeypatch.setattr(sending.os, "sendfile", send_nothing)
        server.dispatcher.file_slice = file.slice
        file.is_cold = True
        server.disk_gate.set()
        await server.send(frame(1, "f"))
        await eventually(lambda: server.forgotten == [server.connection])
        assert server.disk_reads == 1


def test_the_shared_buffer_takes_a_carried_frame_and_more() -> None:
    """What may be carried over must leave room to receive into."""
    assert SHARED_BUFFER_BYTES > LARGE_FRAME_BYTES


@pytest.mark.parametrize("letter", ["n", "p", "e"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "partial"])
def test_a_reset_that_comes_with_the_last_bytes(letter: str, is_whole: bool) -> None:
    """On uvloop, which is what brokers run on: it tells of both at once and never again."""

    async def reset() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname())
            accepted, _ = listening.accept()
            accepted.setblocking(False)
            whole = frame(1, letter, b"last words")
            client.sendall(whole if is_whole else whole[:-1])
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        async with fake_server() as server:
            closed = asyncio.Event()
            connection = connection_module.Connection(server, accepted, "test", "PLAINTEXT")
            connection.on_close(closed.set)
            await asyncio.wait_for(closed.wait(), 10)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(reset())


@pytest.fixture
def one_step_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "LONGEST_RUN_S", 0.0)


@pytest.mark.parametrize("letter", ["g", "L"])
async def test_an_answer_in_steps_keeps_its_place(one_step_a_run: None, letter: str) -> None:
    async with fake_server() as server:
        await server.send(frame(1, letter, b"in steps") + frame(2, "e", b"next") + frame(3, "g", b"last"))
        assert [await server.receive() for _ in range(3)] == [(1, b"in steps"), (2, b"next"), (3, b"last")]
        assert [each[1:] for each in server.dispatcher.handled] == [b"in steps", b"next", b"last"]


async def test_nothing_else_is_handled_while_steps_are_left(one_step_a_run: None) -> None:
    async with fake_server() as server:
        server.dispatcher.step_count = 1_000_000
        await server.send(frame(1, "g", b"long") + frame(2, "e", b"next"))
        await eventually(lambda: server.dispatcher.steps_done > 100)
        assert server.dispatcher.handled == [b"glong"]
        assert len(server.work) == 1
        server.connection.close()
        done = server.dispatcher.steps_done
        await eventually(lambda: not len(server.work))
        assert server.dispatcher.steps_done <= done, "steps that are left are not done"


async def test_steps_may_end_in_an_answer_that_comes_later(one_step_a_run: None) -> None:
    async with fake_server() as server:
        await server.send(frame(1, "d") + frame(2, "e", b"next"))
        await server.until_handled(2)
        server.dispatcher.parked[1].complete(b"parked")
        assert [await server.receive() for _ in range(2)] == [(1, b"parked"), (2, b"next")]


async def test_a_large_request_is_read_from_a_buffer_of_its_own(one_step_a_run: None) -> None:
    """The shared buffer is overwritten by other connections while the steps are done."""
    async with fake_server() as server:
        body = bytes(random.Random(7).randbytes(1000))
        server.dispatcher.step_count = 20
        await server.send(frame(1, "L", body))
        await eventually(lambda: len(server.work))
        server.receive_buffer[:] = bytes(len(server.receive_buffer))
        assert await server.receive() == (1, body)


async def test_a_large_frame_keeps_its_buffer_until_the_last_step(one_step_a_run: None) -> None:
    async with fake_server() as server:
        body = bytes(random.Random(7).randbytes(3 * LARGE_FRAME_BYTES))
        server.dispatcher.step_count = 20
        sending_it = asyncio.ensure_future(server.send(frame(1, "L", body)))
        await eventually(lambda: len(server.work))
        taken = server.large_buffers.take(len(body) + 9)
        taken[:] = bytes(len(taken))
        assert await server.receive() == (1, body)
        await sending_it


async def test_a_connection_with_much_to_do_lets_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CONNECTION_TURN_LIMIT_S", 0.0)
    async with fake_server() as server:
        data = b"".join(frame(number, "n", b"x") for number in range(1000)) + frame(1000, "e", b"end")
        await server.send(data)
        await server.until_handled(1)
        assert len(server.dispatcher.handled) < 100
        assert await server.receive() == (1000, b"end")
        assert len(server.dispatcher.handled) == 1001


async def test_unsent_answers_are_counted_until_they_are_taken() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "z", b"3000000"))
        await eventually(lambda: server.unsent.byte_count)
        assert 0 < server.unsent.byte_count < 3_000_100
        await server.receive()
        await eventually(lambda: not server.unsent.byte_count)


async def test_answers_that_wait_for_an_earlier_one_are_counted() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "p") + frame(2, "z", b"1000"))
        await eventually(lambda: server.unsent.byte_count == 1008)
        server.dispatcher.parked[1].complete(b"")
        assert (await server.receive(), len((await server.receive())[1])) == ((1, b""), 1000)
        await eventually(lambda: not server.unsent.byte_count)
        await server.send(frame(3, "p") + frame(4, "z", b"1000"))
        await eventually(lambda: server.unsent.byte_count)
        server.connection.close()
        assert not server.unsent.byte_count


async def test_the_bytes_of_an_answer_count_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "LONGEST_RUN_S", 0.0)
    async with fake_server() as server:
        await server.send(frame(1, "L", bytes(1000)))
        await eventually(lambda: server.unsent.bytes_being_made == 1008)
        assert len((await server.receive())[1]) == 1000
        assert not server.unsent.bytes_being_made
        await server.send(frame(2, "L", bytes(1000)))
        await eventually(lambda: server.unsent.bytes_being_made == 1008)
        server.connection.close()
        assert not server.unsent.bytes_being_made


async def test_when_it_is_crowded_only_those_are_read_who_take_their_answers() -> None:
    async with fake_server() as server:
        server.unsent.is_crowded = True
        await server.send(frame(1, "e", b"served"))
        assert await server.receive() == (1, b"served")
        await server.send(frame(2, "z", b"3000000") + frame(3, "e", b"waits"))
        await server.until_handled(2)
        server.unsent.is_crowded = True
        await server.let_it_read()
        assert len(server.dispatcher.handled) == 2
        assert len((await server.receive())[1]) == 3_000_000
        assert await server.receive() == (3, b"waits")


async def test_progress_is_what_the_client_takes() -> None:
    async with fake_server() as server:
        await server.send(frame(1, "z", b"3000000"))
        await eventually(lambda: server.unsent.byte_count)
        server.connection.last_progress_s()
        seen_s = server.connection.last_progress_s()
        assert server.connection.last_progress_s() == seen_s
        await eventually(lambda: asyncio.get_running_loop().time() > seen_s)
        server.client.recv(1 << 20)
        assert server.connection.last_progress_s() > seen_s


async def test_at_the_bound_a_client_that_does_not_read_is_closed_and_the_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unsent_module, "STUCK_S", 0.05)
    monkeypatch.setattr(unsent_module, "CHECK_INTERVAL_S", 0.01)
    async with fake_server() as stuck:
        stuck.unsent = UnsentAnswers(max_bytes=4_000_000, max_files=10)
        async with fake_server() as reading:
            reading.unsent = stuck.unsent
            await stuck.send(frame(1, "z", b"3900000"))
            await eventually(lambda: stuck.unsent.byte_count > 3_000_000)
            await stuck.send(frame(2, "e", b"never handled"))
            for number in range(3):
                await reading.send(frame(number, "z", b"2000000"))
                assert len((await reading.receive())[1]) == 2_000_000
            await reading.send(frame(9, "z", b"2000000"))
            await eventually(lambda: stuck.connection.is_closed)
            assert len(stuck.dispatcher.handled) == 1, "nothing more was read from it"
            assert len((await reading.receive())[1]) == 2_000_000
            assert not reading.connection.is_closed
