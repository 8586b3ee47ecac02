"""The records of __consumer_offsets, byte by byte as Kafka writes them, and back."""

from __future__ import annotations

import pytest

from klamm.groups.events import GroupSnapshot, MemberSnapshot
from klamm.groups.offsets import CommittedOffset
from klamm.groups.records import (
    GroupChange,
    OffsetChange,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
    parse_record,
)

OFFSET_KEY = bytes.fromhex("00010001 670002 743100000003")
GROUP_KEY = bytes.fromhex("00020001 67")

SNAPSHOT = GroupSnapshot(
    group_id="g",
    protocol_type="consumer",
    generation=4,
    protocol_name="range",
    leader_id="m",
    state_timestamp_ms=1000,
    members=(MemberSnapshot("m", "i", "c", "/h", 300, 200, b"\x01", b"\x02\x03"),),
)


def test_offset_record_is_version_3() -> None:
    key, value = offset_record("g", "t1", 3, CommittedOffset(42, 7, "hi", 1000))
    assert key == OFFSET_KEY
    assert value == bytes.fromhex("0003000000000000002a000000070002 686900000000000003e8")


def test_offset_record_with_own_retention_is_version_1() -> None:
    _, value = offset_record("g", "t1", 3, CommittedOffset(42, -1, "", 1000, expire_timestamp_ms=2000))
    assert value == bytes.fromhex("0001000000000000002a000000000000000003e800000000000007d0")


def test_offset_record_with_topic_id_is_version_4() -> None:
    _, value = offset_record("g", "t1", 3, CommittedOffset(42, 7, "", 1000, topic_id=bytes(15) + b"\x09"))
    assert value is not None and value[:2] == b"\x00\x04"


def test_group_record_is_version_3() -> None:
    key, value = group_record(SNAPSHOT)
    assert key == GROUP_KEY
    assert value == bytes.fromhex(
        "0003" "0008 636f6e73756d6572" "00000004" "0005 72616e6765" "0001 6d" "00000000000003e8" "00000001"
        "0001 6d" "0001 69" "0001 63" "0002 2f68" "0000012c" "000000c8" "00000001 01" "00000002 0203"
    )  # fmt: skip


def test_tombstones() -> None:
    assert offset_tombstone("g", "t1", 3) == (OFFSET_KEY, None)
    assert group_tombstone("g") == (GROUP_KEY, None)


@pytest.mark.parametrize(
    "committed",
    [
        CommittedOffset(42, 7, "hi", 1000),
        CommittedOffset(42, -1, "", 1000, expire_timestamp_ms=2000),
        CommittedOffset(42, 7, "", 1000, topic_id=bytes(15) + b"\x09"),
    ],
)
def test_offsets_round_trip(committed: CommittedOffset) -> None:
    assert parse_record(*offset_record("g", "t", 1, committed)) == OffsetChange("g", "t", 1, committed)


def test_groups_round_trip() -> None:
    assert parse_record(*group_record(SNAPSHOT)) == GroupChange("g", SNAPSHOT)
    empty = SNAPSHOT._replace(protocol_name=None, leader_id=None, members=())
    assert parse_record(*group_record(empty)) == GroupChange("g", empty)


def test_old_keys_and_values_are_read() -> None:
    key = b"\x00\x00" + OFFSET_KEY[2:]
    value = bytes.fromhex("0000000000000000002a000000000000000003e8")
    assert parse_record(key, value) == OffsetChange("g", "t1", 3, CommittedOffset(42, -1, "", 1000))
