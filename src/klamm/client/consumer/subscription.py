"""Which topics or partitions a consumer wants: names, a pattern, or partitions of its own choice. A core.

A consumer uses either topics (names or a pattern) or partitions of its own choice (`assign`) at a time. With
a group, the partitions of the topics are shared among its members. Without one, the consumer reads all
partitions of its topics, also those that are created later.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from klamm.client.arguments import as_names
from klamm.client.errors import ClientMisused
from klamm.client.network.metadata import TopicMetadata
from klamm.client.results import TopicPartition

Topics: TypeAlias = str | Sequence[str] | re.Pattern[str]
"""What `subscribe` takes: a topic, several, or a pattern that names must match as a whole."""

Listener: TypeAlias = Callable[[set[TopicPartition]], Awaitable[None] | None]
"""Called with partitions inside a poll; with asyncio it may be a coroutine function."""


class Listeners(NamedTuple):
    """The user's callbacks for rebalances."""

    on_assigned: Listener | None = None
    on_revoked: Listener | None = None
    on_lost: Listener | None = None

    def for_loss(self) -> Listener | None:
        """The callback for lost partitions: `on_lost`, or `on_revoked` if there is none."""
        return self.on_lost or self.on_revoked


class Subscription:
    """What the user asked for last."""

    def __init__(self, *, excludes_internal: bool) -> None:
        self._excludes_internal = excludes_internal
        self.names: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self.is_manual = False
        """True if the partitions were chosen with `assign`."""
        self.is_begun = False
        """True after the first `subscribe` or `assign`: from then on a poll may have nothing to read."""
        self.listeners = Listeners()

    @property
    def is_by_topic(self) -> bool:
        return self.pattern is not None or bool(self.names)

    def subscribe(self, topics: Topics, listeners: Listeners) -> None:
        if self.is_manual:
            raise ClientMisused(
                "the consumer cannot subscribe: it has an assignment, made with assign()",
                advice="Call unsubscribe() first",
            )
        names, pattern = read_topics(topics)
        self.names, self.pattern, self.listeners = names, pattern, listeners
        self.is_begun = True

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        if self.is_by_topic:
            raise ClientMisused(
                "the consumer cannot assign partitions: it has a subscription",
                advice="Call unsubscribe() first",
            )
        self.is_manual = bool(partitions)
        self.is_begun = True

    def clear(self) -> None:
        self.names, self.pattern, self.listeners = (), None, Listeners()
        self.is_manual = False

    def topics(self, known: Mapping[str, TopicMetadata]) -> set[str]:
        """The topics that are subscribed to, as far as the metadata tells."""
        if self.pattern is None:
            return set(self.names)
        return {
            name
            for name, topic in known.items()
            if topic.exists
            and self.pattern.fullmatch(name)
            and not (self._excludes_internal and topic.internal)
        }

    def partitions(self, known: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
        """All partitions of those topics."""
        return [
            TopicPartition(name, each.index)
            for name in sorted(self.topics(known))
            if name in known
            for each in known[name].partitions
        ]


def read_topics(topics: Any) -> tuple[tuple[str, ...], re.Pattern[str] | None]:
    """The argument `topics` as names or a pattern."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise ClientMisused(f"{topics!r} is a pattern of bytes", advice="Give one of text")
        return (), topics
    if isinstance(topics, str):
        topics = [topics]
    names = tuple(dict.fromkeys(as_names(topics, "topic")))
    if not names or not all(names):
        raise ClientMisused(f"{topics!r} does not name a topic", advice="To read nothing, call unsubscribe()")
    return names, None
