"""`klamm console`: the web console of a cluster, in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.connecting import Cluster, with_cluster
from klamm.cli.errors import CommandError

DEFAULT_PORT = 8080
DEFAULT_HOST = "127.0.0.1"
PASSWORD_VARIABLE = "KLAMM_CONSOLE_PASSWORD"
LEAST_PASSWORD = 8


@with_cluster
def console(
    cluster: Cluster,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Another than this machine's own needs a password.")
    ] = DEFAULT_HOST,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse whatever would change the cluster.")
    ] = False,
    projects: Annotated[
        list[Path] | None,
        typer.Option(
            "--project",
            help="Folder of a project of pipelines to show; may be repeated.",
            show_default="the current folder, if it has a klamm.toml",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File with the password to log in with; or set {PASSWORD_VARIABLE}.", show_default=False
        ),
    ] = None,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop when the standard input ends.")
    ] = False,
) -> None:
    """Serve the web console of a cluster: its pages, and the same as JSON below /api/v1."""
    try:
        from klamm.console import serving
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the console needs {error.name}, which is not installed",
            advice="Install it: pip install 'klamm[console]'",
        ) from None
    from klamm.console.console import Settings
    from klamm.console.guard.origins import LOOPBACK_NAMES
    from klamm.server.listener import why_cannot_listen

    password_hash = _password_hash(password_file)
    if password_hash is None and host not in LOOPBACK_NAMES:
        raise CommandError(
            f"the console would be open to all who reach {host}",
            advice=f"Give it a password by --password-file or {PASSWORD_VARIABLE}",
        )
    try:
        listener = serving.bind(host, port)
    except OSError as error:
        raise CommandError(why_cannot_listen(host, port, error)) from None
    chosen = listener.getsockname()[1]
    settings = Settings(
        cluster.bootstrap, cluster.config, host, chosen, read_only, password_hash, _folders(projects)
    )
    shown = f"[{host}]" if ":" in host else host

    def ready() -> None:
        typer.echo(f"klamm: the console is at http://{shown}:{chosen}")

    serving.serve(settings, listener, ready, stops_with_stdin=stop_with_stdin)


def _folders(given: list[Path] | None) -> tuple[Path, ...]:
    """The folders of projects, absolute and each once."""
    from klamm.pipelines.project import PROJECT_FILE

    if given is None:
        given = [Path()] if Path(PROJECT_FILE).is_file() else []
    for folder in given:
        if not folder.is_dir():
            raise CommandError(f"there is no folder {folder}", advice="Correct --project")
    return tuple(dict.fromkeys(folder.resolve() for folder in given))


def _password_hash(file: Path | None) -> str | None:
    from klamm.console.guard.passwords import LONGEST_PASSWORD, hashed, is_hash

    if file is None:
        password = os.environ.get(PASSWORD_VARIABLE, "")
        source = PASSWORD_VARIABLE
        if not password:
            return None
    else:
        source = str(file)
        try:
            password = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"the password file {file} cannot be read: {error}") from None
    if is_hash(password):
        return password
    if not LEAST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise CommandError(
            f"the password in {source} has {len(password)} characters: "
            f"it needs {LEAST_PASSWORD} to {LONGEST_PASSWORD}"
        )
    return hashed(password)
