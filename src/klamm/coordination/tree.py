"""The tree of nodes, and the sessions that own some of them, as rows of SQLite tables: the embedded engine's
data, without its threads and locks.

Each row knows its parent's path, so that listing children is one indexed lookup. Nothing here commits; the
caller holds the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from klamm.coordination.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    EphemeralParent,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OperationFailed,
    Set,
    Unavailable,
    parent_of,
)

# Raised with every change of the tables below, so that an older program does not open a newer file.
SCHEMA_VERSION = 2

_SCHEMA = (
    """CREATE TABLE node (
        path TEXT PRIMARY KEY, parent TEXT, value BLOB NOT NULL, version INTEGER NOT NULL,
        created_rev INTEGER NOT NULL, owner INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX node_by_parent ON node (parent)",
    "CREATE TABLE revision (number INTEGER NOT NULL)",
    "INSERT INTO revision VALUES (0)",
    "INSERT INTO node VALUES ('/', NULL, x'', 0, 0, 0)",
)
# What version 2 added. Every file goes through it, new ones too.
_SESSIONS = (
    "CREATE TABLE session (id INTEGER PRIMARY KEY, timeout_ms INTEGER NOT NULL)",
    "CREATE INDEX node_by_owner ON node (owner) WHERE owner != 0",
)
_STEPS = {0: _SCHEMA + _SESSIONS, 1: _SESSIONS}


def prepare(connection: sqlite3.Connection, name: str) -> None:
    """Make the tables in a new file, bring an older file up to date; refuse a newer one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    if version not in _STEPS:
        raise Unavailable(f"{name} has format {version}; this program knows format {SCHEMA_VERSION}")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _STEPS[version]:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")


def get(connection: sqlite3.Connection, path: str) -> Node:
    row = connection.execute(
        "SELECT value, version, created_rev, owner FROM node WHERE path = ?", (path,)
    ).fetchone()
    if row is None:
        raise NoNode(f"there is no {path}", path)
    return Node(*row)


def children(connection: sqlite3.Connection, path: str) -> list[str]:
    rows = connection.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,)).fetchall()
    if not rows:
        _version_and_owner_of(connection, path)
    start = len(path) if path == "/" else len(path) + 1
    return [child[start:] for (child,) in rows]


def apply(connection: sqlite3.Connection, operations: Iterable[Operation], session_id: int) -> int:
    """Do the operations in order and return the new revision; the first that cannot be done raises."""
    revision = _next_revision(connection)
    for index, operation in enumerate(operations):
        try:
            _do(connection, operation, revision, session_id)
        except OperationFailed as error:
            error.operation, error.index = operation, index
            raise
    return revision


def sessions(connection: sqlite3.Connection) -> dict[int, int]:
    """The sessions that have not ended, with their timeouts in milliseconds."""
    return dict(connection.execute("SELECT id, timeout_ms FROM session").fetchall())


def add_session(connection: sqlite3.Connection, session_id: int, timeout_ms: int) -> None:
    connection.execute("INSERT INTO session VALUES (?, ?)", (session_id, timeout_ms))


def end_sessions(connection: sqlite3.Connection, session_ids: Sequence[int]) -> list[str]:
    """Delete the sessions and their ephemeral nodes; returns the paths of these."""
    _next_revision(connection)
    paths: list[str] = []
    for session_id in session_ids:
        deleted = connection.execute("DELETE FROM node WHERE owner = ? RETURNING path", (session_id,))
        paths += [path for (path,) in deleted.fetchall()]
        connection.execute("DELETE FROM session WHERE id = ?", (session_id,))
    return paths


def changed_paths(operations: Iterable[Operation]) -> list[str]:
    return [operation.path for operation in operations if not isinstance(operation, Check)]


def _next_revision(connection: sqlite3.Connection) -> int:
    (revision,) = connection.execute("UPDATE revision SET number = number + 1 RETURNING number").fetchone()
    return int(revision)


def _do(connection: sqlite3.Connection, operation: Operation, revision: int, session_id: int) -> None:
    match operation:
        case Check(path, version):
            _expect_version(connection, path, version)
        case Create(path, value, ephemeral):
            _create(connection, path, value, revision, session_id if ephemeral else 0)
        case Set(path, value, version):
            _expect_version(connection, path, version)
            connection.execute(
                "UPDATE node SET value = ?, version = version + 1 WHERE path = ?", (value, path)
            )
        case Delete(path, version):
            _expect_version(connection, path, version)
            if connection.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                raise NotEmpty(f"{path} has children", path)
            connection.execute("DELETE FROM node WHERE path = ?", (path,))


def _create(connection: sqlite3.Connection, path: str, value: bytes, revision: int, owner: int) -> None:
    parent = parent_of(path)
    try:
        _, owner_of_parent = _version_and_owner_of(connection, parent)
    except NoNode:
        raise NoNode(f"there is no {parent} to create {path} in", path) from None
    if owner_of_parent:
        raise EphemeralParent(f"{parent} is ephemeral, so {path} cannot be created in it", path)
    try:
        connection.execute(
            "INSERT INTO node VALUES (?, ?, ?, 0, ?, ?)", (path, parent, value, revision, owner)
        )
    except sqlite3.IntegrityError:
        raise NodeExists(f"{path} exists already", path) from None


def _version_and_owner_of(connection: sqlite3.Connection, path: str) -> tuple[int, int]:
    row = connection.execute("SELECT version, owner FROM node WHERE path = ?", (path,)).fetchone()
    if row is None:
        raise NoNode(f"there is no {path}", path)
    return int(row[0]), int(row[1])


def _expect_version(connection: sqlite3.Connection, path: str, version: int) -> None:
    actual, _ = _version_and_owner_of(connection, path)
    if version not in (ANY_VERSION, actual):
        raise BadVersion(f"{path} has version {actual}, not {version}", path)
