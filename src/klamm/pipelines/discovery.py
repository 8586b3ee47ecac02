"""Finds what a project defines: imports the Python files of its pipelines and collects decorated functions.

Every file below the pipelines folder is imported, as `<folder>.<file>`, except those whose name starts with
an underscore: these are for helpers, which the others import (`from pipelines._helpers import …`). The
project's folder is put first on the path. Each call imports anew, so that a changed file counts.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from klamm.pipelines.decorators import MARK, Marks
from klamm.pipelines.definitions import Definitions, Node
from klamm.pipelines.errors import DefinitionError, PipelineError, Place, ProjectError, UserCodeError
from klamm.pipelines.project import Project

# The folders of projects that were put on the path, so that one project's does not hide another's modules.
_roots_on_path: set[str] = set()
_folders_imported: set[Path] = set()


@dataclass(frozen=True)
class Discovery:
    """What was found, and what could not be used: definitions are complete only without problems."""

    definitions: Definitions
    problems: tuple[PipelineError, ...]


def load_definitions(project: Project) -> Definitions:
    """What the project defines; the first problem is raised."""
    found = discover(project)
    if found.problems:
        raise found.problems[0]
    return found.definitions


def discover(project: Project) -> Discovery:
    """What the project defines, with all problems, those of one file not hiding those of another."""
    if not project.pipelines.is_dir():
        problem = ProjectError(
            f"there is no folder {project.pipelines}",
            advice="Make it, and put a Python file with pipelines into it",
        )
        return Discovery(Definitions({}), (problem,))
    nodes: dict[str, Node] = {}
    problems: list[PipelineError] = []
    modules: list[ModuleType] = []
    with _importing_from(project):
        for file in _files(project.pipelines):
            try:
                module = importlib.import_module(_module_name(project, file))
            except PipelineError as error:
                problems.append(error)
                continue
            except (Exception, SystemExit) as error:
                shown = file.relative_to(project.root) if file.is_relative_to(project.root) else file
                problems.append(UserCodeError.of(f"importing {shown}", error, project.root, Place(file, 1)))
                continue
            modules.append(module)
            problems += _collect(module, nodes)
    return Discovery(Definitions(nodes, tuple(modules) + _helpers(project, modules)), tuple(problems))


def _files(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*.py")
        if not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)
    )


def _module_name(project: Project, file: Path) -> str:
    folder = project.pipelines
    return ".".join([folder.name, *file.relative_to(folder).with_suffix("").parts])


def _collect(module: ModuleType, nodes: dict[str, Node]) -> Iterator[DefinitionError]:
    for value in list(vars(module).values()):
        marks = getattr(value, "__dict__", {}).get(MARK)
        if not isinstance(marks, Marks) or getattr(value, "__module__", None) != module.__name__:
            continue
        node = marks.node
        if node is None:
            first = marks.expectations[0]
            yield DefinitionError(
                f"{value.__name__} has expectations, but is no source, transform or pipeline",
                advice="Add one of the three above it",
                place=first.place,
            )
        elif (other := nodes.get(node.name)) is not None and other != node:
            yield DefinitionError(
                f"there are two of the name {node.name}: the other is at {other.place}",
                advice="Functions are known by their names: rename one",
                place=node.place,
            )
        else:
            nodes[node.name] = node


def _helpers(project: Project, modules: list[ModuleType]) -> tuple[ModuleType, ...]:
    """Other modules of the project that its pipelines have imported."""
    return tuple(module for module in _modules_below(project.root) if module not in modules)


def _modules_below(folder: Path) -> Iterator[ModuleType]:
    environment = Path(sys.prefix)  # often a folder of the project, and none of its modules are the project's
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or getattr(module, "__name__", "__main__") == "__main__":
            continue
        path = Path(file)
        if path.is_relative_to(folder) and not path.is_relative_to(environment):
            yield module


@contextmanager
def _importing_from(project: Project) -> Iterator[None]:
    """The project's folder first on the path, old imports forgotten, no bytecode written there."""
    home = str(project.pipelines.parent)
    sys.path[:] = [entry for entry in sys.path if entry not in _roots_on_path]
    if home not in sys.path:
        _roots_on_path.add(home)
        sys.path.insert(0, home)
    _folders_imported.add(project.pipelines)
    _forget(_folders_imported)
    importlib.invalidate_caches()
    writes_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_bytecode


def _forget(folders: Collection[Path]) -> None:
    """Take the modules of pipelines folders out of Python's table, and the packages that they made of it."""
    names = [module.__name__ for folder in folders for module in _modules_below(folder)]
    for name, module in list(sys.modules.items()):
        places = [Path(place) for place in getattr(module, "__path__", ())]
        if any(place.is_relative_to(folder) for place in places for folder in folders):
            names.append(name)
    # A package within a package looks its parent up when it is asked for its path: all at once, at the end.
    for name in names:
        sys.modules.pop(name, None)
