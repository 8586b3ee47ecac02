"""Encodes messages to bytes and decodes them, in a given version.

Brokers and clients use both directions. A decoded message keeps nothing of the input except record sets,
which are slices of the buffer: the owner of the buffer must not reuse it while the message lives.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sized
from functools import cache
from struct import Struct as Packer
from struct import error as StructError
from typing import Any, TypeVar

from klamm.protocol.decoder_source import MAX_REQUEST_ELEMENTS, compile_decoder
from klamm.protocol.encoder_source import compile_encoder
from klamm.protocol.errors import MalformedMessage, UnencodableMessage
from klamm.protocol.primitives import Buffer
from klamm.protocol.schema import Message

MessageT = TypeVar("MessageT", bound=Message)

_INT16 = Packer(">h")


JOINED_PIECES = 1000
"""When a message is encoded in steps, so many pieces of it are joined at a time: some ten kilobytes."""


def decode(
    cls: type[MessageT],
    version: int,
    buffer: Buffer,
    offset: int = 0,
    max_elements: int = MAX_REQUEST_ELEMENTS,
) -> tuple[MessageT, int]:
    """The message at `offset`, and the offset after it. The message must not run past the end of the buffer.

    A request of more than `max_elements` elements raises TooManyElements.
    """
    decoder = cls.__decoders__.get(version)
    if decoder is None:
        _check_version(cls, version, MalformedMessage)
        decoder = cls.__decoders__[version] = compile_decoder(cls, version)
    try:
        result: tuple[MessageT, int] = decoder(buffer, offset, max_elements)
    except (StructError, IndexError):
        raise _cut_short(cls, version, buffer, offset) from None
    except UnicodeDecodeError as error:
        raise _not_utf8(cls, version, error) from None
    return result


def decode_in_steps(
    cls: type[MessageT], version: int, buffer: Buffer, offset: int = 0
) -> Generator[None, None, tuple[MessageT, int]]:
    """As `decode`, in a generator that yields after every few elements."""
    try:
        result: tuple[MessageT, int] = yield from _decoder_in_steps(cls, version)(buffer, offset)
    except (StructError, IndexError):
        raise _cut_short(cls, version, buffer, offset) from None
    except UnicodeDecodeError as error:
        raise _not_utf8(cls, version, error) from None
    return result


@cache
def _decoder_in_steps(cls: type[Message], version: int) -> Any:
    _check_version(cls, version, MalformedMessage)
    return compile_decoder(cls, version, in_steps=True)


def _cut_short(cls: type[Message], version: int, buffer: Buffer, offset: int) -> MalformedMessage:
    return MalformedMessage(f"{cls.__name__} v{version} is cut short at {len(buffer) - offset} bytes")


def _not_utf8(cls: type[Message], version: int, error: UnicodeDecodeError) -> MalformedMessage:
    return MalformedMessage(f"{cls.__name__} v{version} has a string that is not UTF-8: {error}")


def encode_chunks(message: Message, version: int) -> list[Any]:
    """The message as bytes, with every record set that is not empty as a chunk of its own, untouched."""
    encoder = message.__encoders__.get(version)
    if encoder is None:
        _check_version(type(message), version, UnencodableMessage)
        encoder = message.__encoders__[version] = compile_encoder(type(message), version)
    pieces: list[bytes] = []
    chunks: list[Sized] = []
    try:
        encoder(message, pieces, chunks)
    except _ENCODING_FAULTS as error:
        raise _unencodable(message, version, error) from error
    if pieces:
        chunks.append(b"".join(pieces))
    return chunks


def encode_in_steps(
    message: Message, version: int, count_bytes: Callable[[int], None]
) -> Generator[None, None, list[Any]]:
    """As `encode_chunks`, in a generator that yields after every few elements.

    The bytes come in chunks of moderate size, and `count_bytes` gets the size of each as soon as it is there;
    record sets are not counted. A list of the message may be any object that has a length and
    can be iterated once: its elements are asked for one after the other, and not kept.
    """
    encoder = _encoder_in_steps(type(message), version)
    pieces: list[bytes] = []
    chunks: list[Sized] = []
    try:
        for _ in encoder(message, pieces, chunks):
            if len(pieces) >= JOINED_PIECES:
                joined = b"".join(pieces)
                pieces.clear()
                chunks.append(joined)
                count_bytes(len(joined))
            yield
    except _ENCODING_FAULTS as error:
        raise _unencodable(message, version, error) from error
    if pieces:
        joined = b"".join(pieces)
        chunks.append(joined)
        count_bytes(len(joined))
    return chunks


_ENCODING_FAULTS = (StructError, TypeError, AttributeError, UnicodeEncodeError)


def _unencodable(message: Message, version: int, error: Exception) -> UnencodableMessage:
    return UnencodableMessage(f"{type(message).__name__} v{version} cannot be written: {error}")


@cache
def _encoder_in_steps(cls: type[Message], version: int) -> Any:
    _check_version(cls, version, UnencodableMessage)
    return compile_encoder(cls, version, in_steps=True)


def encode(message: Message, version: int) -> bytes:
    """The message as one piece of bytes; its record sets must be bytes."""
    chunks = encode_chunks(message, version)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def decode_versioned(cls: type[MessageT], buffer: Buffer) -> tuple[MessageT, int]:
    """A message whose version stands in the two bytes before it, and that version."""
    version = peek_version(buffer)
    return decode(cls, version, buffer, _INT16.size)[0], version


def encode_versioned(message: Message, version: int) -> bytes:
    return _INT16.pack(version) + encode(message, version)


def peek_version(buffer: Buffer) -> int:
    """The version in the first two bytes."""
    if len(buffer) < _INT16.size:
        raise MalformedMessage(f"{len(buffer)} bytes are too few to hold a version")
    version: int = _INT16.unpack_from(buffer)[0]
    return version


def _check_version(
    cls: type[Message], version: int, error: type[MalformedMessage] | type[UnencodableMessage]
) -> None:
    if version not in cls.__valid_versions__:
        raise error(f"{cls.__name__} has no version {version}, only {cls.__valid_versions__}")
