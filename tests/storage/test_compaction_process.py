"""The process that compacts: started on demand, and gone when it should be, whatever happens."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.storage.compaction_logs import T0, Cleaning, append, compacted, contents, fill, open_log, until

from klamm.storage import log as log_module
from klamm.storage.compaction.child_process import CHILD_MODULE, CleanerFailure, CleanerProcess
from klamm.storage.compaction.cleaner import FIRST_RETRY_MS
from klamm.storage.compaction.rewriting import CleanedSegment, CleanPlan
from klamm.storage.compaction.schedule import examine, plan_for
from klamm.storage.files import LogDirFailure
from klamm.storage.log import Log
from klamm.storage.segments.segment import CLEANED_SUFFIX, Segment

HIGHEST_NICENESS = 19
"""No process can have more. Tests that run with it themselves start a child that has as much."""


def plan(log: Log) -> CleanPlan:
    return plan_for(examine(log, 0, log.log_end_offset, T0), T0, 1 << 20)


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def overwrite(path: str, data: bytes) -> bytes:
    """Returns what the file held."""
    before = Path(path).read_bytes()
    Path(path).write_bytes(data)
    return before


async def test_it_starts_on_demand_and_serves_many_plans(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    process = CleanerProcess()
    assert process.process_id is None
    seen = []

    async def note(cleaned: CleanedSegment) -> None:
        seen.append(cleaned)

    await process.clean(plan(log), note)
    first = process.process_id
    assert first is not None
    own_niceness = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, first) > min(own_niceness, HIGHEST_NICENESS - 1)
    await process.clean(plan(log), note)
    assert process.process_id == first
    assert len(seen) == 2
    await process.close()
    assert process.process_id is None
    assert not is_running(first)


async def test_a_process_that_dies_fails_its_plan_only(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    process = CleanerProcess()

    async def kill(cleaned: CleanedSegment) -> None:
        killed = process.process_id
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await until(lambda: not is_running(killed))

    async def accept(cleaned: CleanedSegment) -> None:
        pass

    with pytest.raises(CleanerFailure, match="ended with code -9"):
        await process.clean(plan(log), kill)
    assert (await process.clean(plan(log), accept)).records_kept < 100
    await process.close()


async def test_a_process_that_falls_silent_is_ended(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    process = CleanerProcess(silence_limit_s=5)
    stopped = []

    async def stop(cleaned: CleanedSegment) -> None:
        assert process.process_id is not None
        os.kill(process.process_id, signal.SIGSTOP)
        stopped.append(process.process_id)
        process.silence_limit_s = 0.05

    with pytest.raises(CleanerFailure, match="was silent"):
        await process.clean(plan(log), stop)
    assert not is_running(stopped[0])


async def test_a_cancelled_compaction_ends_the_process_and_leaves_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(segment_bytes=1 << 20))
    fill(log, 6000, keys=50)
    async with Cleaning([log]) as cleaning:
        task = asyncio.create_task(cleaning.cleaner.clean_now(log))
        await until(lambda: any(name.endswith(CLEANED_SUFFIX) for name in os.listdir(log.directory)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not [name for name in os.listdir(log.directory) if name.endswith(CLEANED_SUFFIX)]


async def test_running_it_ends_the_process_when_idle_and_when_cancelled(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    async with Cleaning([log]) as cleaning:
        cleaning.settings = cleaning.settings._replace(backoff_ms=1)
        runner = asyncio.create_task(cleaning.cleaner.run())
        await until(lambda: bool(cleaning.said) and cleaning.cleaner.process_id is None)
        assert len(contents(log)) < 200
        fill(log, 300)
        await until(lambda: len(cleaning.said) == 2)
        runner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await runner
        assert cleaning.cleaner.process_id is None
        assert all("compacted" in line for line in cleaning.said)


async def test_a_round_that_fails_does_not_end_the_task(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    async with Cleaning([log]) as cleaning:
        cleaning.settings = cleaning.settings._replace(backoff_ms=1)
        hidden, cleaning.logs = cleaning.logs, None  # type: ignore[assignment]
        runner = asyncio.create_task(cleaning.cleaner.run())
        await asyncio.sleep(0)
        assert not runner.done()
        cleaning.logs = hidden
        await until(lambda: bool(cleaning.said))
        runner.cancel()
    assert "compacted" in cleaning.said[0]


async def test_a_failing_disk_takes_its_directory_offline(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    async with Cleaning([log]) as cleaning:

        class FailingLog:
            """The log, on a disk that no longer syncs."""

            def __getattr__(self, name: str) -> object:
                return self.fail if name == "replace_segments" else getattr(log, name)

            def fail(self, *args: object) -> bool:
                raise LogDirFailure(errno.EIO, "fsync failed")

        assert await cleaning.cleaner.clean_now(FailingLog()) is None  # type: ignore[arg-type]
        assert cleaning.failed_directories == [str(tmp_path)]


async def test_a_failed_compaction_is_said_and_tried_again_later(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    path = log.segments[0].path(".log")
    whole = overwrite(path, bytes(log.segments[0].size))
    before = os.listdir(log.directory)
    async with Cleaning([log]) as cleaning:
        assert not await cleaning.cleaner.clean_dirtiest()
        assert "compaction was dropped" in cleaning.said[0]
        assert "next try in 15 s" in cleaning.said[0]
        assert sorted(os.listdir(log.directory)) == sorted(before)
        overwrite(path, whole)
        assert not await cleaning.cleaner.clean_dirtiest(), "it rests"
        cleaning.now_ms += FIRST_RETRY_MS
        assert await cleaning.cleaner.clean_dirtiest()


async def test_a_log_that_cannot_be_compacted_does_not_hinder_others(tmp_path: Path) -> None:
    bad, good = open_log(tmp_path, name="bad"), open_log(tmp_path, name="good")
    fill(bad, 200)
    fill(good, 100)
    overwrite(bad.segments[0].path(".log"), bytes(bad.segments[0].size))
    async with Cleaning([bad, good]) as cleaning:
        cleaning.settings = cleaning.settings._replace(backoff_ms=1)
        runner = asyncio.create_task(cleaning.cleaner.run())
        await until(lambda: len(cleaning.said) == 2)
        runner.cancel()
    assert len(contents(good)) < 200


async def test_a_log_whose_retention_fails_does_not_hinder_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = (
        open_log(tmp_path, compacted(cleanup_delete=True), name="bad"),
        open_log(tmp_path, name="good"),
    )
    fill(bad, 200)
    fill(good, 100)

    def count_expired(segments: Sequence[Segment], *args: Any, **kwargs: Any) -> int:
        assert segments[0].directory == str(bad.directory)
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(log_module, "count_expired", count_expired)
    async with Cleaning([bad, good]) as cleaning:
        assert await cleaning.cleaner.clean_dirtiest()
        assert "bad-0: compaction was dropped: [Errno 13] Permission denied" in cleaning.said[0]
    assert len(contents(good)) < 200


async def test_a_deleted_log_ends_its_compaction_quietly(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    async with Cleaning([log]) as cleaning:
        task = asyncio.create_task(cleaning.cleaner.clean_now(log))
        await until(lambda: cleaning.cleaner.process_id is not None)
        log.rename_for_delete()
        shutil.rmtree(log.directory)
        assert await task is None
        assert cleaning.said == []
        assert cleaning.failed_directories == []


async def test_retention_during_a_compaction_ends_it_without_harm(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    async with Cleaning([log]) as cleaning:
        original = log.replace_segments

        def delete_first(*args: object) -> bool:
            log.delete_records_before(log.segments[2].base_offset)
            assert log.delete_expired(T0) == 2
            return original(*args)  # type: ignore[arg-type]

        class Racing:
            """The log, with retention at the worst moment."""

            def __getattr__(self, name: str) -> object:
                return delete_first if name == "replace_segments" else getattr(log, name)

        before = contents(log)
        assert await cleaning.cleaner.clean_now(Racing()) is None  # type: ignore[arg-type]
        assert "lost segments" in cleaning.said[0]
        assert contents(log) == [entry for entry in before if entry[0] >= log.log_start_offset]
        assert not [n for n in os.listdir(log.directory) if n.endswith((".swap", CLEANED_SUFFIX))]
        assert await cleaning.cleaner.clean_now(log) is not None


def child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


HANGING_BROKER = """
import asyncio, json, sys
from klamm.storage.compaction.rewriting import CleanPlan
from klamm.storage.compaction.child_process import CleanerProcess

