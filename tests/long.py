"""Which cases of a test are run by `make test`, and which by `make test-long` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def cases(values: Iterable[Any], is_short: Callable[[Any], bool]) -> list[Any]:
    """The values for `parametrize`: `make test` runs those that are short, `make test-long` all of them."""
    return [value if is_short(value) else pytest.param(value, marks=pytest.mark.long) for value in values]
