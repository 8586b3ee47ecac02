"""A version of a project's code: what its files were when they were saved, imported.

Versions do not see each other's modules: those of a version are in sys.modules only while it is in use. So
the code before a save and the code after it can be run in turn.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from klamm.pipelines.definitions import Definitions, Source
from klamm.pipelines.dev.changes import changes
from klamm.pipelines.dev.watching import stamp_of
from klamm.pipelines.discovery import discover, isolated, modules_of, without_session
from klamm.pipelines.errors import GraphError
from klamm.pipelines.graph import order
from klamm.pipelines.project import Project
from klamm.pipelines.schemas.resolving import schema_file


class Version:
    """The project as it is now. `found` has its definitions, and what could not be imported."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._roots = (project.root, project.pipelines)
        self._modules: dict[str, ModuleType] = {}
        # Read before it is imported: if a file is saved in between, the next version differs from this text.
        # Files that nobody has imported yet are among them: a function may do that when it is called.
        folder = project.pipelines
        self._texts = {_name(folder, path): _text(path) for path in folder.rglob("*.py")}
        with isolated(*self._roots), without_session():
            self.found = discover(project)
            self._keep_modules()

    @property
    def files(self) -> frozenset[Path]:
        """The files that it has imported."""
        files = [_file(module) for module in self._modules.values()]
        return frozenset(file for file in files if file is not None)

    @property
    def definitions(self) -> Definitions:
        return self.found.definitions

    @contextmanager
    def in_use(self) -> Iterator[Definitions]:
        """Its definitions, with its modules in sys.modules meanwhile."""
        with isolated(*self._roots):
            sys.modules.update(self._modules)
            try:
                yield self.definitions
            finally:
                self._keep_modules()

    def _keep_modules(self) -> None:
        self._modules |= modules_of(*self._roots)
        for name, module in self._modules.items():
            file = _file(module)
            if file is not None and name not in self._texts:
                self._texts[name] = _text(file)

    def changed_since(self, older: Version, saved: frozenset[Path]) -> set[str]:
        """The nodes whose own code or schema differs. If a save has changed no code, those in its files: a
        save without a change is a wish to see them."""
        nodes = self.definitions.nodes
        different = changes(older._texts, self._texts)
        names = {
            name
            for name, node in nodes.items()
            if different.include(node.function.__module__, name) or name not in older.definitions.nodes
        }
        names |= {
            source.name
            for source in nodes.values()
            if isinstance(source, Source) and schema_file(self.project, source) in saved
        }
        return names or {name for name, node in nodes.items() if node.place.file in saved}


def pipelines_using(nodes: set[str], definitions: Definitions) -> list[str]:
    """The pipelines that are one of the nodes or need one, and those whose inputs are wrong."""
    return [name for name in definitions.pipelines if not nodes.isdisjoint(_needed(name, definitions, nodes))]


def _needed(name: str, definitions: Definitions, otherwise: set[str]) -> set[str]:
    try:
        return {node.name for node in order(name, definitions.nodes)}
    except GraphError:
        return otherwise


class OtherModules:
    """The imported modules that are neither the project's nor installed, such as those of a package that is
    worked on beside it. They are not imported again while the process lives."""

    def __init__(self, project: Project) -> None:
        self._roots = (project.root, project.pipelines)
        self._known = self._times()

    def outdated(self) -> list[str]:
        """Those whose files have changed since they were imported."""
        now = self._times()
        self._known = {**now, **self._known}
        return sorted(name for name, time in now.items() if self._known[name] != time)

    def _times(self) -> dict[str, int]:
        ours = modules_of(*self._roots)
        found: dict[str, int] = {}
        for name, module in list(sys.modules.items()):
            file = _file(module)
            if file is None or name in ours or "site-packages" in file.parts:
                continue
            stamp = None if file.is_relative_to(_LIBRARY) else stamp_of(file)
            if stamp is not None:
                found[name] = stamp[0]
        return found


_LIBRARY = Path(os.__file__).parent


def _file(module: object) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) and file.endswith(".py") else None


def _name(folder: Path, file: Path) -> str:
    """The name by which a file of the pipelines folder is imported."""
    parts = file.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
