"""Whether an original record is read again without a redrive, so that a redrive leaves it out. A core.

An epoch of a pipeline that begins at or before a record reads the record again: its row is in the sink, or it
has a newer dead-letter record. A record that came through a retry topic has two places, its own and that in
the retry topic; an epoch may begin before either. Rows of running queries are held to the same rule
(`addressing.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from klamm.pipelines.definitions import Source
from klamm.pipelines.project import Project
from klamm.pipelines.retry.topics import retry_topic
from klamm.pipelines.state import Attempt

if TYPE_CHECKING:
    from klamm.pipelines.originals import DeadLetter


def readers_of(
    project: Project, pipeline: str, sources: Sequence[Source], dead_letter: DeadLetter
) -> list[Source]:
    """The sources that read the original record: the one whose retry topic it came through, or whose
    expectation it broke, else all that read its topic."""
    through = dead_letter.retry_topic
    if through:
        return [source for source in sources if retry_topic(project, pipeline, source.name) == through]
    readers = [source for source in sources if dead_letter.topic in source.topics]
    return [source for source in readers if source.name == dead_letter.source] or readers


def is_read_anew(dead_letter: DeadLetter, readers: Iterable[Source], attempt: Attempt) -> bool:
    """True if a later epoch than the one that wrote the dead-letter record reads the original record."""
    places = {(dead_letter.topic, dead_letter.partition, dead_letter.offset), dead_letter.read_at}
    names = [source.name for source in readers]
    return any(attempt.reads_anew(dead_letter.epoch, names, *each) for each in places)
