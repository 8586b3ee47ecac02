"""How a message is declared: one class with typed fields for all of its versions.

A declaration is data. Nothing is compiled when it is imported: constructors are made on the first call,
decoders and encoders on the first use of a version (see `compiler`). That keeps the start of a broker short.

    class TopicProduceData(Struct):
        name: str = field(string, versions="0-12", ignorable=True)
        topic_id: bytes = field(uuid, versions="13+", ignorable=True)
        partition_data: list[PartitionProduceData] = field(array(PartitionProduceData))

    class ProduceRequest(Message, api_key=0, versions="3-13", flexible="9+"):
        transactional_id: str | None = field(string, versions="3+", nullable="3+", default=None)
        acks: int = field(int16)

Versions are written as in Kafka's schemas: "3+", "0-12", "7". A field without versions is in all of them.
A field that is not given takes its default: 0, "", an empty list and so on, unless the declaration names
another.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias, dataclass_transform

Records: TypeAlias = Any
"""Record batches: a memoryview of the input when decoded; when encoded anything with a length."""

NEWEST_VERSION = 32767


class VersionRange(NamedTuple):
    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@cache
def version_range(text: str) -> VersionRange:
    """Reads "3+", "0-12", "7" or "none"."""
    if text == "none":
        return VersionRange(1, 0)
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), NEWEST_VERSION)
    first, _, last = text.partition("-")
    return VersionRange(int(first), int(last or first))


class FixedType(NamedTuple):
    """A value of fixed width; `code` is its letter in the struct module."""

    name: str
    code: str
    size: int
    default: object


class VariableType(NamedTuple):
    """A value with a length before it. `length_code` is the length's letter in the struct module, for
    versions that are not flexible."""

    name: str
    length_code: str
    default: object


class ArrayType(NamedTuple):
    element: ElementType


int8 = FixedType("int8", "b", 1, 0)
int16 = FixedType("int16", "h", 2, 0)
uint16 = FixedType("uint16", "H", 2, 0)
int32 = FixedType("int32", "i", 4, 0)
uint32 = FixedType("uint32", "I", 4, 0)
int64 = FixedType("int64", "q", 8, 0)
float64 = FixedType("float64", "d", 8, 0.0)
boolean = FixedType("boolean", "?", 1, False)
uuid = FixedType("uuid", "16s", 16, bytes(16))
string = VariableType("string", "h", "")
byte_string = VariableType("byte_string", "i", b"")
record_set = VariableType("record_set", "i", None)


def array(element: ElementType) -> ArrayType:
    return ArrayType(element)


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


class Field:
    """The declaration of one field. `name` comes from the class body."""

    __slots__ = ("default", "ignorable", "name", "nullable", "tag", "type", "versions")

    def __init__(
        self,
        type: FieldType,
        versions: str,
        nullable: str,
        tag: int | None,
        default: object,
        ignorable: bool,
    ) -> None:
        self.name = ""
        self.type = type
        self.versions = versions
        self.nullable = nullable
        self.tag = tag
        self.default = default
        self.ignorable = ignorable

    def default_value(self) -> Any:
        """The value of a field that was not given; lists and structs are made anew each time."""
        if self.default is not UNSET:
            return self.default
        if isinstance(self.type, ArrayType):
            return []
        if isinstance(self.type, FixedType | VariableType):
            return self.type.default
        return None if self.tag is not None else self.type()


def field(
    type: FieldType,
    *,
    versions: str = "0+",
    nullable: str = "none",
    tag: int | None = None,
    default: object = UNSET,
    ignorable: bool = False,
) -> Any:
    """Declares a field.

    `ignorable` fields are left out of versions that lack them; any other field with a value that is not its
    default is an error there. A `tag` makes it a tagged field in all its versions. A tagged struct is None
    when it is absent.
    """
    return Field(type, versions, nullable, tag, default, ignorable)


@dataclass_transform(kw_only_default=True)
class StructMeta(type):
    """Turns the declarations of a class body into slots, and keeps them in `__fields__`."""

    def __new__(
        metaclass, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> StructMeta:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key, declared in fields.items():
            declared.name = key
            del namespace[key]
        namespace["__slots__"] = tuple(fields)
        namespace["__fields__"] = tuple(fields.values())
        return super().__new__(metaclass, name, bases, namespace, **options)


class Struct(metaclass=StructMeta):
    """A group of fields: an element of an array, or a part of a message."""

    __fields__: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: Any) -> None:
        from klamm.protocol.compiler import compile_constructor

        cls = type(self)
        cls.__init__ = compile_constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in self.__fields__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Shows the fields that are not at their default."""
        shown = []
        for each in self.__fields__:
            value = getattr(self, each.name, UNSET)
            if value != each.default_value():
                shown.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Message(Struct):
    """A struct that stands alone: a request, a response, or a record of an internal topic."""

    __api_key__: ClassVar[int | None]
    __valid_versions__: ClassVar[VersionRange]
    __flexible_versions__: ClassVar[VersionRange]
    __decoders__: ClassVar[dict[int, Any]]
    __encoders__: ClassVar[dict[int, Any]]

    def __init_subclass__(cls, *, versions: str, flexible: str = "none", api_key: int | None = None) -> None:
        cls.__api_key__ = api_key
        cls.__valid_versions__ = version_range(versions)
        cls.__flexible_versions__ = version_range(flexible)
        cls.__decoders__ = {}
        cls.__encoders__ = {}


ElementType: TypeAlias = FixedType | VariableType | type[Struct]
FieldType: TypeAlias = FixedType | VariableType | ArrayType | type[Struct]
