"""Streams of bytes that are no requests, or not quite."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import pytest

from klamm.apis.registry import load_handlers
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.messages.k03_metadata import MetadataRequest
from klamm.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.abuse.calls import (
    NAMES_FETCH_VERSION,
    NAMES_PRODUCE_VERSION,
    batch_of,
    create_topic,
    end_offset,
    fetch_request,
    produce_request,
)
from tests.abuse.conftest import Abused
from tests.abuse.raw import frame_of, open_socket, read_frame, read_to_end, send_and_leave, sized
from tests.waiting import wait_until

ROUNDS = 60
ANNOUNCED_BYTES = 100 * 1024 * 1024


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes(abused: Abused, seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(ROUNDS):
        send_and_leave(abused.bootstrap, generator.randbytes(generator.randint(1, 5000)))


@pytest.mark.parametrize("seed", range(3))
def test_random_frames(abused: Abused, seed: int) -> None:
    """Frames of the right size with random content."""
    generator = random.Random(seed)
    for _ in range(ROUNDS):
        frames = [sized(generator.randbytes(generator.randint(0, 300))) for _ in range(5)]
        send_and_leave(abused.bootstrap, b"".join(frames))


@pytest.mark.parametrize("key", sorted(load_handlers()), ids=lambda key: key.title)
def test_random_bodies(abused: Abused, key: ApiKey) -> None:
    """Headers of real requests with random bodies."""
    generator = random.Random(key)
    for version in range(API_VERSIONS[key].min_version, API_VERSIONS[key].max_version + 1):
        for _ in range(4):
            body = generator.choice(
                [generator.randbytes(generator.randint(0, 200)), bytes(200), b"\x01" * 200]
            )
            header = struct.pack(">hhih", key, version, 7, 0) + b"\0"
            send_and_leave(abused.bootstrap, sized(header + body))


def test_requests_cut_at_every_byte(abused: Abused) -> None:
    """Cut short by the end of the stream, and cut short within a frame whose size agrees."""
    with abused.connect() as connection:
        create_topic(connection, "cut")
        for whole in (
            frame_of(produce_request("cut", batch_of(b"value", b"value")), NAMES_PRODUCE_VERSION),
            frame_of(fetch_request("cut", 0, max_wait_ms=100), NAMES_FETCH_VERSION),
            frame_of(MetadataRequest(topics=None)),
        ):
            for cut in range(len(whole)):
                assert send_and_leave(abused.bootstrap, whole[:cut]) == b""
                if cut >= 4:
                    send_and_leave(abused.bootstrap, sized(whole[4:cut]))
        assert end_offset(connection, "cut") == 0


@pytest.mark.parametrize("size", [-1, -2, -(2**31), 2**31 - 1, ANNOUNCED_BYTES + 1])
def test_impossible_sizes_are_refused_at_once(abused: Abused, size: int) -> None:
    with open_socket(abused.bootstrap) as sock:
        sock.sendall(struct.pack(">i", size))
        assert read_to_end(sock) == b""


def test_an_empty_frame_is_refused(abused: Abused) -> None:
    with open_socket(abused.bootstrap) as sock:
        sock.sendall(struct.pack(">i", 0))
        assert read_to_end(sock) == b""


def test_announcing_much_and_sending_nothing(abused: Abused) -> None:
    """Two hundred clients announce 100 MB each: memory is given for what comes, not for what is announced."""
    abused.allowed_growth_bytes = 40 * 1024 * 1024
    before = abused.process.open_sockets()
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            sock = stack.enter_context(open_socket(abused.bootstrap))
            sock.sendall(struct.pack(">i", ANNOUNCED_BYTES) + b"some")
        wait_until(lambda: abused.process.open_sockets() >= before + 200, "all are connected")
        with abused.connect() as connection:
            connection.call(ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    wait_until(lambda: abused.process.open_sockets() <= before, "all are forgotten")


@pytest.mark.parametrize("key", [-1, 4, 17, 24, 71, 1000, 32767])
def test_unknown_keys_end_the_connection(abused: Abused, key: int) -> None:
    with open_socket(abused.bootstrap) as sock:
        sock.sendall(sized(struct.pack(">hhih", key, 0, 1, -1) + bytes(20)))
        assert read_to_end(sock) == b""


@pytest.mark.parametrize(
    "key", [key for key in sorted(load_handlers()) if key != ApiKey.API_VERSIONS], ids=lambda key: key.title
)
def test_unknown_versions_end_the_connection(abused: Abused, key: ApiKey) -> None:
    accepted = API_VERSIONS[key].accepted
    for version in (accepted.first - 1, accepted.last + 1, 99, -1):
        with open_socket(abused.bootstrap) as sock:
            sock.sendall(sized(struct.pack(">hhih", key, version, 1, -1) + bytes(50)))
            assert read_to_end(sock) == b""


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_an_unknown_version_of_api_versions_is_told_what_is_known(abused: Abused, version: int) -> None:
    with open_socket(abused.bootstrap) as sock:
        sock.sendall(sized(struct.pack(">hhih", ApiKey.API_VERSIONS, version, 77, -1) + bytes(10)))
        answer = read_frame(sock)
        assert struct.unpack_from(">i", answer) == (77,)
        message, end = decode(ApiVersionsResponse, 0, memoryview(answer), 4)
        assert end == len(answer)
        assert message.error_code == ErrorCode.UNSUPPORTED_VERSION
        ranges = {each.api_key: (each.min_version, each.max_version) for each in message.api_keys}
        assert ranges[ApiKey.API_VERSIONS] == (0, 4)
        # And the connection goes on.
        sock.sendall(frame_of(ApiVersionsRequest(), 0, correlation_id=78))
        assert struct.unpack_from(">i", read_frame(sock)) == (78,)


def test_a_thousand_requests_in_one_write(abused: Abused) -> None:
    """Of all kinds (at once, parked, serial), and answered in their order."""
    generator = random.Random(1)
    with abused.connect() as connection:
        create_topic(connection, "pipelined")
    kinds = [
        lambda number: frame_of(ApiVersionsRequest(), 0, number),
        lambda number: frame_of(MetadataRequest(topics=None), 1, number),
        lambda number: frame_of(fetch_request("pipelined", 0, max_wait_ms=3), NAMES_FETCH_VERSION, number),
        lambda number: frame_of(
            produce_request("pipelined", batch_of(b"%d" % number)), NAMES_PRODUCE_VERSION, number
        ),
    ]
    requests = [generator.choice(kinds)(number) for number in range(1000)]
    with open_socket(abused.bootstrap) as sock:
        sock.sendall(b"".join(requests))
        answered = [struct.unpack_from(">i", read_frame(sock))[0] for _ in range(1000)]
    assert answered == list(range(1000))


def test_one_byte_at_a_time(abused: Abused) -> None:
    whole = frame_of(MetadataRequest(topics=None))
    with open_socket(abused.bootstrap) as sock:
        for byte in whole:
            sock.sendall(bytes([byte]))
        assert struct.unpack_from(">i", read_frame(sock)) == (1,)


def test_half_closed_connections_are_answered_and_let_go(abused: Abused) -> None:
    with abused.connect() as connection:
        create_topic(connection, "half-closed")
    before = abused.process.open_sockets()
    for _ in range(50):
        with open_socket(abused.bootstrap) as sock:
            sock.sendall(frame_of(ApiVersionsRequest(), 0))
            sock.shutdown(socket.SHUT_WR)
            assert struct.unpack_from(">i", read_frame(sock)) == (1,)
            assert read_to_end(sock) == b""
    # Also those that wait for something that never comes.
    parked = frame_of(fetch_request("half-closed", 0, max_wait_ms=2**31 - 1), NAMES_FETCH_VERSION)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(open_socket(abused.bootstrap))
            sock.sendall(parked)
            sock.shutdown(socket.SHUT_WR)
        wait_until(lambda: abused.process.open_sockets() <= before, "all are let go")


def test_connections_that_are_reset_in_the_middle(abused: Abused) -> None:
    before = abused.process.open_sockets()
    whole = frame_of(MetadataRequest(topics=None))
    for cut in (1, 4, 9, len(whole)):
        for _ in range(20):
            sock = open_socket(abused.bootstrap)
            sock.sendall(whole[:cut])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
    wait_until(lambda: abused.process.open_sockets() <= before, "all are let go")
