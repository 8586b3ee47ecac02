"""Names as arguments: whole names, and patterns in quotes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from klamm.cli.errors import CommandError

_PATTERN_SIGNS = frozenset("*?[")


def is_pattern(name: str) -> bool:
    return not _PATTERN_SIGNS.isdisjoint(name)


def chosen_names(wanted: Sequence[str], there: Iterable[str], what: str) -> list[str]:
    """The names that are wanted, with patterns replaced by what matches. A name without a pattern need not be
    there: whoever uses the name says so. Raises CommandError for a pattern that nothing matches."""
    known = sorted(there)
    found: dict[str, None] = {}
    for each in wanted:
        if not is_pattern(each):
            found[each] = None
            continue
        matches = [name for name in known if fnmatchcase(name, each)]
        if not matches:
            raise CommandError(f"no {what} matches '{each}'")
        found.update(dict.fromkeys(matches))
    return list(found)
