"""Each thing a produced batch can get wrong, with the code it is answered with."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import CRC_POSITION, compute_crc, parse_header
from klamm.records.builder import build_batch, number_records
from klamm.records.compression import Codec
from klamm.records.validation import check_timestamps, validate_produced

NOW_MS = 1_700_000_000_000


def sound(codec: int = 0, **fields: int) -> bytearray:
    return build_batch(number_records([(b"k", b"v"), (b"l", b"w")], NOW_MS), codec=codec, **fields)


def edited(position: int, format_: str, value: int) -> bytearray:
    """A sound batch with one field changed and the CRC computed again."""
    batch = sound()
    struct.pack_into(format_, batch, position, value)
    struct.pack_into(">I", batch, CRC_POSITION, compute_crc(batch))
    return batch


def test_sound_batches_pass() -> None:
    for codec in Codec:
        batch = sound(codec)
        assert validate_produced(memoryview(batch), max_message_bytes=len(batch)) == parse_header(batch)


CASES: dict[str, tuple[Callable[[], bytes | bytearray], ErrorCode]] = {
    "empty": (lambda: b"", ErrorCode.INVALID_RECORD),
    "truncated header": (lambda: sound()[:60], ErrorCode.CORRUPT_MESSAGE),
    "truncated records": (lambda: sound()[:-1], ErrorCode.CORRUPT_MESSAGE),
    "two batches": (lambda: sound() + sound(), ErrorCode.INVALID_RECORD),
    "negative length": (lambda: edited(8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    "huge length": (lambda: edited(8, ">i", 2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
    "flipped bit": (lambda: sound()[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
    "magic 0": (lambda: edited(16, ">b", 0), ErrorCode.INVALID_RECORD),
    "magic 1": (lambda: edited(16, ">b", 1), ErrorCode.INVALID_RECORD),
    "short magic 1": (lambda: edited(16, ">b", 1)[:40], ErrorCode.INVALID_RECORD),
    "magic 3": (lambda: edited(16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
    "base offset": (lambda: edited(0, ">q", 5), ErrorCode.INVALID_RECORD),
    "last offset delta": (lambda: edited(23, ">i", 5), ErrorCode.INVALID_RECORD),
    "negative last offset delta": (lambda: edited(23, ">i", -1), ErrorCode.INVALID_RECORD),
    "no records": (lambda: edited(57, ">i", 0), ErrorCode.INVALID_RECORD),
    "negative records": (lambda: edited(57, ">i", -1), ErrorCode.INVALID_RECORD),
    "control": (lambda: edited(21, ">h", 0x20), ErrorCode.INVALID_RECORD),
    "log append time": (lambda: edited(21, ">h", 0x08), ErrorCode.INVALID_TIMESTAMP),
    "delete horizon": (lambda: edited(21, ">h", 0x40), ErrorCode.INVALID_RECORD),
    "codec 5": (lambda: edited(21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "sequence": (lambda: sound(producer_id=4, producer_epoch=0), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("name", CASES)
def test_faults(name: str) -> None:
    make, code = CASES[name]
    with pytest.raises(KafkaError) as caught:
        validate_produced(memoryview(make()), max_message_bytes=1_000_000)
    assert caught.value.code == code, str(caught.value)


def test_too_large() -> None:
    batch = sound()
    with pytest.raises(KafkaError) as caught:
        validate_produced(memoryview(batch), max_message_bytes=len(batch) - 1)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_zstd_needs_a_new_client() -> None:
    with pytest.raises(KafkaError) as caught:
        validate_produced(memoryview(sound(Codec.ZSTD)), max_message_bytes=10_000, zstd_allowed=False)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    ("now_ms", "fails"), [(NOW_MS - 101, True), (NOW_MS - 100, False), (NOW_MS + 51, True)]
)
def test_timestamps(now_ms: int, fails: bool) -> None:
    header = parse_header(sound())
    try:
        check_timestamps(header, now_ms, before_max_ms=50, after_max_ms=100)
    except KafkaError as error:
        assert error.code == ErrorCode.INVALID_TIMESTAMP and fails
    else:
        assert not fails


def test_records_without_timestamp_pass() -> None:
    header = parse_header(build_batch(number_records([(None, b"v")], -1)))
    check_timestamps(header, NOW_MS, before_max_ms=50, after_max_ms=100)
