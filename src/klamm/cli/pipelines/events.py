"""Made-up events of a shop, to try pipelines with: orders and clicks.

One order in fifty is bad, in one of three ways: its amount is not a number (it cannot be decoded), its amount
is negative, or its customer is missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta

Event = dict[str, object]

BAD_EVERY = 50
"""One order in this many is bad."""

CUSTOMERS = 200
_PRICES = {"tea": 4.5, "kettle": 39.0, "lamp": 24.9, "map": 7.8, "boots": 89.0}
_PAGES = ("/", "/tea", "/maps", "/basket", "/pay")


def order(number: int, at: datetime, chance: random.Random) -> Event:
    """The order of this number."""
    item = chance.choice(sorted(_PRICES))
    quantity = chance.randint(1, 5)
    event: Event = {
        "order_id": f"o-{number:06d}",
        "customer": f"customer-{chance.randrange(CUSTOMERS):03d}",
        "item": item,
        "quantity": quantity,
        "amount": round(_PRICES[item] * quantity, 2),
        "ordered_at": _written(at),
    }
    if number % BAD_EVERY == BAD_EVERY - 1:
        _spoil(event, number // BAD_EVERY)
    return event


def click(number: int, at: datetime, chance: random.Random) -> Event:
    """The click of this number."""
    return {
        "visitor": f"visitor-{chance.randrange(500):03d}",
        "page": chance.choice(_PAGES),
        "milliseconds": chance.randint(5, 400),
        "clicked_at": _written(at),
    }


def order_lines(count: int, until: datetime, spacing: timedelta) -> Iterator[str]:
    """Orders as JSON lines, the last at `until`. The same arguments give the same orders."""
    chance = random.Random(count)
    for number in range(count):
        yield json.dumps(order(number, until - spacing * (count - 1 - number), chance))


def _spoil(event: Event, turn: int) -> None:
    if turn % 3 == 0:
        event["amount"] = "twelve"
    elif turn % 3 == 1:
        event["amount"] = -1.0
    else:
        event["customer"] = None


def _written(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
