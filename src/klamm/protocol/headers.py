"""Headers of requests and responses, and whole frames with a header and a message.

Written by hand, not declared: a header is read before anything about the message is known, and the client id
is a string with an int16 length even in header 2, where every other string is compact.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct as Packer
from typing import Any

from klamm.protocol.apis import FLEXIBLE_SINCE, ApiKey, response_header_version
from klamm.protocol.codec import encode_chunks, encode_in_steps
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.primitives import Buffer, skip_tagged_fields
from klamm.protocol.schema import Message

_REQUEST_HEADER = Packer(">hhih")
_CORRELATION_ID = Packer(">i")
_FRAME = Packer(">ii")
_FRAME_AND_TAGS = Packer(">iix")
_API_VERSIONS = ApiKey.API_VERSIONS.value


def parse_request_header(buffer: Buffer) -> tuple[int, int, int, str | None, int]:
    """API key, API version, correlation id, client id and body offset of a request frame (without its size).

    If the key or the version is unknown, the body offset is meaningless, since key and version decide where
    the header ends. The broker still answers ApiVersions in an unknown version.
    """
    size = len(buffer)
    if size < _REQUEST_HEADER.size:
        raise MalformedMessage(f"{size} bytes are too few to hold a request header")
    api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(buffer)
    offset = _REQUEST_HEADER.size
    client_id = None
    if length >= 0:
        end = offset + length
        if end > size:
            raise MalformedMessage(f"the client id of {length} bytes runs past the request of {size} bytes")
        try:
            client_id = str(buffer[offset:end], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"the client id is not UTF-8: {error}") from None
        offset = end
    elif length != -1:
        raise MalformedMessage(f"the length of the client id is {length}, below -1")
    flexible_since = FLEXIBLE_SINCE.get(api_key)
    if flexible_since is not None and api_version >= flexible_since:
        offset = _skip_header_tags(buffer, offset)
    return api_key, api_version, correlation_id, client_id, offset


def _skip_header_tags(buffer: Buffer, offset: int) -> int:
    try:
        if not buffer[offset]:
            return offset + 1
        return skip_tagged_fields(buffer, offset)
    except IndexError:
        raise MalformedMessage("the header's tagged fields run past the end of the message") from None


def encode_request_header(key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    name = b"" if client_id is None else client_id.encode()
    header = _REQUEST_HEADER.pack(key, version, correlation_id, -1 if client_id is None else len(name)) + name
    return header + b"\0" if version >= FLEXIBLE_SINCE[key] else header


def parse_response_header(key: int, version: int, buffer: Buffer) -> tuple[int, int]:
    """The correlation id of a response, and the offset of its body."""
    if len(buffer) < _CORRELATION_ID.size:
        raise MalformedMessage(f"{len(buffer)} bytes are too few to hold a response header")
    correlation_id: int = _CORRELATION_ID.unpack_from(buffer)[0]
    offset = _CORRELATION_ID.size
    if response_header_version(key, version):
        offset = _skip_header_tags(buffer, offset)
    return correlation_id, offset


def encode_response_frame(key: int, version: int, correlation_id: int, response: Message) -> list[Any]:
    """Size, header and body as chunks to send; record sets are chunks of their own."""
    return _framed(key, version, correlation_id, encode_chunks(response, version))


def encode_response_frame_in_steps(
    key: int, version: int, correlation_id: int, response: Message, count_bytes: Callable[[int], None]
) -> Generator[None, None, list[Any]]:
    """As `encode_response_frame`, in a generator that yields after every few elements.

    `count_bytes` gets the size of each chunk of bytes as soon as it is there.
    """
    chunks = yield from encode_in_steps(response, version, count_bytes)
    return _framed(key, version, correlation_id, chunks)


def _framed(key: int, version: int, correlation_id: int, chunks: list[Any]) -> list[Any]:
    size = len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))
    if version >= FLEXIBLE_SINCE[key] and key != _API_VERSIONS:
        chunks[0] = _FRAME_AND_TAGS.pack(size + 5, correlation_id) + chunks[0]
    else:
        chunks[0] = _FRAME.pack(size + 4, correlation_id) + chunks[0]
    return chunks


def encode_request_frame(
    key: int, version: int, correlation_id: int, client_id: str | None, request: Message
) -> list[Any]:
    """Size, header and body as chunks to send; record sets are chunks of their own."""
    header = encode_request_header(key, version, correlation_id, client_id)
    chunks = encode_chunks(request, version) or [b""]
    size = len(header) + sum(map(len, chunks))
    chunks[0] = _CORRELATION_ID.pack(size) + header + chunks[0]
    return chunks
