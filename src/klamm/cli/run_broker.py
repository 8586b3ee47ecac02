"""Starting one broker from what the command line was given, and stopping it on a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import uvloop

from klamm.config.loading import BrokerConfig, ConfigError, load_broker_config
from klamm.node.broker import BrokerNode, CannotStart

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
DEFAULT_DATA_DIR = "data"

__all__ = ["CannotStart", "run_broker"]


def run_broker(
    *,
    host: str | None = None,
    port: int | None = None,
    data_dir: Path | None = None,
    config_file: Path | None = None,
    settings: list[str],
) -> None:
    """Run a broker until it is told to stop; raises CannotStart with one clear line."""
    config = _load(host, port, data_dir, config_file, settings)
    uvloop.run(_serve(config))


def _load(
    host: str | None, port: int | None, data_dir: Path | None, config_file: Path | None, settings: list[str]
) -> BrokerConfig:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "KLAMM_LOG_LEVEL"  # ours, not a broker setting
    }
    flags = list(settings)
    try:
        if host is not None or port is not None:
            flags.insert(0, f"listeners=PLAINTEXT://{_bracketed(host or DEFAULT_HOST)}:{_or(port, DEFAULT_PORT)}")
        if data_dir is not None:
            flags.insert(0, f"log.dirs={data_dir}")
        return load_broker_config(config_file, environment, flags)
    except ConfigError as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise CannotStart(f"cannot read {error.filename}: {error.strerror}") from None


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _serve(config: BrokerConfig) -> None:
    node = BrokerNode(config)
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, node.request_stop)
    await node.start()
    print(f"klamm: broker {node.node_id} listens on {node.bootstrap}", flush=True)
    await node.run_until_stopped()
    print("klamm: stopped cleanly", flush=True)
