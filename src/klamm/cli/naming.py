"""Names of topics, groups and partitions as arguments: whole names, patterns in quotes, `orders:0,2`."""

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


def topic_and_partitions(text: str) -> tuple[str, list[int] | None]:
    """`orders` or `orders:0,2`. Raises CommandError."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    return topic, whole_numbers(numbers, text)


def whole_numbers(text: str, whole: str) -> list[int]:
    """`0,2,5` as numbers. Raises CommandError."""
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        found = [-1]
    if any(each < 0 for each in found):
        raise CommandError(f"{whole} is not valid: expected whole numbers with commas, such as 0,2")
    return found
