"""A follower loses power while its log grows and is truncated: what was cut stays cut.

What is there is a beginning of what the log held when the power went: at least what was flushed, never a
batch that a finished truncation has cut, never garbage, and each batch with its leader epoch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.faults.checks import check_disk
from tests.faults.follower_process import PLACE, make_batch, open_dirs
from tests.faults.power import PowerSupply
from tests.storage.logs import all_batches
from tests.waiting import wait_until

SHORT_LOSSES = 4
LONG_LOSSES = int(os.environ.get("KILLS", "30"))
FOLLOWER = Path(__file__).with_name("follower_process.py")
OPERATIONS_BETWEEN_LOSSES = (5, 150)


class Promised:
    """What the log may hold, oldest first, and how much of that it must hold."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.flushed = 0

    def follow(self, operations: list[dict[str, int | str]]) -> None:
        for operation in operations:
            offset, epoch = int(operation["offset"]), int(operation["epoch"])
            if operation["kind"] == "append":
                assert offset == len(self.batches)
                self.batches += [make_batch(epoch, offset + n) for n in range(int(operation["count"]))]
            elif operation["kind"] == "flushed":
                self.flushed = offset
            else:
                self.flushed = min(self.flushed, offset)
                if operation["kind"] == "truncated":
                    del self.batches[offset:]


def run(directory: Path, losses: int, seed: int) -> None:
    random = Random(seed)
    data, operations = directory / "data", directory / "operations"
    data.mkdir()
    power = PowerSupply(directory, data, seed)
    promised = Promised()
    for number in range(losses):
        operations.write_bytes(b"")
        command = [*power.wrapper, str(FOLLOWER), str(data), str(operations), str(random.getrandbits(32))]
        wanted = random.randint(*OPERATIONS_BETWEEN_LOSSES)
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(_path())}) as process:
            try:
                wait_until(
                    lambda wanted=wanted: operations.read_bytes().count(b"\n") >= wanted,  # type: ignore[misc]
                    f"{wanted} operations",
                    60,
                )
            finally:
                process.kill()
        power.cut()
        promised.follow([json.loads(line) for line in operations.read_text().splitlines()])
        try:
            check(data, promised)
        except AssertionError as error:
            taken = "\n".join(power.was_taken)
            raise AssertionError(f"seed {seed}, loss {number}: {error}\n{taken}") from error
        power.turn_on()


def _path() -> list[str]:
    """Where a process of its own finds what this one has imported."""

    return [path for path in sys.path if path]


def check(data: Path, promised: Promised) -> None:
    dirs = open_dirs(str(data))
    log = dirs.logs.get(PLACE)
    held = all_batches(log) if log is not None else []
    assert len(held) >= promised.flushed, "flushed batches are lost"
    assert held == promised.batches[: len(held)], "a batch that was cut, or never sent"
    if log is not None:
        epochs = [int.from_bytes(batch[12:16], "big") for batch in held]
        assert [log.epochs.epoch_at(offset) for offset in range(len(held))] == epochs
    promised.batches, promised.flushed = held, len(held)
    dirs.close()
    check_disk(data)


@pytest.mark.parametrize("seed", [1])
def test_what_was_cut_stays_cut(tmp_path: Path, seed: int) -> None:
    run(tmp_path, SHORT_LOSSES, seed)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [int(os.environ.get("SEED", "2"))])
def test_what_was_cut_stays_cut_over_many_losses(tmp_path: Path, seed: int) -> None:
    run(tmp_path, LONG_LOSSES, seed)
