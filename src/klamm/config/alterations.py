"""Changing a set of overrides: the four operations of IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from klamm.config.rows import ConfigError, ConfigRow, ConfigType


class AlterOperation(IntEnum):
    """The numbers are those of the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class NotAList(ConfigError):
    """APPEND or SUBTRACT was asked of a key that holds a single value."""


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
    """Return `current` with the alterations made, or raise a ConfigError.

    `find` returns the row of a key or raises; each value is checked against its row. `inherited` returns the
    value of a key that `current` does not set: APPEND and SUBTRACT start from it. Deleting a key that is not
    set, or not known, changes nothing: another version of Klamm may have set it.
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
            raise NotAList(
                f"{operation.name} to {name} is refused: only a list can be added to or taken from", key=name
            )
        before = row.parse(altered[name] if name in altered else inherited(name) or "")
        items = row.parse(value)
        assert isinstance(before, tuple) and isinstance(items, tuple)
        if operation is AlterOperation.APPEND:
            after = before + tuple(item for item in items if item not in before)
        else:
            after = tuple(item for item in before if item not in items)
        altered[name] = ",".join(after)
    return altered
