"""Logs to be compacted, and a cleaner with a clock of its own, for the tests of compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from klamm.model.ids import TopicPartition
from klamm.records.batch import LOG_OVERHEAD, parse_header
from klamm.records.builder import build_batch
from klamm.records.reader import StoredRecord, iter_records
from klamm.storage.compaction.cleaner import CleanerSettings, LogCleaner
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.page_cache import WouldBlock

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
Content = tuple[int, bytes | None, bytes | None]


def compacted(**changes: object) -> LogConfig:
    settings = {"cleanup_compact": True, "cleanup_delete": False, "segment_bytes": 4000, **changes}
    return LogConfig(**settings)  # type: ignore[arg-type]


def open_log(
    directory: Path, config: LogConfig | None = None, *, clean: bool = False, name: str = "t", start: int = 0
) -> Log:
    return Log.open(
        directory / f"{name}-0",
        TopicPartition(name, 0),
        config or compacted(),
        open_files=OpenFiles(),
        log_start_offset=start,
        clean=clean,
        now_ms=T0,
        report=lambda line: None,
    )


def append(
    log: Log, pairs: Iterable[tuple[bytes | None, bytes | None]], *, now_ms: int = T0, **options: object
) -> None:
    records = [StoredRecord(i, now_ms, key, value) for i, (key, value) in enumerate(pairs)]
    data = build_batch(records, **options)  # type: ignore[arg-type]
    log.append(memoryview(data), parse_header(data), 0, now_ms)


def roll(log: Log) -> None:
    """Seal the active segment whatever its age."""
    config, log.config = log.config, LogConfig(segment_ms=0)
    assert log.maybe_roll(T0 + 1000 * DAY_MS)
    log.config = config


def fill(log: Log, rounds: int, keys: int = 10, *, now_ms: int = T0, **options: object) -> None:
    """Each round writes every key once, in one batch; values say the round."""
    for number in range(rounds):
        pairs = [(b"key-%d" % key, b"round-%d" % number) for key in range(keys)]
        append(log, pairs, now_ms=now_ms, **options)


def read_batches(log: Log, *, may_block: bool = True) -> list[bytes]:
    """All of the log, by fetches of a few batches."""
    batches = []
    offset = log.log_start_offset
    while True:
        piece = log.read(offset, 2000, log.log_end_offset, must_return_one=True, may_block=may_block)
        if piece is None:
            return batches
        data = bytes(piece.read())
        at = 0
        while at < len(data):
            header = parse_header(data, at)
            assert header.last_offset >= offset, "a fetch went back"
            batches.append(data[at : at + header.batch_length + LOG_OVERHEAD])
            at += header.size
            offset = header.last_offset + 1
        assert at == len(data), "a fetch ended inside a batch"


def contents(log: Log) -> list[Content]:
    return [(r.offset, r.key, r.value) for data in read_batches(log) for r in iter_records(data)]


async def contents_on_loop(log: Log) -> list[Content]:
    """As a broker reads: on the loop, in a thread only when it must."""
    try:
        batches = read_batches(log, may_block=False)
    except WouldBlock:
        batches = await asyncio.to_thread(read_batches, log)
    return [(r.offset, r.key, r.value) for data in batches for r in iter_records(data)]


def last_of_each_key(before: Iterable[Content]) -> set[Content]:
    return set({key: (offset, key, value) for offset, key, value in before if key is not None}.values())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; checks it at every iteration of the loop, because it may hold only briefly."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@dataclass
class Cleaning:
    """A cleaner of some logs, with its reports and a clock that stands still."""

    logs: list[Log]
    now_ms: int = T0
    high_watermark: int = 2**62
    settings: CleanerSettings = field(default_factory=CleanerSettings)
    said: list[str] = field(default_factory=list)
    failed_directories: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cleaner = LogCleaner(
            lambda: list(self.logs),
            lambda: self.settings,
            now_ms=lambda: self.now_ms,
            report=self.said.append,
            on_directory_failure=lambda directory, error: self.failed_directories.append(directory),
            stable_offset=lambda log: min(self.high_watermark, log.log_end_offset),
        )

    async def __aenter__(self) -> Cleaning:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleaner.close()
