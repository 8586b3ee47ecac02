"""Changing a set of overrides: the four operations of IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from klamm.config.rows import ConfigError, ConfigType, RowTable, find_row


class AlterOperation(IntEnum):
    """The numbers are those of the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    name: str
    operation: AlterOperation
    value: str | None


def alter(
    rows: RowTable,
    kind: str,
    current: Mapping[str, str],
    alterations: Iterable[Alteration],
    inherited: Callable[[str], str | None],
) -> dict[str, str]:
    """`current` with the alterations made, or a ConfigError. Values are checked against their rows.

    `inherited` gives the value of a key that `current` does not set: what APPEND and SUBTRACT start from.
    Deleting a key that is not set, or not known, is no error: it may have been set by another version.
    """
    altered = dict(current)
    for name, operation, value in alterations:
        if operation is AlterOperation.DELETE:
            altered.pop(name, None)
            continue
        row = find_row(rows, name, kind)
        if value is None:
            raise ConfigError(f"{name} is refused: {operation.name} needs a value", key=name)
        if operation is AlterOperation.SET:
            row.parse(value)
            altered[name] = value
            continue
        if row.type is not ConfigType.LIST:
            raise ConfigError(
                f"{operation.name} to {name} is refused: only lists can be added to or taken from", key=name
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
