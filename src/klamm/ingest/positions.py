"""What a tail keeps on disk: how far each file is read, and which blocks of it are not acknowledged yet.

An SQLite file in a folder that belongs to one tail at a time. What holds:

- A block is noted before it is sent, in one transaction with the file's new position; it is crossed out some
  time after it was acknowledged. So whatever instant the process is killed at, every line is either before
  its file's position and in no noted block (it is in the topic), or in a noted block (perhaps it is), or
  behind the position (it was never sent).
- Transactions are safe when the process is killed. They are not synced one by one, so when the machine fails
  the last ones may be lost, as a whole: then lines are sent again.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from klamm.ingest.errors import IngestError
from klamm.ingest.files import Fingerprint, TailedFile
from klamm.ingest.recovery import Block

DATABASE_FILE = "positions.sqlite"
LOCK_FILE = "lock"
_VERSION = 1
_MASK = (1 << 64) - 1
_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE files (
    file_id INTEGER PRIMARY KEY, path TEXT NOT NULL, device INTEGER NOT NULL, inode INTEGER NOT NULL,
    fingerprint_length INTEGER NOT NULL, fingerprint BLOB NOT NULL, position INTEGER NOT NULL
);
CREATE TABLE blocks (
    block_id INTEGER PRIMARY KEY, file_id INTEGER NOT NULL, path TEXT NOT NULL,
    first_byte INTEGER NOT NULL, end_byte INTEGER NOT NULL, records INTEGER NOT NULL,
    producer_id INTEGER NOT NULL, partition INTEGER NOT NULL, sequence INTEGER NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The topic that blocks were sent to. A topic made anew, or another cluster, is another target."""

    topic: str
    topic_id: str
    cluster_id: str


class Positions:
    """The folder of one tail."""

    def __init__(self, folder: Path) -> None:
        """Raises IngestError when the folder cannot be used, is in use, or holds what cannot be read."""
        self.folder = folder
        self._lock = _lock(folder)
        try:
            self._database = self._open(folder / DATABASE_FILE)
        except sqlite3.Error as error:
            os.close(self._lock)
            raise self._damaged(error) from error
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        try:
            self._database.close()
        finally:
            os.close(self._lock)

    # ---- reading

    def target(self) -> Target | None:
        """Where the noted blocks went."""
        facts = dict(self._rows("SELECT name, value FROM facts"))
        if not facts:
            return None
        return Target(facts.get("topic", ""), facts.get("topic_id", ""), facts.get("cluster_id", ""))

    def files(self) -> list[TailedFile]:
        return [
            TailedFile(file_id, path, device & _MASK, inode & _MASK, Fingerprint(length, digest), position)
            for file_id, path, device, inode, length, digest, position in self._rows(
                "SELECT file_id, path, device, inode, fingerprint_length, fingerprint, position FROM files"
            )
        ]

    def blocks(self) -> list[Block]:
        """What is noted and not crossed out, in the order it was sent."""
        return [Block(*row) for row in self._rows("SELECT * FROM blocks ORDER BY block_id")]

    # ---- writing

    def note(
        self,
        files: Iterable[TailedFile] = (),
        *,
        blocks: Iterable[Block] = (),
        done: Iterable[int] = (),
        gone: Iterable[int] = (),
        target: Target | None = None,
    ) -> None:
        """In one transaction: files as they are now, blocks that will be sent, the ids of blocks that are
        done, the ids of files that will not come back, and where blocks go from now on."""
        facts = [] if target is None else list(asdict(target).items())
        rows = [(*_place(file), *file.fingerprint, file.position) for file in files]
        with self._transaction() as database:
            database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts)
            database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            database.executemany("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", blocks)
            database.executemany("DELETE FROM blocks WHERE block_id = ?", [(one,) for one in done])
            database.executemany("DELETE FROM files WHERE file_id = ?", [(one,) for one in gone])

    # ---- inside

    def _open(self, path: Path) -> sqlite3.Connection:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
            elif version != _VERSION:
                raise IngestError(
                    f"{path} has the form {version} of another version of klamm, which knows more than this",
                    advice="Use that version, or choose another --state",
                )
            (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                raise sqlite3.DatabaseError(answer)
        except BaseException:
            database.close()
            raise
        return database

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query).fetchall()
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def _transaction(self) -> _Transaction:
        return _Transaction(self, self._database)

    def _damaged(self, error: sqlite3.Error) -> IngestError:
        return IngestError(
            f"the positions in {self.folder / DATABASE_FILE} cannot be used: {' '.join(str(error).split())}",
            advice=(
                "If the disk is full make room. If the file is damaged put a copy of it back, or move the "
                "folder away: then files are read anew, from where --from says"
            ),
        )


class _Transaction:
    """All or nothing."""

    def __init__(self, positions: Positions, database: sqlite3.Connection) -> None:
        self._positions = positions
        self._database = database

    def __enter__(self) -> sqlite3.Connection:
        self._database.execute("BEGIN IMMEDIATE")
        return self._database

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            try:
                self._database.execute("COMMIT")
                return
            except sqlite3.Error as failure:
                error = failure
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise self._positions._damaged(error) from error


def _place(file: TailedFile) -> tuple[int, str, int, int]:
    # SQLite's numbers have a sign; inodes and devices of some file systems use the last bit.
    return file.file_id, file.path, _signed(file.device), _signed(file.inode)


def _signed(number: int) -> int:
    return number - (_MASK + 1) if number > _MASK >> 1 else number


def _lock(folder: Path) -> int:
    """Take the folder for this process; it is free again when the process ends, however it does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise IngestError(
            f"positions cannot be kept in {folder}: {error.strerror}",
            advice="Choose another folder with --state",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise IngestError(
            f"{folder} is in use: another klamm ingest follows these files",
            advice="Stop that one, or give this one another --state",
        ) from None
    return descriptor
