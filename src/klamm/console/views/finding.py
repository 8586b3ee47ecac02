"""What the palette finds: by words in names, with the best matches first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from klamm.console.addresses import broker_url, group_url, topic_url
from klamm.console.watching.picture import Picture

MOST_FOUND = 12


@dataclass(frozen=True, slots=True)
class Found:
    """Something to open."""

    kind: str
    name: str
    url: str


PAGES = (
    Found("page", "Overview", "/"),
    Found("page", "Topics", "/topics"),
    Found("page", "Groups", "/groups"),
    Found("page", "Pipelines", "/pipelines"),
    Found("page", "Brokers", "/brokers"),
    Found("page", "Metrics", "/metrics"),
)
"""The pages of the rail."""

ACTIONS = (Found("action", "Create a topic", "/topics?create"),)
"""What changes something; left out when the console is read-only."""


def find(picture: Picture, text: str, is_read_only: bool) -> list[Found]:
    """The best matches. Without a text, pages and actions."""
    words = text.lower().split()
    known = [*PAGES, *(() if is_read_only else ACTIONS)]
    if not words:
        return known
    matches = [
        (rank, one)
        for one in (*known, *_of(picture, words))
        if (rank := _rank(one.name.lower(), words)) is not None
    ]
    matches.sort(key=lambda match: (match[0], len(match[1].name), match[1].name))
    return [one for _, one in matches[:MOST_FOUND]]


def _of(picture: Picture, words: list[str]) -> Iterator[Found]:
    for name in _with_words(picture.topics, words):
        yield Found("topic", name, topic_url(name))
    for name in _with_words(picture.groups, words):
        yield Found("group", name, group_url(name))
    for broker in picture.brokers.values():
        yield Found("broker", f"broker {broker.id} {broker.address}".strip(), broker_url(broker.id))


def _with_words(names: Iterable[str], words: list[str]) -> Iterator[str]:
    return (name for name in names if all(word in name.lower() for word in words))


def _rank(name: str, words: list[str]) -> int | None:
    """0 for a name that is the text, 1 if it begins with it, 2 if it has all words; None if not."""
    if not all(word in name for word in words):
        return None
    return 0 if name == " ".join(words) else 1 if name.startswith(words[0]) else 2
