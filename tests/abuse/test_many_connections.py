"""Ten thousand clients that connect and say nothing."""

from __future__ import annotations

import contextlib
import resource
import shutil
import socket
import struct
from pathlib import Path

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k18_api_versions import ApiVersionsRequest
from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import BrokerProcess, raise_descriptor_limit
from tests.abuse.calls import batch_of, create_topic, produce, read_all
from tests.abuse.conftest import Abused
from tests.abuse.raw import frame_of, open_socket, read_frame
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing
from tests.waiting import wait_until

CONNECTIONS = 10_000
FEW_DESCRIPTORS = 400
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


def test_connections_do_not_take_the_descriptors_of_files(tmp_path: Path) -> None:
    """More clients than descriptors: some are refused, and segments are still begun, opened and deleted."""
    if shutil.which("prlimit") is None:
        cannot_run(PeerMissing("prlimit, to lower the limit of open files"))
    broker = BrokerProcess(tmp_path / "data", tmp_path / "broker.log")
    with (
        broker.started("prlimit", f"--nofile={FEW_DESCRIPTORS}:{FEW_DESCRIPTORS}"),
        contextlib.ExitStack() as stack,
    ):
        connection = stack.enter_context(WireConnection(broker.bootstrap))
        create_topic(connection, "rolling", configs={"internal.segment.bytes": 5000})
        before = broker.open_sockets()
        clients = [stack.enter_context(open_socket(broker.bootstrap)) for _ in range(2 * FEW_DESCRIPTORS)]
        wait_until(lambda: "refused" in broker.log(), "some are refused")
        for number in range(200):
            answer = produce(connection, "rolling", batch_of(bytes(1000)))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, number), answer.error_message
        assert len(read_all(connection, "rolling")) == 200
        create_topic(connection, "another")
        for client in clients:
            client.close()
        wait_until(lambda: broker.open_sockets() <= before, "all are forgotten")
        with WireConnection(broker.bootstrap) as newcomer:
            assert len(read_all(newcomer, "rolling")) == 200
        broker.check_log()
