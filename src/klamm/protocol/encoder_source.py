"""Generates the encoder of one message version.

`encode(message, pieces, chunks)` adds bytes to the list `pieces`. A record set is not copied: the pieces
before it are joined into one chunk, and the object itself is the next chunk. Neighbouring fixed-width values
are packed by one struct, together with lengths of fixed width and empty tag sections; all pieces up to the
next branch or loop go into the list at once.

`in_steps` makes the encoder a generator that yields after every few elements, for answers that would keep
the event loop for too long (see docs/adr/0017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct as Packer
from typing import Any

from klamm.protocol.compiler import ELEMENTS_PER_STEP, SourceWriter, VersionLayout, is_default_expression
from klamm.protocol.errors import UnencodableMessage
from klamm.protocol.primitives import ONE_BYTE_VARINTS, encode_uvarint, fixed_arrays
from klamm.protocol.schema import ArrayType, Field, FieldType, FixedType, Message, Struct, VariableType

_NULL_LENGTHS = {"h": b"\xff\xff", "i": b"\xff\xff\xff\xff"}
_ZERO_BYTE = b"\0"
_NULL_STRUCT = b"\xff"


def compile_encoder(message: type[Message], version: int, *, in_steps: bool = False) -> Callable[..., Any]:
    return _EncoderSource(message, version, in_steps).compile()


class _EncoderSource:
    def __init__(self, message: type[Message], version: int, in_steps: bool) -> None:
        self._message = message
        self._in_steps = in_steps
        self._layout = VersionLayout(message, version)
        self._title = f"{message.__name__} v{version}"
        self._writer = SourceWriter()
        self._writer.names.update(
            VARINTS=ONE_BYTE_VARINTS,
            encode_uvarint=encode_uvarint,
            Unencodable=UnencodableMessage,
        )
        # Values not packed yet: (struct code, expression), the expression empty for a zero byte.
        self._run: list[tuple[str, str]] = []
        # Expressions of bytes not added to the output yet.
        self._pieces: list[str] = []
        self._output = "pieces"

    def compile(self) -> Callable[..., Any]:
        with self._writer.block("def encode(m, pieces, chunks):"):
            if self._in_steps:
                self._writer.line(f"until_pause = {ELEMENTS_PER_STEP}")
                self._writer.line("yield")
            self._struct(self._message, "m", self._title)
            self._flush()
            self._writer.line("return")
        return self._writer.compile("encode")

    def _flush_run(self) -> None:
        """Turns the run into one piece."""
        if not self._run:
            return
        codes = "".join(code for code, _ in self._run)
        values = ", ".join(value for _, value in self._run if value)
        if not values:
            self._pieces.append(repr(bytes(len(codes))))
        else:
            packer = f"pack_{codes}".replace("?", "o")
            self._writer.names.setdefault(packer, Packer(">" + codes).pack)
            self._pieces.append(f"{packer}({values})")
        self._run.clear()

    def _flush(self) -> None:
        """Emits the code that adds all pieces so far; must come before a loop or branch that adds its own."""
        self._flush_run()
        if len(self._pieces) == 1:
            self._writer.line(f"{self._output}.append({self._pieces[0]})")
        elif self._pieces:
            self._writer.line(f"{self._output} += ({', '.join(self._pieces)})")
        self._pieces.clear()

    def _piece(self, expression: str) -> None:
        self._flush_run()
        self._pieces.append(expression)

    def _varint(self, value: str) -> None:
        self._piece(f"VARINTS[{value}] if {value} < 128 else encode_uvarint({value})")

    def _struct(self, struct: type[Struct], source: str, path: str) -> None:
        for field in self._layout.absent_fields(struct):
            if not field.ignorable:
                with self._writer.block(
                    f"if not ({is_default_expression(field, f'{source}.{field.name}')}):"
                ):
                    self._writer.line(f"raise Unencodable({f'{path} has no field {field.name}'!r})")
        for field in self._layout.plain_fields(struct):
            self._field(
                field.type, self._layout.is_nullable(field), f"{source}.{field.name}", f"{path}: {field.name}"
            )
        if self._layout.flexible:
            self._tagged_fields(struct, source, path)

    def _field(self, type: FieldType, nullable: bool, source: str, path: str) -> None:
        if isinstance(type, FixedType):
            self._run.append((type.code, source))
        elif isinstance(type, VariableType):
            self._variable(type, nullable, source, path)
        elif isinstance(type, ArrayType):
            self._array(type, nullable, source, path)
        elif nullable:
            self._nullable_struct(type, source, path)
        else:
            value = self._writer.fresh("m")
            self._writer.line(f"{value} = {source}")
            self._struct(type, value, path)

    def _nullable_struct(self, struct: type[Struct], source: str, path: str) -> None:
        value = self._writer.fresh("m")
        self._flush()
        self._writer.line(f"{value} = {source}")
        with self._writer.block(f"if {value} is None:"):
            self._writer.line(f"{self._output}.append({_NULL_STRUCT!r})")
        with self._writer.block("else:"):
            self._run.append(("b", "1"))
            self._struct(struct, value, path)
            self._flush()

    def _variable(self, type: VariableType, nullable: bool, source: str, path: str) -> None:
        value = self._writer.fresh("value")
        if type.name == "record_set":
            self._record_set(value, nullable, source, path)
        elif nullable:
            self._nullable_variable(type, value, source)
        else:
            self._writer.line(f"{value} = {source}{'.encode()' if type.name == 'string' else ''}")
            self._length(type.length_code, value)
            self._piece(value)

    def _length(self, code: str, value: str) -> None:
        """The length of `value`, as the version writes lengths."""
        if self._layout.flexible:
            length = self._writer.fresh("n")
            self._writer.line(f"{length} = len({value}) + 1")
            self._varint(length)
        else:
            self._run.append((code, f"len({value})"))

    def _null(self, code: str) -> str:
        return repr(_ZERO_BYTE if self._layout.flexible else _NULL_LENGTHS[code])

    def _nullable_variable(self, type: VariableType, value: str, source: str) -> None:
        """Length and value as one piece, or the null that stands for both."""
        writer = self._writer
        writer.line(f"{value} = {source}")
        with writer.block(f"if {value} is None:"):
            writer.line(f"{value} = {self._null(type.length_code)}")
        with writer.block("else:"), self._separate_pieces():
            if type.name == "string":
                writer.line(f"{value} = {value}.encode()")
            self._length(type.length_code, value)
            self._flush_run()
            writer.line(f"{value} = ({self._pieces.pop()}) + {value}")
        self._piece(value)

    def _record_set(self, value: str, nullable: bool, source: str, path: str) -> None:
        writer = self._writer
        assert self._output == "pieces", "record sets are never inside tagged fields"
        self._flush()
        writer.line(f"{value} = {source}")
        with writer.block(f"if {value} is None:"):
            if nullable:
                writer.line(f"pieces.append({self._null('i')})")
            else:
                writer.line(f"raise Unencodable({f'{path} must not be null'!r})")
        with writer.block("else:"):
            self._length("i", value)
            self._flush()
            with writer.block(f"if len({value}):"):
                writer.line(f"chunks += (b''.join(pieces), {value})")
                writer.line("pieces.clear()")

    def _array(self, type: ArrayType, nullable: bool, source: str, path: str) -> None:
        writer = self._writer
        items = writer.fresh("items")
        writer.line(f"{items} = {source}")
        if nullable:
            self._flush()
            with writer.block(f"if {items} is None:"):
                writer.line(f"{self._output}.append({self._null('i')})")
            with writer.block("else:"):
                self._elements(type.element, items, path)
                self._flush()
        else:
            self._elements(type.element, items, path)

    def _elements(self, element: FieldType, items: str, path: str) -> None:
        writer = self._writer
        self._length("i", items)
        if isinstance(element, FixedType):
            arrays = writer.bind("arrays", fixed_arrays(element.code))
            self._piece(f"{arrays}[len({items})].pack(*{items})")
            return
        self._flush()
        item = writer.fresh("m")
        with writer.block(f"for {item} in {items}:"):
            if self._in_steps:
                writer.pause_now_and_then()
            if isinstance(element, type):
                self._struct(element, item, path)
            else:
                self._field(element, False, item, path)
            self._flush()

    @contextmanager
    def _separate_pieces(self, output: str | None = None) -> Iterator[None]:
        """Inside the `with` block, code has its own pieces (and its own output list); pieces from before the
        block are added after it."""
        outer = self._run, self._pieces, self._output
        self._run, self._pieces, self._output = [], [], output or self._output
        yield
        self._run, self._pieces, self._output = outer

    def _tagged_fields(self, struct: type[Struct], source: str, path: str) -> None:
        """Adds the section at the end of a struct: tagged fields that are not at their default, by tag."""
        writer = self._writer
        known = self._layout.tagged_fields(struct)
        if not known:
            self._run.append(("x", ""))
            return
        section, fields = writer.fresh("section"), writer.fresh("fields")
        all_default = " and ".join(is_default_expression(each, f"{source}.{each.name}") for each in known)
        with writer.block(f"if {all_default}:"):
            writer.line(f"{section} = {_ZERO_BYTE!r}")
        with writer.block("else:"):
            writer.line(f"{fields} = []")
            for field in known:
                self._tagged_field(field, fields, f"{source}.{field.name}", f"{path}: {field.name}")
            writer.line(f"{section} = encode_uvarint(len({fields}) // 3) + b''.join({fields})")
        self._piece(section)

    def _tagged_field(self, field: Field, fields: str, source: str, path: str) -> None:
        """Adds tag, size and value to the list `fields`."""
        writer = self._writer
        assert field.tag is not None
        with writer.block(f"if not ({is_default_expression(field, source)}):"):
            value = writer.fresh("tagged")
            writer.line(f"{value} = []")
            with self._separate_pieces(output=value):
                self._field(field.type, self._layout.is_nullable(field), source, path)
                self._flush()
            writer.line(f"{value} = b''.join({value})")
            writer.line(f"{fields} += ({encode_uvarint(field.tag)!r}, encode_uvarint(len({value})), {value})")
