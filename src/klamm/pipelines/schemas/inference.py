"""Infers a schema from sample values: a StructType that nearly all samples fit.

    only null              STRING
    integers               BIGINT; with fractions among them DOUBLE; beyond 64 bits DECIMAL(38, 0)
    texts                  STRING; TIMESTAMP if all are ISO dates with a time, DATE if all are ISO dates
    objects                STRUCT of all fields that were seen; MAP if there are more than MAP_FIELDS
    arrays                 ARRAY of what fits all elements
    mixed kinds            what NEARLY_ALL values are, so that a few bad ones do not make a column text; if no
                           kind is so frequent, STRING with the JSON text of each

Every field may be null. Fields stand in the order in which they were first seen, so that the same samples in
the same order give the same schema.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from pyspark.sql import types

MAP_FIELDS = 200
"""An object with more different keys than this becomes a map: its keys are data, not names."""

NEARLY_ALL = 0.95
"""If so many values of a field fit a type, the others count as mistakes. They are reported, and treated as
values that cannot be decoded."""

LARGEST_LONG = 2**63 - 1
LARGEST_DECIMAL = 10**38 - 1

_FAMILIES = (
    ("object",),
    ("array",),
    ("boolean",),
    ("integer", "large", "fraction"),
    ("timestamp",),
    ("date",),
    ("timestamp", "date", "text"),
)
"""Kinds that one type holds."""

_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass
class Shape:
    """The values seen at one place of the samples: their kinds, and the shapes inside of them."""

    counts: Counter[str] = field(default_factory=Counter)
    """How many values of each kind were seen; null is not counted."""
    fields: dict[str, Shape] = field(default_factory=dict)
    element: Shape | None = None

    def see(self, value: object) -> None:
        kind = kind_of(value)
        if kind != "null":
            self.counts[kind] += 1
        if isinstance(value, Mapping):
            for name, inner in value.items():
                self.fields.setdefault(name, Shape()).see(inner)
        elif isinstance(value, list):
            self.element = self.element or Shape()
            for inner in value:
                self.element.see(inner)

    def type(self) -> types.DataType:
        kinds = self._usual_kinds()
        if kinds == {"object"}:
            return self._object()
        if kinds == {"array"}:
            return types.ArrayType((self.element or Shape()).type())
        if kinds == {"boolean"}:
            return types.BooleanType()
        if kinds == {"integer"}:
            return types.LongType()
        if kinds and kinds <= {"integer", "large"}:
            return types.DecimalType(38, 0)
        if kinds and kinds <= {"integer", "large", "fraction"}:
            return types.DoubleType()
        if kinds == {"timestamp"}:
            return types.TimestampType()
        if kinds == {"date"}:
            return types.DateType()
        return types.StringType()

    def _usual_kinds(self) -> set[str]:
        """The kinds of nearly all values; all kinds if no kind, or family of kinds, is so frequent."""
        enough = NEARLY_ALL * self.counts.total()
        for family in _FAMILIES:
            kinds = {kind for kind in family if self.counts[kind]}
            if kinds and sum(self.counts[kind] for kind in kinds) >= enough:
                return kinds
        return set(self.counts)

    def _object(self) -> types.DataType:
        if len(self.fields) > MAP_FIELDS:
            together = Shape()
            for inner in self.fields.values():
                together.take(inner)
            return types.MapType(types.StringType(), together.type())
        return self.struct()

    def struct(self) -> types.StructType:
        """The shape as columns. Of names that differ only in case the first one stays, as Spark ignores
        case."""
        known: set[str] = set()
        kept = []
        for name, inner in self.fields.items():
            if name.lower() not in known:
                known.add(name.lower())
                kept.append(types.StructField(name, inner.type()))
        return types.StructType(kept)

    def take(self, other: Shape) -> None:
        """Add everything that another shape has seen."""
        self.counts += other.counts
        for name, inner in other.fields.items():
            self.fields.setdefault(name, Shape()).take(inner)
        if other.element is not None:
            self.element = self.element or Shape()
            self.element.take(other.element)


def infer(samples: Iterable[Mapping[str, object]]) -> types.StructType:
    """The schema that nearly all samples fit. Samples are values as a JSON parser returns them."""
    shape = Shape()
    for sample in samples:
        shape.see(sample)
    return shape.struct()


def kind_of(value: object) -> str:
    """The kind of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if abs(value) > LARGEST_DECIMAL:
            return "fraction"
        return "integer" if -LARGEST_LONG - 1 <= value <= LARGEST_LONG else "large"
    if isinstance(value, float):
        return "fraction"
    if isinstance(value, str):
        return "timestamp" if is_timestamp(value) else "date" if is_date(value) else "text"
    return "object" if isinstance(value, Mapping) else "array"


