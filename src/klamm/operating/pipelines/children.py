"""Commands of ours as child processes: what runs the code of users, or Spark, runs in a process of its own.

A child gets a session of its own, so that it ends with all that it has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from klamm.operating.errors import CannotDo

MOST_OUTPUT_BYTES = 8_000_000
"""What a child may print on each of its streams; a project of thousands of pipelines prints a tenth."""

_PROGRAM = "from klamm.cli.main import main; main()"


class Done(NamedTuple):
    """How a child ended, and what it printed."""

    status: int
    printed: str
    complained: str


async def start(words: list[str], folder: Path) -> asyncio.subprocess.Process:
    """Start `klamm` with these arguments in a folder. Its output is to be read."""
    # -P: a file json.py in the folder must not be taken for Python's own.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        _PROGRAM,
        *words,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def run(words: list[str], folder: Path, timeout_s: float) -> Done:
    """Run `klamm` with these arguments. Raises CannotDo if it takes too long or prints too much."""
    shown = f"klamm {' '.join(words[:2])}"
    try:
        child = await start(words, folder)
    except OSError as error:
        raise CannotDo(f"{shown} cannot be started in {folder}: {error.strerror}") from None
    assert child.stdout is not None and child.stderr is not None
    try:
        async with asyncio.timeout(timeout_s):
            printed, complained = await asyncio.gather(_all_of(child.stdout), _all_of(child.stderr))
            status = await child.wait()
    except TimeoutError:
        raise CannotDo(
            f"{shown} of {folder} did not end in {timeout_s:g} s",
            advice="Run it in a terminal to see what takes so long",
        ) from None
    except _TooMuch:
        raise CannotDo(f"{shown} of {folder} prints more than {MOST_OUTPUT_BYTES:,} bytes") from None
    finally:
        await end(child)
    return Done(status, printed.decode(errors="replace"), complained.decode(errors="replace"))


async def end(child: asyncio.subprocess.Process) -> None:
    """Kill a child that has not ended, with all that it has started."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


class _TooMuch(Exception):
    pass


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while piece := await stream.read(65_536):
        found += piece
        if len(found) > MOST_OUTPUT_BYTES:
            raise _TooMuch
    return bytes(found)
