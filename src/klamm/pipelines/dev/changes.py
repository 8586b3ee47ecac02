"""Which names of a project's modules differ between two versions of their text. A core.

A name differs if the statement that binds it differs, or if that statement uses a name that differs, in its
own module or in another one: a constant in a helper file changes all functions that compute with it, and no
others. Comments, blank lines and the order of statements do not count. What cannot be told apart (a statement
that binds no name, `from … import *`) changes its whole module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Name: TypeAlias = tuple[str, str]
"""A module, and a name in it."""

WHOLE = "*"
"""Stands for all names of a module."""


@dataclass
class _Module:
    """`bound` has the statements that bind each name, as text without positions; `uses` the names that they
    use. `others` are statements that bind no name."""

    bound: dict[str, list[str]] = field(default_factory=dict)
    uses: dict[str, set[Name]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Changes:
    """The names that differ. `bound` has all names of the new version."""

    names: frozenset[Name]
    bound: frozenset[Name]

    def include(self, module: str, name: str) -> bool:
        """Whether a function differs. One that its module makes without a statement of its own (in a loop, or
        by another function) differs if anything in the module does."""
        if (module, name) in self.bound:
            return (module, name) in self.names
        return any(each == module for each, _ in self.names)


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
    """How `new` differs from `old`. Both are the sources of modules, by their names."""
    before = {name: _parsed(name, text) for name, text in old.items()}
    after = {name: _parsed(name, text) for name, text in new.items()}
    changed = {name for module in after for name in _own_changes(module, before.get(module), after[module])}
    gone = {(module, WHOLE) for module in before if module not in after}
    return Changes(
        frozenset(_with_users(changed | gone, after)),
        frozenset((module, name) for module, parsed in after.items() for name in parsed.bound),
    )


def _own_changes(name: str, before: _Module | None, after: _Module) -> Iterator[Name]:
    if before is None or before.others != after.others:
        yield name, WHOLE
        yield from ((name, bound) for bound in after.bound)
        return
    for bound in {*before.bound, *after.bound}:
        if before.bound.get(bound) != after.bound.get(bound):
            yield name, bound


def _with_users(changed: set[Name], modules: Mapping[str, _Module]) -> set[Name]:
    """The changed names, and all that use them."""
    while True:
        touched = {module for module, _ in changed}
        more = {
            (module, bound)
            for module, parsed in modules.items()
            for bound, uses in parsed.uses.items()
            if (module, bound) not in changed
            and any(
                use in changed or (use[0], WHOLE) in changed or (use[1] == WHOLE and use[0] in touched)
                for use in uses
            )
        }
        if not more:
            return {name for name in changed if name[1] != WHOLE and name[0] in modules}
        # What a module imports by a star could be any of its names.
        stars = {module for module, bound in more if bound == WHOLE}
        changed |= more | {(module, bound) for module in stars for bound in modules[module].bound}


def _parsed(name: str, text: str) -> _Module:
    found = _Module()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        found.others.append(text)
        return found
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        written = ast.dump(statement)
        uses = set(_uses(name, statement))
        bound = set(_bound(statement))
        if not bound:
            found.others.append(written)
        for each in bound or {WHOLE}:
            if each != WHOLE:
                found.bound.setdefault(each, []).append(written)
            found.uses.setdefault(each, set()).update(uses)
    return found


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module binds."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _uses(module: str, statement: ast.stmt) -> Iterator[Name]:
    """The names that a statement uses. Local names count too: that makes too many names differ, not too few.
    Parameters do not: those of nodes name other nodes."""
    parameters: set[str] = set()
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        parameters = {node.arg for node in ast.walk(statement.args) if isinstance(node, ast.arg)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store) and node.id not in parameters:
            yield module, node.id
        elif isinstance(node, ast.Import):
            yield from ((alias.name, WHOLE) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for place in _places(module, node):
                for alias in node.names:
                    yield place, alias.name
                    yield f"{place}.{alias.name}", WHOLE


def _places(module: str, node: ast.ImportFrom) -> Iterator[str]:
    """The modules that an import may mean. A relative one is another in a package's own file."""
    if not node.level:
        yield node.module or ""
        return
    parts = module.split(".")
    for kept in {len(parts) - node.level, len(parts) - node.level + 1}:
        if kept >= 0:
            yield ".".join([*parts[:kept], *([node.module] if node.module else [])])
