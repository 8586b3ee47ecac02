"""Starts a broker from the arguments of the command line, and stops it on a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from klamm.cli.logs import LOG_FORMAT_VARIABLE, LOG_LEVEL_VARIABLE
from klamm.config.loading import BrokerConfig, ConfigError, load_broker_config
from klamm.model import event_loop
from klamm.node.broker import BrokerNode, CannotStart


class Stoppable(Protocol):
    """What runs beside a broker."""

    async def stop(self) -> None: ...


THREAD_SWITCH_INTERVAL_S = 0.0005

COMMAND_VARIABLES = frozenset({LOG_LEVEL_VARIABLE, LOG_FORMAT_VARIABLE, "KLAMM_BOOTSTRAP"})
"""Variables of the commands, which are not broker settings."""


def load_config(config_file: Path | None, settings: list[str]) -> BrokerConfig:
    """The configuration from the file, the environment and `settings`, which are KEY=VALUE; later ones win.

    Raises CannotStart with one line that says what is wrong.
    """
    environment = {name: value for name, value in os.environ.items() if name not in COMMAND_VARIABLES}
    try:
        return load_broker_config(config_file, environment, settings)
    except ConfigError as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise CannotStart(f"cannot read {error.filename}: {error.strerror}") from None


Companion = Callable[[str, Callable[[str], None]], Stoppable | None]
"""Starts what runs beside the broker: it gets the broker's address, and what prints a line."""


def run_broker(
    config: BrokerConfig, *, stops_with_stdin: bool = False, companion: Companion | None = None
) -> None:
    """Run a broker until SIGTERM or SIGINT, or until the standard input ends if `stops_with_stdin`.

    The `companion` is started when the broker serves, and stopped with it.

    Raises CannotStart with one line that says why.
    """
    # A worker thread that computes releases the interpreter lock after this time, so the loop waits no
    # longer.
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    event_loop.run(_serve(config, stops_with_stdin, companion))


async def _serve(config: BrokerConfig, stops_with_stdin: bool, companion: Companion | None) -> None:
    node = BrokerNode(config)
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, node.request_stop)
    if stops_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end, loop, node)
    await node.start()
    _say(f"klamm: broker {node.node_id} listens on {node.bootstrap}")
    beside = None if companion is None else companion(node.bootstrap, _say)
    await node.run_until_stopped()
    if beside is not None:
        await beside.stop()
    _say(f"klamm: broker {node.node_id} stopped cleanly")


def _stop_at_end(loop: asyncio.AbstractEventLoop, node: BrokerNode) -> None:
    """The standard input can be read: at its end its writer, who supervises this broker, is gone."""
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        node.request_stop()


def _say(line: str) -> None:
    """Print a line; if whoever read them is gone, this and all that follow are dropped."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
