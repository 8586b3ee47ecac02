"""flush.messages: an acknowledgement that waits for the disk."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from klamm.model.errors import ErrorCode
from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import BrokerProcess
from tests.abuse.calls import (
    NAMES_PRODUCE_VERSION,
    batch_of,
    create_topic,
    end_offset,
    produce,
    produce_request,
)
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing
from tests.waiting import wait_until

RECORDS = 20
TRACED_CALLS = "fsync,fdatasync,sync_file_range,syncfs"


class Trace:
    """The fsyncs of a process, from outside. strace writes each down before the process goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def count(self, name: str) -> int:
        """How many times a file whose path holds `name` was brought to the disk."""
        text = self._path.read_text(errors="replace") if self._path.exists() else ""
        return len(re.findall(rf"(?:fsync|fdatasync)\(\d+<[^>]*{re.escape(name)}[^>]*\.log>\)", text))


@contextlib.contextmanager
def traced(broker: BrokerProcess, directory: Path) -> Iterator[Trace]:
    strace = shutil.which("strace")
    if strace is None:
        cannot_run(PeerMissing("strace, to see what is brought to the disk"))
    output, messages = directory / "strace.txt", directory / "strace.err"
    command = [strace, "-f", "-y", "-p", str(broker.pid), "-e", f"trace={TRACED_CALLS}", "-o", str(output)]
    with messages.open("wb") as errors:
        process = subprocess.Popen(command, stderr=errors)
    try:
        wait_until(
            lambda: "attached" in messages.read_text() or process.poll() is not None, "strace is attached"
        )
        if process.poll() is not None:
            cannot_run(PeerMissing(f"strace, which may not trace here: {messages.read_text().strip()}"))
        yield Trace(output)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)


def test_every_acknowledgement_waits_for_the_disk(broker: BrokerProcess, tmp_path: Path) -> None:
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "careful", configs={"flush.messages": 1})
        create_topic(connection, "carefree")
        with traced(broker, tmp_path) as trace:
            for number in range(RECORDS):
                assert produce(connection, "careful", batch_of(b"x")).error_code == ErrorCode.NONE
                assert trace.count("careful-0") > number
            for _ in range(RECORDS):
                assert produce(connection, "carefree", batch_of(b"x")).error_code == ErrorCode.NONE
            assert trace.count("carefree-0") == 0


def test_flush_messages_counts_records(broker: BrokerProcess, tmp_path: Path) -> None:
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "every-tenth", configs={"flush.messages": 10})
        with traced(broker, tmp_path) as trace:
            for _ in range(9):
                produce(connection, "every-tenth", batch_of(b"x"))
            assert trace.count("every-tenth-0") == 0
            produce(connection, "every-tenth", batch_of(b"x"))
            assert trace.count("every-tenth-0") == 1


def test_one_fsync_serves_many(broker: BrokerProcess, tmp_path: Path) -> None:
    """Requests that arrive while the disk is busy wait for the same next flush."""
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "grouped", configs={"flush.messages": 1})
        with traced(broker, tmp_path) as trace:
            count = 200
            for _ in range(count):
                connection.send(produce_request("grouped", batch_of(b"x")), NAMES_PRODUCE_VERSION)
            for _ in range(count):
                answer = connection.receive().responses[0].partition_responses[0]
                assert answer.error_code == ErrorCode.NONE
            assert 1 <= trace.count("grouped-0") < count / 2
        assert end_offset(connection, "grouped") == count


def test_a_client_that_leaves_while_the_disk_is_busy(broker: BrokerProcess) -> None:
    """Others wait for the same fsync; they get their answers."""
    with WireConnection(broker.bootstrap) as staying:
        create_topic(staying, "shared", configs={"flush.messages": 1})
        for _ in range(30):
            with WireConnection(broker.bootstrap) as leaving:
                for _ in range(5):
                    leaving.send(produce_request("shared", batch_of(b"leaving")), NAMES_PRODUCE_VERSION)
                    staying.send(produce_request("shared", batch_of(b"staying")), NAMES_PRODUCE_VERSION)
            for _ in range(5):
                answer = staying.receive().responses[0].partition_responses[0]
                assert answer.error_code == ErrorCode.NONE
