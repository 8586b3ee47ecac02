"""Frames out of a stream, however it is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.errors import MalformedMessage
from klamm.protocol.framing import FrameReader, frame_size


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@given(st.lists(st.binary(max_size=20), max_size=6), st.lists(st.integers(0, 200), max_size=8))
def test_frames_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, bodies))
    edges = [0, *sorted(cuts), len(stream)]
    reader = FrameReader()
    received = [each for start, end in itertools.pairwise(edges) for each in reader.feed(stream[start:end])]
    assert received == bodies
    assert reader.buffered_bytes == 0


def test_frames_outlive_the_reader_buffer() -> None:
    reader = FrameReader()
    (first,) = reader.feed(frame(b"first") + b"\x00\x00")
    (second,) = reader.feed(b"\x00\x06second")
    assert (bytes(first), bytes(second)) == (b"first", b"second")


@pytest.mark.parametrize(
    "size", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x0b", b"\x7f\xff\xff\xff"]
)
def test_sizes_out_of_bounds(size: bytes) -> None:
    with pytest.raises(MalformedMessage, match="0 to 10 are allowed"):
        frame_size(size, max_bytes=10)
    reader = FrameReader(max_bytes=10)
    with pytest.raises(MalformedMessage):
        reader.feed(size)
    with pytest.raises(MalformedMessage):
        reader.feed(b"more")


def test_sizes_at_the_bounds() -> None:
    assert frame_size(b"\x00\x00\x00\x00", max_bytes=10) == 0
    assert frame_size(b"xx\x00\x00\x00\x0a", 2, max_bytes=10) == 10
