"""Logs as the commands write them: JSON off a terminal, text on one, and what the environment says."""

from __future__ import annotations

import datetime
import json
import logging
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import KLAMM, clean_environment, run_klamm, run_up

from klamm.cli.logs import JsonLines

KEYS = {"time", "level", "logger", "message", "process_id"}


def read(line: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(line)
    when = datetime.datetime.fromisoformat(fields["time"])
    age = datetime.datetime.now(datetime.UTC) - when
    assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=5)
    return fields


def test_all_processes_log_lines_of_json_off_a_terminal(tmp_path: Path) -> None:
    with run_up(tmp_path, "--brokers", "2", "--port", "0", "--data-dir", "data") as command:
        command.wait_for_line("brokers listen on")
        assert command.stop(signal.SIGTERM) == 0
    logged = [read(line) for line in command.complained]
    assert {each["broker"] for each in logged} == {1, 2}
    assert all(set(each) == KEYS | {"broker"} for each in logged)
    assert len({each["process_id"] for each in logged}) == 2
    assert any("is registered in broker epoch" in each["message"] for each in logged)
    with run_klamm(tmp_path, "topic", "list", "-b", "127.0.0.1:1", "--timeout", "1") as command:
        assert command.wait() == 1
    assert command.complained[-1].startswith("klamm: "), "what a command answers is no log"
    for line in command.complained[:-1]:
        assert set(read(line)) == KEYS


def test_text_on_a_terminal_or_where_it_is_asked_for(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0), os.fdopen(theirs, "rb", buffering=0):
        script = (
            "from klamm.cli.logs import set_up_logging as s; s(); import logging as l; l.warning('w%d', 1)"
        )
        words = [sys.executable, "-c", script]
        environment = clean_environment()
        subprocess.run(words, stderr=theirs, env=environment, check=True)
        assert b" WARNING root: w1" in os.read(ours, 1000)
        subprocess.run(words, stderr=theirs, env=environment | {"KLAMM_LOG_FORMAT": "json"}, check=True)
        assert read(os.read(ours, 1000).decode())["message"] == "w1"
    done = subprocess.run(
        words, capture_output=True, env=environment | {"KLAMM_LOG_FORMAT": "TEXT"}, check=True, text=True
    )
    assert done.stderr.endswith(" WARNING root: w1\n")


def test_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [KLAMM, "up", "--data-dir", "data"],
        cwd=tmp_path,
        env=clean_environment(KLAMM_LOG_FORMAT="xml"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "klamm: KLAMM_LOG_FORMAT='xml' is not valid: expected text or json\n"


@pytest.mark.parametrize("message", ['a "quoted"\nline', "\x1b[31mred", "ünï\ud800"])
def test_a_message_stays_in_its_line(message: str) -> None:
    try:
        raise ValueError(message)
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, __file__, 1, "%s!", (message,), sys.exc_info())
    line = JsonLines(7).format(record)
    assert line.isprintable() and line.isascii()
    fields = json.loads(line)
    assert fields["message"] == f"{message}!" and fields["broker"] == 7
    assert fields["exception"].startswith("Traceback") and "ValueError" in fields["exception"]
