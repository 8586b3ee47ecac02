"""Ten thousand clients that connect and say nothing."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct

from klamm.protocol.messages.k18_api_versions import ApiVersionsRequest
from tests.abuse.broker_process import raise_descriptor_limit, wait_until
from tests.abuse.conftest import Abused
from tests.abuse.raw import frame_of, open_socket, read_frame
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing

CONNECTIONS = 10_000
SPARE_DESCRIPTORS = 1_000
GROWTH_BYTES = 100 * 1024 * 1024


def test_ten_thousand_idle_connections(abused: Abused) -> None:
    hard = raise_descriptor_limit()
    if hard < CONNECTIONS + SPARE_DESCRIPTORS and hard != resource.RLIM_INFINITY:
        cannot_run(PeerMissing(f"{CONNECTIONS} connections need a hard limit of open files above {hard}"))
    abused.allowed_growth_bytes = GROWTH_BYTES
    before = abused.process.open_sockets()
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for _ in range(CONNECTIONS):
            sockets.append(stack.enter_context(open_socket(abused.bootstrap)))
        wait_until(lambda: abused.process.open_sockets() >= before + CONNECTIONS, "all are connected", 60)
        # Each is served, should it have something to say.
        for number, sock in enumerate(sockets[::50]):
            sock.sendall(frame_of(ApiVersionsRequest(), 0, number))
            assert struct.unpack_from(">i", read_frame(sock)) == (number,)
    wait_until(lambda: abused.process.open_sockets() <= before, "all are forgotten", 60)
