"""The state of a tail on disk: how far each file is read, and which blocks are not acknowledged yet.

An SQLite file in a folder that one tail at a time uses. Invariants:

- A block is noted before it is sent, in one transaction with the file's new position, and deleted some time
  after it was acknowledged. So at any moment a line is either before its file's position and in no noted
  block (it is in the topic), or in a noted block (it may be in the topic), or after the position (it was not
  sent).
- Transactions survive a kill of the process. They are not synced one by one, so if the machine fails the last
  ones may be lost as a whole: then lines are sent again.
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
    """The topic that blocks were sent to. A topic that was created again, or of another cluster, is another
    one."""

    topic: str
    topic_id: str
    cluster_id: str


class Positions:
    """The folder of one tail."""

    def __init__(self, folder: Path) -> None:
        """Raises IngestError if the folder cannot be used, is in use, or its file cannot be read."""
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
        """The target of the noted blocks."""
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
        """The noted blocks, in the order in which they were sent."""
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
        """Write in one transaction: files with their positions, blocks to be sent, ids of acknowledged blocks
        (`done`), ids of files to forget (`gone`), and the target of blocks."""
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
                    f"{path} was written by a newer version of klamm (format {version})",
                    advice="Use that version, or another --state",
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
                "If the disk is full, make room. If the file is damaged, restore a copy, or move the folder "
                "away: then files are read again, from where --from says"
            ),
        )


class _Transaction:
    """A transaction."""

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
    # SQLite's integers are signed; inodes and devices of some file systems use all 64 bits.
    return file.file_id, file.path, _signed(file.device), _signed(file.inode)


def _signed(number: int) -> int:
    return number - (_MASK + 1) if number > _MASK >> 1 else number


def _lock(folder: Path) -> int:
    """Lock the folder for this process. The lock ends with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise IngestError(
            f"positions cannot be kept in {folder}: {error.strerror}",
            advice="Use another folder with --state",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise IngestError(
            f"{folder} is in use: another klamm ingest follows these files",
            advice="Stop that process, or use another --state",
        ) from None
    return descriptor
