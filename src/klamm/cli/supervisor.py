"""Runs several brokers on this machine, each in a process of its own, and starts one that dies again.

The brokers share one coordination store, an SQLite file beside their data directories. Each broker runs in a
session of its own, so that Ctrl-C reaches the supervisor only, which stops the brokers one after the other:
each can hand its leaders over to the next. Each broker's standard input is a pipe from the supervisor. It
ends when the supervisor dies, however it dies, and then the broker stops, too.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

STORE_FILE = "klamm-metadata.sqlite"
FIRST_RESTART_S = 0.1
LONGEST_RESTART_S = 10.0
"""A broker that died is started again after a pause, which doubles up to this while it dies at once."""
STEADY_S = 30.0
"""A broker that has run for so long is taken to work: its next restart is quick again."""
STOP_PATIENCE_S = 60.0
"""A broker that has not stopped by then is killed."""

_READY_LINE = b"listens on"


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One broker of the cluster: its id, and the command that runs it."""

    id: int
    command: Sequence[str]


class CannotRun(Exception):
    """A broker could not be started at all; the text is its complaint."""


def plan_brokers(
    count: int, host: str, port: int, data_dir: Path, options: Sequence[str], executable: Sequence[str]
) -> list[BrokerPlan]:
    """Brokers 1 to `count` on consecutive ports, with `options` of `klamm broker` passed on to each."""
    address = f"[{host}]" if ":" in host else host
    return [
        BrokerPlan(
            broker_id,
            (
                *executable,
                "broker",
                *("--id", str(broker_id)),
                *("--coordination", f"sqlite://{data_dir / STORE_FILE}"),
                *("--listeners", f"PLAINTEXT://{address}:{port + broker_id - 1 if port else 0}"),
                *("--data-dir", str(data_dir / f"broker-{broker_id}")),
                "--stop-with-stdin",
                *options,
            ),
        )
        for broker_id in range(1, count + 1)
    ]


class Supervisor:
    def __init__(self, plans: Sequence[BrokerPlan], *, restarts: bool, say: Callable[[str], None]) -> None:
        self._plans = plans
        self._restarts = restarts
        self._say = say
        self._stopping = asyncio.Event()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._addresses: dict[int, str] = {}

    def stop(self) -> None:
        """Have `run` stop all brokers; safe to call from a signal handler of the loop."""
        self._stopping.set()

    async def run(self) -> None:
        """Start all brokers, say where they listen, and keep them running until `stop`.

        Raises CannotRun if a broker does not come up the first time; then none is left running.
        """
        try:
            starts = [asyncio.create_task(self._start(plan)) for plan in self._plans]
            stopping = asyncio.create_task(self._stopping.wait())
            everyone = asyncio.gather(*starts)
            await asyncio.wait((everyone, stopping), return_when=asyncio.FIRST_COMPLETED)
            if everyone.done():
                everyone.result()
                self._say_ready()
                keepers = [asyncio.create_task(self._keep(plan)) for plan in self._plans]
                await stopping
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)
            else:
                everyone.cancel()
                await asyncio.gather(everyone, return_exceptions=True)
            stopping.cancel()
        finally:
            await self._stop_all()

    def _say_ready(self) -> None:
        addresses = ",".join(self._addresses[plan.id] for plan in self._plans)
        self._say(f"klamm: {len(self._plans)} brokers listen on {addresses}")

    async def _start(self, plan: BrokerPlan) -> None:
        """Start one broker, and return when it serves."""
        process = self._processes[plan.id] = await asyncio.create_subprocess_exec(
            *plan.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None,
            start_new_session=True,
        )
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if _READY_LINE in line:
                self._addresses[plan.id] = line.decode().split()[-1]
                return
        raise CannotRun(f"broker {plan.id} ended with status {await process.wait()} before it served")

    async def _keep(self, plan: BrokerPlan) -> None:
        """Wait until the broker ends, and start it again, for ever."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_RESTART_S
        while True:
            started_s = loop.time()
            status = await self._processes[plan.id].wait()
            if not self._restarts:
                self._say(f"klamm: broker {plan.id} ended with {_why(status)}; it is not started again")
                return
            pause_s = FIRST_RESTART_S if loop.time() - started_s >= STEADY_S else pause_s
            self._say(f"klamm: broker {plan.id} ended with {_why(status)}; starting it again")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RESTART_S)
            try:
                await self._start(plan)
            except CannotRun as error:
                self._say(f"klamm: {error}")
            else:
                self._say(f"klamm: broker {plan.id} listens on {self._addresses[plan.id]} again")

    async def _stop_all(self) -> None:
        for broker_id, process in self._processes.items():
            if process.returncode is not None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_PATIENCE_S)
            except TimeoutError:
                self._say(f"klamm: broker {broker_id} has not stopped in {STOP_PATIENCE_S:.0f} s; killing it")
                process.kill()
                await process.wait()


def _why(status: int) -> str:
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


async def supervise(plans: Sequence[BrokerPlan], *, restarts: bool) -> None:
    """Run the brokers until SIGTERM or SIGINT."""
    supervisor = Supervisor(plans, restarts=restarts, say=lambda line: print(line, flush=True))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    await supervisor.run()
    print("klamm: stopped cleanly", flush=True)


def this_program() -> tuple[str, ...]:
    """The command that runs `klamm` with the Python of this process."""
    return (sys.executable, "-c", "from klamm.cli.main import main; main()")
