from __future__ import annotations

import pytest

from klamm.pipelines.conditions import columns_named


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("amount > 0", ["amount"]),
        ("amount > 0 AND Amount < 1e9 and not deleted", ["amount", "Amount", "deleted"]),
        ("customer.name IS NOT NULL", ["customer"]),
        ("customer.`odd name` = 'x' OR `a``b` = 1", ["customer", "a`b"]),
        ("length(trim(id)) BETWEEN 3 AND 10", ["id"]),
        ("kind IN ('amount', \"other\", 'it\\'s')", ["kind"]),
        ("at <= current_timestamp() + INTERVAL 1 DAY", ["at"]),
        ("day >= DATE '2026-01-01'", []),
        ("CAST(n AS BIGINT) % 2 = 0", ["n"]),
        ("CASE WHEN a THEN b ELSE NULL END", ["a", "b"]),
        ("exists(tags, tag -> tag = x)", []),
        ("id IN (SELECT id FROM other)", []),
        ("x RLIKE '^a.*'", ["x"]),
        ("tags[0] = n", ["tags", "n"]),
        ("", []),
    ],
)
def test_columns_are_told_apart_from_the_rest(condition: str, names: list[str]) -> None:
    assert columns_named(condition) == names
