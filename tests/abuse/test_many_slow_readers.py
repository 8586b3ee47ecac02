"""Many clients that ask for much and take nothing, against a broker with small bounds.

What they are owed, in memory and in open segment files, stays within one bound for all of them. Meanwhile the
neighbour is served, and a client that reads slowly but steadily gets all its bytes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
from collections.abc import Iterator, Sequence

import pytest

from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.testing.wire import WireConnection
from tests.abuse import bounded_broker
from tests.abuse.broker_process import BrokerProcess, raise_descriptor_limit
from tests.abuse.calls import NAMES_FETCH_VERSION, batch_of, create_topic, produce
from tests.abuse.conftest import Abused
from tests.abuse.raw import frame_of, open_socket
from tests.waiting import is_ready, wait_until

MEGABYTE = 1 << 20
READERS = 60
SOCKET_BYTES = 64 * 1024
"""Of each side's buffer: what these take is the kernel's, not the broker's."""

MAX_BYTES = 8 * MEGABYTE
MAX_FILES = 100
OPEN_SEGMENTS = 25
"""Fewer than there are segments: most fetches have to open files, in threads."""

OTHER_GROWTH_BYTES = 40 * MEGABYTE
"""What a broker's memory may grow by for other reasons. Without the bound it grows by
4 MB for each reader."""

GROUP = "wordy"
COMMITTED_PARTITIONS = 20
METADATA_LENGTH = 4_000
OFFSET_FETCHES = 60
"""Of 80 KB each: more than the 4 MB that one connection may have unsent."""

FETCHED_PARTITIONS = 20
SEGMENTS = 5
BATCH_BYTES = 400_000
"""More than the buffers of both sides take: each reader that is stuck holds a file open."""

FETCHES = 3


@pytest.fixture(scope="module")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    raise_descriptor_limit()
    directory = tmp_path_factory.mktemp("abused")
    settings = {"socket.send.buffer.bytes": SOCKET_BYTES}
    process = BrokerProcess(directory / "data", directory / "broker.log", settings)
    bounds = (str(MAX_BYTES), str(MAX_FILES), str(OPEN_SEGMENTS))
    with process.started(sys.executable, bounded_broker.__file__, *bounds):
        yield process


class SteadyReader:
    """Takes its answers in small pieces."""

    PIECE_BYTES = 256 * 1024

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = bytearray()
        self.correlation_ids: list[int] = []

    def read_a_piece(self) -> None:
        assert is_ready(self._socket, select.POLLIN, 20), "nothing comes for a client that reads"
        piece = self._socket.recv(self.PIECE_BYTES)
        assert piece, "the broker hung up on a client that reads"
        self._received += piece
        while len(self._received) >= 8:
            size, correlation_id = struct.unpack_from(">ii", self._received)
            if len(self._received) < 4 + size:
                return
            del self._received[: 4 + size]
            self.correlation_ids.append(correlation_id)


class Crowd:
    """Readers that read nothing."""

    def __init__(self, abused: Abused, stack: contextlib.ExitStack) -> None:
        self._abused = abused
        self._stack = stack

    def connect(self) -> socket.socket:
        sock = self._stack.enter_context(open_socket(self._abused.bootstrap))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        return sock

    def ask(self, requests: Sequence[bytes]) -> None:
        """Each of many clients sends one of the `requests`, and has an answer on its way."""
        sockets = []
        for number in range(READERS):
            sock = self.connect()
            sock.sendall(requests[number % len(requests)])
            sockets.append(sock)
        for sock in sockets:
            assert is_ready(sock, select.POLLIN, 60)


@pytest.fixture
def crowd(abused: Abused) -> Iterator[Crowd]:
    with contextlib.ExitStack() as stack:
        yield Crowd(abused, stack)


def test_unread_answers_in_memory_are_bounded_over_all_clients(abused: Abused, crowd: Crowd) -> None:
    abused.allowed_growth_bytes = MAX_BYTES + OTHER_GROWTH_BYTES
    with abused.connect() as connection:
        create_topic(connection, "committed", partitions=COMMITTED_PARTITIONS)
        commit_long_metadata(connection)
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    request = b"".join(frame_of(asked, correlation_id=each) for each in range(OFFSET_FETCHES))
    steady_socket = crowd.connect()
    steady_socket.sendall(request)
    steady = SteadyReader(steady_socket)
    crowd.ask([request])
    while len(steady.correlation_ids) < OFFSET_FETCHES:
        steady.read_a_piece()
    assert steady.correlation_ids == list(range(OFFSET_FETCHES))


def commit_long_metadata(connection: WireConnection) -> None:
    found = connection.call(FindCoordinatorRequest(coordinator_keys=[GROUP]))
    assert found.coordinators[0].error_code == 0
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=1, committed_metadata="x" * METADATA_LENGTH
        )
        for index in range(COMMITTED_PARTITIONS)
    ]
    topics = [OffsetCommitRequestTopic(name="committed", partitions=partitions)]
    answer = connection.call(OffsetCommitRequest(group_id=GROUP, topics=topics), 9)
    assert {each.error_code for each in answer.topics[0].partitions} == {0}


def test_files_that_unread_answers_hold_open_are_bounded_over_all_clients(
    abused: Abused, crowd: Crowd
) -> None:
    with abused.connect() as connection:
        create_topic(
            connection,
            "stored",
            partitions=FETCHED_PARTITIONS,
            configs={"internal.segment.bytes": BATCH_BYTES * 3 // 2},
        )
        batch = batch_of(bytes(BATCH_BYTES))
        for index in range(FETCHED_PARTITIONS):
            for _ in range(SEGMENTS):
                produce(connection, "stored", bytearray(batch), partition=index)
    before = abused.process.open_descriptors()
    steady_socket = crowd.connect()
    steady_socket.sendall(fetches(0))
    steady = SteadyReader(steady_socket)
    crowd.ask([fetches(offset) for offset in range(SEGMENTS)])
    most = 0
    while len(steady.correlation_ids) < FETCHES:
        most = max(most, abused.process.open_descriptors())
        steady.read_a_piece()
    assert steady.correlation_ids == list(range(FETCHES))
    # A socket for each reader, and its first batch even at the bound: every answer must bring it further.
    allowed = 2 * READERS + MAX_FILES + OPEN_SEGMENTS
    assert most - before < allowed, f"{most - before} more descriptors"
    wait_until(
        lambda: "does not read its answers" in abused.process.log(), "readers that are stuck are closed"
    )


def fetches(offset: int) -> bytes:
    """Pipelined requests for a batch of each partition: an answer is of as many files."""
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=2 * BATCH_BYTES)
        for index in range(FETCHED_PARTITIONS)
    ]
    topics = [FetchTopic(topic="stored", partitions=partitions)]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=100 * MEGABYTE, session_epoch=-1, topics=topics
    )
    return b"".join(frame_of(request, NAMES_FETCH_VERSION, number) for number in range(FETCHES))
