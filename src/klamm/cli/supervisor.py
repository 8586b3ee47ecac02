"""Runs several brokers on this machine, each in a process of its own, and starts one that dies again.

The brokers share one coordination store, an SQLite file beside their data directories. Each broker runs in a
session of its own, so that Ctrl-C reaches the supervisor only, which stops the brokers one after the other:
each can hand its leaders over to the next. Each broker's standard input is a pipe from the supervisor. It
ends when the supervisor dies, however it dies, and then the broker stops, too. What a broker logs goes to the
standard error of the supervisor, as it comes, or to a file.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from klamm.config.loading import BrokerConfig
from klamm.server.listener import LISTENERS_OPTION, why_cannot_listen
from klamm.storage.log_dir import META_FILE

if TYPE_CHECKING:
    from klamm.cli.run_broker import Companion, Stoppable

STORE_FILE = "klamm-metadata.sqlite"
FIRST_RESTART_S = 0.1
LONGEST_RESTART_S = 10.0
"""A broker that died is started again after a pause, which doubles up to this while it dies at once."""
STEADY_S = 30.0
"""A broker that has run for so long is taken to work: its next restart is quick again."""
STOP_PATIENCE_S = 60.0
"""A broker that has not stopped by then is killed."""
LAST_PORT = 65535

_READY_WORDS = "listens on"
_OF_EACH_BROKER = frozenset(
    {
        "node.id",
        "broker.id",
        "listeners",
        "advertised.listeners",
        "inter.broker.listener.name",
        "log.dir",
        "log.dirs",
        "klamm.coordination.url",
        "klamm.http.listener",
    }
)


class CannotRun(Exception):
    """The brokers could not be started; the text is one line that says why."""


def check_settings(config: BrokerConfig, settings: Sequence[str]) -> None:
    """Raise CannotRun for settings that cannot be the same for several brokers."""
    names = {setting.partition("=")[0].strip() for setting in settings}
    for key in ("advertised.listeners", "klamm.http.listener"):
        if config[key] is not None:
            names.add(key)
    if wrong := sorted(names & _OF_EACH_BROKER):
        raise CannotRun(
            f"{wrong[0]} differs from broker to broker, so it cannot be set with --brokers: "
            "start each broker with `klamm broker`"
        )


def check_holds_several_brokers(data_dir: Path) -> None:
    """Raise CannotRun if the directory is that of a broker which runs alone."""
    if (data_dir / META_FILE).exists():
        raise CannotRun(
            f"{data_dir} holds the data of a single broker: start it without --brokers, or name another "
            "directory with --data-dir"
        )


def check_holds_one_broker(data_dir: Path) -> None:
    """Raise CannotRun if the directory is that of several brokers."""
    found = len(list(data_dir.glob(f"broker-*/{META_FILE}")))
    if found and not (data_dir / META_FILE).exists():
        raise CannotRun(
            f"{data_dir} holds the data of {found} brokers: start them with --brokers {found}, or name "
            "another directory with --data-dir"
        )


def check_ports(count: int, host: str, port: int, option: str = LISTENERS_OPTION) -> None:
    """Raise CannotRun if one of the brokers' ports, which `option` chooses, cannot be had."""
    if not port:
        return
    if port + count - 1 > LAST_PORT:
        raise CannotRun(f"{count} brokers need the ports from {port} on; the last one is {LAST_PORT}")
    for wanted in range(port, port + count):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, wanted))
                probe.listen()
            except OSError as error:
                raise CannotRun(why_cannot_listen(host, wanted, error, option)) from error


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One broker of the cluster: its id, the command that runs it, and the address to listen on."""

    id: int
    command: Sequence[str]
    address: str

    def words(self, address: str) -> list[str]:
        """The whole command, with the address to listen on."""
        return [*self.command, "--listeners", f"PLAINTEXT://{address}"]


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plan_brokers(
    count: int,
    host: str,
    port: int,
    data_dir: Path,
    options: Sequence[str],
    executable: Sequence[str],
    *,
    http_port: int | None = None,
) -> list[BrokerPlan]:
    """Brokers 1 to `count` on consecutive ports, with `options` of `klamm broker` passed on to each.

    With an `http_port` they serve metrics and health on consecutive ports from it on.
    """

    def http_options(index: int) -> tuple[str, ...]:
        if http_port is None:
            return ()
        return ("--http-listener", address(host, http_port + index if http_port else 0))

    return [
        BrokerPlan(
            broker_id,
            (
                *executable,
                "broker",
                *("--id", str(broker_id)),
                *("--coordination", f"sqlite://{data_dir / STORE_FILE}"),
                *("--data-dir", str(data_dir / f"broker-{broker_id}")),
                "--stop-with-stdin",
                *(("--set", f"offsets.topic.replication.factor={count}") if count < 3 else ()),
                *http_options(broker_id - 1),
                *options,
            ),
            address(host, port + broker_id - 1 if port else 0),
        )
        for broker_id in range(1, count + 1)
    ]


class RunningBroker(NamedTuple):
    """A broker that serves. Its process id is another after a restart."""

    id: int
    address: str
    process_id: int


class _BrokerProcess:
    """One run of a broker. Its standard output is read until it ends, so that it never blocks."""

    def __init__(
        self, plan: BrokerPlan, process: asyncio.subprocess.Process, say: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._say = say
        self.process = process
        self._address: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    async def address(self) -> str:
        """Where it listens, once it serves; CannotRun if it ends before that."""
        address = await asyncio.shield(self._address)
        if address is None:
            raise CannotRun(f"broker {self._plan.id} ended with {_why(await self.wait())} before it served")
        return address

    async def wait(self) -> int:
        """Until it has ended and all that it printed was passed on."""
        status = await self.process.wait()
        await asyncio.shield(self._reading)
        return status

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while True:
            try:
                line = await self.process.stdout.readline()
            except ValueError:  # a line too long for the reader, which has dropped it
                continue
            if not line:
                break
            text = line.decode(errors="replace").rstrip("\n")
            if _READY_WORDS in text and not self._address.done():
                self._address.set_result(text.split()[-1])
            else:
                self._say(text)
        if not self._address.done():
            self._address.set_result(None)


class Supervisor:
    """`say` gets each line to print, `ready` the brokers once all of them serve. Brokers log to `log`."""

    def __init__(
        self,
        plans: Sequence[BrokerPlan],
        *,
        restarts: bool,
        say: Callable[[str], None],
        ready: Callable[[Sequence[RunningBroker]], None],
        log: IO[bytes] | None = None,
    ) -> None:
        self._plans = plans
        self._restarts = restarts
        self._say = say
        self._ready = ready
        self._log = log
        self._stopping = asyncio.Event()
        self._processes: dict[int, _BrokerProcess] = {}
        self._addresses = {plan.id: plan.address for plan in plans}

    def stop(self) -> None:
        """Have `run` stop all brokers; safe to call from a signal handler of the loop."""
        self._stopping.set()

    async def run(self) -> None:
        """Start all brokers, tell `ready`, and keep them running until `stop`.

        Raises CannotRun if a broker does not come up the first time, and if all have ended and are not to be
        started again; then none is left running.
        """
        stopping = asyncio.create_task(self._stopping.wait())
        tasks = [asyncio.create_task(self._start(plan)) for plan in self._plans]
        everyone = asyncio.gather(*tasks)
        try:
            await asyncio.wait((everyone, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not everyone.done():
                return
            everyone.result()
            self._ready(
                [
                    RunningBroker(plan.id, self._addresses[plan.id], self._processes[plan.id].process.pid)
                    for plan in self._plans
                ]
            )
            tasks = [asyncio.create_task(self._keep(plan)) for plan in self._plans]
            everyone = asyncio.gather(*tasks)
            await asyncio.wait((everyone, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                everyone.result()
                raise CannotRun("no broker is left; without --no-restart they would be started again")
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.gather(*tasks, everyone, stopping, return_exceptions=True)
            await self._stop_all()

    async def _start(self, plan: BrokerPlan) -> None:
        """Start one broker, and return when it serves. It keeps a free port that it has chosen."""
        process = await asyncio.create_subprocess_exec(
            *plan.words(self._addresses[plan.id]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        broker = self._processes[plan.id] = _BrokerProcess(plan, process, self._say)
        self._addresses[plan.id] = await broker.address()

    async def _keep(self, plan: BrokerPlan) -> None:
        """Wait until the broker ends, and start it again, for ever; only wait if it is not to be started."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_RESTART_S
        while True:
            started_s = loop.time()
            why = _why(await self._processes[plan.id].wait())
            if not self._restarts:
                self._say(f"klamm: broker {plan.id} ended with {why}; it is not started again")
                return
            if loop.time() - started_s >= STEADY_S:
                pause_s = FIRST_RESTART_S
            self._say(f"klamm: broker {plan.id} ended with {why}; it is started again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RESTART_S)
            try:
                await self._start(plan)
            except CannotRun:
                continue  # it has said why itself, and is told of above
            self._say(f"klamm: broker {plan.id} listens on {self._addresses[plan.id]} again")

    async def _stop_all(self) -> None:
        for broker_id, broker in self._processes.items():
            if broker.process.returncode is None:
                broker.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(broker.wait(), STOP_PATIENCE_S)
            except TimeoutError:
                self._say(f"klamm: broker {broker_id} has not stopped in {STOP_PATIENCE_S:.0f} s; killing it")
                broker.process.kill()
                await broker.wait()


def _why(status: int) -> str:
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


async def supervise(
    plans: Sequence[BrokerPlan], *, restarts: bool, companion: Companion | None = None
) -> None:
    """Run the brokers until SIGTERM or SIGINT. The `companion` is started when all of them serve."""
    beside: Stoppable | None = None

    def say(line: str) -> None:
        print(line, flush=True)

    def ready(brokers: Sequence[RunningBroker]) -> None:
        nonlocal beside
        addresses = ",".join(broker.address for broker in brokers)
        say(f"klamm: {len(brokers)} brokers listen on {addresses}")
        beside = None if companion is None else companion(addresses, say)

    supervisor = Supervisor(plans, restarts=restarts, say=say, ready=ready)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    try:
        await supervisor.run()
    finally:
        if beside is not None:
            await beside.stop()
    print("klamm: stopped cleanly", flush=True)


def this_program() -> tuple[str, ...]:
    """The command that runs `klamm` with the Python of this process."""
    return (sys.executable, "-c", "from klamm.cli.main import main; main()")
