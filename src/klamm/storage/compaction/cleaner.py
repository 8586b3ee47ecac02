"""Keeps compacted logs compact: one task beside the broker's others, one log at a time.

Each round looks for the dirtiest log that is due and has it compacted by a child process (`child_process`);
when none is due, the process is ended and the task rests for `log.cleaner.backoff.ms`. How far each log is
clean is remembered over restarts in Kafka's `cleaner-offset-checkpoint`, one per log directory.

A compaction that fails is dropped, logged, and tried again later, each time after a longer rest. If the log
is deleted or loses segments to retention meanwhile, its compaction is dropped without harm.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from klamm.config.broker_config import BrokerConfig
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.storage.checkpoints import CorruptCheckpoint, read_offsets, write_offsets
from klamm.storage.compaction.child_process import CleanerFailure, CleanerProcess
from klamm.storage.compaction.rewriting import CleanedSegment, CleanSummary
from klamm.storage.compaction.schedule import Cleanable, choose, examine, plan_for
from klamm.storage.files import LogDirFailure, remove_if_there
from klamm.storage.log import Log
from klamm.storage.segments.scanning import BrokenChain
from klamm.storage.segments.segment import CLEANED_SUFFIX, Segment

logger = logging.getLogger("klamm.storage")

CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
SHORTEST_REST_MS = 1
"""log.cleaner.backoff.ms may be 0; a round that finds nothing must not follow the last one at once."""
FIRST_RETRY_MS = 15_000
LAST_RETRY_MS = 3_600_000
"""A log that fails again and again (it is damaged) costs one attempt an hour."""


class CleanerSettings(NamedTuple):
    is_enabled: bool = True
    backoff_ms: int = 15_000
    map_limit_bytes: int = 128 * 1024 * 1024

    @classmethod
    def from_config(cls, config: BrokerConfig) -> CleanerSettings:
        return cls(
            config["log.cleaner.enable"],
            config["log.cleaner.backoff.ms"],
            config["log.cleaner.dedupe.buffer.size"],
        )


class SegmentsLost(Exception):
    """The log lost segments that were being compacted."""


@dataclass
class _Remembered:
    """What the cleaner knows of one log."""

    log: Log
    log_dir: str
    first_dirty_offset: int
    failures: int = 0
    retry_at_ms: int = 0


class LogCleaner:
    def __init__(
        self,
        logs: Callable[[], Iterable[Log]],
        settings: Callable[[], CleanerSettings],
        *,
        now_ms: Callable[[], int],
        report: Callable[[str], None],
        on_directory_failure: Callable[[str, Exception], None],
        stable_offset: Callable[[Log], int],
    ) -> None:
        """`logs` gives those of this broker that are online; called on the loop, as are all callables.

        `on_directory_failure` gets the log directory; `stable_offset` gives the high watermark of a
        log, from which on nothing is compacted nor deleted.
        """
        self._logs = logs
        self._settings = settings
        self._now_ms = now_ms
        self._report = report
        self._on_directory_failure = on_directory_failure
        self._stable_offset = stable_offset
        self._process = CleanerProcess()
        self._remembered: dict[TopicPartition, _Remembered] = {}
        self._checkpoints: dict[str, dict[TopicPartition, int]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Compact logs until cancelled; then the child process has ended, too."""
        try:
            while True:
                settings = self._settings()
                if not settings.is_enabled or not await self._clean_dirtiest_or_log():
                    await self._process.close()
                    await asyncio.sleep(max(settings.backoff_ms, SHORTEST_REST_MS) / 1000)
        finally:
            await self._process.close()

    async def _clean_dirtiest_or_log(self) -> bool:
        """`clean_dirtiest`; an error ends this round, not the task. False if no log was compacted."""
        try:
            return await self.clean_dirtiest()
        except Exception:
            logger.exception("a round of compaction failed; the next one starts after log.cleaner.backoff.ms")
            return False

    @property
    def process_id(self) -> int | None:
        """The id of the child process; None while there is none."""
        return self._process.process_id

    async def close(self) -> None:
        """End the child process, for a caller of `clean_now` that does not use `run`."""
        await self._process.close()

    async def clean_dirtiest(self) -> bool:
        """One round: retention, then the log that needs compaction most. False if none was compacted."""
        now_ms = self._now_ms()
        logs = [log for log in self._logs() if log.config.cleanup_compact and log.is_whole]
        stable_offsets = [self._stable_offset(log) for log in logs]
        async with self._one_at_a_time:
            chosen = await asyncio.to_thread(self._choose, logs, stable_offsets, now_ms)
            return chosen is not None and await self._clean(chosen) is not None

    async def clean_now(self, log: Log) -> CleanSummary | None:
        """For tests, which choose the log: compact all that may be compacted, due or not. None if there is
        nothing to compact, or compaction failed."""
        stable_offset = self._stable_offset(log)
        async with self._one_at_a_time:
            remembered = await asyncio.to_thread(self._recall, log)
            cleanable = await asyncio.to_thread(
                examine, log, remembered.first_dirty_offset, stable_offset, self._now_ms()
            )
            return await self._clean(cleanable) if cleanable.segments else None

    def first_dirty_offset(self, log: Log) -> int:
        """How far the log is known to be clean; 0 for one that was never compacted."""
        remembered = self._remembered.get(log.topic_partition)
        return remembered.first_dirty_offset if remembered is not None and remembered.log is log else 0

    def _choose(self, logs: list[Log], stable_offsets: list[int], now_ms: int) -> Cleanable | None:
        present = {log.topic_partition for log in logs}
        self._remembered = {tp: known for tp, known in self._remembered.items() if tp in present}
        cleanables = []
        for log, stable_offset in zip(logs, stable_offsets, strict=True):
            known = self._recall(log)
            if known.retry_at_ms > now_ms:
                continue
            try:
                if log.config.cleanup_delete:
                    log.delete_expired(now_ms, stable_offset)
                cleanables.append(examine(log, known.first_dirty_offset, stable_offset, now_ms))
            except FileNotFoundError:
                continue  # retention has deleted a segment meanwhile
            except (OSError, KafkaError, BrokenChain) as error:
                self._note_failure(known, error)  # the other logs are compacted all the same
        for unclaimed in self._checkpoints.values():
            unclaimed.clear()  # of logs that are gone; a new log of the same name starts anew
        return choose(cleanables)

    def _recall(self, log: Log) -> _Remembered:
        """What is known of `log`. The first log of a name gets the offset that was checkpointed for it; a
        later log of the same name was made anew and is dirty from its start. So is one that was moved: parts
        of it may have been copied before they were compacted."""
        known = self._remembered.get(log.topic_partition)
        log_dir = str(log.directory.parent)
        if known is None or known.log is not log or known.log_dir != log_dir:
            first_dirty_offset = log.log_start_offset
            if known is None or known.log is not log:
                first_dirty_offset = self._checkpoint_of(log_dir).pop(log.topic_partition, first_dirty_offset)
            known = _Remembered(log, log_dir, first_dirty_offset)
            self._remembered[log.topic_partition] = known
        return known

    def _checkpoint_of(self, log_dir: str) -> dict[TopicPartition, int]:
        """The offsets of a checkpoint that no log has taken over yet."""
        if log_dir not in self._checkpoints:
            try:
                self._checkpoints[log_dir] = read_offsets(f"{log_dir}/{CLEANER_OFFSET_FILE}")
            except (CorruptCheckpoint, OSError) as error:
                self._report(f"{error}; its logs are compacted from their start")
                self._checkpoints[log_dir] = {}
        return self._checkpoints[log_dir]

    async def _clean(self, cleanable: Cleanable) -> CleanSummary | None:
        log = cleanable.log
        known = self._remembered[log.topic_partition]
        started_ms = self._now_ms()
        segments = {segment.base_offset: segment for segment in cleanable.segments}

        async def take(cleaned: CleanedSegment) -> None:
            replaced = [segments[base_offset] for base_offset in cleaned.replaced]
            await _to_its_end(asyncio.to_thread(put_in_place, log, cleaned, replaced, self._now_ms()))

        plan = plan_for(cleanable, started_ms, self._settings().map_limit_bytes)
        try:
            summary = await self._process.clean(plan, take)
            known.first_dirty_offset = summary.end_offset
            await asyncio.to_thread(self._write_checkpoint, str(log.directory.parent))
        except LogDirFailure as error:
            await asyncio.to_thread(_remove_leftovers, str(log.directory))
            self._on_directory_failure(str(log.directory.parent), error)
            return None
        except (CleanerFailure, SegmentsLost, OSError) as error:
            await asyncio.to_thread(_remove_leftovers, str(log.directory))
            self._note_failure(known, error)
            return None
        except asyncio.CancelledError:
            _remove_leftovers(str(log.directory))
            raise
        known.failures = 0
        self._report(
            f"{log.topic_partition}: compacted {summary.bytes_read} bytes to {summary.bytes_written}, "
            f"{summary.records_read} records to {summary.records_kept}, clean up to {summary.end_offset}, "
            f"in {(self._now_ms() - started_ms) / 1000:.1f} s"
        )
        return summary

    def _note_failure(self, known: _Remembered, error: Exception) -> None:
        rest_ms = min(LAST_RETRY_MS, FIRST_RETRY_MS << min(known.failures, 16))
        known.failures += 1
        known.retry_at_ms = self._now_ms() + rest_ms
        if known.log.failure is None:  # else it was deleted, and there is nothing to report
            self._report(
                f"{known.log.topic_partition}: compaction was dropped: {error}; "
                f"next try in {rest_ms // 1000} s"
            )

    def _write_checkpoint(self, log_dir: str) -> None:
        offsets = dict(self._checkpoint_of(log_dir))
        for topic_partition, known in self._remembered.items():
            if known.log_dir == str(known.log.directory.parent) == log_dir and known.log.failure is None:
                offsets[topic_partition] = known.first_dirty_offset
        write_offsets(f"{log_dir}/{CLEANER_OFFSET_FILE}", offsets)


async def _to_its_end(work: Coroutine[None, None, None]) -> None:
    """Await `work`, which runs in a thread. If cancelled, return only when `work` is done: its files must not
    be removed before."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def put_in_place(log: Log, cleaned: CleanedSegment, replaced: list[Segment], now_ms: int) -> None:
    """Make a segment that compaction has written part of the log; blocks."""
    segment = Segment(
        str(log.directory),
        cleaned.base_offset,
        log.open_files,
        size=cleaned.size,
        index_entries=cleaned.index_entries,
        time_index_entries=cleaned.time_index_entries,
        created_ms=max(old.created_ms for old in replaced),
    )
    if not log.replace_segments(segment, replaced, now_ms):
        raise SegmentsLost("the log lost segments that were being compacted")


def _remove_leftovers(directory: str) -> None:
    """Remove the files that the child process was writing when it ended."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            remove_if_there(f"{directory}/{name}")
