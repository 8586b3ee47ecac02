"""`klamm up` starts a console beside its brokers, when they serve, and stops it with them."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from tests.cli import commands
from tests.cli.commands import Command, run_up
from tests.waiting import wait_until

AT = "the console is at "
WITHOUT_NICEGUI = """
import importlib.util
look = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "nicegui" else look(name, package)
"""


def url_of(command: Command) -> str:
    return command.wait_for_line(AT).rpartition(" ")[2]


def is_alive(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/livez", timeout=60) as answer:
        return bool(answer.status == 200)


def test_the_console_comes_after_the_broker_and_ends_with_it(tmp_path: Path) -> None:
    words = ("--port", "0", "--data-dir", "data", "--console-port", "0")
    with run_up(tmp_path, *words, has_console=True) as command:
        url = url_of(command)
        assert "listens on" in command.printed[0], "the broker does not wait for the console"
        assert is_alive(url)
        assert command.stop(signal.SIGTERM) == 0, command
        assert "stopped cleanly" in command.printed[-1]
        address = urlsplit(url)
        with socket.socket() as probe:
            assert probe.connect_ex((address.hostname or "", address.port or 0)) != 0, "the console is gone"


def test_a_console_that_dies_is_started_again_where_it_was(tmp_path: Path) -> None:
    words = ("--port", "0", "--data-dir", "data", "--console-port", "0")
    with run_up(tmp_path, *words, has_console=True) as command:
        url = url_of(command)
        for process in children(command.pid):
            os.kill(process, signal.SIGKILL)
        command.wait_for_line("the console ended with status -9; it is started again")
        wait_until(
            lambda: sum(AT in line for line in command.printed) == 2,
            "it is there again",
            commands.PATIENCE_SECONDS,
        )
        assert command.printed[-1].endswith(url)
        assert command.stop(signal.SIGTERM) == 0


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_brokers_run_without_the_packages_of_the_console(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_NICEGUI)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = ("--port", "0", "--data-dir", "data")
    with run_up(tmp_path, *words, has_console=True, PYTHONPATH=path) as command:
        assert "pip install 'klamm[console]'" in command.wait_for_line("no console")
        assert command.stop(signal.SIGTERM) == 0, command
