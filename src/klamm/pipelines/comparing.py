"""Compares the rows of two versions: added, gone, changed. A core.

Rows with the same key are one row that may have changed. If a key has several rows on both sides, equal ones
are matched first, and then those that have the most values in common. Without keys rows are compared whole,
as multisets: a changed row is then one that is gone and one that was added.

Values compare as Spark groups them: null equals null, NaN equals NaN, 0.0 equals -0.0, and the order of a
map's entries does not count. A number equals the same number of another type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Values: TypeAlias = tuple[Any, ...]

MOST_PAIRED = 50
"""Up to so many rows of one key are paired by the values that they have in common, which takes the square of
their number; more are paired in their order."""


@dataclass(frozen=True)
class Changed:
    """A row before and after. `columns` are the indexes of the columns that differ."""

    before: Values
    after: Values
    columns: tuple[int, ...]


@dataclass
class Comparison:
    added: list[Values] = field(default_factory=list)
    gone: list[Values] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)


def compare(before: Sequence[Values], after: Sequence[Values], keys: Sequence[int] = ()) -> Comparison:
    """The differences between rows with the same columns. `keys` are the indexes of the key columns."""
    found = Comparison()
    old, new = _by_key(before, keys), _by_key(after, keys)
    for key in {**old, **new}:
        gone, added = _without_equal(old.get(key, []), new.get(key, []))
        if keys:
            pairs, gone, added = _paired(gone, added)
            found.changed += pairs
        found.gone += gone
        found.added += added
    return found


def canonical(value: object) -> Hashable:
    """A hashable value that is equal for values that count as equal."""
    if isinstance(value, float) and value != value:
        return _NAN
    if isinstance(value, dict):
        return _MAP, frozenset((canonical(key), canonical(each)) for key, each in value.items())
    if isinstance(value, tuple) and hasattr(value, "__fields__"):  # a struct
        return _STRUCT, tuple(zip(value.__fields__, map(canonical, value), strict=True))
    if isinstance(value, (list, tuple)):
        return _ARRAY, tuple(map(canonical, value))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Hashable):
        return value
    return repr(value)


# Marks that no value of a column equals.
_NAN, _MAP, _STRUCT, _ARRAY = object(), object(), object(), object()


def _by_key(rows: Sequence[Values], keys: Sequence[int]) -> dict[Hashable, list[Values]]:
    grouped: dict[Hashable, list[Values]] = {}
    for row in rows:
        grouped.setdefault(tuple(canonical(row[index]) for index in keys), []).append(row)
    return grouped


def _without_equal(before: list[Values], after: list[Values]) -> tuple[list[Values], list[Values]]:
    """What is left of both when each row has been crossed out against an equal one."""
    old, new = ([tuple(map(canonical, row)) for row in rows] for rows in (before, after))
    common = Counter(old) & Counter(new)
    return _left(before, old, Counter(common)), _left(after, new, Counter(common))


def _left(rows: list[Values], forms: list[tuple[Hashable, ...]], crossed: Counter[Any]) -> list[Values]:
    left = []
    for row, form in zip(rows, forms, strict=True):
        if crossed[form]:
            crossed[form] -= 1
        else:
            left.append(row)
    return left


def _paired(gone: list[Values], added: list[Values]) -> tuple[list[Changed], list[Values], list[Values]]:
    pairs = []
    gone, added = list(gone), list(added)
    while gone and added:
        before = gone.pop(0)
        choices = range(len(added) if len(added) <= MOST_PAIRED else 1)
        differing = [_differing(before, added[index]) for index in choices]
        after = added.pop(min(choices, key=lambda index: len(differing[index])))
        pairs.append(Changed(before, after, _differing(before, after)))
    return pairs, gone, added


def _differing(before: Values, after: Values) -> tuple[int, ...]:
    pairs = enumerate(zip(before, after, strict=True))
    return tuple(index for index, (old, new) in pairs if canonical(old) != canonical(new))
