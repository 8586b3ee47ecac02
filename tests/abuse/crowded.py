"""Requests that name as much as fits into them: the same thing again and again, or things without end."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from klamm.protocol.codec import encode
from klamm.protocol.compiler import VersionLayout
from klamm.protocol.decoder_source import MAX_REQUEST_ELEMENTS
from klamm.protocol.schema import ArrayType, Field, FixedType, Message, Struct, VariableType
from tests.abuse.plausible import plausible

Path = tuple[Field, ...]

_NOT_NAMES = {"value", "committed_metadata", "reason", "protocol_type"}
_MOST_ELEMENTS = MAX_REQUEST_ELEMENTS - 100
_NUMBERS_OF_THINGS = {"index", "partition", "partition_index", "id", "broker_id"}
_ONLY_TRIED = {"validate_only"}


def arrays_of(message: type[Message], version: int) -> list[Path]:
    """Every array of the request, by the fields that lead to it."""
    return list(_arrays(message, VersionLayout(message, version), ()))


def _arrays(struct: type[Struct], layout: VersionLayout, before: Path) -> Iterator[Path]:
    for field in layout.plain_fields(struct) + layout.tagged_fields(struct):
        if isinstance(field.type, ArrayType):
            yield (*before, field)
            if isinstance(field.type.element, type):
                yield from _arrays(field.type.element, layout, (*before, field))


def crowded(
    message: type[Message],
    version: int,
    path: Path,
    max_bytes: int,
    *,
    topic_id: bytes,
    is_distinct: bool,
    random: Random,
    numbers: Mapping[str, int] | None = None,
) -> Message:
    """A valid request in which the array at the end of `path` has as many elements as fit.

    For `numbers` see `plausible`.
    """
    request = plausible(message, version, topic_id, random, numbers)
    for field in message.__fields__:
        if field.name in _ONLY_TRIED:
            setattr(request, field.name, True)
    holder: Any = request
    for field in path[:-1]:
        holder = _elements(holder, field, version)[0]
    last = path[-1]
    element = _elements(holder, last, version)[0]
    sizes = []
    for count in (1, 2):
        setattr(holder, last.name, [element] * count)
        sizes.append(len(encode(request, version)))
    count = min((max_bytes - sizes[0]) // (sizes[1] - sizes[0]), _MOST_ELEMENTS // _weight(element))
    elements = [element] * count
    if is_distinct:
        elements = [_renamed(element, number % _numbers(last), random) for number in range(count)]
    setattr(holder, last.name, elements)
    return request


def _elements(holder: Any, field: Field, version: int) -> list[Any]:
    """The array of a plausible request; what that leaves empty gets an element of defaults."""
    found = getattr(holder, field.name)
    if not found:
        assert isinstance(field.type, ArrayType)
        found = [_default(field.type.element)]
        setattr(holder, field.name, found)
    return list(found) if not isinstance(found, list) else found


def _default(element: Any) -> Any:
    if isinstance(element, type):
        return element()
    if isinstance(element, VariableType):
        return "x" if element.name == "string" else b"x"
    assert isinstance(element, FixedType)
    return bytes(16) if element.code == "16s" else 0


def _weight(element: Any) -> int:
    """How many elements an element is, with those of its own arrays and its tagged fields."""
    if not isinstance(element, Struct):
        return 1
    lists = (getattr(element, field.name) for field in element.__fields__)
    tags = sum(field.tag is not None for field in element.__fields__)
    return 1 + tags + sum(_weight(each) for value in lists if isinstance(value, list) for each in value)


def _numbers(field: Field) -> int:
    """How many numbers fit into the elements of an array of numbers."""
    assert isinstance(field.type, ArrayType)
    element = field.type.element
    return 1 << 7 * element.size if isinstance(element, FixedType) else MAX_REQUEST_ELEMENTS


def _renamed(element: Any, number: int, random: Random) -> Any:
    """Another element like this one, about something else."""
    if isinstance(element, str):
        return f"{element}{number}"
    if isinstance(element, int):
        return number
    if not isinstance(element, Struct):
        return random.randbytes(16)
    other = copy.copy(element)
    for field in element.__fields__:
        value = getattr(element, field.name)
        if isinstance(value, str) and field.name not in _NOT_NAMES:
            setattr(other, field.name, f"{value}{number}")
        elif isinstance(value, int) and field.name in _NUMBERS_OF_THINGS:
            setattr(other, field.name, number)
        elif isinstance(field.type, FixedType) and field.type.code == "16s":
            setattr(other, field.name, random.randbytes(16))
    return other
