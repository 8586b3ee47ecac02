"""Requests that are small on the wire and large in memory: arrays of next to nothing, tags without end."""

from __future__ import annotations

import struct

import pytest

from klamm.protocol.apis import ApiKey
from klamm.protocol.decoder_source import MAX_REQUEST_ELEMENTS
from klamm.protocol.primitives import MAX_TAGGED_FIELDS
from tests.abuse.conftest import Abused
from tests.abuse.raw import open_socket, read_frame, read_to_end, sized

REQUEST_BYTES = 40 * 1024 * 1024


def header(key: ApiKey, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 1, -1)


def metadata(count: int) -> bytes:
    return header(ApiKey.METADATA, 1) + struct.pack(">i", count) + b"\0\0" * count


def produce(count: int) -> bytes:
    head = struct.pack(">hhiih1si", -1, -1, 1000, 1, 1, b"x", count)
    return header(ApiKey.PRODUCE, 3) + head + struct.pack(">ii", 0, -1) * count


def fetch(count: int, session_epoch: int = -1) -> bytes:
    head = struct.pack(">iiiibiiih1si", -1, 0, 0, 1_000_000, 0, 0, session_epoch, 1, 1, b"x", count)
    partitions = b"".join(struct.pack(">iqqi", index, 0, 0, 100) for index in range(count))
    return header(ApiKey.FETCH, 7) + head + partitions + struct.pack(">i", 0)


def fetch_with_session(count: int) -> bytes:
    return fetch(count, session_epoch=0)


MAKERS = {metadata: 2, produce: 8, fetch: 24, fetch_with_session: 24}
"""And how many bytes an element takes."""

every_kind = pytest.mark.parametrize("make", list(MAKERS), ids=lambda make: make.__name__)


@every_kind
def test_too_many_elements_are_refused_at_once(abused: Abused, make: object) -> None:
    assert callable(make)
    abused.allowed_growth_bytes = 120 * 1024 * 1024
    for count in (MAX_REQUEST_ELEMENTS + 1, REQUEST_BYTES // MAKERS[make]):
        with open_socket(abused.bootstrap) as sock:
            sock.sendall(sized(make(count)))
            assert read_to_end(sock) == b""


@every_kind
def test_as_many_as_are_allowed_are_answered(abused: Abused, make: object) -> None:
    assert callable(make)
    with open_socket(abused.bootstrap) as sock:
        sock.sendall(sized(make(MAX_REQUEST_ELEMENTS - 1)))
        assert struct.unpack_from(">i", read_frame(sock)) == (1,)


def varint(number: int) -> bytes:
    output = bytearray()
    while number > 0x7F:
        output.append(number & 0x7F | 0x80)
        number >>= 7
    output.append(number)
    return bytes(output)


def tags(count: int) -> bytes:
    return varint(count) + b"".join(varint(100 + tag) + b"\0" for tag in range(count))


def test_tags_nobody_knows_are_passed_over(abused: Abused) -> None:
    with open_socket(abused.bootstrap) as sock:
        nobodys = tags(MAX_TAGGED_FIELDS)
        sock.sendall(sized(header(ApiKey.METADATA, 12) + nobodys + b"\x01\0\0" + nobodys))
        assert struct.unpack_from(">i", read_frame(sock)) == (1,)


def test_tags_without_end_are_refused_at_once(abused: Abused) -> None:
    without_end = tags(1_000_000)
    for request in (
        header(ApiKey.METADATA, 12) + without_end,
        header(ApiKey.METADATA, 12) + b"\0\x01\0\0" + without_end,
        header(ApiKey.FETCH, 18) + b"\0" + bytes(21) + b"\x01\x01\x01" + without_end,
    ):
        with open_socket(abused.bootstrap) as sock:
            sock.sendall(sized(request))
            assert read_to_end(sock) == b""
