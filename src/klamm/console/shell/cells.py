"""Cells of tables, and the texts of numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from klamm.operating.units import count_text, size_text

Cell: TypeAlias = str | int | dict[str, Any] | None


BLANK: Cell = {"tags": []}
"""A cell that shows nothing, not even a dash."""


def text(value: str | None, *, mono: bool = False, tone: str = "", sub: str = "", title: str = "") -> Cell:
    if value is None:
        return None
    return {"t": value, "mono": mono, "tone": tone, "sub": sub, "title": title}


def link(value: str, href: str, *, mono: bool = False, sub: str = "") -> Cell:
    return {"t": value, "href": href, "mono": mono, "sub": sub}


def number(value: int | None, *, tone: str = "") -> Cell:
    """A count; zero and what is not known are a dash."""
    return {"t": count_text(value), "tone": tone} if value else None


def offset(value: int | None) -> Cell:
    """An offset, of which zero is one as any other."""
    return None if value is None else {"t": count_text(value), "mono": False}


def size(value: int | None) -> Cell:
    return {"t": size_text(value), "title": f"{value:,} bytes"} if value else None


def per_second(value: float | None) -> Cell:
    return {"t": rate_text(value)} if value else None


def sparkline(values: Sequence[float | None], hue: str) -> Cell:
    return {"spark": list(values), "hue": hue} if any(values) else None


def tags(texts: Iterable[tuple[str, str]]) -> Cell:
    """Small words with a tone each: good, look, broken, or none."""
    return {"tags": [{"t": one, "tone": tone} for one, tone in texts]}


def bar(share: float, value: str) -> Cell:
    tone = "broken" if share >= 0.95 else "look" if share >= 0.85 else ""
    return {"bar": min(1.0, max(0.0, share)), "t": value, "tone": tone}


def rate_text(value: float | None) -> str:
    """Records per second: 0.4, 12, 1,234."""
    if value is None:
        return "–"
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def duration_text(seconds: float) -> str:
    """About how long: 40 s, 4 min, 3 h, 2 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 36 * 3600:
        return f"{round(seconds / 3600)} h"
    return f"{round(seconds / 86400)} days"
