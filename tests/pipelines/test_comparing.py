from __future__ import annotations

from decimal import Decimal
from math import nan

import pytest
from pyspark.sql import Row

from klamm.pipelines.comparing import MOST_PAIRED, Changed, canonical, compare

EQUAL = [
    (nan, float("nan")),
    (0.0, -0.0),
    (None, None),
    ({"a": 1, "b": [nan]}, {"b": [nan], "a": 1}),
    ([1, None, nan], [1, None, nan]),
    (Row(a=1, b={"x": nan}), Row(a=1, b={"x": nan})),
    (bytearray(b"x"), b"x"),
    (Decimal("1.0"), Decimal("1.00")),
]
UNEQUAL = [
    (nan, None),
    (0.0, None),
    ([1, 2], [2, 1]),
    ([], None),
    ({}, []),
    ({"a": None}, {}),
    (Row(a=1), Row(b=1)),
    ("1", 1),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_values_that_count_as_equal(one: object, other: object) -> None:
    assert canonical(one) == canonical(other)
    assert hash(canonical(one)) == hash(canonical(other))


@pytest.mark.parametrize(("one", "other"), UNEQUAL)
def test_values_that_differ(one: object, other: object) -> None:
    assert canonical(one) != canonical(other)


def test_rows_are_matched_by_their_keys() -> None:
    before = [(1, "a", nan), (2, "b", 1.0), (3, "c", None)]
    after = [(3, "c", nan), (1, "a", nan), (4, "d", None)]
    found = compare(before, after, keys=[0])
    assert found.changed == [Changed((3, "c", None), after[0], (2,))]
    assert (found.gone, found.added) == ([(2, "b", 1.0)], [(4, "d", None)])


def test_without_keys_rows_are_multisets() -> None:
    found = compare([("a",), ("a",), ("b",)], [("a",), ("c",), ("c",)])
    assert (found.gone, found.added, found.changed) == ([("a",), ("b",)], [("c",), ("c",)], [])


def test_rows_of_one_key_are_paired_by_what_they_have_in_common() -> None:
    before = [(1, "a", 1), (1, "b", 2), (1, "c", 3)]
    after = [(1, "b", 9), (1, "a", 8), (1, "c", 3), (1, "z", 7)]
    found = compare(before, after, keys=[0])
    assert [(each.before[1], each.after[1], each.columns) for each in found.changed] == [
        ("a", "a", (2,)),
        ("b", "b", (2,)),
    ]
    assert (found.gone, found.added) == ([], [(1, "z", 7)])


def test_many_rows_of_one_key_are_paired_in_their_order() -> None:
    count = MOST_PAIRED * 2
    found = compare([(1, n, 0) for n in range(count)], [(1, n, 1) for n in range(count)], keys=[0])
    assert len(found.changed) == count
    assert (found.gone, found.added) == ([], [])
