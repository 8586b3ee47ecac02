"""A real broker inside a test: `Broker` as a context manager, and a pytest plugin with fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.testing.broker import Broker as Broker


def __getattr__(name: str) -> Any:
    """Import `Broker` on first use: pytest loads this package in every run, also without Klamm's fixtures."""
    if name == "Broker":
        from klamm.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
