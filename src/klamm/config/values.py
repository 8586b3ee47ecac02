"""The base class of broker and client configurations: a mapping with one getter per type.

The row of a key says which type its value has; the getters tell the type checker. A getter of the wrong type
is a bug in Klamm, so it fails an assertion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from klamm.config.rows import ConfigValue


class ConfigValues(Mapping[str, Any]):
    """An immutable mapping from every key of a kind to its typed value."""

    __slots__ = ("_values",)

    _values: dict[str, ConfigValue]

    def __getitem__(self, name: str) -> Any:
        """The value, of the type that its row says. The methods below tell the type checker which type."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def int_(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int) and not isinstance(value, bool), f"{name} is not a whole number"
        return value

    def float_(self, name: str) -> float:
        value = self._values[name]
        assert isinstance(value, int | float) and not isinstance(value, bool), f"{name} is not a number"
        return float(value)

    def bool_(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool), f"{name} is not true or false"
        return value

    def str_(self, name: str) -> str:
        value = self._values[name]
        assert isinstance(value, str), f"{name} is not a string"
        return value

    def optional_str(self, name: str) -> str | None:
        return None if self._values[name] is None else self.str_(name)

    def list_(self, name: str) -> tuple[str, ...]:
        value = self._values[name]
        assert isinstance(value, tuple), f"{name} is not a list"
        return value

    def seconds(self, name: str) -> float:
        """The value of a key in milliseconds (`.ms`), in seconds."""
        assert name.endswith(".ms"), f"{name} does not count milliseconds"
        return self.float_(name) / 1000
