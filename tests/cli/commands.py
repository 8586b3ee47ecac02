"""Runs Klamm's commands as a user types them, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE_SECONDS = 60.0
KLAMM = str(Path(sys.executable).with_name("klamm"))

Done = subprocess.CompletedProcess[str]


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without settings of Klamm's that the tester may have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KLAMM_")}
    return kept | variables


class Command:
    """A running command. What it writes is read as it comes, so that it never blocks."""

    def __init__(self, words: Sequence[str], directory: Path, **variables: str) -> None:
        self._process = subprocess.Popen(
            words,
            cwd=directory,
            env=clean_environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._news = threading.Condition()
        self.printed: list[str] = []
        self.complained: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout, self.printed), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, self.complained), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_line(self, text: str) -> str:
        """Wait until it prints a line with this text, and return the line."""
        with self._news:
            found = self._news.wait_for(
                lambda: self._find(text) or self._process.poll() is not None, PATIENCE_SECONDS
            )
        assert found, f"{text!r} was not printed; {self}"
        line = self._find(text)
        assert line is not None, f"it ended without {text!r}; {self}"
        return line

    def stop(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit status."""
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self._process.wait(PATIENCE_SECONDS)
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)
        return status

    def _find(self, text: str) -> str | None:
        return next((line for line in self.printed if text in line), None)

    def _read(self, stream: object, lines: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            with self._news:
                lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def __str__(self) -> str:
        return f"printed {self.printed}, complained {self.complained}"


def run_up(directory: Path, *arguments: str, has_console: bool = False, **variables: str) -> Command:
    """`klamm up`, without the console unless a test is about it: a process less to start."""
    words = arguments if has_console else ("--no-console", *arguments)
    return Command([KLAMM, "up", *words], directory, **variables)


def run_klamm(directory: Path, *arguments: str, **variables: str) -> Command:
    return Command([KLAMM, *arguments], directory, **variables)


def complaint(directory: Path, *arguments: str, **variables: str) -> str:
    """Run a command that must fail before it has done anything; returns the one line it complains with."""
    with run_klamm(directory, *arguments, **variables) as command:
        assert command.wait() == 1, command
        assert command.printed == []
        (line,) = command.complained
        assert line.startswith("klamm: ")
        return line


class Shell:
    """Runs `klamm` in a folder, with profiles of its own."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self.bootstrap = bootstrap

    def __call__(self, *words: str, stdin: str | bytes = b"", **variables: str) -> Done:
        environment = clean_environment(
            KLAMM_BOOTSTRAP=self.bootstrap, KLAMM_PROFILES=str(self.folder / "profiles.toml"), TERM="dumb"
        )
        done = subprocess.run(
            [KLAMM, *words],
            cwd=self.folder,
            env=environment | variables,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def out(self, *words: str, stdin: str | bytes = b"") -> str:
        done = self(*words, stdin=stdin)
        assert done.returncode == 0, done
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.out(*words, "-o", "json"))

    def complaint(self, *words: str, stdin: str = "") -> str:
        done = self(*words, stdin=stdin)
        assert (done.returncode, done.stdout) == (1, ""), done
        (line,) = [each for each in done.stderr.splitlines() if each.startswith("klamm: ")][-1:]
        return line.removeprefix("klamm: ")
