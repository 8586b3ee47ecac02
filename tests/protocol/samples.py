"""Messages filled at random from a seed, with one or two elements in every array: long, and quick to make."""

from __future__ import annotations

from random import Random
from typing import Any

from klamm.protocol.compiler import VersionLayout
from klamm.protocol.schema import ArrayType, FieldType, FixedType, Message, Struct, VariableType

_BITS = {"b": 7, "h": 15, "H": 16, "i": 31, "q": 63}


def sample(message: type[Message], version: int, random: Random) -> Message:
    filled: Message = _struct(message, VersionLayout(message, version), random)
    return filled


def _struct(struct: type[Struct], layout: VersionLayout, random: Random) -> Any:
    fields = layout.plain_fields(struct) + layout.tagged_fields(struct)
    return struct(**{field.name: _value(field.type, layout, random) for field in fields})


def _value(type: FieldType, layout: VersionLayout, random: Random) -> Any:
    if isinstance(type, ArrayType):
        return [_value(type.element, layout, random) for _ in range(random.randint(1, 2))]
    if isinstance(type, VariableType):
        raw = random.randbytes(random.randint(0, 12))
        return raw.hex() if type.name == "string" else raw
    if isinstance(type, FixedType):
        if type.code == "?":
            return random.random() < 0.5
        return random.randbytes(16) if type.code == "16s" else random.getrandbits(_BITS[type.code])
    return _struct(type, layout, random)
