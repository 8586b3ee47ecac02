from __future__ import annotations

import pytest

from klamm.pipelines.dev.changes import changes

ORDERS = '''
"""Orders."""
from lib.rates import RATE
from pipelines import _names as names
from ._helpers import double

LIMIT = 10

def scaled(number):
    return double(number) * LIMIT

@source(topic="orders")
def orders(rows):
    return rows

@transform
def priced(orders):
    return orders.select(scaled(RATE))

@transform
def named(orders):
    import lib.other
    return orders.select(names.ALL)

@transform
def plain(orders, LIMIT):
    return orders
'''
MODULES = {
    "pipelines.orders": ORDERS,
    "pipelines._helpers": "def double(number):\n    return 2 * number\n\ndef unused():\n    pass\n",
    "pipelines._names": "ALL = 'a'\nOTHER = 'b'\n",
    "lib.rates": "BASE = 1\nRATE = BASE * 2\n",
    "lib.other": "X = 1\n",
}


def differing(module: str, old: str, new: str) -> set[str]:
    """The functions of pipelines.orders that differ when this text of a module is replaced."""
    assert old in MODULES[module]
    found = changes(MODULES, {**MODULES, module: MODULES[module].replace(old, new)})
    nodes = ("orders", "priced", "named", "plain")
    return {name for name in nodes if found.include("pipelines.orders", name)}


@pytest.mark.parametrize(
    ("module", "old", "new", "expected"),
    [
        ("pipelines.orders", '"orders")', '"orders-eu")', {"orders"}),
        ("pipelines.orders", "return rows", "return rows.limit(1)", {"orders"}),
        ("pipelines.orders", "LIMIT = 10", "LIMIT = 11", {"priced"}),
        ("pipelines.orders", "LIMIT = 10", "LIMIT = 10  # a comment\n\n\n", set()),
        ("pipelines.orders", '"""Orders."""', '"""All orders."""', set()),
        ("pipelines.orders", "LIMIT = 10", "register()\nLIMIT = 10", {"orders", "priced", "named", "plain"}),
        ("pipelines._helpers", "2 * number", "3 * number", {"priced"}),
        ("pipelines._helpers", "pass", "return 1", set()),
        ("pipelines._names", "OTHER = 'b'", "OTHER = 'c'", {"named"}),
        ("lib.rates", "BASE = 1", "BASE = 2", {"priced"}),
        ("lib.other", "X = 1", "X = 2", {"named"}),
    ],
)
def test_what_differs_and_what_uses_it(module: str, old: str, new: str, expected: set[str]) -> None:
    assert differing(module, old, new) == expected


def test_a_star_may_be_any_name() -> None:
    old = {"pipelines.a": "from lib.x import *\n\ndef one(rows): return F\n", "lib.x": "F = 1\n"}
    found = changes(old, {**old, "lib.x": "F = 2\n"})
    assert found.include("pipelines.a", "one")


def test_modules_that_come_and_go() -> None:
    found = changes({"lib.x": "F = 1"}, {"pipelines.a": "def one(rows): pass\n"})
    assert found.include("pipelines.a", "one")
    using = "from lib.x import F\n\ndef one(rows): return F\n\ndef two(rows): pass\n"
    found = changes({"pipelines.a": using, "lib.x": "F = 1"}, {"pipelines.a": using})
    assert found.include("pipelines.a", "one")
    assert not found.include("pipelines.a", "two")


def test_functions_made_by_others_differ_with_their_module() -> None:
    old = {"pipelines.a": "for name in NAMES:\n    make(name)\nX = 1\n"}
    assert changes(old, {"pipelines.a": old["pipelines.a"].replace("X = 1", "X = 2")}).include(
        "pipelines.a", "orders_eu"
    )
    assert not changes(old, old).include("pipelines.a", "orders_eu")
