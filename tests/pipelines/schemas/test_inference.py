from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.pipelines.schemas.ddl import parse_ddl
from klamm.pipelines.schemas.fitting import misfits, unknown_fields
from klamm.pipelines.schemas.inference import MAP_FIELDS, compare, infer


@pytest.mark.parametrize(
    ("lines", "ddl"),
    [
        ('{"a": 1}\n{"a": null}', "a BIGINT"),
        ('{"a": 1}\n{"a": 2.5}', "a DOUBLE"),
        ('{"a": 1}\n{"a": 10000000000000000000}', "a DECIMAL(38,0)"),
        ('{"a": 1e400}\n{"a": 1}', "a DOUBLE"),
        ('{"a": true}\n{"a": false}', "a BOOLEAN"),
        ('{"a": true}\n{"a": 1}', "a STRING"),
        ('{"a": null}', "a STRING"),
        ('{"b": "x"}\n{"a": 1, "b": "y"}', "b STRING, a BIGINT"),
        ('{"a": "2026-01-31T12:00:00Z"}\n{"a": "2026-01-31 12:00:00.123456+02:00"}', "a TIMESTAMP"),
        ('{"a": "2026-01-31T12:00:00Z"}\n{"a": "soon"}', "a STRING"),
        ('{"a": "2026-01-31T12:00:00Z"}\n{"a": null}', "a TIMESTAMP"),
        ('{"a": "2026-13-31T12:00:00Z"}', "a STRING"),
        ('{"a": "2026-01-31"}', "a DATE"),
        ('{"a": "2026-02-31"}', "a STRING"),
        ('{"a": "2026-01-31"}\n{"a": "2026-01-31T12:00:00"}', "a STRING"),
        ('{"a": {"x": 1}}\n{"a": {"y": "t"}}', "a STRUCT<x: BIGINT, y: STRING>"),
        ('{"a": {"x": 1}}\n{"a": "text"}', "a STRING"),
        ('{"a": [1, 2.5]}\n{"a": []}', "a ARRAY<DOUBLE>"),
        ('{"a": []}', "a ARRAY<STRING>"),
        ('{"a": [{"x": 1}, {"y": [true]}]}', "a ARRAY<STRUCT<x: BIGINT, y: ARRAY<BOOLEAN>>>"),
        ('{"a": [[1], [2, null]]}', "a ARRAY<ARRAY<BIGINT>>"),
        ('{"id": 1, "ID": "x"}', "id BIGINT"),
    ],
)
def test_samples_give_a_schema(lines: str, ddl: str) -> None:
    assert infer(json.loads(line) for line in lines.splitlines()) == parse_ddl(ddl)


@pytest.mark.parametrize(
    ("usual", "bad", "ddl"),
    [
        (1.5, "twelve", "a DOUBLE"),
        (7, True, "a BIGINT"),
        ("2026-01-31T12:00:00Z", "soon", "a TIMESTAMP"),
        ({"x": 1}, "none", "a STRUCT<x: BIGINT>"),
        ([1], {}, "a ARRAY<BIGINT>"),
    ],
)
def test_a_few_bad_values_do_not_make_a_column_text(usual: object, bad: object, ddl: str) -> None:
    samples = [{"a": usual}] * 190 + [{"a": bad}] * 10
    assert infer(samples) == parse_ddl(ddl)
    assert infer([*samples, {"a": bad}]) == parse_ddl("a STRING"), "one in twenty, and no more"


def test_whole_numbers_do_not_hide_fractions() -> None:
    assert infer([*[{"a": 1}] * 199, {"a": 1.5}]) == parse_ddl("a DOUBLE")


def test_an_object_with_very_many_keys_is_a_map() -> None:
    values = {f"user{number}": {"count": number} for number in range(MAP_FIELDS + 1)}
    assert infer([{"by_user": values}]) == parse_ddl("by_user MAP<STRING, STRUCT<count: BIGINT>>")


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.datetimes().map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), JSON_VALUES, max_size=4), min_size=1, max_size=5))
def test_every_sample_fits_what_was_inferred(samples: list[dict[str, object]]) -> None:
    schema = infer(samples)
    assert not [sentence for sample in samples for sentence in misfits(sample, schema)]
    assert not [name for sample in samples for name in unknown_fields(sample, schema)]
    assert not compare(schema, schema).differing


def test_a_known_schema_gains_fields_and_keeps_its_types() -> None:
    known = parse_ddl("id STRING, amount BIGINT, who STRUCT<name: STRING>, tags ARRAY<STRUCT<t: STRING>>")
    seen = infer(
        [
            {
                "new": True,
                "amount": 2.5,
                "who": {"age": 7, "name": "x"},
                "tags": [{"t": "x", "u": 1}],
                "id": 17,
            }
        ]
    )
    found = compare(known, seen)
    assert found.added == ("who.age BIGINT", "tags[].u BIGINT", "new BOOLEAN")
    assert found.differing == ("amount is BIGINT in the schema, but DOUBLE in the records",)
    assert found.merged == parse_ddl(
        "id STRING, amount BIGINT, who STRUCT<name: STRING, age: BIGINT>, "
        "tags ARRAY<STRUCT<t: STRING, u: BIGINT>>, new BOOLEAN"
    )


@pytest.mark.parametrize(
    ("ddl", "value", "sentence"),
    [
        ("a INT", 2**31, "a is 2147483648, which does not fit INT"),
        ("a INT", 1.5, "a is 1.5, which does not fit INT"),
        ("a INT", True, "a is True, which does not fit INT"),
        ("a BOOLEAN", 1, "a is 1, which does not fit BOOLEAN"),
        ("a DOUBLE", "much", "a is 'much', which does not fit DOUBLE"),
        ("a DECIMAL(4,2)", 100, "a is 100, which does not fit DECIMAL(4,2)"),
        ("a DATE", "soon", "a is 'soon', which does not fit DATE"),
        ("a TIMESTAMP", "soon", "a is 'soon', which does not fit TIMESTAMP"),
        ("a ARRAY<INT>", [1, "x"], "a[] is 'x', which does not fit INT"),
        ("a ARRAY<INT>", 1, "a is 1, not an array"),
        ("a STRUCT<x: INT>", 1, "a is 1, not an object"),
        ("a STRUCT<x: INT>", {"x": "y"}, "a.x is 'y', which does not fit INT"),
        ("a MAP<STRING, INT>", {"x": "y"}, "a.x is 'y', which does not fit INT"),
    ],
)
def test_misfits_are_told_by_path(ddl: str, value: object, sentence: str) -> None:
    assert list(misfits({"a": value}, parse_ddl(ddl))) == [sentence]


def test_own_formats_of_times_are_not_judged() -> None:
    schema = parse_ddl("a TIMESTAMP, b DATE")
    assert not list(misfits({"a": "31.1.2026 12:00", "b": "31.1.2026"}, schema, own_time_formats=True))


def test_unknown_fields_are_told_by_path() -> None:
    schema = parse_ddl("a STRUCT<x: INT>, b ARRAY<STRUCT<y: INT>>, c STRING")
    value = {"a": {"x": 1, "z": 2}, "b": [{"y": 1, "w": 3}], "c": {"in": "text"}, "d": 1}
    assert list(unknown_fields(value, schema)) == ["a.z", "b[].w", "d"]
