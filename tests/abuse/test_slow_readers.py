"""Clients that ask for much and do not take it."""

from __future__ import annotations

import select
import socket
import struct

from klamm.protocol.messages.k03_metadata import MetadataRequest
from tests.abuse.calls import NAMES_FETCH_VERSION, batch_of, create_topic, fetch_request, produce
from tests.abuse.conftest import Abused
from tests.abuse.raw import frame_of, open_socket, read_frame
from tests.waiting import is_ready, wait_until

MEGABYTE = 1 << 20
BATCHES = 24
BATCH_BYTES = MEGABYTE
FETCHES = 10


def test_a_client_that_stops_reading_its_fetches(abused: Abused) -> None:
    abused.allowed_growth_bytes = 40 * MEGABYTE
    with abused.connect() as connection:
        create_topic(connection, "unread", configs={"max.message.bytes": 2 * BATCH_BYTES})
        for number in range(BATCHES):
            produce(connection, "unread", batch_of(bytes([number]) * BATCH_BYTES))
    with open_socket(abused.bootstrap) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        request = fetch_request("unread", 0, max_bytes=(BATCHES + 1) * BATCH_BYTES)
        for number in range(FETCHES):
            sock.sendall(frame_of(request, NAMES_FETCH_VERSION, number))
        # The answers have begun to come, and now nobody takes them.
        assert is_ready(sock, select.POLLIN, 20)
        for _ in range(20):
            with abused.connect() as other:
                other.call(MetadataRequest(topics=None))
        # What it asked for is still its own when it reads again, whole and in order.
        for number in range(FETCHES):
            answer = read_frame(sock)
            assert struct.unpack_from(">i", answer) == (number,)
            assert len(answer) > BATCHES * BATCH_BYTES
            middles = answer[-BATCHES * BATCH_BYTES + BATCH_BYTES // 2 :: BATCH_BYTES]
            assert list(middles) == list(range(BATCHES))


def test_a_client_that_asks_and_asks_and_never_reads(abused: Abused) -> None:
    """The broker stops taking its requests; what it has answered stays within a limit."""
    abused.allowed_growth_bytes = 60 * MEGABYTE
    with abused.connect() as connection:
        create_topic(connection, "asked", partitions=200)
    request = frame_of(MetadataRequest(topics=None), 1)
    many = request * (MEGABYTE // len(request))
    before = abused.process.open_sockets()
    with open_socket(abused.bootstrap) as sock:
        sock.setblocking(False)
        sent = 0
        while is_ready(sock, select.POLLOUT, 1.0) and sent < 200 * MEGABYTE:
            sent += sock.send(many)
        assert sent < 200 * MEGABYTE, "the broker goes on reading from a client that takes no answers"
    wait_until(lambda: abused.process.open_sockets() <= before, "it is let go")


def test_answers_behind_a_parked_fetch_are_bounded(abused: Abused) -> None:
    """Answers that are ready but may not leave yet, because an earlier request is not answered."""
    abused.allowed_growth_bytes = 60 * MEGABYTE
    with abused.connect() as connection:
        create_topic(connection, "parked")
        create_topic(connection, "parked-many", partitions=200)
    with open_socket(abused.bootstrap) as sock:
        sock.sendall(frame_of(fetch_request("parked", 0, max_wait_ms=2**31 - 1), NAMES_FETCH_VERSION, 0))
        for number in range(1, 1500):
            sock.sendall(frame_of(MetadataRequest(topics=None), 1, number))
        with abused.connect() as other:
            other.call(MetadataRequest(topics=None))
            produce(other, "parked", batch_of(b"the word they wait for"))
        for number in range(1500):
            assert struct.unpack_from(">i", read_frame(sock)) == (number,)
