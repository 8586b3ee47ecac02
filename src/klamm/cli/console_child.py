"""The console as a process beside the brokers of `klamm up` and `make demo`.

It is started when the brokers serve, so that they are ready no later. One that dies is started again. Without
the packages that it needs a line says how to get them, and the brokers run on.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from klamm.cli.console import DEFAULT_HOST, DEFAULT_PORT
from klamm.cli.supervisor import FIRST_RESTART_S, LONGEST_RESTART_S, STEADY_S, this_program

STOP_PATIENCE_S = 5.0
"""A console that has not stopped by then is killed: it keeps nothing that could be lost."""

REFUSED = 1
"""The exit status of a console that has said why it cannot run: it would say so again."""

MISSING = (
    "klamm: no console: it needs packages that are not installed; to have it: pip install 'klamm[console]'"
)


def is_installed() -> bool:
    return importlib.util.find_spec("nicegui") is not None


def choose_port(port: int | None) -> int:
    """The port for a console: the one that is wanted, else the usual one, else a free one.

    It is chosen here, so that a console that is started again is where it was."""
    for wanted in (DEFAULT_PORT, 0) if port is None else (port,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((DEFAULT_HOST, wanted))
                probe.listen()
                return int(probe.getsockname()[1])
    return DEFAULT_PORT if port is None else port


def console_words(bootstrap: str, port: int, project: Path | None = None) -> list[str]:
    """The command of a console of these brokers, and of a project of pipelines."""
    words = ["console", "--bootstrap", bootstrap, "--host", DEFAULT_HOST, "--port", str(port)]
    words += [] if project is None else ["--project", str(project)]
    return [*this_program(), *words, "--stop-with-stdin"]


class ConsoleChild:
    """A console that is kept running. `say` gets each line that it prints."""

    def __init__(self, bootstrap: str, port: int | None, say: Callable[[str], None]) -> None:
        self._words = console_words(bootstrap, choose_port(port))
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.create_task(self._keep(), name="console")

    async def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_PATIENCE_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_RESTART_S
        while True:
            started_s = loop.time()
            status = await self._run(self._words)
            if status == REFUSED:
                return
            pause_s = FIRST_RESTART_S if loop.time() - started_s >= STEADY_S else pause_s
            self._say(f"klamm: the console ended with status {status}; it is started again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RESTART_S)

    async def _run(self, words: Sequence[str]) -> int:
        self._process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._say(line.decode(errors="replace").rstrip("\n"))
        return await self._process.wait()


def start_console(
    bootstrap: str, listeners: Sequence[str], port: int | None, say: Callable[[str], None]
) -> ConsoleChild | None:
    """Start a console of brokers with these listeners; None, and a line that says why, if it cannot run."""
    if not is_installed():
        say(MISSING)
        return None
    if not any(listener.upper().startswith("PLAINTEXT://") for listener in listeners):
        say("klamm: no console: the brokers have no PLAINTEXT listener; start `klamm console` with a profile")
        return None
    return ConsoleChild(bootstrap, port, say)
