"""Logs for tests: opening, filling and reading them, and crashing them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from klamm.model.ids import TopicPartition
from klamm.records.batch import parse_header
from klamm.records.builder import build_batch
from klamm.records.reader import StoredRecord, iter_records
from klamm.storage.log import AppendResult, Log
from klamm.storage.log_config import LogConfig
from klamm.storage.segments.open_files import OpenFiles

NOW_MS = 1_700_000_000_000
TOPIC_PARTITION = TopicPartition("events", 0)


class Harness:
    """One partition directory, and the log that is open on it."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory / str(TOPIC_PARTITION)
        self.config = LogConfig(**settings)
        self.reports: list[str] = []
        self.open_files = OpenFiles(limit=16)
        self.log_start_offset = 0
        self.log = self._open(0, clean=False)

    def _open(self, recovery_point: int, *, clean: bool) -> Log:
        return Log.open(
            self.directory,
            TOPIC_PARTITION,
            self.config,
            open_files=self.open_files,
            recovery_point=recovery_point,
            log_start_offset=self.log_start_offset,
            clean=clean,
            now_ms=NOW_MS,
            report=self.reports.append,
        )

    def close_and_open(self) -> Log:
        """A clean stop and a start."""
        self.log.close()
        return self.open_again(clean=True)

    def crash_and_open(self) -> Log:
        """kill -9 and a start: what was handed to the kernel is there, what was in memory is not."""
        self.log.close(clean=False)
        return self.open_again(clean=False)

    def open_again(self, *, clean: bool) -> Log:
        self.reports.clear()
        self.log_start_offset = self.log.log_start_offset
        self.log = self._open(self.log.recovery_point, clean=clean)
        return self.log

    def copy_to(self, directory: Path) -> Harness:
        """A copy of the files as they are now, in another directory."""
        copy = Harness.__new__(Harness)
        copy.__dict__.update(self.__dict__)
        copy.directory = directory / str(TOPIC_PARTITION)
        copy.reports = []
        shutil.copytree(self.directory, copy.directory)
        return copy

    def append(self, count: int = 1, **settings: Any) -> AppendResult:
        return append(self.log, count, **settings)

    def files(self, suffix: str = "") -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if name.endswith(suffix))


def append(
    log: Log,
    count: int = 1,
    *,
    value: bytes = b"value",
    timestamp: int = NOW_MS,
    now_ms: int = NOW_MS,
    epoch: int = 0,
    **batch_settings: Any,
) -> AppendResult:
    """Append one batch of `count` records with timestamps that go up by one."""
    records = [StoredRecord(index, timestamp + index, b"key-%d" % index, value) for index in range(count)]
    batch = build_batch(records, **batch_settings)
    return log.append(memoryview(batch), parse_header(batch), epoch, now_ms)


def read(log: Log, offset: int, max_bytes: int = 1 << 20, **settings: Any) -> bytes:
    """What a consumer would be sent, empty if nothing."""
    settings = {"must_return_one": True, "may_block": True, **settings}
    end_offset = settings.pop("end_offset", log.log_end_offset)
    file_slice = log.read(offset, max_bytes, end_offset, **settings)
    return bytes(file_slice.read()) if file_slice is not None else b""


def split_batches(data: bytes) -> list[bytes]:
    """Fails unless `data` is a run of whole batches."""
    batches = []
    position = 0
    while position < len(data):
        size = parse_header(data, position).size
        assert position + size <= len(data), "the last batch is cut"
        batches.append(data[position : position + size])
        position += size
    return batches


def all_batches(log: Log) -> list[bytes]:
    """Read from the start to the end, as a consumer would."""
    batches: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        got = split_batches(read(log, offset))
        assert got, f"nothing at offset {offset} below the end {log.log_end_offset}"
        batches += got
        offset = parse_header(got[-1]).last_offset + 1
    return batches


def all_records(log: Log) -> list[StoredRecord]:
    return [record for batch in all_batches(log) for record in iter_records(batch)]
