"""Lines that fit a regular expression of the user's: named groups become columns of text."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from klamm.lineformats.format import BadFormat, Field, LineFormat

_SYNTAX = "https://github.com/google/re2/wiki/Syntax"


def regex_format(pattern: str) -> LineFormat:
    """The format of lines that match a pattern as a whole. Raises BadFormat if RE2 cannot use it."""
    try:
        found = pc.extract_regex(pa.array([""], pa.string()), pattern).type
    except pa.ArrowInvalid as error:
        raise _bad(pattern, str(error)) from None
    names = [found.field(number).name for number in range(found.num_fields)]
    if not names:
        raise BadFormat(f"the pattern {pattern!r} has no named group", "Write columns as (?P<name>…)")
    if twice := next((name for name in names if _lower(names).count(name.lower()) > 1), None):
        raise BadFormat(
            f"two groups of the pattern are called {twice}; capital letters do not count", "Rename one"
        )
    fields = tuple(Field(name, shown=name) for name in names)
    pieces = _pieces(pattern)
    return LineFormat(
        "regex",
        fields,
        (rf"\A(?:{pattern})\z",),
        tuple((piece, piece) for piece in pieces or ()),
        missing="",
        is_text=True,
    )


def _lower(names: list[str]) -> list[str]:
    return [name.lower() for name in names]


def _bad(pattern: str, reason: str) -> BadFormat:
    if "unnamed group" in reason:
        return BadFormat(
            f"the pattern {pattern!r} has a group without a name",
            "Write (?P<name>…) for a column, and (?:…) for other groups",
        )
    return BadFormat(
        f"the pattern {pattern!r} is not a valid regular expression: {reason.strip()}",
        f"It has the syntax of RE2, without look-ahead and back-references: {_SYNTAX}",
    )


# ---- dividing a pattern


def _pieces(pattern: str) -> list[str] | None:
    """The pattern in pieces, each beginning of which is a pattern too; None if it has alternatives outside of
    groups, or cannot be divided for another reason."""
    pieces: list[str] = []
    literal = ""
    for atom, is_plain in _atoms(pattern):
        if atom == "|" or atom.startswith("\\Q"):
            return None
        if is_plain:
            literal += atom
            continue
        if literal:
            pieces.append(literal)
            literal = ""
        pieces.append(atom)
    return [*pieces, literal] if literal else pieces


def _atoms(pattern: str) -> Iterator[tuple[str, bool]]:
    """The atoms of a valid pattern with their repetitions; whether an atom is a character as it is."""
    at = 0
    while at < len(pattern):
        end = _atom_end(pattern, at)
        repeated = _repetition_end(pattern, end)
        is_plain = repeated == end == at + 1 and pattern[at] not in ".^$|"
        yield pattern[at:repeated], is_plain
        at = repeated


def _atom_end(pattern: str, at: int) -> int:
    if pattern[at] == "\\":
        return _escape_end(pattern, at)
    if pattern[at] == "[":
        return _class_end(pattern, at)
    if pattern[at] != "(":
        return at + 1
    depth = 0
    while True:
        if pattern[at] == "(":
            depth += 1
        elif pattern[at] == ")":
            depth -= 1
        if depth == 0:
            return at + 1
        at = at + 1 if pattern[at] in "()" else _inner_end(pattern, at)


def _inner_end(pattern: str, at: int) -> int:
    """The end of an escape, a class or a character inside of a group."""
    if pattern[at] == "\\":
        return _escape_end(pattern, at)
    return _class_end(pattern, at) if pattern[at] == "[" else at + 1


def _escape_end(pattern: str, at: int) -> int:
    letter = pattern[at + 1]
    if letter in "xpP":
        if pattern[at + 2] == "{":
            return pattern.index("}", at) + 1
        return at + (4 if letter == "x" else 3)
    end = at + 2
    while letter.isdigit() and end < min(at + 4, len(pattern)) and pattern[end].isdigit():
        end += 1
    return end


def _class_end(pattern: str, at: int) -> int:
    at += 2 if pattern.startswith("[^", at) else 1
    first = at
    while pattern[at] != "]" or at == first:
        if pattern.startswith("[:", at) and ":]" in pattern[at:]:
            at = pattern.index(":]", at) + 2
        else:
            at = _escape_end(pattern, at) if pattern[at] == "\\" else at + 1
    return at + 1


def _repetition_end(pattern: str, at: int) -> int:
    if at < len(pattern) and pattern[at] in "*+?":
        at += 1
    elif at < len(pattern) and pattern[at] == "{":
        counts = pattern[at + 1 : (close := pattern.find("}", at))]
        if close < 0 or not counts or not counts.replace(",", "").isdigit():
            return at
        at = close + 1
    else:
        return at
    return at + 1 if at < len(pattern) and pattern[at] == "?" else at
