"""Keeps tables quick to read while pipelines write to them: merges small files, removes old ones.

A merge is one commit that changes no row: readers see the table before or after it, and a reader who has
begun goes on reading the old files. Old files are removed when no version of the last week needs them
(`vacuum`), and with them the log's versions of more than a month ago. Checkpoints of the log are written by
the commits themselves (`delta.checkpointInterval`). If a merge fails, the table stays as it was, and the
pipeline's status says why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from klamm.pipelines.tables.files import TARGET_BYTES
from klamm.pipelines.tables.table import HOOKS, METADATA, Table

logger = logging.getLogger(__name__)

STOP_S = 5.0
"""How long to wait at the end of a run for a merge that is under way. A merge that is broken off leaves files
that no commit names."""

LOOKED_AT_COMMITS = 200
"""So many of the newest commits are asked whether old files were removed."""

_VACUUMED = "VACUUM END"


@dataclass(frozen=True)
class UpkeepPolicy:
    """When files are merged and removed."""

    least_files: int = 20
    """A partition of a table with fewer small files is not merged."""
    target_bytes: int = TARGET_BYTES
    """Files of half this size are not merged; merged files have about this size."""
    interval_s: float = 60.0
    """How often tables are looked at while pipelines run."""
    keep_hours: int = 7 * 24
    """Old files are kept so long, for readers who have begun, for `table restore` and for replays."""
    vacuum_every_s: float = 24 * 3600.0


class Done(NamedTuple):
    """What was done to a table."""

    merged: int = 0
    """How many files were merged."""
    into: int = 0
    removed: int = 0
    """How many old files were removed."""
    is_vacuumed: bool = False
    """Whether old files were looked for."""

    def __str__(self) -> str:
        parts = []
        if self.merged:
            parts.append(f"{self.merged:,} files merged to {self.into:,}")
        if self.removed:
            parts.append(f"{self.removed:,} old files removed")
        return ", ".join(parts)


def keep_up(
    table: Table,
    policy: UpkeepPolicy,
    now_s: float,
    *,
    merges: bool = True,
    vacuumed_s: float | None = None,
) -> Done:
    """Merge and remove what the policy says. `merges` is False for tables whose batches replace all rows:
    Delta does not notice if files are merged meanwhile. `vacuumed_s` is when old files were last removed, if
    known."""
    newest = table.newest()
    if newest is None:
        return Done()
    merged = into = removed = 0
    if merges and _most_small_files(newest, policy) >= policy.least_files:
        properties = CommitProperties(custom_metadata={METADATA: {"upkeep": "small files merged"}})

        def merge(newest: DeltaTable) -> dict[str, Any]:
            return newest.optimize.compact(
                target_size=policy.target_bytes,
                max_concurrent_tasks=1,
                commit_properties=properties,
                post_commithook_properties=HOOKS,
            )

        metrics = table.change(merge)
        merged, into = int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])
    is_vacuumed = now_s - (vacuumed_s or _last_vacuum_s(newest)) >= policy.vacuum_every_s
    if is_vacuumed:
        # `full` also removes the files of tasks and replays that were never committed.
        removed = len(
            table.change(
                lambda newest: newest.vacuum(
                    retention_hours=policy.keep_hours,
                    dry_run=False,
                    enforce_retention_duration=False,
                    full=True,
                )
            )
        )
        # The versions that the log no longer keeps (`delta.logRetentionDuration`, a month).
        newest.cleanup_metadata()
    return Done(merged, into, removed, is_vacuumed)


def _most_small_files(table: DeltaTable, policy: UpkeepPolicy) -> int:
    """How many small files the partition has that has most of them."""
    files = pa.table(table.get_add_actions(flatten=True))
    names = [name for name in files.column_names if name.startswith("partition.")]
    sizes = files["size_bytes"].to_pylist()
    values = zip(*[files[name].to_pylist() for name in names], strict=True) if names else [()] * len(sizes)
    small = Counter(
        value for value, size in zip(values, sizes, strict=True) if size < policy.target_bytes / 2
    )
    return max(small.values(), default=0)


def _last_vacuum_s(table: DeltaTable) -> float:
    """When old files were last removed, in seconds, as far as the newest commits tell; else when the table
    was created."""
    entries = table.history(LOOKED_AT_COMMITS)
    found = next((entry for entry in entries if entry.get("operation") == _VACUUMED), None)
    return float(found["timestamp"] if found is not None else table.metadata().created_time) / 1000


@dataclass
class _Kept:
    """A table that is looked after."""

    options: Mapping[str, str]
    tell: Callable[[str], None]
    merges: bool
    vacuumed_s: float | None = None


class Upkeep:
    """The thread that looks after the tables of a run, one after the other."""

    def __init__(self, policy: UpkeepPolicy) -> None:
        self._policy = policy
        self._tables: dict[str, _Kept] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def add(
        self, location: str, options: Mapping[str, str], tell: Callable[[str], None], *, merges: bool
    ) -> None:
        """Look after a table. `tell` is called with what was done to it."""
        self._tables[location] = _Kept(options, tell, merges)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="klamm-upkeep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def look_at_all(self) -> None:
        """Look at all tables once, in the caller's thread."""
        for location, kept in list(self._tables.items()):
            if not self._stopped.is_set():
                self._look_at(location, kept)

    def _loop(self) -> None:
        while not self._stopped.wait(self._policy.interval_s):
            self.look_at_all()

    def _look_at(self, location: str, kept: _Kept) -> None:
        table = Table(location, kept.options)
        now_s = time.time()
        try:
            done = keep_up(table, self._policy, now_s, merges=kept.merges, vacuumed_s=kept.vacuumed_s)
        except Exception as error:
            logger.warning("the files of the table %s were not merged", location, exc_info=error)
            kept.tell(
                f"files not merged: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            )
            return
        if done.is_vacuumed:
            kept.vacuumed_s = now_s
        if str(done):
            kept.tell(str(done))
