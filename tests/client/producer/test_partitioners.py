from __future__ import annotations

import base64
import random
import subprocess
from collections import Counter

import pytest

from klamm.client.errors import ClientMisused
from klamm.client.producer.partitioners import (
    CACHED_KEY_BYTES,
    StickyPartition,
    ask_user,
    crc32_partition,
    murmur2,
    murmur2_partition,
)
from tests.clients.remote import java_command
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing

# From the test of Kafka's own `Utils.murmur2`.
KNOWN_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KNOWN_HASHES, ids=repr)
def test_murmur2_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == KNOWN_HASHES[key] & 0xFFFFFFFF


def test_murmur2_chooses_what_java_chooses() -> None:
    """Keys of every length, in bytes of every value, the cached and the uncached ones."""
    noise = random.Random(7)
    keys = [noise.randbytes(length) for length in range(2 * CACHED_KEY_BYTES) for _ in range(4)]
    keys += [bytes([byte]) for byte in range(256)] + [bytes(length) for length in range(9)]
    keys += [b"\xff" * length for length in range(9)]
    asked = [(key, noise.choice((1, 2, 3, 7, 12, 100, 1009))) for key in keys]
    try:
        command = java_command("Partitions")
    except PeerMissing as problem:
        cannot_run(problem)
    given = "".join(f"{base64.b64encode(key).decode()} {count}\n" for key, count in asked)
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=True)
    java = [int(line) for line in done.stdout.split()]
    assert [murmur2_partition(key, count) for key, count in asked] == java
    assert [murmur2_partition(key, count) for key, count in asked] == java, "and from the cache"


@pytest.mark.parametrize("key", [b"a", b"42", b"customer-1", bytes(300)], ids=repr)
def test_crc32_is_the_one_of_zlib(key: bytes) -> None:
    """Written out bit by bit; that librdkafka chooses the same is seen in tests/client/behaviour."""
    crc = 0xFFFFFFFF
    for byte in key:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    assert crc32_partition(key, 7) == (crc ^ 0xFFFFFFFF) % 7


def test_an_empty_key_is_a_key_for_murmur2_and_none_for_crc32() -> None:
    assert murmur2_partition(b"", 1000) == 275646681 % 1000
    assert crc32_partition(b"", 1000) is None


# ---- a function of the user's


def test_what_the_user_returns_is_taken() -> None:
    assert ask_user(lambda topic, key, partitions: partitions - 1, "t", b"k", 3) == 2
    assert ask_user(lambda topic, key, partitions: None, "t", None, 3) is None


@pytest.mark.parametrize("bad", [-1, 3, "1", 1.0, True, b"0"])
def test_what_is_no_partition_is_refused(bad: object) -> None:
    with pytest.raises(ClientMisused, match="3 partitions"):
        ask_user(lambda topic, key, partitions: bad, "t", b"k", 3)  # type: ignore[arg-type, return-value]


def test_what_the_user_raises_is_named() -> None:
    with pytest.raises(ClientMisused, match="ZeroDivisionError") as caught:
        ask_user(lambda topic, key, partitions: partitions // 0, "t", b"k", 3)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# ---- without a key


def test_a_partition_gets_a_batch_of_bytes_before_the_next_is_chosen() -> None:
    sticky = StickyPartition(1000, 0)
    sticky.sent_bytes = 999
    assert not sticky.batch_closed(), "a small batch that lingered is no reason to go on"
    sticky.sent_bytes = 1000
    assert sticky.batch_closed()


def test_equal_partitions_take_turns() -> None:
    sticky = StickyPartition(1, 0)
    chosen = []
    for _ in range(30):
        sticky.switch([True] * 3, [1, 1, 1])
        chosen.append(sticky.current)
    assert Counter(chosen) == {0: 10, 1: 10, 2: 10}
    assert chosen[:4] == [1, 2, 0, 1]


def test_leaderless_partitions_are_avoided() -> None:
    sticky = StickyPartition(1, 0)
    seen = set()
    for _ in range(9):
        sticky.switch([True, False, True], [0, 0, 0])
        seen.add(sticky.current)
    assert seen == {0, 2}
    sticky.switch([False, False], [0, 0])
    assert sticky.current in (0, 1), "without any leader one is chosen all the same"


def test_a_slow_partition_gets_less() -> None:
    sticky = StickyPartition(1, 0)
    waiting = [0, 9, 0]
    seen = []
    for _ in range(6):
        sticky.switch([True] * 3, waiting)
        seen.append(sticky.current)
    assert 1 not in seen
