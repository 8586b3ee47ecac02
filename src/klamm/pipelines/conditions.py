"""Finds the columns in a SQL condition without Spark's parser. A core.

It rather misses a column than takes another word for one. For conditions with subqueries or lambdas it finds
none.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
      (?P<text>[rR]?'(?:[^'\\]|\\.|'')*' | [rR]?"(?:[^"\\]|\\.)*")
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?\w*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<arrow>->)
    | (?P<dot>\.)
    | (?P<open>\()
    | (?P<other>\S)
    """,
    re.VERBOSE,
)

_KEYWORD_TEXT = """
    all and any as asc between both by case cast collate cross current_date current_time
    current_timestamp current_user day days desc distinct div else end escape except exists false
    filter first for from hour hours ilike in interval is last leading like microsecond microseconds
    millisecond milliseconds minute minutes mod month months not null nulls or order over overlaps
    partition position quarter regexp rlike second seconds similar some then time timestamp to
    trailing true unknown using week weeks when where with within year years array bigint binary
    boolean byte date decimal dec double float int integer long map numeric real short smallint
    string struct timestamp_ltz timestamp_ntz tinyint variant void varchar char
"""
_KEYWORDS = frozenset(_KEYWORD_TEXT.split())
_BEYOND_US = frozenset({"select", "lateral", "with"})


def columns_named(condition: str) -> list[str]:
    """The first parts of the column names in a condition, in order, without duplicates."""
    tokens = [(match.lastgroup or "", match) for match in _TOKEN.finditer(condition)]
    words = {match["word"].lower() for kind, match in tokens if kind == "word"}
    if words & _BEYOND_US or any(kind == "arrow" for kind, _ in tokens):
        return []
    found: dict[str, None] = {}
    before = ""
    for index, (kind, match) in enumerate(tokens):
        after = tokens[index + 1][0] if index + 1 < len(tokens) else ""
        if kind == "quoted" and before != "dot":
            found[match["quoted"].replace("``", "`")] = None
        elif kind == "word" and before != "dot" and after not in ("open", "text"):
            found[match["word"]] = None
        before = kind
    return [name for name in found if name.lower() not in _KEYWORDS]
