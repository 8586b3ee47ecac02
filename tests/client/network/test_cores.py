"""Addresses, backoff, frames and why connections end: no socket, no clock."""

from __future__ import annotations

import random
import ssl
import struct

import pytest

from klamm.client.errors import ConnectionFailed, TlsFailed
from klamm.client.network.addresses import BrokerAddress, parse_bootstrap
from klamm.client.network.backoff import JITTER, Backoff, Health
from klamm.client.network.connection_errors import error_for_lost_connection, guess_protocol
from klamm.client.network.receiving import KEPT_BYTES, SCRATCH_BYTES, FrameReceiver
from klamm.config.rows import ConfigError
from klamm.protocol.errors import MalformedMessage

# ---- addresses


def test_addresses_get_negative_ids_and_no_doubles() -> None:
    found = parse_bootstrap([" a:1", "[::1]:9092", "b.example:2", "a:1"])
    assert found == (
        BrokerAddress(-1, "a", 1),
        BrokerAddress(-2, "::1", 9092),
        BrokerAddress(-3, "b.example", 2),
    )
    assert [str(each) for each in found] == ["a:1", "[::1]:9092", "b.example:2"]
    assert str(BrokerAddress(4, "::1", 9092)) == "broker 4 at [::1]:9092"


@pytest.mark.parametrize(
    "text",
    ["a", "a:", ":9092", "a:0", "a:65536", "a:9092/x", "http://a:9092", "::1:9092", "me@a:1", "a b:1", ""],
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_bootstrap([text])


# ---- backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [round(backoff.pause(failures, 0.5), 6) for failures in range(1, 7)] == [
        0.1,
        0.2,
        0.4,
        0.8,
        1.0,
        1.0,
    ]
    assert backoff.pause(10**9, 0.5) == pytest.approx(1.0)
    assert backoff.pause(1, 0.0) == pytest.approx(0.1 * (1 - JITTER))
    assert backoff.pause(1, 1.0) == pytest.approx(0.1 * (1 + JITTER))
    assert Backoff(0.0, 0.0).pause(5, 0.5) == 0
    assert Backoff(2.0, 1.0).pause(1, 0.5) == pytest.approx(2.0), "the longest is at least the first"


def test_health_leaves_a_broker_alone_for_a_while() -> None:
    health, backoff = Health(), Backoff(1.0, 10.0)
    assert health.wait(5.0) == 0
    health.failed(5.0, backoff, 0.5, OSError())
    health.failed(6.0, backoff, 0.5, OSError())
    assert health.wait(6.5) == pytest.approx(1.5)
    assert health.wait(9.0) == 0
    health.succeeded()
    assert health.wait(6.5) == 0


# ---- frames


def receive(receiver: FrameReceiver, data: bytes, pieces: random.Random | None = None) -> list[bytes]:
    """Feed data as a socket would: no more than there is room for, and in pieces."""
    frames: list[bytes] = []
    while data:
        room = receiver.buffer()
        assert len(room) > 0
        size = min(len(room), len(data))
        if pieces is not None:
            size = min(size, pieces.choice((1, 2, 3, 5, 100, 5000, 70_000)))
        room[:size] = data[:size]
        frames += [bytes(frame) for frame in receiver.received(size)]
        data = data[size:]
    return frames


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@pytest.mark.parametrize("seed", range(20))
def test_frames_of_all_sizes_in_pieces_of_all_sizes(seed: int) -> None:
    chance = random.Random(seed)
    sizes = (
        0,
        1,
        4,
        5,
        1000,
        SCRATCH_BYTES - 5,
        SCRATCH_BYTES - 4,
        SCRATCH_BYTES - 3,
        SCRATCH_BYTES,
        300_000,
    )
    bodies = [chance.randbytes(chance.choice(sizes)) for _ in range(30)]
    assert receive(FrameReceiver(1 << 20), framed(*bodies), chance) == bodies


