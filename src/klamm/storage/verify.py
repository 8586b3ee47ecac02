"""Checking a partition's directory against what disk.md promises; for tests and tools, not for a live log.

Written against the files alone: it shares the batch header with the code it checks, and little else.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from klamm.records.batch import NO_TIMESTAMP, compute_crc
from klamm.storage.checkpoints import LEADER_EPOCH_FILE, CorruptCheckpoint, read_epochs
from klamm.storage.producers.state import CorruptSnapshot, ProducerStates
from klamm.storage.segments.scanning import BrokenChain, iter_batches

_INDEX_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")


@dataclass
class _Batches:
    """What one log file holds: positions and timestamps by last offset, and the offsets in order."""

    positions: dict[int, int]
    max_timestamps: dict[int, int]
    epochs: list[tuple[int, int]]
    end_offset: int


def verify_log_directory(path: Path | str) -> list[str]:
    """Everything that is wrong with a log whose broker is not running; an empty list if nothing is."""
    directory = str(path)
    problems: list[str] = []
    names = sorted(os.listdir(directory))
    bases = sorted(int(name[:20]) for name in names if name.endswith(".log"))
    if names and not bases:  # an empty directory is a log to which nothing was written
        problems.append(f"{directory} has no segment")
    problems += [
        f"{name} is a leftover" for name in names if name.endswith((".deleted", ".cleaned", ".swap", ".tmp"))
    ]
    end_offset = 0
    epochs: list[tuple[int, int]] = []
    for base in bases:
        if base < end_offset:
            problems.append(f"segment {base} starts before the end of the one before it, {end_offset}")
        batches = _read_batches(directory, base, problems)
        is_last = base == bases[-1]
        _check_offset_index(directory, base, batches, is_last, problems)
        _check_time_index(directory, base, batches, is_last, problems)
        end_offset = max(base, batches.end_offset)
        epochs += batches.epochs
    _check_epochs(directory, epochs, end_offset, problems)
    _check_snapshots(directory, names, end_offset, problems)
    return problems


def _read_batches(directory: str, base: int, problems: list[str]) -> _Batches:
    name = f"{base:020d}.log"
    batches = _Batches({}, {}, [], base)
    with open(f"{directory}/{name}", "rb") as file:
        try:
            size = os.fstat(file.fileno()).st_size
            for position, header, batch in iter_batches(file.fileno(), 0, size):
                if compute_crc(batch) != header.crc:
                    problems.append(f"{name}: the batch at {position} does not match its CRC")
                if header.base_offset < batches.end_offset:
                    problems.append(
                        f"{name}: offset {header.base_offset} at {position}, expected {batches.end_offset}"
                    )
                batches.positions[header.last_offset] = position
                batches.max_timestamps[header.last_offset] = header.max_timestamp
                batches.epochs.append((header.partition_leader_epoch, header.base_offset))
                batches.end_offset = header.last_offset + 1
        except BrokenChain as error:
            problems.append(f"{name}: {error}")
    return batches


def _read_entries(
    directory: str, base: int, suffix: str, entry: struct.Struct, may_lack: bool, problems: list[str]
) -> list[tuple[int, int]]:
    name = f"{base:020d}{suffix}"
    try:
        with open(f"{directory}/{name}", "rb") as file:
            data = file.read()
    except FileNotFoundError:
        if not may_lack:
            problems.append(f"{name} is missing")
        return []
    if len(data) % entry.size:
        problems.append(f"{name} has {len(data)} bytes, which is not a whole number of entries")
    return list(entry.iter_unpack(data[: len(data) // entry.size * entry.size]))


def _check_offset_index(
    directory: str, base: int, batches: _Batches, is_last: bool, problems: list[str]
) -> None:
    entries = _read_entries(directory, base, ".index", _INDEX_ENTRY, is_last, problems)
    previous = (-1, -1)
    for relative_offset, position in entries:
        if relative_offset <= previous[0] or position <= previous[1]:
            problems.append(f"{base:020d}.index: {(relative_offset, position)} follows {previous}")
        previous = (relative_offset, position)
        if batches.positions.get(base + relative_offset) != position:
            problems.append(f"{base:020d}.index: no batch ends with {base + relative_offset} at {position}")


def _check_time_index(
    directory: str, base: int, batches: _Batches, is_last: bool, problems: list[str]
) -> None:
    entries = _read_entries(directory, base, ".timeindex", _TIME_ENTRY, is_last, problems)
    previous = (NO_TIMESTAMP, -1)
    for timestamp, relative_offset in entries:
        if timestamp <= previous[0] or relative_offset <= previous[1]:
            problems.append(f"{base:020d}.timeindex: {(timestamp, relative_offset)} follows {previous}")
        previous = (timestamp, relative_offset)
        if batches.max_timestamps.get(base + relative_offset) != timestamp:
            problems.append(f"{base:020d}.timeindex: {base + relative_offset} has not timestamp {timestamp}")
    running = NO_TIMESTAMP
    claims = {base + relative_offset: timestamp for timestamp, relative_offset in entries}
    for last_offset, timestamp in batches.max_timestamps.items():  # each must be the largest up to there
        running = max(running, timestamp)
        if claims.get(last_offset, running) < running:
            problems.append(
                f"{base:020d}.timeindex: {claims[last_offset]} is not the largest at {last_offset}"
            )
    largest = max(batches.max_timestamps.values(), default=NO_TIMESTAMP)
    if not is_last and previous[0] != largest:
        problems.append(f"{base:020d}.timeindex ends with {previous[0]}, the largest timestamp is {largest}")


def _check_epochs(
    directory: str, epochs: list[tuple[int, int]], end_offset: int, problems: list[str]
) -> None:
    try:
        entries = read_epochs(f"{directory}/{LEADER_EPOCH_FILE}")
    except CorruptCheckpoint as error:
        problems.append(str(error))
        return
    if entries != sorted(set(entries)) or any(start > end_offset for _, start in entries):
        problems.append(f"{LEADER_EPOCH_FILE}: {entries} do not ascend, or pass the log's end {end_offset}")
    known = dict(entries[1:])  # the first starts where the log starts, which may be inside a segment
    for epoch, base_offset in epochs:
        if epoch in known and base_offset < known[epoch]:
            problems.append(f"offset {base_offset} is of epoch {epoch}, which starts at {known[epoch]}")


def _check_snapshots(directory: str, names: list[str], end_offset: int, problems: list[str]) -> None:
    for name in names:
        if name.endswith(".snapshot"):
            if int(name[:20]) > end_offset:
                problems.append(f"{name} lies beyond the log's end {end_offset}")
            try:
                ProducerStates.read_snapshot(f"{directory}/{name}")
            except CorruptSnapshot as error:
                problems.append(str(error))
