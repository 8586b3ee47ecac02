"""Applies the four operations of IncrementalAlterConfigs to the settings of a resource."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from klamm.config.rows import ConfigError, ConfigRow, ConfigType


class AlterOperation(IntEnum):
    """The numbers are those of the protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class NotAList(ConfigError):
    """APPEND or SUBTRACT was requested for a key that is not a list."""


class Alteration(NamedTuple):
    name: str
    operation: AlterOperation
    value: str | None


def alter(
    find: Callable[[str], ConfigRow],
    current: Mapping[str, str],
    alterations: Iterable[Alteration],
    inherited: Callable[[str], str | None],
) -> dict[str, str]:
    """Return a copy of `current` with the alterations applied, or raise ConfigError.

    `find` returns the row of a key or raises ConfigError. Each value is checked against its row. `inherited`
    returns the value of a key that `current` does not set: APPEND and SUBTRACT start from it. Deleting a key
    that is not set changes nothing. An unknown key can be deleted, because another version of Klamm may have
    set it.
    """
    altered = dict(current)
    for name, operation, value in alterations:
        if operation is AlterOperation.DELETE:
            altered.pop(name, None)
            continue
        row = find(name)
        if value is None:
            raise ConfigError(f"{name} is refused: {operation.name} needs a value", key=name)
        if operation is AlterOperation.SET:
            row.parse(value)
            altered[name] = value
            continue
        if row.type is not ConfigType.LIST:
            raise NotAList(f"{operation.name} to {name} is refused: {name} is not a list; use SET", key=name)
        before = row.parse(altered[name] if name in altered else inherited(name) or "")
        items = row.parse(value)
        assert isinstance(before, tuple) and isinstance(items, tuple)
        if operation is AlterOperation.APPEND:
            present = frozenset(before)
            after = before + tuple(item for item in items if item not in present)
        else:
            removed = frozenset(items)
            after = tuple(item for item in before if item not in removed)
        altered[name] = ",".join(after)
    return altered
