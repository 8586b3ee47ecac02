"""One scrape while it is made: the lines of each family, added in any order."""

from __future__ import annotations

from collections.abc import Iterator

from klamm.metrics.names import FAMILIES
from klamm.metrics.text import Family, Sample, label, line

MOST_LINES_AT_ONCE = 2_000
"""Lines that are joined without a pause: less than a millisecond."""


class Page:
    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, family: Family, value: float, **labels: str) -> None:
        self.add_sample(family, Sample(family.name, tuple(labels.items()), value))

    def add_sample(self, family: Family, sample: Sample) -> None:
        """A sample whose name is not the family's own, as the count of a summary."""
        self._lines.setdefault(family.name, []).append(line(sample))

    def add_labelled(self, family: Family, labels: str, value: int) -> None:
        """For tens of thousands of lines, whose labels the caller has put together once."""
        self._lines.setdefault(family.name, []).append(f"{family.name}{{{labels}}} {value}\n")

    def pieces(self) -> Iterator[bytes]:
        """The text in pieces, each made in less than a millisecond."""
        for family in FAMILIES:
            made = self._lines.get(family.name)
            if not made:
                continue
            yield family.head.encode()
            for start in range(0, len(made), MOST_LINES_AT_ONCE):
                yield "".join(made[start : start + MOST_LINES_AT_ONCE]).encode()


def partition_labels(topic: str, partition: int, group: str | None = None) -> str:
    of_group = "" if group is None else f'consumergroup="{label(group)}",'
    return f'{of_group}topic="{label(topic)}",partition="{partition}"'
