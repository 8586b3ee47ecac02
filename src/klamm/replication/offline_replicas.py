"""The replicas of this broker that it cannot use, each with the reason.

A replica whose log directory fails while the broker runs is not here: its `Partition` is there, and knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Place: TypeAlias = tuple[str, int]
"""(topic, partition), the key of a partition."""


class OfflineReplicas:
    def __init__(self) -> None:
        self.lost: dict[Place, str] = {}
        """Their log is damaged or lies in a directory that is offline. They stay offline until the next
        start: to make a new log would be to lose the old one."""
        self.unmade: dict[Place, str] = {}
        """Their log could not be made; `Partitions.make_unmade` tries again."""
        self.unwritable: dict[Place, str] = {}
        """Their log cannot be written (`full_disks.py`). They have a `Partition` and a role all the same."""
        self.version = 0
        """Rises whenever a replica goes offline or comes back: then cached metadata answers are stale."""
        self.on_changed: Callable[[], None] = lambda: None
        """Called then."""

    def __contains__(self, place: Place) -> bool:
        return place in self.lost or place in self.unmade or place in self.unwritable

    def reason(self, place: Place) -> str | None:
        return self.lost.get(place) or self.unmade.get(place) or self.unwritable.get(place)

    @property
    def without_log(self) -> list[Place]:
        return [*self.lost, *self.unmade]

    def drop(self, place: Place) -> None:
        """The replica does not belong to this broker any longer."""
        self.lost.pop(place, None)
        self.unmade.pop(place, None)
        self.unwritable.pop(place, None)

    def changed(self) -> None:
        self.version += 1
        self.on_changed()
