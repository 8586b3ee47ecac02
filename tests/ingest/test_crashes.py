"""Whatever ends a tail or takes its broker away: every line is in the topic once."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path

import pyarrow
import pytest

import klamm
import klamm.testing
from klamm.ingest.errors import IngestError
from klamm.ingest.lines import LineRules
from klamm.ingest.positions import Positions
from klamm.ingest.recovery import Block
from klamm.ingest.sending import TopicWriter
from tests.abuse.broker_process import BrokerProcess
from tests.cli.commands import KLAMM, clean_environment
from tests.ingest.topics import Tails, end_offsets, make_topic, wait_for_more
from tests.waiting import wait_until

LINES = [b"%07d " % number + b"x" * 92 for number in range(20)]


def tail_process(tails: Tails, *options: str) -> subprocess.Popen[bytes]:
    words = [KLAMM, "ingest", "tail", str(tails.folder / "*.log"), "--topic", tails.topic]
    words += ["--bootstrap", tails.bootstrap, "--state", str(tails.folder / "state"), *options]
    return subprocess.Popen(words, env=clean_environment(), stderr=subprocess.DEVNULL)


def noted(folder: Path) -> list[Block]:
    positions = Positions(folder / "state")
    try:
        return positions.blocks()
    finally:
        positions.close()


# ---- killed


def test_killed_under_load_and_nothing_is_lost_or_doubled(tails: Tails, tmp_path: Path) -> None:
    """Twice at full speed, while somebody writes and rotates."""
    count = 300_000
    chunk = 10_000
    log = tmp_path / "a.log"
    written = threading.Semaphore(0)
    go_on = threading.Event()

    def write() -> None:
        for first in range(0, count, chunk):
            with log.open("ab") as file:
                file.write(
                    b"".join(b"%07d %s\n" % (number, b"x" * 92) for number in range(first, first + chunk))
                )
            if first == count // 3:
                log.rename(tmp_path / "old.log")
                written.release()
                go_on.wait()

    writer = threading.Thread(target=write)
    writer.start()
    written.acquire()  # a third is there, so that the first kill meets a tail that is busy
    on_their_way = 0
    for kill in range(2):
        had = end_offsets(tails.bootstrap, tails.topic)
        # It looks for lines once; so what it sent last is not crossed out when it has sent everything.
        process = tail_process(tails, "--poll-interval", "60")
        try:
            wait_for_more(tails.bootstrap, tails.topic, had)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        on_their_way += len(noted(tmp_path))
        if kill == 0:
            go_on.set()
            writer.join()
    assert on_their_way, "nothing was under way when it was killed: the test shows nothing"
    tails.once()
    found = sorted(int(value[:7]) for value in tails.values())
    assert found == list(range(count))
    assert noted(tmp_path) == []


@pytest.mark.parametrize("sent", [0, 1, 9, 10, 11, 19, 20])
def test_the_rest_of_what_was_on_its_way_is_sent(tails: Tails, tmp_path: Path, sent: int) -> None:
    (tmp_path / "a.log").write_bytes(b"".join(line + b"\n" for line in LINES))
    leave_blocks(tails, sent)
    progress = tails.once()
    assert (progress.resent_records, progress.lost_records) == (20 - sent, 0)
    assert sorted(tails.values()) == LINES
    assert tails.once().acknowledged == 0


def leave_blocks(tails: Tails, sent: int) -> None:
    """What a tail leaves that noted two blocks of ten lines for partition 1, and was killed when the first
    `sent` of them were written."""
    writer = TopicWriter(tails.topic, tails.bootstrap)
    try:
        with tails.session() as session:
            tail = session._tail
            tail._scan()
            (file,) = tail._table.open_files
            for reader in tail._open.values():
                reader.close()
            size = len(LINES[0]) + 1
            blocks = [
                Block(
                    number + 1,
                    file.file_id,
                    file.path,
                    number * 10 * size,
                    (number + 1) * 10 * size,
                    10,
                    writer.producer_id,
                    1,
                    number * 10,
                )
                for number in range(2)
            ]
            file.position = 20 * size
            session._positions.note([file], blocks=blocks, target=writer.target)
        if sent:
            rows = {
                "value": pyarrow.array(LINES[:sent]),
                "partition": pyarrow.array([1] * sent, pyarrow.int32()),
            }
            writer.send(pyarrow.record_batch(rows), [1])
            wait_until(lambda: writer.acknowledged() == [1], "they are written")
    finally:
        writer.close()


def test_the_rest_is_gone_with_its_file(tails: Tails, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"".join(line + b"\n" for line in LINES))
    leave_blocks(tails, 13)
    (tmp_path / "a.log").unlink()
    progress = tails.once()
    assert progress.lost_records == 7
    assert any("a.log" in line and "7 lines" in line for line in tails.said)


def test_a_topic_that_was_made_anew_gets_what_was_on_its_way(tails: Tails, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"".join(line + b"\n" for line in LINES))
    leave_blocks(tails, 20)
    with klamm.Admin(tails.bootstrap) as admin:
        admin.delete_topics([tails.topic])
    make_topic(tails.bootstrap, tails.topic)
    assert tails.once().resent_records == 20
    assert sorted(tails.values()) == LINES
    assert any("another topic than before" in line for line in tails.said)


def test_other_rules_for_lines_after_a_crash(tails: Tails, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"".join(line + b"\n" for line in LINES))
    leave_blocks(tails, 5)
    tails.once(rules=LineRules(multiline_start="^00000.5"))
    assert any("sent twice" in line for line in tails.said)
    assert set(b"\n".join(tails.values()).split(b"\n")) == set(LINES), "nothing is lost"


# ---- the broker


def test_a_broker_that_comes_back(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with klamm.testing.Broker() as broker:
        make_topic(broker.bootstrap, "logs")
        tails = Tails(broker.bootstrap, "logs", tmp_path)
        with tails.following():
            log.write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
            tails.wait_for(1000)
            stop = threading.Event()

            def write() -> None:
                with log.open("ab", buffering=0) as file:
                    for number in range(1000, 200_000, 1000):
                        file.write(b"".join(b"%d\n" % each for each in range(number, number + 1000)))
                        if stop.wait(0.005):  # so that some of it comes while the broker is away
                            break

            writer = threading.Thread(target=write)
            writer.start()
            broker.restart()
            broker.restart()
            writer.join()
            tails.wait_for(200_000)
        assert sorted(map(int, tails.values())) == list(range(200_000))


def test_a_broker_that_stands_still(tmp_path: Path) -> None:
    """Requests run out of time and are sent again, and the broker answers the first ones too in the end."""
    log = tmp_path / "a.log"
    broker = BrokerProcess(tmp_path / "data", tmp_path / "broker.txt").start()
    try:
        make_topic(broker.bootstrap, "logs")
        tails = Tails(broker.bootstrap, "logs", tmp_path, request_timeout_ms=700)
        with tails.following():
            log.write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
            tails.wait_for(1000)
            for start in (1000, 21_000):
                with broker.paused(), log.open("ab") as file:
                    file.write(b"".join(b"%d\n" % number for number in range(start, start + 20_000)))
                    file.flush()
                    time.sleep(2.0)  # longer than a request may take, twice
            tails.wait_for(41_000)
        assert sorted(map(int, tails.values())) == list(range(41_000))
    finally:
        broker.stop()


def test_a_broker_that_stays_away_bounds_memory_and_stops_in_time(tmp_path: Path) -> None:
    """Reading stops when the producer's memory is full; what is on its way is noted, and comes later."""
    log = tmp_path / "a.log"
    line = b"x" * 999 + b"\n"
    log.write_bytes(line)
    with klamm.testing.Broker() as broker:
        make_topic(broker.bootstrap, "logs")
        tails = Tails(broker.bootstrap, "logs", tmp_path)
        with pytest.raises(IngestError, match="closed"), tails.following() as session:
            tails.wait_for(1)
            broker._settings["listeners"] = f"PLAINTEXT://{broker.bootstrap}"
            broker.stop()
            with log.open("ab") as file:
                file.write(line * 80_000)
            wait_until(lambda: session.progress.bytes > 30_000_000, "it fills the memory")
            session.abandon()
        assert session.progress.bytes < 60_000_000
        broker.start()
        tails.once()
        assert end_offsets(broker.bootstrap, "logs") == 80_001


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="cannot send to logs"):
        TopicWriter("logs", "127.0.0.1:1", options={"max.block.ms": 300})


def test_settings_that_are_wrong() -> None:
    with pytest.raises(IngestError, match=r"linger\.m"):
        TopicWriter("logs", "127.0.0.1:1", options={"linger.m": 300})
    with pytest.raises(IngestError, match=r"enable\.idempotence"):
        TopicWriter("logs", "127.0.0.1:1", options={"enable.idempotence": "false"})
