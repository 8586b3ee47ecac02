"""Turns declarations into Python code: constructors here, decoders in `decoder_source`, encoders in
`encoder_source`.

A codec is one function per message and version. Its source is generated with all nested structs inlined,
arrays of them as loops, so that a message costs one call and no lookups of versions. It is compiled on first
use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from klamm.protocol.schema import (
    UNSET,
    ArrayType,
    Field,
    FieldType,
    FixedType,
    Message,
    Struct,
    version_range,
)

ELEMENTS_PER_STEP = 10
"""Elements that a codec in steps reads or writes before it yields: some hundredths of a millisecond, or a few
milliseconds if each is a group with a name of 32 KB that is looked up."""


class SourceWriter:
    """Lines of a function under construction, and the names its code may use."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._counter = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines written inside are indented under `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        """A variable name that no other part of the function uses."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def bind(self, prefix: str, value: Any) -> str:
        """The name by which the code can use `value`; the same object keeps the same name."""
        for name, known in self.names.items():
            if known is value and name.startswith(prefix):
                return name
        name = self.fresh(prefix + "_")
        self.names[name] = value
        return name

    def pause_now_and_then(self) -> None:
        """In a loop of a codec in steps: yield after every few elements, however loops are nested."""
        self.line("until_pause -= 1")
        with self.block("if not until_pause:"):
            self.line(f"until_pause = {ELEMENTS_PER_STEP}")
            self.line("yield")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compile(self, function_name: str) -> Callable[..., Any]:
        namespace = dict(self.names)
        exec(compile(self.text(), f"<{function_name}>", "exec"), namespace)
        function: Callable[..., Any] = namespace[function_name]
        return function


class VersionLayout:
    """One version of one message: which fields of its structs it has, and how they are written."""

    def __init__(self, message: type[Message], version: int) -> None:
        self.version = version
        self.flexible = version in message.__flexible_versions__

    def has(self, field: Field) -> bool:
        return self.version in version_range(field.versions)

    def is_nullable(self, field: Field) -> bool:
        return self.version in version_range(field.nullable)

    def plain_fields(self, struct: type[Struct]) -> list[Field]:
        """The fields written in order, without tags."""
        return [each for each in struct.__fields__ if each.tag is None and self.has(each)]

    def tagged_fields(self, struct: type[Struct]) -> list[Field]:
        tagged = [each for each in struct.__fields__ if each.tag is not None and self.has(each)]
        return sorted(tagged, key=lambda each: each.tag or 0)

    def absent_fields(self, struct: type[Struct]) -> list[Field]:
        return [each for each in struct.__fields__ if not self.has(each)]

    def smallest_size(self, type: FieldType) -> int:
        """The fewest bytes a value can take. Bounds how many elements can follow an array's count."""
        if isinstance(type, FixedType):
            return type.size
        if isinstance(type, ArrayType):
            return 1 if self.flexible else 4
        if isinstance(type, tuple):
            return 1 if self.flexible else 2 if type.length_code == "h" else 4
        plain = sum(
            1 if self.is_nullable_struct(each) else self.smallest_size(each.type)
            for each in self.plain_fields(type)
        )
        return plain + (1 if self.flexible else 0)

    def is_nullable_struct(self, field: Field) -> bool:
        return isinstance(field.type, type) and self.is_nullable(field)


def default_expression(writer: SourceWriter, field: Field) -> str:
    """Code for the default of a field: a literal, or a fresh object."""
    value = field.default_value()
    if isinstance(value, Struct):
        return f"{writer.bind('Struct', type(value))}()"
    return repr(value)


def is_default_expression(field: Field, value: str) -> str:
    """Code that tells whether the variable `value` holds the default of a field."""
    default = field.default_value()
    if default is None or default is True:
        return f"{value} is {default}"
    if default is False or default == [] or default == "" or default == b"":
        return f"(not {value} and {value} is not None)" if field.nullable != "none" else f"not {value}"
    if isinstance(default, Struct):
        return f"{value} == type({value})()"
    return f"{value} == {default!r}"


def compile_constructor(struct: type[Struct]) -> Callable[..., None]:
    """`__init__` with a keyword argument per field."""
    writer = SourceWriter()
    writer.names["UNSET"] = UNSET
    arguments: list[str] = []
    assignments: list[str] = []
    for field in struct.__fields__:
        default = default_expression(writer, field)
        if isinstance(field.default_value(), list | Struct):
            arguments.append(f"{field.name}=UNSET")
            assignments.append(f"self.{field.name} = {default} if {field.name} is UNSET else {field.name}")
        else:
            arguments.append(f"{field.name}={default}")
            assignments.append(f"self.{field.name} = {field.name}")
    with writer.block(f"def __init__({', '.join(['self', '*', *arguments] if arguments else ['self'])}):"):
        for assignment in assignments or ["pass"]:
            writer.line(assignment)
    return writer.compile("__init__")
