"""The four codecs of record batches, as Java clients write and read them.

- snappy is written with the framing of xerial's snappy-java and read with or without it;
- lz4 frames are put together here, because Kafka's reader refuses linked blocks and the library's frames
  use them;
- what comes out of `decompress` is bounded: a small batch may claim to be gigabytes.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Literal

import cramjam

from klamm.records.batch import Buffer, CorruptBatch


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES = {"none": 0, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""The codecs by the values of `compression.type`, which may also be `producer`."""

DECOMPRESSED_LIMIT_BYTES = 256 * 1024 * 1024
"""A batch may not decompress to more than this, which is a hundred times what a topic accepts by default."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32_BE = struct.Struct(">i")
_INT32_LE = struct.Struct("<I")
# Magic, version 1 with independent blocks, blocks of at most 64 KB, checksum of these two bytes.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED_FLAG = 0x80000000
_LZ4_END_MARK = bytes(4)
_LZ4_MORE_FIELDS = 0x09
"""The flags of a content size and of a dictionary id."""
_LZ4_BLOCK_CHECKSUMS = 0x10
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_LZ4_LEVEL = 9
_OUTPUT_FULL = "failed to write whole buffer"


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL if level is None else level))
    if codec == Codec.SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == Codec.LZ4:
        return _compress_lz4(memoryview(data), level)
    if codec == Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))
    raise CorruptBatch(f"compression type {codec} is not known")


def decompress(codec: int, data: Buffer, limit: int = DECOMPRESSED_LIMIT_BYTES) -> bytes | bytearray:
    """Decompress `data`. If the result has more than `limit` bytes, raises CorruptBatch."""
    if codec == Codec.NONE:
        return bytes(data)
    try:
        if codec == Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), limit)
        if codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
            return _decompress_growing(codec, data, limit)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(
            f"the batch's {Codec(codec).name.lower()} data cannot be decompressed: {error}"
        ) from error
    raise CorruptBatch(f"compression type {codec} is not known")


def _compress_snappy(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32_BE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> bytes | bytearray:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, limit)
    output = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if position + 4 > len(data):
            raise CorruptBatch("the batch's snappy data ends inside a block's length")
        (length,) = _INT32_BE.unpack_from(data, position)
        position += 4
        if not 0 <= length <= len(data) - position:
            raise CorruptBatch(f"a snappy block states {length} bytes, but {len(data) - position} are left")
        output += _decompress_snappy_block(data[position : position + length], limit)
        if len(output) > limit:
            raise _too_large(limit)
        position += length
    return output


def _decompress_snappy_block(block: memoryview, limit: int) -> bytearray:
    length = cramjam.snappy.decompress_raw_len(block)
    if length > limit:
        raise _too_large(limit)
    output = bytearray(length)
    cramjam.snappy.decompress_raw_into(block, output)
    return output


def _compress_lz4(data: memoryview, level: int | None) -> bytes:
    """The default level selects LZ4's fast compressor, as in Java clients; any other level selects LZ4 HC."""
    is_fast = level is None or level == _LZ4_LEVEL
    mode: Literal["default", "high_compression"] = "default" if is_fast else "high_compression"
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[start : start + _LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, mode=mode, compression=level, store_size=False))
        if len(packed) < len(block):
            parts += (_INT32_LE.pack(len(packed)), packed)
        else:
            parts += (_INT32_LE.pack(len(block) | _LZ4_STORED_FLAG), bytes(block))
    parts.append(_LZ4_END_MARK)
    return b"".join(parts)


def _decompress_growing(codec: int, data: Buffer, limit: int) -> bytearray:
    """Decompress a format that need not state the decompressed size: try a likely size, and double it while
    it is too small."""
    decompress_into = {
        Codec.GZIP: cramjam.gzip.decompress_into,
        Codec.LZ4: cramjam.lz4.decompress_into,
        Codec.ZSTD: cramjam.zstd.decompress_into,
    }[Codec(codec)]
    size = min(limit, max(4096, _likely_size(codec, memoryview(data)) or 4 * len(data)))
    while True:
        output = bytearray(size)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise
            if size >= limit:
                raise _too_large(limit) from None
            size = min(limit, size * 2)
        else:
            del output[written:]
            return output


def _likely_size(codec: int, data: memoryview) -> int:
    """The decompressed size, or an upper bound, that the data itself states; 0 if none. It may be wrong."""
    if codec == Codec.GZIP:
        return int.from_bytes(data[-4:], "little")
    if codec == Codec.ZSTD:
        return _zstd_size(data)
    return _lz4_size(data)


def _zstd_size(data: memoryview) -> int:
    if len(data) < 5:
        return 0
    flags = data[4]
    is_single_segment = flags >> 5 & 1
    length = (is_single_segment, 2, 4, 8)[flags >> 6]
    start = 5 + (1 - is_single_segment) + (0, 1, 2, 4)[flags & 3]
    size = int.from_bytes(data[start : start + length], "little")
    return size + 256 if length == 2 else size


def _lz4_size(data: memoryview) -> int:
    """An upper bound from the number of blocks; 0 for a header with more than the usual fields."""
    if len(data) < len(_LZ4_HEADER) or data[4] & _LZ4_MORE_FIELDS:
        return 0
    block_bytes = 1 << (2 * (data[5] >> 4 & 7) + 8)
    checksum_bytes = 4 if data[4] & _LZ4_BLOCK_CHECKSUMS else 0
    position = len(_LZ4_HEADER)
    blocks = 0
    while position + 4 <= len(data):
        (length,) = _INT32_LE.unpack_from(data, position)
        if not length:
            break
        position += 4 + (length & ~_LZ4_STORED_FLAG) + checksum_bytes
        blocks += 1
    return blocks * block_bytes


def _too_large(limit: int) -> CorruptBatch:
    return CorruptBatch(f"the batch decompresses to more than the {limit} bytes that are allowed")
