"""Writes Java class files: as much of the format as straight code without branches needs.

A runtime of Java brings no compiler, and a jar in a repository that nobody can make again is not to be
trusted. The format is in chapter 4 of the Java Virtual Machine Specification. Same input, same bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

JAVA_17 = 61
"""The class file version of the oldest Java that Spark runs on."""

_MAGIC = 0xCAFEBABE
_PUBLIC, _SUPER = 0x0001, 0x0020
_UTF8, _CLASS, _STRING, _FIELD, _METHOD, _NAME_AND_TYPE = 1, 7, 8, 9, 10, 12


@dataclass
class ClassFile:
    """A public class. Names are written as the format does: `java/lang/String`."""

    name: str
    parent: str
    interfaces: tuple[str, ...] = ()
    _constants: dict[bytes, int] = field(default_factory=dict)
    _methods: list[bytes] = field(default_factory=list)

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
        members = struct.pack(">HH", 0, len(self._methods)) + b"".join(self._methods) + struct.pack(">H", 0)
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

    def load_static(self, owner: str, name: str, descriptor: str) -> bytes:
        return struct.pack(">BH", 0xB2, self._member(_FIELD, owner, name, descriptor))

    def new(self, name: str) -> bytes:
        """Push a new object twice: once for its constructor, which is still to be called."""
        return struct.pack(">BHB", 0xBB, self._class(name), 0x59)

    def call(self, owner: str, name: str, descriptor: str) -> bytes:
        return struct.pack(">BH", 0xB6, self._member(_METHOD, owner, name, descriptor))

    def call_constructor(self, owner: str, descriptor: str) -> bytes:
        return struct.pack(">BH", 0xB7, self._member(_METHOD, owner, "<init>", descriptor))

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
