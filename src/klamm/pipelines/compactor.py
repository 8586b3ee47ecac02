"""The thread that merges small folders of tables while their pipelines run.

A merge is prepared beside the table; a pipeline waits only for the exchange of folders at its end. If a merge
fails, the table stays as it was, and the pipeline's status says why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from klamm.pipelines.batch_log import BatchLog
from klamm.pipelines.sinks.compaction import CompactionPolicy, compact
from klamm.pipelines.sinks.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

JOB_GROUP = "klamm-compaction"
STOP_S = 5.0
"""How long a cancelled merge may take to end. The next run removes what it leaves behind."""


class _Work(NamedTuple):
    table: Table
    log: BatchLog
    tell: Callable[[str], None]


class Compactor:
    """Compacts the tables that were added to it, one after the other, once per interval."""

    def __init__(self, spark: SparkSession, policy: CompactionPolicy) -> None:
        self._spark = spark
        self._policy = policy
        self._work: list[_Work] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, table: Table, log: BatchLog, tell: Callable[[str], None]) -> None:
        self._work.append(_Work(table, log, tell))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="klamm-compaction", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._spark.sparkContext.cancelJobGroup(JOB_GROUP)
            self._thread.join(STOP_S)

    def compact_all(self) -> None:
        """Compact all tables once, in the caller's thread."""
        for work in self._work:
            self._compact(work)

    def _loop(self) -> None:
        self._spark.sparkContext.setJobGroup(JOB_GROUP, "merging small files", interruptOnCancel=True)
        while not self._stopped.is_set():
            for work in self._work:
                if not self._stopped.is_set():
                    self._compact(work)
            self._stopped.wait(self._policy.interval_s)

    def _compact(self, work: _Work) -> None:
        try:
            done = compact(self._spark, work.table, work.log, self._policy)
        except Exception as error:
            if not self._stopped.is_set():
                logger.warning("the table %s was not compacted", work.table.location, exc_info=error)
                work.tell(
                    f"not compacted: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
                )
            return
        if not done.reason:
            work.tell(f"{done.folders_before} folders merged to {done.folders_after}")
