"""A broker in a process of its own, started by the command that users type: it can be killed, stopped,
starved and watched from outside."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.waiting import is_ready

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0

_FAULTS = re.compile(
    r'Traceback|handler failed|cannot be written|never retrieved|"level": "(ERROR|CRITICAL)"'
)
"""What must not be in a broker's log, however its clients behave."""


class BrokerProcess:
    """`klamm up` on a free port of 127.0.0.1; after the first start the port stays the same."""

    def __init__(
        self, data_dir: Path, log_file: Path, settings: Mapping[str, str | int] | None = None
    ) -> None:
        self.data_dir = data_dir
        self.log_file = log_file
        self.settings = {
            "group.initial.rebalance.delay.ms": 0,
            "offsets.topic.num.partitions": 3,
            **(settings or {}),
        }
        self.bootstrap = ""
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the broker is not running"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, *wrapper: str) -> BrokerProcess:
        """Start the broker, under the command `wrapper` if one is given, and wait until it listens."""
        command = [*wrapper, str(Path(sys.executable).parent / "klamm"), *self._arguments()]
        command += ["--data-dir", str(self.data_dir)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KLAMM_")}
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
        self.bootstrap = self._read_address()
        self._port = int(self.bootstrap.rpartition(":")[2])
        return self

    def _arguments(self) -> list[str]:
        """The command of klamm that starts the broker, without its data directory and settings."""
        return ["up", "--no-console", "--port", str(self._port)]

    def _read_address(self) -> str:
        output = self.process.stdout
        assert output is not None
        line = output.readline().decode() if is_ready(output, select.POLLIN, START_TIMEOUT_S) else ""
        found = re.search(r"listens on (\S+:\d+)", line)
        if found is None:
            self.kill()
            raise AssertionError(f"the broker did not start: {line!r}\n{self.log()[-3000:]}")
        return found[1]

    def kill(self) -> None:
        """kill -9: the process gets no chance to tidy up."""
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        status = self._reap()
        assert status == 0, f"the broker ended with status {status}\n{self.log()[-3000:]}"

    def _reap(self) -> int:
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
        self._process = None
        return status

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP for the length of the block, as a machine that swaps or a debugger would."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def check_log(self, start: int = 0) -> None:
        """The log, from character `start` on, holds no failure of the broker's own."""
        log = self.log()[start:]
        found = _FAULTS.search(log)
        if found is not None:
            excerpt = log[max(0, found.start() - 500) : found.start() + 3500]
            raise AssertionError(f"the broker's log has a fault:\n{excerpt}")

    # ---- memory

    def resident_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    def peak_resident_bytes(self) -> int:
        """The most it has ever had since `reset_peak`."""
        return self._status_bytes("VmHWM")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def open_sockets(self) -> int:
        """How many clients it holds a connection to, and a few sockets of its own."""
        directory = f"/proc/{self.pid}/fd"
        count = 0
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                count += os.readlink(f"{directory}/{name}").startswith("socket:")
        return count

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _status_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None, f"no {name} in /proc/{self.pid}/status"
        return int(found[1]) * 1024

    @contextlib.contextmanager
    def started(self, *wrapper: str) -> Iterator[BrokerProcess]:
        """Running, under the command `wrapper`, for the length of the block."""
        self.start(*wrapper)
        try:
            yield self
        finally:
            self.__exit__()

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self.kill()


def raise_descriptor_limit() -> int:
    """As many open files as this process may have; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
