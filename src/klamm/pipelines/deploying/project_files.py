"""Which files of a project a driver on another machine needs: klamm.toml, pipelines, schemas, and the modules
of the project's folder that these import. Never its state, tables, hidden files, or files with secrets."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from klamm.pipelines.definitions import TableSink
from klamm.pipelines.deploying.imports import importers
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.locations import local_path
from klamm.pipelines.project import PROJECT_FILE, Project
from klamm.pipelines.sinks.kinds import sink_text

_LOOKED_UP = re.compile(r"\$\{(env|file):([^}]+)\}")
_FIRST_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of all files in the archive, the first one that a zip knows: the same files make the same
bytes."""


def project_files(project: Project) -> dict[str, Path]:
    """The files by their paths below the project's folder. Raises ProjectError."""
    kept_out = _kept_out(project)
    found: dict[str, Path] = {PROJECT_FILE: project.root / PROJECT_FILE}
    for key, folder in (("pipelines", project.pipelines), ("schemas", project.schemas)):
        if not folder.is_relative_to(project.root):
            raise ProjectError(
                f"{key} = {folder} lies outside of the project's folder, and only that folder is sent",
                advice=f"Move {folder} into {project.root}",
            )
        found.update(_below(folder, project.root, kept_out))
    new = found
    while new:
        imported = importers(
            {name: file.read_text(errors="replace") for name, file in new.items() if name.endswith(".py")}
        )
        modules = dict(
            each
            for name in imported.keys() & local_modules(project)
            for each in _of_module(project.pipelines.parent / name, project.root, kept_out)
        )
        new = {name: file for name, file in modules.items() if name not in found}
        found.update(new)
    return dict(sorted(found.items()))


def local_modules(project: Project) -> set[str]:
    """The modules and packages in the folder that a run puts on sys.path."""
    home = project.pipelines.parent
    names = {file.stem for file in home.glob("*.py")}
    names |= {folder.name for folder in home.iterdir() if folder.is_dir() and any(folder.glob("*.py"))}
    return names | {project.pipelines.name}


def write_project(files: Mapping[str, Path], file: Path) -> None:
    """Write the files into a zip, in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, path in sorted(files.items()):
                entry = zipfile.ZipInfo(name, _FIRST_TIME)
                entry.external_attr = 0o100644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
        os.replace(made, file)
    finally:
        made.unlink(missing_ok=True)


def check_state(project: Project, names: Collection[str]) -> None:
    """Raise if a pipeline of the project, or of those named, needs the state of its last run, and that lies
    in a folder that is lost with the driver. A pipeline that writes a table finds all in the table."""
    if project.shared_state:
        return
    for name, pipeline in load_definitions(project).pipelines.items():
        if name not in (names or [name]) or isinstance(pipeline.to, TableSink):
            continue
        raise ProjectError(
            f"{name} writes to {sink_text(pipeline.to)}, and which checkpoint it goes on from is in the "
            f"state: {project.state} is a folder that is lost with the driver",
            advice="Set state under [project] to a URI: s3://…, hdfs://…",
        )


def looked_up(project: Project, kind: str) -> list[str]:
    """The environment variables (`env`) or files (`file`) that klamm.toml names, in order."""
    text = (project.root / PROJECT_FILE).read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    names = [name for line in lines for its_kind, name in _LOOKED_UP.findall(line) if its_kind == kind]
    return list(dict.fromkeys(names))


def _kept_out(project: Project) -> set[Path]:
    """Files and folders that are never sent."""
    places = [local_path(project.tables), local_path(project.checkpoints), project.state]
    secrets = [project.root / name for name in looked_up(project, "file")]
    return {place.resolve() for place in (*places, *secrets) if place is not None}


def _of_module(place: Path, root: Path, kept_out: set[Path]) -> Iterator[tuple[str, Path]]:
    if place.is_dir():
        yield from _below(place, root, kept_out)
    else:
        file = place.with_suffix(".py")
        yield file.relative_to(root).as_posix(), file


def _below(folder: Path, root: Path, kept_out: set[Path]) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts
        is_hidden = any(part.startswith(".") or part == "__pycache__" for part in inner)
        is_kept_out = any(path.resolve().is_relative_to(place) for place in kept_out)
        if path.is_file() and not is_hidden and not is_kept_out and path.suffix != ".pyc":
            yield path.relative_to(root).as_posix(), path
