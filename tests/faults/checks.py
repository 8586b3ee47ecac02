"""Checks that must hold for a log, whatever happened to its broker."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.storage.verify import verify_log_directory
from klamm.testing.wire import WireConnection
from tests.abuse.calls import read_all
from tests.faults.load import CompactedWriter, Partition
from tests.waiting import wait_until

NAMES_OFFSET_FETCH_VERSION = 9


def read_numbers(connection: WireConnection, partition: Partition) -> dict[str, list[tuple[int, int]]]:
    """By producer: the (number, offset) of its records, in the order of the log."""
    numbers: dict[str, list[tuple[int, int]]] = defaultdict(list)
    records = read_all(connection, partition.topic, partition=partition.index)
    offsets = [record.offset for record in records]
    assert all(a < b for a, b in itertools.pairwise(offsets)), f"{partition}: offsets do not ascend"
    for record in records:
        assert record.value is not None
        name, number, _ = record.value.decode().split(":")
        numbers[name].append((int(number), record.offset))
    return numbers


def check_producer(name: str, read: list[tuple[int, int]], acknowledged: Mapping[int, int]) -> None:
    """Every acknowledged record is there, at its offset, once, and in the order it was sent. A record whose
    answer nobody waited for may come later than the next one."""
    offsets = dict(read)
    assert len(offsets) == len(read), f"{name}: a number is there twice"
    for earlier, later in itertools.pairwise(number for number, _ in read if number in acknowledged):
        assert earlier < later, f"{name}: number {later} comes after {earlier}"
    lost = sorted(number for number in acknowledged if number not in offsets)
    assert not lost, f"{name}: {len(lost)} acknowledged records are lost, the first is number {lost[0]}"
    moved = sorted(number for number, offset in acknowledged.items() if offsets[number] != offset)
    assert not moved, f"{name}: number {moved[0]} is not at the offset that was acknowledged"


def check_gapless(name: str, read: list[tuple[int, int]]) -> None:
    """An idempotent producer sends nothing twice and leaves nothing out."""
    numbers = [number for number, _ in read]
    assert numbers == list(range(len(numbers))), f"{name}: there is a gap"


def check_compacted(
    connection: WireConnection, writer: CompactedWriter, acknowledged: Mapping[int, int]
) -> None:
    """The last value of each key is the last acknowledged one, or a later one that was sent."""
    newest: dict[int, int] = {}
    for record in read_all(connection, writer.topic):
        assert record.key is not None and record.value is not None
        key, number = int(record.key), int(record.value.split(b":")[0])
        assert number > newest.get(key, -1), f"key {key}: value {number} comes after {newest[key]}"
        newest[key] = number
    for key, number in acknowledged.items():
        assert newest.get(key, -1) >= number, f"key {key}: value {number} was acknowledged and is lost"
        assert newest.get(key, -1) <= writer.sent[key], f"key {key}: value {newest[key]} was never sent"


def make_coordinator(connection: WireConnection, group: str) -> None:
    """Have `__consumer_offsets` made, as every client does by looking for its coordinator."""

    def is_found() -> bool:
        answer = connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[group])).coordinators[0]
        return bool(answer.error_code == ErrorCode.NONE)

    wait_until(is_found, f"{group} has a coordinator")


def committed_offset(connection: WireConnection, group: str, partition: Partition) -> int:
    """What the group has committed; waits while its coordinator is still loading."""
    wanted = OffsetFetchRequestTopics(name=partition.topic, partition_indexes=[partition.index])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
    answers = []

    def is_loaded() -> bool:
        answers.append(connection.call(request, NAMES_OFFSET_FETCH_VERSION).groups[0])
        return bool(answers[-1].error_code == ErrorCode.NONE)

    wait_until(is_loaded, f"the coordinator of {group} is loaded")
    offset: int = answers[-1].topics[0].partitions[0].committed_offset
    return offset


def check_disk(data_dir: Path) -> None:
    """Logs, indexes and snapshots of a broker that has stopped agree with each other.

    Files that were to be deleted a minute later are still there, and the next start removes them.
    """
    problems = []
    for directory in sorted(data_dir.iterdir()):
        if directory.is_dir() and directory.name.rpartition("-")[2].isdigit():
            problems += [
                f"{directory.name}: {problem}"
                for problem in verify_log_directory(directory)
                if not problem.endswith(".deleted is a leftover")
            ]
    assert not problems, "\n".join(problems)
