"""Hypothesis strategies made from the declarations: any message that a version can carry."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from klamm.model.errors import ErrorCode
from klamm.protocol.compiler import VersionLayout
from klamm.protocol.schema import ArrayType, Field, FieldType, FixedType, Message, Struct, VariableType

_INTEGERS = {
    "b": st.integers(-(2**7), 2**7 - 1),
    "h": st.integers(-(2**15), 2**15 - 1),
    "H": st.integers(0, 2**16 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "I": st.integers(0, 2**32 - 1),
    "q": st.integers(-(2**63), 2**63 - 1),
    "?": st.booleans(),
    "16s": st.binary(min_size=16, max_size=16),
}
# The long ones need a length of two bytes.
_TEXT = st.text(max_size=6) | st.just("ü" * 70)
_BYTES = st.binary(max_size=6) | st.just(b"b" * 128)

_ERROR_CODES = st.sampled_from(sorted(int(code) for code in ErrorCode))
_TIMES_MS = st.integers(0, 2**40)


def messages(message: type[Message], version: int, *, with_meaning: bool = False) -> st.SearchStrategy[Any]:
    """Messages with every field of a version set; `with_meaning` keeps error codes and times to real ones."""
    return _Strategies(VersionLayout(message, version), with_meaning).struct(message)


class _Strategies:
    def __init__(self, layout: VersionLayout, with_meaning: bool) -> None:
        self._layout = layout
        self._with_meaning = with_meaning

    def struct(self, struct: type[Struct]) -> st.SearchStrategy[Any]:
        fields = self._layout.plain_fields(struct) + self._layout.tagged_fields(struct)
        return st.builds(struct, **{field.name: self._field(field) for field in fields})

    def _field(self, field: Field) -> st.SearchStrategy[Any]:
        value = self._value(field.type)
        if self._with_meaning and isinstance(field.type, FixedType):
            if field.name == "error_code":
                value = _ERROR_CODES
            elif field.type.code == "q" and ("_ms" in field.name or "timestamp" in field.name):
                value = _TIMES_MS
        if isinstance(field.type, type) and field.tag is not None:
            # Kafka and kio leave a tagged struct out when it is at its defaults; here that is None.
            default = field.type()
            return st.none() | value.map(lambda drawn: None if drawn == default else drawn)
        if self._layout.is_nullable(field):
            return st.none() | value
        return value

    def _value(self, type: FieldType) -> st.SearchStrategy[Any]:
        if isinstance(type, FixedType):
            return _INTEGERS[type.code]
        if isinstance(type, VariableType):
            return _TEXT if type.name == "string" else _BYTES
        if isinstance(type, ArrayType):
            return st.lists(self._value(type.element), max_size=2)
        return self.struct(type)
