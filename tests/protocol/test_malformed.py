"""Bytes that are no message: cut short, corrupted, lying about sizes. It ends in MalformedMessage."""

from __future__ import annotations

import tracemalloc
import zlib
from contextlib import suppress
from random import Random

import pytest

from klamm.protocol.codec import decode, decode_versioned, encode
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.messages.group_records import OffsetCommitValue
from klamm.protocol.messages.k00_produce import ProduceRequest
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k18_api_versions import ApiVersionsRequest
from klamm.protocol.schema import Message
from tests.long import cases
from tests.protocol.catalogue import MESSAGES, every_version
from tests.protocol.samples import sample

CORRUPTIONS_PER_VERSION = 120
MOST_POSITIONS = 250
MOST_LIED_BYTES = 30_000
"""How many bytes the messages with a lie may have together, for each of the lengths: noting each allocation
makes decoding slow."""

MOST_PEAK_BYTES = 5_000_000
"""What decoding lies may allocate at a time: more than what goes on beside it, and far less than any of the
lengths they claim, which are all above 2 GB."""
MEASUREMENTS = 3
"""Other threads of the process, such as brokers of other tests, are measured too, so the least peak counts. A
decoder that allocates does it every time."""

HUGE_LENGTHS = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
)


def positions(encoded: bytes, most: int = MOST_POSITIONS) -> list[int]:
    """All positions of a message; of one with arrays in arrays, whose elements are alike, so many of them."""
    return sorted(Random(len(encoded)).sample(range(len(encoded)), min(len(encoded), most)))


def seed_of(message: type[Message], version: int) -> int:
    """The same in every run, and another for every version."""
    return zlib.crc32(f"{message.__name__} v{version}".encode())


@every_version
def test_every_truncation_is_malformed(message: type[Message], version: int) -> None:
    encoded = encode(sample(message, version, Random(seed_of(message, version))), version)
    for size in positions(encoded):
        with pytest.raises(MalformedMessage):
            decode(message, version, memoryview(encoded)[:size])


@every_version
def test_corruption_never_raises_anything_else(message: type[Message], version: int) -> None:
    random = Random(seed_of(message, version))
    encoded = encode(sample(message, version, random), version)
    for _ in range(CORRUPTIONS_PER_VERSION):
        corrupt = bytearray(encoded)
        for _ in range(random.randint(1, 3)):
            position = random.randrange(len(corrupt) + 1)
            corrupt[position : position + random.randint(0, 4)] = random.choice(
                (random.randbytes(1), random.randbytes(4), b"\xff" * 3, b"\x00", b"\x80\x01", b"")
            )
            corrupt = corrupt or bytearray(1)
        with suppress(MalformedMessage):
            _, end = decode(message, version, memoryview(corrupt))
            assert end <= len(corrupt)


@pytest.mark.parametrize(
    "message",
    cases(MESSAGES, lambda message: message.__name__.endswith("Request")),
    ids=lambda message: message.__name__,
)
def test_huge_lengths_allocate_nothing(message: type[Message]) -> None:
    """Writes a huge length over all positions (if the message is long: over some) of its oldest and of its
    newest version."""
    for version in set(message.__valid_versions__):
        encoded = encode(sample(message, version, Random(seed_of(message, version))), version)
        decode(message, version, encoded)
        peaks_bytes = []
        while (
            len(peaks_bytes) < MEASUREMENTS and min(peaks_bytes, default=MOST_PEAK_BYTES) >= MOST_PEAK_BYTES
        ):
            peaks_bytes.append(peak_of_decoding_lies(message, version, encoded))
        assert min(peaks_bytes) < MOST_PEAK_BYTES, f"version {version} allocated {peaks_bytes} bytes"


def peak_of_decoding_lies(message: type[Message], version: int, encoded: bytes) -> int:
    tracemalloc.start()
    try:
        for position in positions(encoded, MOST_LIED_BYTES // max(1, len(encoded))):
            for length in HUGE_LENGTHS:
                lie = encoded[:position] + length + encoded[position + len(length) :]
                with suppress(MalformedMessage):
                    decode(message, version, memoryview(lie))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [1, 9])
def test_array_count_is_bounded_by_the_bytes_that_follow(version: int) -> None:
    count = b"\x00\x00\x00\x05" if version == 1 else b"\x06"
    with pytest.raises(MalformedMessage, match="topics has more elements than bytes follow"):
        decode(MetadataRequest, version, count + b"\x00" * 4)


@pytest.mark.parametrize(
    ("version", "null"),
    [(0, b"\xff\xff\xff\xff"), (4, b"\x00\x00\x00\x01\xff\xff\x00"), (9, b"\x02\x00\x00\x00\x00\x00")],
)
def test_null_where_none_is_allowed(version: int, null: bytes) -> None:
    with pytest.raises(MalformedMessage, match="is null"):
        decode(MetadataRequest, version, null)


def test_null_where_it_is_allowed() -> None:
    assert decode(MetadataRequest, 1, b"\xff\xff\xff\xff")[0].topics is None
    nameless = encode(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 12)
    assert decode(MetadataRequest, 12, nameless)[0].topics == [MetadataRequestTopic(name=None)]


def test_negative_lengths() -> None:
    with pytest.raises(MalformedMessage, match="negative length"):
        decode(MetadataRequest, 1, b"\xff\xff\xff\xfe")
    with pytest.raises(MalformedMessage, match="negative length"):
        decode(ProduceRequest, 3, b"\xff\xfe" + bytes(20))


def test_strings_must_be_utf8() -> None:
    with pytest.raises(MalformedMessage, match="not UTF-8"):
        decode(ApiVersionsRequest, 3, b"\x02\xff\x01\x00")


def test_versions_nobody_declared() -> None:
    with pytest.raises(MalformedMessage, match="ProduceRequest has no version 2, only 3-13"):
        decode(ProduceRequest, 2, bytes(20))
    with pytest.raises(MalformedMessage, match="OffsetCommitValue has no version 9"):
        decode_versioned(OffsetCommitValue, b"\x00\x09" + bytes(30))
    with pytest.raises(MalformedMessage, match="too few"):
        decode_versioned(OffsetCommitValue, b"\x00")
