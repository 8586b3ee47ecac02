"""Starting one broker from what the command line was given, and stopping it on a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from klamm.cli.logs import LOG_LEVEL_VARIABLE
from klamm.config.loading import BrokerConfig, ConfigError, load_broker_config
from klamm.model import event_loop
from klamm.node.broker import BrokerNode, CannotStart

THREAD_SWITCH_INTERVAL_S = 0.0005

COMMAND_VARIABLES = frozenset({LOG_LEVEL_VARIABLE, "KLAMM_BOOTSTRAP"})
"""They look like broker settings, but are the commands' own."""


def run_broker(
    *,
    host: str,
    port: int,
    data_dir: Path | None,
    config_file: Path | None,
    settings: list[str],
    is_address_given: bool,
) -> None:
    """Run a broker until it is told to stop; raises CannotStart with one clear line."""
    flags = list(settings)
    if is_address_given:
        address = f"[{host}]" if ":" in host else host
        flags.insert(0, f"listeners=PLAINTEXT://{address}:{port}")
    if data_dir is not None:
        flags.insert(0, f"log.dirs={data_dir}")
    environment = {name: value for name, value in os.environ.items() if name not in COMMAND_VARIABLES}
    try:
        config = load_broker_config(config_file, environment, flags)
    except ConfigError as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise CannotStart(f"cannot read {error.filename}: {error.strerror}") from None
    # A worker thread that computes gives the interpreter back after this long, so the loop waits no longer.
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    event_loop.run(_serve(config))


async def _serve(config: BrokerConfig) -> None:
    node = BrokerNode(config)
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, node.request_stop)
    await node.start()
    print(f"klamm: broker {node.node_id} listens on {node.bootstrap}", flush=True)
    await node.run_until_stopped()
    print("klamm: stopped cleanly", flush=True)
