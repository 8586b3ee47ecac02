"""Generates the decoder of one message version.

`decode(buffer, offset) -> (message, end)`. Neighbouring fixed-width fields are read by one struct together
with the length or the tag count that follows them (a varint is first taken as one byte, which it nearly
always is).

How the decoder guards against hostile input: it checks every slice against the end of the buffer first, since
slicing does not fail. It checks that as many elements as an array announces, each of the smallest possible
size, fit into the bytes that remain. Reads past the end raise struct.error or IndexError, which
`codec.decode` reports as MalformedMessage. A request may have only `MAX_REQUEST_ELEMENTS` elements in all,
because each becomes an object. Skipped tagged fields count as elements, because each takes as long to read.

`in_steps` makes the decoder a generator that yields after every few elements, for requests that would keep
the event loop for too long (see docs/adr/0017).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Packer
from struct import calcsize
from typing import Any

from klamm.protocol.compiler import ELEMENTS_PER_STEP, SourceWriter, VersionLayout, default_expression
from klamm.protocol.errors import MalformedMessage, TooManyElements
from klamm.protocol.primitives import MAX_TAGGED_FIELDS, fixed_arrays, read_uvarint, skip_tagged_fields
from klamm.protocol.schema import ArrayType, Field, FieldType, FixedType, Message, Struct, VariableType

MAX_REQUEST_ELEMENTS = 50_000
"""Array elements of one request: more partitions than any client names. As objects they take up to 25 MB."""

LONGEST_STRING_BYTES = 0x7FFF
"""The longest string that Kafka reads, also where the format has room for a longer one."""


def compile_decoder(message: type[Message], version: int, *, in_steps: bool = False) -> Callable[..., Any]:
    return _DecoderSource(message, version, in_steps).compile()


class _DecoderSource:
    def __init__(self, message: type[Message], version: int, in_steps: bool) -> None:
        self._message = message
        self._in_steps = in_steps
        self._layout = VersionLayout(message, version)
        self._title = f"{message.__name__} v{version}"
        self._writer = SourceWriter()
        self._writer.names.update(
            new=object.__new__,
            read_uvarint=read_uvarint,
            skip_tagged_fields=skip_tagged_fields,
            Malformed=MalformedMessage,
            TooMany=TooManyElements,
        )
        self._counts_elements = message.__api_key__ is not None and message.__name__.endswith("Request")
        # Fixed-width values not read yet: (struct code, assignment target).
        self._run: list[tuple[str, str]] = []

    def compile(self) -> Callable[..., Any]:
        writer = self._writer
        with writer.block(f"def decode(buffer, offset, room={MAX_REQUEST_ELEMENTS}):"):
            writer.line("limit = len(buffer)")
            if self._in_steps:
                writer.line(f"until_pause = {ELEMENTS_PER_STEP}")
                writer.line("yield")
            root = self._struct(self._message, self._title)
            self._flush_run()
            writer.line(f"return {root}, offset")
        return writer.compile("decode")

    def _flush_run(self) -> None:
        """Emits one read for all values of the run."""
        if not self._run:
            return
        codes = "".join(code for code, _ in self._run)
        targets = ", ".join(target for _, target in self._run)
        if codes == "B":
            self._writer.line(f"{targets} = buffer[offset]")
        else:
            packer = f"read_{codes}".replace("?", "o")
            self._writer.names.setdefault(packer, Packer(">" + codes).unpack_from)
            self._writer.line(f"{targets}{',' if len(self._run) == 1 else ''} = {packer}(buffer, offset)")
        self._writer.line(f"offset += {calcsize('>' + codes)}")
        self._run.clear()

    def _fail(self, condition: str, text: str) -> None:
        with self._writer.block(f"if {condition}:"):
            self._writer.line(f"raise Malformed({text!r})")

    def _struct(self, struct: type[Struct], path: str) -> str:
        """Decodes a struct into a new variable; its last values may still be in the run."""
        writer = self._writer
        target = writer.fresh("m")
        writer.line(f"{target} = new({writer.bind('Struct', struct)})")
        for field in self._layout.absent_fields(struct):
            writer.line(f"{target}.{field.name} = {default_expression(writer, field)}")
        for field in self._layout.plain_fields(struct):
            self._field(field, f"{target}.{field.name}", f"{path}: {field.name}")
        if self._layout.flexible:
            self._tagged_fields(struct, target, path)
        return target

    def _field(self, field: Field, target: str, path: str) -> None:
        nullable = self._layout.is_nullable(field)
        if isinstance(field.type, FixedType):
            self._run.append((field.type.code, target))
        elif isinstance(field.type, VariableType):
            self._variable(field.type, target, path, nullable)
        elif isinstance(field.type, ArrayType):
            self._array(field.type, target, path, nullable)
        elif nullable:
            self._nullable_struct(field.type, target, path)
        else:
            self._writer.line(f"{target} = {self._struct(field.type, path)}")

    def _nullable_struct(self, struct: type[Struct], target: str, path: str) -> None:
        """A null struct is one negative byte. Before any other struct stands one byte that is not
        negative."""
        marker = self._writer.fresh("marker")
        self._run.append(("b", marker))
        self._flush_run()
        with self._writer.block(f"if {marker} < 0:"):
            self._writer.line(f"{target} = None")
        with self._writer.block("else:"):
            self._writer.line(f"{target} = {self._struct(struct, path)}")
            self._flush_run()

    def _count(self, count: str, path: str) -> None:
        """Counts elements or tagged fields of a request."""
        if self._counts_elements:
            self._writer.line(f"room -= {count}")
            with self._writer.block("if room < 0:"):
                self._writer.line(f"raise TooMany({f'{path}: the request holds too many elements'!r})")

    def _length(self, length_code: str, path: str, nullable: bool, target: str, most: int = 0) -> str:
        """Emits code that reads a length and handles null; the caller emits the `else:` branch. Returns the
        name of the length's variable."""
        writer = self._writer
        length = writer.fresh("n")
        if self._layout.flexible:
            self._run.append(("B", length))
            self._flush_run()
            with writer.block(f"if {length} > 127:"):
                writer.line(f"{length}, offset = read_uvarint(buffer, offset - 1)")
                if most:
                    self._fail(f"{length} > {most + 1}", f"{path} is longer than {most} bytes")
        else:
            self._run.append((length_code, length))
            self._flush_run()
        with writer.block(f"if not {length}:" if self._layout.flexible else f"if {length} < 0:"):
            if not nullable:
                writer.line(f"raise Malformed({f'{path} is null or has a negative length'!r})")
                return length
            if not self._layout.flexible:
                self._fail(f"{length} != -1", f"{path} has a negative length")
            writer.line(f"{target} = None")
        return length

    def _variable(self, type: VariableType, target: str, path: str, nullable: bool) -> None:
        writer = self._writer
        most = LONGEST_STRING_BYTES if type.name == "string" else 0
        length = self._length(type.length_code, path, nullable, target, most)
        with writer.block("else:"):
            end = writer.fresh("end")
            writer.line(f"{end} = offset + {length}{' - 1' if self._layout.flexible else ''}")
            self._fail(f"{end} > limit", f"{path} runs past the end of the message")
            piece = f"buffer[offset:{end}]"
            if type.name == "string":
                piece = f"str({piece}, 'utf-8')"
            elif type.name == "byte_string":
                piece = f"bytes({piece})"
            writer.line(f"{target} = {piece}")
            writer.line(f"offset = {end}")

    def _array(self, type: ArrayType, target: str, path: str, nullable: bool) -> None:
        writer = self._writer
        count = self._length("i", path, nullable, target)
        element = type.element
        with writer.block("else:"):
            if self._layout.flexible:
                writer.line(f"{count} -= 1")
            smallest = max(1, self._layout.smallest_size(element))
            self._fail(
                f"{count} * {smallest} > limit - offset", f"{path} has more elements than bytes follow"
            )
            self._count(count, path)
            if isinstance(element, FixedType):
                arrays = writer.bind("arrays", fixed_arrays(element.code))
                writer.line(f"{target} = list({arrays}[{count}].unpack_from(buffer, offset))")
                writer.line(f"offset += {count} * {element.size}")
                return
            items = writer.fresh("items")
            writer.line(f"{target} = {items} = []")
            with writer.block(f"for _ in range({count}):"):
                if self._in_steps:
                    writer.pause_now_and_then()
                writer.line(f"{items}.append({self._element(element, path)})")
                self._flush_run()

    def _element(self, element: FieldType, path: str) -> str:
        """Code for an element. A struct is put into the list before its last values are read."""
        if isinstance(element, type):
            return self._struct(element, path)
        item = self._writer.fresh("item")
        if isinstance(element, VariableType):
            self._variable(element, item, path, nullable=False)
        else:
            assert isinstance(element, FixedType)
            self._run.append((element.code, item))
            self._flush_run()
        return item

    def _tagged_fields(self, struct: type[Struct], target: str, path: str) -> None:
        """Reads the tagged fields at the end of a struct; skips unknown ones."""
        writer = self._writer
        known = self._layout.tagged_fields(struct)
        count = writer.fresh("tags")
        self._run.append(("B", count))
        self._flush_run()
        for field in known:
            writer.line(f"{target}.{field.name} = {default_expression(writer, field)}")
        with writer.block(f"if {count}:"):
            self._count(count, path)
            if not known:
                writer.line("offset = skip_tagged_fields(buffer, offset - 1)")
                return
            tag, size, end, previous = (writer.fresh(name) for name in ("tag", "size", "end", "previous"))
            writer.line(f"{count}, offset = read_uvarint(buffer, offset - 1)")
            self._fail(f"{count} > {MAX_TAGGED_FIELDS}", f"{path} has too many tagged fields")
            writer.line(f"{previous} = -1")
            with writer.block(f"for _ in range({count}):"):
                writer.line(f"{tag}, offset = read_uvarint(buffer, offset)")
                writer.line(f"{size}, offset = read_uvarint(buffer, offset)")
                writer.line(f"{end} = offset + {size}")
                self._fail(f"{tag} <= {previous}", f"{path} has tagged fields out of order")
                self._fail(f"{end} > limit", f"{path} has a tagged field past the end of the message")
                writer.line(f"{previous} = {tag}")
                for position, field in enumerate(known):
                    with writer.block(f"{'elif' if position else 'if'} {tag} == {field.tag}:"):
                        self._field(field, f"{target}.{field.name}", f"{path}: {field.name}")
                        self._flush_run()
                        self._fail(f"offset != {end}", f"{path}: {field.name} is not of its stated size")
                with writer.block("else:"):
                    writer.line(f"offset = {end}")
