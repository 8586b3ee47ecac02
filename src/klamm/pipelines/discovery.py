"""Imports the Python files of a project's pipelines folder and collects the decorated functions.

Every file in the folder is imported, as `<folder>.<file>`, except those whose name starts with an underscore:
these are helpers that other files import (`from pipelines._helpers import …`). The project's folder is
first on sys.path while its files are imported and its functions run (`importable`), and not longer. Each call
imports all files again, so that changes count.
"""

from __future__ import annotations

import importlib
import os
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

# The pipelines folder of the project that was imported last: its modules stay in sys.modules until the next
# import.
_folders_imported: set[Path] = set()

_OURS = frozenset({"klamm", "pyspark_klamm"})


@dataclass(frozen=True)
class Discovery:
    """The definitions and the problems found. The definitions are complete only if there are no problems."""

    definitions: Definitions
    problems: tuple[PipelineError, ...]


def load_definitions(project: Project) -> Definitions:
    """The project's definitions. Raises the first problem."""
    found = discover(project)
    if found.problems:
        raise found.problems[0]
    return found.definitions


def discover(project: Project) -> Discovery:
    """The project's definitions and all problems, of all files."""
    if not project.pipelines.is_dir():
        problem = ProjectError(
            f"there is no folder {project.pipelines}",
            advice="Create it, and add a Python file with pipelines",
        )
        return Discovery(Definitions({}), (problem,))
    nodes: dict[str, Node] = {}
    problems: list[PipelineError] = []
    modules: list[ModuleType] = []
    with importable(project), _without_old_imports(project), _session_hidden():
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


@contextmanager
def isolated(*roots: Path) -> Iterator[None]:
    """Import what lies below `roots` anew, and put the modules and the path of before back at the end: two
    versions of a project have modules of the same names. No bytecode is written: it is dated by the second,
    and a file may be saved twice in one."""
    before = dict(sys.modules)
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _forget(roots)
    ours = {name: module for name, module in before.items() if name.partition(".")[0] in _OURS}
    sys.modules.update(ours)  # a clone of Klamm may lie below a root
    forgotten = {name: module for name, module in before.items() if name not in sys.modules}
    folders_before = set(_folders_imported)
    try:
        with path_put_back():
            yield
    finally:
        _forget(roots)
        _folders_imported.clear()
        _folders_imported.update(folders_before)
        sys.modules.update({**forgotten, **ours})
        sys.dont_write_bytecode = writes_no_bytecode


@contextmanager
def path_put_back() -> Iterator[None]:
    """Make sys.path at the end what it was."""
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path


@contextmanager
def importable(project: Project) -> Iterator[None]:
    """Have the project's folder first on sys.path: its functions may import what lies there when they run."""
    home = str(project.pipelines.parent)
    if home in sys.path:
        yield
        return
    sys.path.insert(0, home)
    try:
        yield
    finally:
        if home in sys.path:  # the project's code may have changed the path
            sys.path.remove(home)


def modules_of(*roots: Path) -> dict[str, ModuleType]:
    """The imported modules and packages that lie below `roots`, without those of Klamm."""
    return {
        name: sys.modules[name]
        for name in _names_below(roots)
        if name in sys.modules and name.partition(".")[0] not in _OURS
    }


@contextmanager
def without_session() -> Iterator[None]:
    """Let `discover` hide a running session while it imports: a run has none then, so that what needs one
    must fail here too."""
    _hides_session.append(True)
    try:
        yield
    finally:
        _hides_session.pop()


_hides_session: list[bool] = []


@contextmanager
def _session_hidden() -> Iterator[None]:
    pyspark = sys.modules.get("pyspark")
    if not _hides_session or pyspark is None:
        yield
        return
    active = pyspark.SparkContext._active_spark_context
    pyspark.SparkContext._active_spark_context = None
    try:
        yield
    finally:
        pyspark.SparkContext._active_spark_context = active


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
                f"{value.__name__} has expectations, but is not a source, transform or pipeline",
                advice="Add @source, @transform or @pipeline above it",
                place=first.place,
            )
        elif (other := nodes.get(node.name)) is not None and other != node:
            yield DefinitionError(
                f"there are two functions called {node.name}: the other is at {other.place}",
                advice="Rename one",
                place=node.place,
            )
        else:
            nodes[node.name] = node


def _helpers(project: Project, modules: list[ModuleType]) -> tuple[ModuleType, ...]:
    """Other modules of the project that its pipelines have imported."""
    return tuple(module for module in _modules_below(project.root) if module not in modules)


def _modules_below(folder: Path) -> Iterator[ModuleType]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and getattr(module, "__name__", "__main__") != "__main__" and _is_below(file, folder):
            yield module


@contextmanager
def _without_old_imports(project: Project) -> Iterator[None]:
    """Import all files again, and write no bytecode."""
    _forget({*_folders_imported, project.pipelines})
    _folders_imported.clear()
    _folders_imported.add(project.pipelines)
    importlib.invalidate_caches()
    writes_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_bytecode


def _forget(folders: Collection[Path]) -> None:
    """Remove the modules and packages of pipelines folders from sys.modules."""
    # Removed all at once at the end: the __path__ of a nested package looks its parent up.
    for name in _names_below(folders):
        sys.modules.pop(name, None)


def _names_below(folders: Collection[Path]) -> list[str]:
    names = [module.__name__ for folder in folders for module in _modules_below(folder)]
    for name, module in list(sys.modules.items()):
        places = list(getattr(module, "__path__", ()))
        if any(_is_below(place, folder) for place in places for folder in folders):
            names.append(name)
    return names


def _is_below(path: str, folder: Path) -> bool:
    """True if a module is the project's. The environment often lies inside the project's folder; what is
    installed there is not. Compares texts, as there are thousands of modules."""
    inside = f"{path}{os.sep}"
    return inside.startswith(f"{folder}{os.sep}") and not inside.startswith(f"{sys.prefix}{os.sep}")
