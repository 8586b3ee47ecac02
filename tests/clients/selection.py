"""Which clients a test runs for: all that have the features it needs, so that nothing is skipped."""

from __future__ import annotations

import pytest
from tests.clients.conftest import CLIENTS
from tests.clients.contract import AdminClient


def names(*features: str, admin: bool = False, strategy: str | None = None) -> list[str]:
    return [
        name
        for name, kind in CLIENTS.items()
        if set(features) <= kind.features
        and (not admin or issubclass(kind, AdminClient))
        and (strategy is None or strategy in kind.strategies)
    ]


def for_clients(*features: str, admin: bool = False, strategy: str | None = None) -> pytest.MarkDecorator:
    """Run the test once for every client with these features, as its argument `client`."""
    chosen = names(*features, admin=admin, strategy=strategy)
    return pytest.mark.parametrize("client", chosen, indirect=True)
