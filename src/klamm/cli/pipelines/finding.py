"""Finds the project of a command: the given folder, or the nearest one upward that has a klamm.toml."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from klamm.pipelines.definitions import Source
from klamm.pipelines.discovery import discover, load_definitions
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.graph import order
from klamm.pipelines.project import PROJECT_FILE, Project, nearest_project


def load_project(
    folder: Path | None,
    bootstrap: str | None = None,
    master: str | None = None,
    without: Collection[str] = (),
) -> Project:
    """Load the project; the arguments override its file, whose sections `without` are not read. Raises
    ProjectError."""
    found = folder or _here_or_above(Path.cwd())
    return Project.load(found, bootstrap=bootstrap, master=master, without=without)


def find_source(project: Project, name: str) -> Source:
    """The source of that name. Raises PipelineError, also when the project's files cannot be imported."""
    node = order(name, load_definitions(project).nodes)[-1]
    if not isinstance(node, Source):
        raise ProjectError(f"{name} is a {node.kind}, but only sources have schemas", advice="Name a source")
    return node


def check_nodes(project: Project, names: Iterable[str]) -> None:
    """Raise for names that are no nodes. If the files cannot be imported, that is not known yet."""
    found = discover(project)
    for name in names if not found.problems else ():
        order(name, found.definitions.nodes)


def _here_or_above(folder: Path) -> Path:
    found = nearest_project(folder)
    if found is not None:
        return found
    raise ProjectError(
        f"there is no project here: neither {folder} nor a folder above it has a {PROJECT_FILE}",
        advice="Create one with `klamm pipeline init NAME`, or name its folder with --project",
    )
