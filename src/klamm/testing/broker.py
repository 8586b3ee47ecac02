"""A real broker inside the process of a test.

    with klamm.testing.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

The broker listens on a free port of 127.0.0.1, keeps its data in a temporary directory, and rebalances groups
without delay. When the block ends, the broker stops and the directory is deleted. The broker runs on its own
event loop in a thread, so blocking tests and asyncio tests can both use it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from klamm.config.loading import BrokerConfig
from klamm.model import event_loop
from klamm.node.broker import BrokerNode

T = TypeVar("T")

TEST_DEFAULTS: Mapping[str, str] = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    # Tests start many brokers, and need no protection against a crash of the machine.
    "log.flush.offset.checkpoint.interval.ms": "3600000",
}

MOST_OPEN_FILES = 256
"""The most segment files that a broker keeps open. The test itself needs low file descriptors: code that
calls `select`, such as Spark's driver, cannot use descriptors above 1,023."""

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class Broker:
    """A broker in a thread. `config` has Kafka's key names. A `data_dir` that is passed is not deleted."""

    def __init__(
        self,
        config: Mapping[str, str | int | float | bool] | None = None,
        *,
        data_dir: Path | str | None = None,
    ) -> None:
        settings = dict(TEST_DEFAULTS)
        settings.update({name: as_text(value) for name, value in (config or {}).items()})
        self._owns_data_dir = data_dir is None and "log.dirs" not in settings
        if data_dir is not None:
            self.data_dir = Path(data_dir)
        elif "log.dirs" in settings:
            self.data_dir = Path(settings["log.dirs"].partition(",")[0])
        else:
            self.data_dir = Path(tempfile.mkdtemp(prefix="klamm-"))
        settings.setdefault("log.dirs", str(self.data_dir))
        self._settings = settings
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._is_killed = False
        self._resumed: threading.Event | None = None
        """What the threads of a paused broker wait for."""
        self.node: BrokerNode | None = None

    @property
    def bootstrap(self) -> str:
        """The address to give to a client: "127.0.0.1:port"."""
        assert self.node is not None, "the broker is not running"
        return self.node.bootstrap

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    def start(self) -> Broker:
        assert self._thread is None, "the broker is running already"
        self._started.clear()
        self._failure = None
        self._is_killed = False
        self._thread = threading.Thread(target=self._run, name="klamm-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the broker did not start within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            self._thread.join()
            self._thread = None
            raise self._failure
        return self

    def stop(self) -> None:
        """Shut down cleanly. The data stays, so a later `start` serves it again. If paused, resume first."""
        if self._thread is None:
            return
        assert self._loop is not None and self.node is not None
        self.resume()
        self._loop.call_soon_threadsafe(self.node.request_stop)
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s"
        self._thread = None
        self.node = None
        if self._failure is not None:
            raise self._failure

    def kill(self) -> None:
        """End at once, as a process that is killed: nothing is handed over, flushed or written down.

        Only its session ends at once with every kind of store, as that of a dead process with SQLite.
        """
        self._is_killed = True
        self.stop()

    def restart(self) -> None:
        """Stop cleanly, and start again on the same port with the same data."""
        self._settings["listeners"] = f"PLAINTEXT://127.0.0.1:{self.port}"
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the broker where it is, until `resume`, as SIGSTOP stops a process.

        The broker answers nothing and appends nothing, its timers do not run, and nothing keeps its session
        alive. Only its worker threads finish what they have begun, such as a flush.
        """
        assert self._loop is not None and self._thread is not None, "the broker is not running"
        if self._resumed is not None:
            return
        is_paused, self._resumed = threading.Event(), threading.Event()
        self._loop.call_soon_threadsafe(self._hold, is_paused, self._resumed)
        if not is_paused.wait(STOP_TIMEOUT_S):
            self.resume()
            raise TimeoutError(f"the broker's event loop did nothing for {STOP_TIMEOUT_S:.0f} s")

    def resume(self) -> None:
        """Let a paused broker go on."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's event loop, for tests of the broker's internals."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_TIMEOUT_S)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        try:
            self.stop()
        finally:
            if self._owns_data_dir:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def _run(self) -> None:
        try:
            event_loop.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    def _hold(self, is_paused: threading.Event, resumed: threading.Event) -> None:
        """Block the broker's threads until it is resumed. Runs on the loop."""

        def until_resumed() -> None:
            is_paused.set()
            resumed.wait()

        assert self.node is not None
        if self.node.membership is None:
            until_resumed()
        else:
            self.node.membership.pause(until_resumed)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.node = BrokerNode(BrokerConfig(self._settings), most_open_files=MOST_OPEN_FILES)
        await self.node.start()
        self._started.set()
        await self.node.wait_for_stop()
        await (self.node.kill() if self._is_killed else self.node.stop())


def as_text(value: str | int | float | bool) -> str:
    """A setting's value as a configuration file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
