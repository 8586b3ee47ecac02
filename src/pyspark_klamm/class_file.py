"""Writes Java class files: as much of the format as code without branches needs.

A Java runtime has no compiler, and a jar that nobody can rebuild should not be trusted. The format is in
chapter 4 of the Java Virtual Machine Specification. The same input gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass

JAVA_17 = 61
"""The class file version of the oldest Java that Spark runs on."""

_MAGIC = 0xCAFEBABE
_PUBLIC, _PRIVATE, _FINAL, _SUPER = 0x0001, 0x0002, 0x0010, 0x0020
_UTF8, _CLASS, _STRING, _FIELD, _METHOD, _NAME_AND_TYPE = 1, 7, 8, 9, 10, 12


def signature(*arguments: str, returns: str = "") -> str:
    """The descriptor of a method, from the names of classes or arrays; without `returns` it returns void."""
    types = [name if name.startswith("[") else f"L{name};" for name in arguments]
    return f"({''.join(types)}){f'L{returns};' if returns else 'V'}"


@dataclass
class ClassFile:
    """A public class. Names have slashes, as in the format: `java/lang/String`."""

    name: str
    parent: str
    interfaces: tuple[str, ...] = ()
    _constants: dict[bytes, int] = dataclasses.field(default_factory=dict)
    _fields: list[bytes] = dataclasses.field(default_factory=list)
    _methods: list[bytes] = dataclasses.field(default_factory=list)

    def field(self, name: str, type_name: str) -> None:
        """Add a field that only the constructor sets."""
        names = self._utf8(name), self._utf8(f"L{type_name};")
        self._fields.append(struct.pack(">HHHH", _PRIVATE | _FINAL, *names, 0))

    def constructor(self, *arguments: str, then: bytes = b"") -> None:
        """Add a constructor that hands all its arguments to the parent's, and then does something more."""
        descriptor = signature(*arguments)
        loads = b"".join(self.load(variable) for variable in range(len(arguments) + 1))
        call = self.call_special(self.parent, "<init>", descriptor)
        code = loads + call + then + self.return_nothing()
        self.method("<init>", descriptor, code, stack=max(len(arguments) + 1, 2), arguments=len(arguments))

    def method(self, name: str, descriptor: str, code: bytes, *, stack: int, arguments: int) -> None:
        """Add a public method; `arguments` without `this`, which is the only other local variable."""
        body = struct.pack(">HHI", stack, arguments + 1, len(code)) + code + struct.pack(">HH", 0, 0)
        attribute = struct.pack(">HI", self._utf8("Code"), len(body)) + body
        head = struct.pack(">HHHH", _PUBLIC, self._utf8(name), self._utf8(descriptor), 1)
        self._methods.append(head + attribute)

    def to_bytes(self) -> bytes:
        interfaces = [self._class(name) for name in self.interfaces]
        head = struct.pack(">HHH", _PUBLIC | _SUPER, self._class(self.name), self._class(self.parent))
        head += struct.pack(f">H{len(interfaces)}H", len(interfaces), *interfaces)
        members = struct.pack(">H", len(self._fields)) + b"".join(self._fields)
        members += struct.pack(">H", len(self._methods)) + b"".join(self._methods) + struct.pack(">H", 0)
        constants = struct.pack(">H", len(self._constants) + 1) + b"".join(self._constants)
        return struct.pack(">IHH", _MAGIC, 0, JAVA_17) + constants + head + members

    # ---- instructions

    def load(self, variable: int) -> bytes:
        """Push `this` (0) or an argument."""
        return struct.pack(">BB", 0x19, variable)

    def load_text(self, text: str) -> bytes:
        return struct.pack(">BH", 0x13, self._constant(struct.pack(">BH", _STRING, self._utf8(text))))

    def load_null(self) -> bytes:
        return b"\x01"

    def load_static(self, owner: str, name: str, type_name: str) -> bytes:
        return struct.pack(">BH", 0xB2, self._member(_FIELD, owner, name, f"L{type_name};"))

    def load_field(self, name: str, type_name: str) -> bytes:
        return struct.pack(">BH", 0xB4, self._member(_FIELD, self.name, name, f"L{type_name};"))

    def store_field(self, name: str, type_name: str) -> bytes:
        return struct.pack(">BH", 0xB5, self._member(_FIELD, self.name, name, f"L{type_name};"))

    def new(self, name: str) -> bytes:
        """Push a new object twice: once for its constructor, which is still to be called."""
        return struct.pack(">BHB", 0xBB, self._class(name), 0x59)

    def call(self, owner: str, name: str, descriptor: str) -> bytes:
        return struct.pack(">BH", 0xB6, self._member(_METHOD, owner, name, descriptor))

    def call_special(self, owner: str, name: str, descriptor: str) -> bytes:
        """Call a constructor, or what the parent has under this name."""
        return struct.pack(">BH", 0xB7, self._member(_METHOD, owner, name, descriptor))

    def call_static(self, owner: str, name: str, descriptor: str) -> bytes:
        return struct.pack(">BH", 0xB8, self._member(_METHOD, owner, name, descriptor))

    def return_object(self) -> bytes:
        return b"\xb0"

    def return_nothing(self) -> bytes:
        return b"\xb1"

    # ---- the constant pool

    def _constant(self, entry: bytes) -> int:
        return self._constants.setdefault(entry, len(self._constants) + 1)

    def _utf8(self, text: str) -> int:
        encoded = text.encode()
        return self._constant(struct.pack(">BH", _UTF8, len(encoded)) + encoded)

    def _class(self, name: str) -> int:
        return self._constant(struct.pack(">BH", _CLASS, self._utf8(name)))

    def _member(self, kind: int, owner: str, name: str, descriptor: str) -> int:
        names = struct.pack(">BHH", _NAME_AND_TYPE, self._utf8(name), self._utf8(descriptor))
        return self._constant(struct.pack(">BHH", kind, self._class(owner), self._constant(names)))
