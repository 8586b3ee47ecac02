from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.server import sending
from klamm.server.sending import RESUMED_MAX_BYTES, SENDFILE_MIN_BYTES, ColdRange, PeerGone, SendQueue
from klamm.storage.segments.open_files import FileHandle
from klamm.storage.segments.segment import FileSlice


class Pair:
    """An queue and the socket at its other end."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self._ours = ours
        ours.setblocking(False)
        self.peer.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        self.queue = SendQueue(ours)

    def receive_available(self) -> bytes:
        data = bytearray()
        try:
            while piece := self.peer.recv(1 << 20):
                data += piece
        except BlockingIOError:
            pass
        return bytes(data)

    def drain(self) -> bytes:
        """Send and receive alternately until all is through."""
        data = bytearray()
        for _ in range(10_000):
            is_done = self.queue.send()
            data += self.receive_available()
            if is_done:
                return bytes(data)
        raise AssertionError("the queue does not drain")

    def close(self) -> None:
        self._ours.close()
        self.peer.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


class SegmentFile:
    def __init__(self, path: Path, size: int) -> None:
        self.content = random.Random(size).randbytes(size)
        path.write_bytes(self.content)
        self.path = path

    def slice(self, position: int, length: int) -> FileSlice:
        return FileSlice(FileHandle(str(self.path), os.O_RDONLY), position, length, None)


@pytest.fixture
def segment(tmp_path: Path) -> SegmentFile:
    return SegmentFile(tmp_path / "00000000000000000000.log", 4_000_000)


def test_small_chunks_leave_together(pair: Pair) -> None:
    pair.queue.put(b"one ")
    pair.queue.put(memoryview(b"two "))
    pair.queue.put(b"three")
    assert pair.queue.pending_bytes == 13
    assert pair.queue.send()
    assert pair.receive_available() == b"one two three"
    assert pair.queue.pending_bytes == 0


@pytest.mark.parametrize("length", [1, SENDFILE_MIN_BYTES - 1, SENDFILE_MIN_BYTES, 3_000_001])
def test_file_ranges_between_bytes(pair: Pair, segment: SegmentFile, length: int) -> None:
    position = 12_345
    pair.queue.put(b"head")
    pair.queue.put(segment.slice(position, length))
    pair.queue.put(b"tail")
    assert pair.drain() == b"head" + segment.content[position : position + length] + b"tail"
    assert pair.queue.pending_bytes == 0


def test_a_full_socket_takes_the_rest_later(pair: Pair, segment: SegmentFile) -> None:
    chunks: list[bytes | FileSlice] = []
    expected = b""
    generator = random.Random(1)
    for _ in range(30):
        start = generator.randrange(3_000_000)
        length = generator.choice([100, 5_000, SENDFILE_MIN_BYTES - 1, SENDFILE_MIN_BYTES + 1, 500_000])
        chunks += [b"%d," % start, segment.slice(start, length)]
        expected += b"%d," % start + segment.content[start : start + length]
    for chunk in chunks:
        pair.queue.put(chunk)
    assert not pair.queue.send()
    assert 0 < pair.queue.pending_bytes < len(expected)
    assert pair.drain() == expected


def test_the_tail_of_a_large_range_is_not_read_into_memory(pair: Pair, segment: SegmentFile) -> None:
    class Unreadable(FileSlice):
        def read(self) -> bytes:
            raise AssertionError("a range this large leaves by sendfile, to its last byte")

    whole = segment.slice(0, 1_000_000)
    pair.queue.put(Unreadable(whole.file, 0, 1_000_000, None))
    assert pair.drain() == segment.content[:1_000_000]


def test_what_has_waited_is_not_read_from_a_disk(
    pair: Pair, segment: SegmentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "TRUSTED_S", 0)
    looked_at: list[tuple[int, int]] = []

    def nothing_is_resident(fd: int, position: int, length: int) -> bool:
        looked_at.append((position, length))
        return False

    monkeypatch.setattr(sending, "is_resident", nothing_is_resident)
    pair.queue.put(b"head")
    pair.queue.put(segment.slice(1000, 3_000_000))
    assert not pair.queue.send()
    assert looked_at == [], "whoever put it there has just looked"
    received = bytearray(pair.receive_available())
    for _ in range(1000):
        is_drained = False
        with pytest.raises(ColdRange) as caught:
            is_drained = pair.queue.send()
        piece = caught.value.piece
        assert (piece.position, piece.length) == looked_at[-1]
        assert piece.position == 1000 + len(received) - len(b"head")
        assert piece.length == min(3_001_000 - piece.position, RESUMED_MAX_BYTES)
        with contextlib.suppress(ColdRange):
            is_drained = pair.queue.send(is_warm=True)
        received += pair.receive_available()
        if is_drained:
            break
    assert received == b"head" + segment.content[1000:3_001_000]
    pair.queue.put(segment.slice(0, 100_000))
    looked_at.clear()
    pair.queue.send()
    assert looked_at == [], "this one is new"


def test_a_segment_cut_short_ends_the_connection(pair: Pair, segment: SegmentFile) -> None:
    pair.queue.put(segment.slice(3_900_000, 200_000))
    with pytest.raises(PeerGone, match="early"):
        pair.drain()


def test_a_peer_that_left(pair: Pair) -> None:
    pair.peer.close()
    pair.queue.put(b"anybody there?")
    with pytest.raises(PeerGone):
        pair.queue.send()


def test_a_file_that_cannot_be_read_ends_the_connection(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "write-only.log"
    path.write_bytes(bytes(200_000))
    pair.queue.put(FileSlice(FileHandle(str(path), os.O_WRONLY), 0, 200_000, None))
    with pytest.raises(PeerGone):
        pair.queue.send()


def test_a_fast_client_needs_no_second_look(
    pair: Pair, segment: SegmentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a second of the first look a range is taken to be in memory still."""

    def must_not_be_asked(*_: int) -> bool:
        raise AssertionError("the page cache was asked again")

    monkeypatch.setattr(sending, "is_resident", must_not_be_asked)
    pair.queue.put(segment.slice(0, 4_000_000))
    assert pair.drain() == segment.content
