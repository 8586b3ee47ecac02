"""Filters: how they are read, and which records pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.results import Record
from klamm.operating.errors import CannotDo
from klamm.operating.records.filters import MOST_CHARACTERS, parse_filter
from klamm.operating.records.matching import Matcher

ORDER = {
    "customer": {"city": "Bern", "name": "Zoë", "id": 42},
    "amount": 99.5,
    "paid": True,
    "at": "2026-01-31T10:00:00Z",
    "items": [{"sku": "a", "price": 5}, {"sku": "b", "price": 15}],
    "key": 1,
    "note": None,
    "a.b": "dotted",
}
HEADERS = (("trace-id", b"abc"), ("attempt", b"3"), ("empty", None))


def record(value: Any = ORDER, key: bytes | None = b"order-7", **others: Any) -> Record:
    data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    return Record("orders", others.get("partition", 2), others.get("offset", 1234), 0, key, data, HEADERS)


def passes(text: str, given_: Record | None = None) -> bool:
    return Matcher(parse_filter(text))(given_ or record())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bern",
        '"Bern"',
        "ORDER-7",
        "abc",
        "trace-id",
        "zoë",
        "key = order-7",
        "key != 8",
        "key ~ ORDER",
        "value ~ bern",
        "header trace-id",
        "header trace-id = abc",
        "header attempt >= 3",
        "header empty",
        'customer.city = "Bern"',
        "customer.city=Bern",
        "customer.city != Basel",
        "customer.city ~ ern",
        "customer.id = 42",
        "amount > 99 amount < 100",
        "paid = true",
        "note = null",
        "at >= 2026-01-31 and at < 2026-02",
        "items[1].price > 10",
        "items[*].sku = b",
        ".key = 1",
        "value.customer.id = 42",
        '"a.b" = dotted',
        "partition = 2 offset > 1000",
        "nothing or bern",
        "not nothing",
        "not (basel or genf) and bern",
        'customer.name = "Zoë"',
    ],
)
def test_records_that_pass(text: str) -> None:
    assert passes(text)


@pytest.mark.parametrize(
    "text",
    [
        "basel",
        "bern basel",
        "key = order",
        "header trace",
        "header trace-id = ab",
        "header empty = x",
        'customer.id = "42"',
        "customer.zip = 3000",
        "customer.zip != 3000",
        "amount > 99.5",
        "amount > abc",
        'amount = "99.5"',
        "paid = 1",
        "items[2].price > 0",
        "items[*].price > 20",
        "items.price = 5",
        "partition != 2",
        "not bern",
        "key.id = 5",
    ],
)
def test_records_that_do_not_pass(text: str) -> None:
    assert not passes(text)


def test_keys_that_are_json_and_values_that_are_not() -> None:
    assert passes("key.id = 5", record(key=b'{"id": 5}'))
    for value in (None, b"", b"\xff\xfe", b"plain", b"[1", b"[" * 100_000, b"1" * 5_000, b"null", b"7"):
        assert not passes("customer.city = Bern", record(value))
        assert not passes("nothing", record(value, key=None))
    assert passes("key = null", record(key=None)) and not passes('key = "null"', record(key=None))


def test_escaped_names_are_found() -> None:
    assert passes("city = 1", record(b'{"c\\u0069ty": 1}'))


def test_other_decoders() -> None:
    matcher = Matcher(parse_filter("city = Bern"), lambda data: {"city": data.decode()[1:]})
    assert matcher(record(b"\x00Bern")) and not matcher(record(b"\x00Basel"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('city = "Bern', "the quote is not closed at '\"Bern'"),
        ("city =", "something is missing after 'city ='"),
        ("(a or b", "something is missing"),
        ("a )", "expected nothing"),
        ("= 5", "expected a text, a field, key, value or header"),
        ("and b", "expected a text"),
        ("city = = 5", "expected a value to compare with"),
        ("key < 5", "expected = or != or ~ after key"),
        ("partition = x", "expected a number"),
        ("items[x] = 1", "expected a field such as"),
        ("(" * 100 + "a" + ")" * 100, "more than 50 parentheses"),
        ("a" * (MOST_CHARACTERS + 1), "at most 4,000"),
    ],
)
def test_what_is_no_filter(text: str, complaint: str) -> None:
    with pytest.raises(CannotDo) as error:
        parse_filter(text)
    assert complaint in str(error.value)


@given(st.text(max_size=60), st.binary(max_size=40))
def test_any_text_is_a_filter_or_refused(text: str, value: bytes) -> None:
    try:
        term = parse_filter(text)
    except CannotDo:
        return
    assert Matcher(term)(record(value)) in (True, False)


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner)
    ),
    max_leaves=8,
)


@given(DOCUMENTS, st.text("abc", min_size=1, max_size=3))
def test_a_field_equals_what_it_is(document: Any, name: str) -> None:
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, str | int | bool) or value in ("true", "false", "null"):
        return
    literal = json.dumps(value, ensure_ascii=False)
    if "\\" in literal:
        return
    assert passes(f".{name} = {literal}", record(document))
    assert not passes(f".{name} != {literal}", record(document))
    assert not passes(f"not (.{name} = {literal})", record(document))


@given(st.text(min_size=1, max_size=6), st.text(max_size=6), st.text(max_size=6), st.booleans())
def test_a_text_is_found_wherever_it_is(needle: str, before: str, after: str, escapes: bool) -> None:
    quoted = '"' + needle.replace("\\", "\\\\").replace('"', '\\"') + '"'
    plain = (before + needle + after).encode(errors="replace")
    assert passes(quoted, record(plain)) == (needle.encode(errors="replace").decode() == needle)
    if needle.isprintable() and not set(needle) & set('"\\') and needle.lower().upper() == needle.upper():
        assert passes(quoted.lower(), record(json.dumps(needle.lower(), ensure_ascii=escapes).encode()))
