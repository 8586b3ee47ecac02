"""Shows the differences between two versions of a project: in words for users, as values for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from klamm.pipelines.comparing import Changed, Comparison
from klamm.pipelines.definitions import DECODE_RULE
from klamm.pipelines.diff import RECORD_COLUMNS, Outcome, PipelineDiff, RuleChange

LONGEST_VALUE = 60
"""The most characters of a value. JSON has it whole."""


# ---- in words


def diff_lines(found: Sequence[PipelineDiff], base: str, show: int) -> Iterator[str]:
    for each in found:
        yield f"{each.pipeline}: {_headline(each, base)}"
        for line in _details(each, show):
            yield f"  {line}"


def _headline(found: PipelineDiff, base: str) -> str:
    before, after = found.before, found.after
    if before is None and after is not None:
        return f"new, {base} does not have it: {after.error or _rows(len(after.rows))}"
    if after is None:
        return f"gone, only {base} has it"
    if after.error:
        return f"fails: {after.error}"
    assert before is not None
    if before.error:
        return f"{_rows(len(after.rows))}; {base} fails: {before.error}"
    if not found.is_different:
        return f"no difference in {_rows(len(after.rows))}"
    rows = found.rows
    counts = f"{len(rows.added):,} added, {len(rows.gone):,} gone"
    if found.matched_by != "row":
        counts += f", {len(rows.changed):,} changed"
    return f"{len(before.rows):,} rows before, {len(after.rows):,} now: {counts}"


def _details(found: PipelineDiff, show: int) -> Iterator[str]:
    for name, kind in found.new_columns.items():
        yield f"new column {name} {kind}"
    for name, kind in found.lost_columns.items():
        yield f"column {name} {kind} is gone"
    for name, (old, new) in found.retyped.items():
        yield f"column {name} is {new}, was {old}"
    for rule in found.rules:
        yield _rule_line(rule)
    lines = [*_row_lines(found)]
    yield from lines[:show]
    if len(lines) > show:
        yield f"… and {len(lines) - show:,} more rows; --show {len(lines)} shows all"


def _rule_line(change: RuleChange) -> str:
    what = "cannot be decoded" if change.rule == DECODE_RULE else f"break the expectation {change.rule!r}"
    example = change.example
    where = f"{example.record}: " if example.record else ""
    return (
        f"{change.node}: {_rows(change.after)} {what}, {change.before:,} before; for example {where}"
        f"{example.reason}"
    )


def _row_lines(found: PipelineDiff) -> Iterator[str]:
    names = found.columns
    for change in found.rows.changed:
        parts = [
            f"{names[index]} {_shown(change.before[index])} → {_shown(change.after[index])}"
            for index in change.columns
        ]
        yield f"~ {_key(found, change.after)}: {', '.join(parts)}"
    for mark, rows in (("+", found.rows.added), ("-", found.rows.gone)):
        for row in rows:
            values = [
                f"{name} {_shown(value)}"
                for name, value in zip(names, row, strict=True)
                if name not in (*found.keys, "_timestamp")
            ]
            key = f"{_key(found, row)}: " if found.keys else ""
            yield f"{mark} {key}{', '.join(values)}"


def _key(found: PipelineDiff, row: Sequence[Any]) -> str:
    values = [row[found.columns.index(name)] for name in found.keys]
    if found.keys == RECORD_COLUMNS:
        return f"{values[0]}-{values[1]} at offset {values[2]}"
    return ", ".join(f"{name} {_shown(value)}" for name, value in zip(found.keys, values, strict=True))


def _shown(value: object) -> str:
    text = "null" if value is None else repr(plain(value)) if isinstance(value, str) else str(plain(value))
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


# ---- as values


def diff_value(found: PipelineDiff, show: int) -> dict[str, Any]:
    """A pipeline's differences as a value for JSON, with at most `show` rows of each kind."""
    return {
        "pipeline": found.pipeline,
        "different": found.is_different,
        "before": _outcome_value(found.before),
        "after": _outcome_value(found.after),
        "matched_by": found.matched_by,
        "keys": list(found.keys),
        "columns": {
            "added": dict(found.new_columns),
            "gone": dict(found.lost_columns),
            "changed": {name: {"before": old, "after": new} for name, (old, new) in found.retyped.items()},
        },
        "rules": [
            {
                "node": rule.node,
                "rule": rule.rule,
                "before": rule.before,
                "after": rule.after,
                "example": {"record": rule.example.record, "reason": rule.example.reason},
            }
            for rule in found.rules
        ],
        "counts": {
            "added": len(found.rows.added),
            "gone": len(found.rows.gone),
            "changed": len(found.rows.changed),
        },
        "rows": _rows_value(found.rows, found, show),
    }


def _outcome_value(outcome: Outcome | None) -> dict[str, Any] | None:
    return None if outcome is None else {"rows": len(outcome.rows), "error": outcome.error or None}


def _rows_value(rows: Comparison, found: PipelineDiff, show: int) -> dict[str, Any]:
    return {
        "added": [_named(found, row) for row in rows.added[:show]],
        "gone": [_named(found, row) for row in rows.gone[:show]],
        "changed": [_changed_value(found, change) for change in rows.changed[:show]],
    }


def _named(found: PipelineDiff, row: Sequence[Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in zip(found.columns, row, strict=True)}


def _changed_value(found: PipelineDiff, change: Changed) -> dict[str, Any]:
    after = _named(found, change.after)
    return {
        "key": {name: after[name] for name in found.keys},
        "columns": {
            found.columns[index]: {"before": plain(change.before[index]), "after": plain(change.after[index])}
            for index in change.columns
        },
    }


def plain(value: Any) -> Any:
    """A value of a row as JSON has it: NaN and infinite numbers as text, structs and maps as objects."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "__fields__"):
        return dict(zip(value.__fields__, map(plain, value), strict=True))
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(errors="replace")
    return value
