"""Files that a crash of the machine left torn or damaged: what is whole is served, the rest is mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.model.errors import ErrorCode
from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import BrokerProcess
from tests.abuse.calls import batch_of, create_topic, produce, read_all, values_of
from tests.faults.checks import check_disk, committed_offset, make_coordinator
from tests.faults.load import Committer, Partition
from tests.faults.test_restart import new_producer_id
from tests.long import cases
from tests.waiting import wait_until

BATCHES = 60
VALUE_BYTES = 1000
SEGMENT_BYTES = 20_000
CONFIGS = {"internal.segment.bytes": SEGMENT_BYTES, "index.interval.bytes": 2000}


class Written:
    """What a broker was given before it died, and how the producer that gave it goes on."""

    def __init__(self, broker: BrokerProcess, starts_again: bool) -> None:
        self._starts_again = starts_again
        self.directory = broker.data_dir / "damaged-0"
        with WireConnection(broker.bootstrap) as connection:
            create_topic(connection, "damaged", configs=CONFIGS)
            make_coordinator(connection, "group")
            Committer(broker.bootstrap, "committer", "group", Partition("damaged", 0)).work_once(connection)
            self._producer_id = new_producer_id(connection)
            self.values = [b"%d" % number for number in range(BATCHES)]
            for number in range(BATCHES):
                assert produce(connection, "damaged", self.batch(number)).base_offset == number
        wait_until(lambda: list(self.directory.glob("*.snapshot")), "there is a snapshot")

    def batch(self, number: int) -> bytearray:
        return batch_of(
            (b"%d" % number).ljust(VALUE_BYTES),
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=number,
        )

    def check(self, broker: BrokerProcess, lost: int = 0) -> None:
        """All but the last `lost` batches are there; the producer goes on; the disk is in order. With
        `starts_again`, a start from that disk shows the same records."""
        kept = self.values[: BATCHES - lost]
        with WireConnection(broker.bootstrap) as connection:
            read = [
                value.rstrip() for value in values_of(read_all(connection, "damaged")) if value is not None
            ]
            assert read == kept
            repeated = produce(connection, "damaged", self.batch(len(kept) - 1))
            assert (repeated.error_code, repeated.base_offset) == (ErrorCode.NONE, len(kept) - 1)
            following = produce(connection, "damaged", self.batch(len(kept)))
            assert (following.error_code, following.base_offset) == (ErrorCode.NONE, len(kept))
            assert committed_offset(connection, "group", Partition("damaged", 0)) == 0
        broker.check_log()
        broker.stop()
        check_disk(broker.data_dir)
        if self._starts_again:
            broker.start()
            with WireConnection(broker.bootstrap) as connection:
                assert len(read_all(connection, "damaged")) == len(kept) + 1
            broker.check_log()

    def newest(self, suffix: str) -> Path:
        return max(self.directory.glob(f"*{suffix}"))


@pytest.fixture(params=cases(["stopped", "started again"], lambda end: end == "stopped"))
def written(broker: BrokerProcess, request: pytest.FixtureRequest) -> Written:
    return Written(broker, request.param == "started again")


def append_bytes(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


TAILS = {
    "a few bytes": b"torn",
    "zeros": bytes(5000),
    "half a header": bytes(batch_of(b"never acknowledged"))[:30],
    "half a batch": bytes(batch_of(b"never acknowledged" * 50))[:500],
    "noise": bytes(range(256)) * 20,
}


@pytest.mark.parametrize("tail", cases(TAILS, lambda tail: tail in ("zeros", "half a batch")))
def test_a_torn_tail_is_cut(broker: BrokerProcess, written: Written, tail: str) -> None:
    broker.kill()
    append_bytes(written.newest(".log"), TAILS[tail])
    broker.start()
    assert "damaged-0" in broker.log() and "cut" in broker.log()
    written.check(broker)


def test_a_last_batch_that_did_not_reach_the_disk(broker: BrokerProcess, written: Written) -> None:
    """The machine lost its power: the end of the file is missing, and with it the last batch."""
    broker.kill()
    newest = written.newest(".log")
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size - 100)
    broker.start()
    written.check(broker, lost=1)


def test_a_last_batch_with_a_wrong_checksum(broker: BrokerProcess, written: Written) -> None:
    broker.kill()
    newest = written.newest(".log")
    content = bytearray(newest.read_bytes())
    content[-50] ^= 0xFF
    newest.write_bytes(content)
    broker.start()
    written.check(broker, lost=1)


def overwrite_with_noise(path: Path) -> None:
    path.write_bytes(bytes(range(1, 200)) * 3)


def fill_with_ones(path: Path) -> None:
    path.write_bytes(b"\xff" * max(24, path.stat().st_size))


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 + 1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


DAMAGES = [overwrite_with_noise, fill_with_ones, cut_in_half, empty, remove]


every_damage = pytest.mark.parametrize(
    "damage",
    cases(DAMAGES, lambda damage: damage in (overwrite_with_noise, remove)),
    ids=lambda damage: damage.__name__,
)


@every_damage
def test_damaged_indexes_are_built_anew(
    broker: BrokerProcess, written: Written, damage: Callable[[Path], None]
) -> None:
    broker.kill()
    for suffix in (".index", ".timeindex", ".snapshot"):
        damaged = list(written.directory.glob(f"*{suffix}"))
        assert damaged, f"there are no {suffix} files to damage"
        for path in damaged:
            damage(path)
    broker.start()
    written.check(broker)


@every_damage
def test_damaged_checkpoints_cost_time_and_nothing_else(
    broker: BrokerProcess, written: Written, damage: Callable[[Path], None]
) -> None:
    """A clean stop first, which writes them all; then a crash before they are written again."""
    broker.stop()
    broker.start()
    broker.kill()
    for name in (
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "damaged-0/leader-epoch-checkpoint",
    ):
        path = broker.data_dir / name
        if not path.exists():
            path.write_bytes(b"0\n0\n")
        damage(path)
    broker.start()
    written.check(broker)


def test_files_that_do_not_belong_there_are_left_alone(broker: BrokerProcess, written: Written) -> None:
    broker.kill()
    (broker.data_dir / "lost+found").mkdir()
    (broker.data_dir / "notes.txt").write_text("mine")
    (written.directory / "notes.txt").write_text("mine")
    broker.start()
    with WireConnection(broker.bootstrap) as connection:
        assert len(read_all(connection, "damaged")) == BATCHES
    assert (broker.data_dir / "notes.txt").read_text() == "mine"
