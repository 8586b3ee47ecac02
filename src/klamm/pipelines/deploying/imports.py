"""What the Python files of a project import, read from their source. Imports inside functions count too,
since these run on a cluster as well. A core."""

from __future__ import annotations

import ast
from collections.abc import Mapping


def imported_names(source: str) -> set[str]:
    """The first part of every absolute import; nothing for a source with a syntax error, as `lint` reports
    it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def importers(sources: Mapping[str, str]) -> dict[str, str]:
    """By imported name: the file that imports it, the first one by its name."""
    found: dict[str, str] = {}
    for file in sorted(sources):
        for name in imported_names(sources[file]):
            found.setdefault(name, file)
    return found