async def main():
    process = CleanerProcess()
    async def hang(cleaned):
        print(process.process_id, flush=True)
        await asyncio.Event().wait()
    await process.clean(CleanPlan.from_json(json.loads(sys.stdin.readline())), hang)

asyncio.run(main())
"""


async def test_the_process_of_a_killed_broker_ends(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    broker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HANGING_BROKER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    assert broker.stdin is not None
    assert broker.stdout is not None
    broker.stdin.write(json.dumps(plan(log)._asdict()).encode() + b"\n")
    child_id = int(await broker.stdout.readline())
    assert is_running(child_id)
    broker.kill()
    await broker.wait()
    await until(lambda: not is_running(child_id))
    assert len(contents(open_log(tmp_path))) == 1000


async def test_a_busy_process_notices_that_its_broker_is_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(segment_bytes=1 << 20))
    fill(log, 2000, keys=50)
    append(log, [(b"x", b"x")])
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        CHILD_MODULE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    output, _ = await child.communicate(json.dumps(plan(log)._asdict()).encode() + b"\n")
    assert child.returncode == 0
    assert output == b"", "it must not have finished"


def test_the_process_imports_little() -> None:
    """It must start fast and stay small: no event loop, no configuration."""
    code = f"import sys, {CHILD_MODULE}; print(*sorted(sys.modules))"
    loaded = subprocess.check_output([sys.executable, "-c", code], env=child_environment(), text=True).split()
    assert not {"asyncio", "uvloop", "klamm.config", "klamm.protocol", "klamm.storage.log"} & set(loaded)