def test_frames_stay_as_they_are_when_more_arrive() -> None:
    receiver = FrameReceiver(1 << 20)
    data = framed(b"one", b"two")
    receiver.buffer()[: len(data)] = data
    kept = receiver.received(len(data))
    receive(receiver, framed(b"x" * 1000, b"y" * 100_000))
    assert [bytes(frame) for frame in kept] == [b"one", b"two"]


def test_a_large_frame_is_received_in_place() -> None:
    receiver = FrameReceiver(1 << 20)
    receive(receiver, struct.pack(">i", 500_000) + b"start")
    room = receiver.buffer()
    assert len(room) == 500_000 - 5
    room[:] = bytes(500_000 - 5)
    (frame,) = receiver.received(len(room))
    assert frame.obj is room.obj, "the frame is the buffer that was received into"


def receive_large(receiver: FrameReceiver, body: bytes) -> memoryview:
    """The frame itself, as whoever waits for it gets it."""
    receive(receiver, struct.pack(">i", len(body)))
    rest = memoryview(body)
    while True:
        room = receiver.buffer()
        count = min(len(room), len(rest))
        room[:count] = rest[:count]
        rest = rest[count:]
        if frames := receiver.received(count):
            return frames[0]


def test_the_memory_of_a_large_frame_is_used_again_when_nobody_has_the_frame() -> None:
    receiver = FrameReceiver(KEPT_BYTES)
    memory = receive_large(receiver, b"a" * 300_000).obj
    shorter = receive_large(receiver, b"b" * 200_000)
    assert shorter.obj is memory
    assert bytes(shorter) == b"b" * 200_000


@pytest.mark.parametrize("is_sliced", [False, True])
def test_the_memory_of_a_large_frame_that_is_in_use_stays_as_it_is(is_sliced: bool) -> None:
    receiver = FrameReceiver(KEPT_BYTES)
    frame = receive_large(receiver, b"a" * 300_000)
    used = frame[100:200] if is_sliced else frame
    del frame
    assert bytes(receive_large(receiver, b"b" * 300_000)) == b"b" * 300_000
    assert set(used) == {ord("a")}


def test_the_memory_of_a_very_large_frame_is_not_kept() -> None:
    receiver = FrameReceiver(KEPT_BYTES + 1)
    small = receive_large(receiver, b"a" * 300_000).obj
    assert len(receive_large(receiver, bytes(KEPT_BYTES + 1))) == KEPT_BYTES + 1
    assert receive_large(receiver, b"a" * 300_000).obj is small


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, (1 << 20) + 1])
def test_sizes_out_of_bounds(size: int) -> None:
    with pytest.raises(MalformedMessage):
        receive(FrameReceiver(1 << 20), framed(b"good") + struct.pack(">i", size))


@pytest.mark.parametrize(
    ("said", "guess"),
    [
        (b"HTTP/1.1 400 Bad Request", "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS"),
        (b"SSH-2.0-x", "SSH"),
        (b"\xff\xfe\xfd\xfc", "starts with"),
    ],
)
def test_what_strangers_speak(said: bytes, guess: str) -> None:
    receiver = FrameReceiver(1 << 20)
    with pytest.raises(MalformedMessage):
        receive(receiver, said)
    assert guess in guess_protocol(receiver.first_bytes)[0]


# ---- why connections end


def test_a_tls_error_on_a_connection_that_has_answered_is_a_lost_connection() -> None:
    """A record that was damaged on its way, or a broker that dies: the next connection may do better."""
    address = BrokerAddress(1, "host", 9093)
    damaged = ssl.SSLError(1, "bad record mac")
    damaged.reason = "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"
    refused = ssl.SSLError(1, "certificate required")
    refused.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    for error in (damaged, refused):
        lost = error_for_lost_connection(address, error, is_trusted=True, has_answered=True)
        assert type(lost) is ConnectionFailed and lost.retriable
    new = error_for_lost_connection(address, refused, is_trusted=False, has_answered=False)
    assert isinstance(new, TlsFailed) and not new.retriable
    assert error_for_lost_connection(address, damaged, is_trusted=False, has_answered=False).retriable
