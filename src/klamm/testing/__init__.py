"""Real brokers for a test: `Broker` and `Cluster` as context managers, and a pytest plugin with fixtures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.testing.broker import Broker as Broker
    from klamm.testing.cluster import Cluster as Cluster

_MODULES = {"Broker": "klamm.testing.broker", "Cluster": "klamm.testing.cluster"}


def __getattr__(name: str) -> Any:
    """Import a class on first use: pytest loads this package in every run, also without Klamm's fixtures."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
