"""The tree of nodes as rows of a SQLite table: the embedded engine's data, without its threads and locks.

Each row knows its parent's path, so that listing children is one indexed lookup. Nothing here commits; the
caller holds the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from klamm.coordination.store import (
    ANY_VERSION,
    MAX_VALUE_BYTES,
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Set,
    Unavailable,
    parent_of,
)

# Raised with every change of the tables below, so that an older program does not open a newer file.
SCHEMA_VERSION = 1

_SCHEMA = (
    """CREATE TABLE node (
        path TEXT PRIMARY KEY, parent TEXT, value BLOB NOT NULL, version INTEGER NOT NULL,
        created_rev INTEGER NOT NULL, owner INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX node_by_parent ON node (parent)",
    "CREATE TABLE revision (number INTEGER NOT NULL)",
    "INSERT INTO revision VALUES (0)",
    "INSERT INTO node VALUES ('/', NULL, x'', 0, 0, 0)",
    f"PRAGMA user_version={SCHEMA_VERSION}",
)


def prepare(connection: sqlite3.Connection, name: str) -> None:
    """Make the tables in a new file; refuse a file of another version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    if version != 0:
        raise Unavailable(f"{name} has format {version}; this program knows format {SCHEMA_VERSION}")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute("COMMIT")


def get(connection: sqlite3.Connection, path: str) -> Node:
    row = connection.execute(
        "SELECT value, version, created_rev, owner FROM node WHERE path = ?", (path,)
    ).fetchone()
    if row is None:
        raise NoNode(f"there is no {path}")
    return Node(*row)


def children(connection: sqlite3.Connection, path: str) -> list[str]:
    rows = connection.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,)).fetchall()
    if not rows:
        _version_of(connection, path)
    start = len(path) if path == "/" else len(path) + 1
    return [child[start:] for (child,) in rows]


def apply(connection: sqlite3.Connection, operations: Iterable[Operation]) -> int:
    """Do the operations in order and return the new revision; the first that cannot be done raises."""
    (revision,) = connection.execute("UPDATE revision SET number = number + 1 RETURNING number").fetchone()
    for operation in operations:
        match operation:
            case Check(path, version):
                _expect_version(connection, path, version)
            case Create(path, value):
                _create(connection, path, value, revision)
            case Set(path, value, version):
                _expect_version(connection, path, version)
                _expect_size(path, value)
                connection.execute(
                    "UPDATE node SET value = ?, version = version + 1 WHERE path = ?", (value, path)
                )
            case Delete(path, version):
                _expect_version(connection, path, version)
                if connection.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                    raise NotEmpty(f"{path} has children")
                connection.execute("DELETE FROM node WHERE path = ?", (path,))
    return int(revision)


def changed_paths(operations: Iterable[Operation]) -> list[str]:
    return [operation.path for operation in operations if not isinstance(operation, Check)]


def _create(connection: sqlite3.Connection, path: str, value: bytes, revision: int) -> None:
    _expect_size(path, value)
    parent = parent_of(path)
    _version_of(connection, parent)
    try:
        connection.execute("INSERT INTO node VALUES (?, ?, ?, 0, ?, 0)", (path, parent, value, revision))
    except sqlite3.IntegrityError:
        raise NodeExists(f"{path} exists already") from None


def _version_of(connection: sqlite3.Connection, path: str) -> int:
    row = connection.execute("SELECT version FROM node WHERE path = ?", (path,)).fetchone()
    if row is None:
        raise NoNode(f"there is no {path}")
    return int(row[0])


def _expect_version(connection: sqlite3.Connection, path: str, version: int) -> None:
    actual = _version_of(connection, path)
    if version not in (ANY_VERSION, actual):
        raise BadVersion(f"{path} has version {actual}, not {version}")


def _expect_size(path: str, value: bytes) -> None:
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"the value of {path} has {len(value)} bytes; {MAX_VALUE_BYTES} is the most")
