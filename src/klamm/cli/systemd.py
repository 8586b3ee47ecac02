"""The systemd unit of a command of Klamm that runs until it is stopped."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from klamm.cli.errors import CommandError

SERVICES = {
    ("up",): "brokers and console",
    ("broker",): "a broker",
    ("console",): "the console",
    ("pipeline", "run"): "pipelines",
    ("ingest", "tail"): "files into topics",
}
"""The commands that run until they are stopped, and what they run."""

STATE_FOLDER = "klamm"
"""Below /var/lib: where data goes unless another folder is named."""

STOP_PATIENCE_S = 120
"""More than `klamm up` gives its brokers and a pipeline its batch, or systemd would kill them meanwhile."""

OPEN_FILES = 1_000_000
"""A broker keeps the files of its partitions and its connections open."""

USAGE_ERRORS: Any = typer.BadParameter.__bases__
"""What is raised for words that a command does not know, and more. Which package has it depends on the
version of typer."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@")


def program() -> str:
    """The path of the command `klamm` that runs now. Raises CommandError if it is not installed as one."""
    for found in (Path(sys.argv[0]), Path(sys.executable).with_name("klamm")):
        if found.name == "klamm" and found.is_file():
            return str(found.absolute())
    on_path = shutil.which("klamm")
    if on_path is None:
        raise CommandError("the command klamm is not installed", advice="Install it: pip install klamm")
    return on_path


def unit(klamm: str, words: Sequence[str], user: str | None, directory: str | None) -> str:
    """Raises CommandError for words that are not a service, or that the service would not understand."""
    service = next((each for each in SERVICES if tuple(words[: len(each)]) == each), None)
    if service is None:
        known = ", ".join(" ".join(each) for each in SERVICES)
        raise CommandError(f"'{' '.join(words)}' is not a service: expected one of {known}")
    _check(service, list(words[len(service) :]))
    if directory is not None and not directory.startswith("/"):
        raise CommandError(f"--directory {directory} is not valid: expected an absolute path")
    if service[0] == "pipeline" and directory is None:
        raise CommandError(
            "pipelines run in the folder of their project", advice="Name the folder: --directory /srv/shop"
        )
    lines = [
        f"# Made by: klamm generate systemd {shlex.join(words)}".replace("\n", " "),
        "# Save it as /etc/systemd/system/klamm.service, then:",
        "#   systemctl daemon-reload && systemctl enable --now klamm",
        "[Unit]",
        f"Description=Klamm: {SERVICES[service]}",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={_command([klamm, *words])}",
        *_place(user, directory),
        "Restart=on-failure",
        "RestartSec=5",
        # SIGTERM goes to the first process, which stops the others in order.
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_PATIENCE_S}",
        f"LimitNOFILE={OPEN_FILES}",
        "NoNewPrivileges=true",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _place(user: str | None, directory: str | None) -> list[str]:
    lines = ["DynamicUser=true"] if user is None else [f"User={user}"]
    if directory is None:
        return [*lines, f"StateDirectory={STATE_FOLDER}", f"WorkingDirectory=/var/lib/{STATE_FOLDER}"]
    lines.append(f"WorkingDirectory={_escaped(directory)}")
    if user is None:
        lines.append(f"ReadWritePaths={_word(directory)}")
    return lines


def _check(service: tuple[str, ...], options: list[str]) -> None:
    """Parse the options as the command itself will, so that a mistake shows now and not when it starts."""
    from klamm.cli.main import NOUNS, command_of

    if service[0] not in NOUNS:
        raise CommandError(f"this version of Klamm has no command {service[0]}")
    command = command_of(service[0])
    for verb in service[1:]:
        command = command.commands[verb]
    try:
        values: dict[str, Any] = command.make_context(" ".join(service), options).params
    except USAGE_ERRORS as error:
        raise CommandError(f"klamm {' '.join(service)}: {error.format_message().rstrip('.')}") from None
    for name, value in values.items():
        if isinstance(value, Path) and name != "data_dir" and not value.is_absolute():
            option = name.replace("_", "-")
            raise CommandError(f"--{option} {value} is not valid: a service needs an absolute path")


def _command(words: Sequence[str]) -> str:
    """A command line as systemd reads it: quotes, and no specifiers or variables."""
    return " ".join(_word(word) for word in words)


def _word(word: str) -> str:
    text = _escaped(word).replace("$", "$$")
    if text and _PLAIN.issuperset(text.replace("%", "").replace("$", "")):
        return text
    inner = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{inner}"'


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