def is_timestamp(text: str) -> bool:
    """True if Spark reads the text as a timestamp: an ISO date with a time, and perhaps a zone."""
    if not _TIMESTAMP.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


# ---- comparing an existing schema with newer samples


@dataclass(frozen=True)
class Comparison:
    """The difference between a schema and newer records. `merged` is the schema with the added fields.

    `added` names these with their types. `differing` names fields whose type does not fit the records; they
    stay unchanged, as tables have them already.
    """

    merged: types.StructType
    added: tuple[str, ...]
    differing: tuple[str, ...]


def compare(known: types.StructType, seen: types.StructType) -> Comparison:
    """Compare a known schema with an inferred one. Known fields keep their place; new ones come last."""
    added: list[str] = []
    differing: list[str] = []
    merged = _merge_struct(known, seen, "", added, differing)
    return Comparison(merged, tuple(added), tuple(differing))


def _merge_struct(
    known: types.StructType, seen: types.StructType, path: str, added: list[str], differing: list[str]
) -> types.StructType:
    by_name = {one.name.lower(): one for one in seen}
    fields = []
    for one in known:
        other = by_name.pop(one.name.lower(), None)
        if other is None:
            fields.append(one)
        else:
            merged = _merge(one.dataType, other.dataType, path + one.name, added, differing)
            fields.append(types.StructField(one.name, merged, one.nullable, one.metadata))
    for one in by_name.values():
        added.append(f"{path}{one.name} {one.dataType.simpleString().upper()}")
        fields.append(one)
    return types.StructType(fields)


def _merge(
    known: types.DataType, seen: types.DataType, path: str, added: list[str], differing: list[str]
) -> types.DataType:
    if isinstance(known, types.StructType) and isinstance(seen, types.StructType):
        return _merge_struct(known, seen, f"{path}.", added, differing)
    if isinstance(known, types.ArrayType) and isinstance(seen, types.ArrayType):
        inner = _merge(known.elementType, seen.elementType, f"{path}[]", added, differing)
        return types.ArrayType(inner, known.containsNull)
    if not _holds(known, seen):
        is_, was = seen.simpleString().upper(), known.simpleString().upper()
        differing.append(f"{path} is {was} in the schema, but {is_} in the records")
    return known


_INTEGERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_NUMBERS = (*_INTEGERS, types.FloatType, types.DoubleType, types.DecimalType)


def _holds(known: types.DataType, seen: types.DataType) -> bool:
    """True if a column of the known type can hold values for which `seen` was inferred."""
    if type(known) is type(seen) or isinstance(known, types.StringType | types.VariantType):
        return True
    if isinstance(seen, types.LongType):
        return isinstance(known, _NUMBERS)
    if isinstance(seen, types.DoubleType | types.DecimalType):
        return isinstance(known, types.DoubleType | types.FloatType | types.DecimalType)
    if isinstance(seen, types.TimestampType):
        return isinstance(known, types.TimestampNTZType)
    if isinstance(known, types.MapType) and isinstance(seen, types.StructType):
        return all(_holds(known.valueType, one.dataType) for one in seen)
    # STRING may mean that only null was seen, or that dates have another format.
    return isinstance(seen, types.StringType) and isinstance(known, types.DateType | types.TimestampType)
