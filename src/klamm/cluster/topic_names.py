"""Which names a topic may have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from klamm.cluster.persistent_map import PersistentMap
from klamm.model.errors import ErrorCode, KafkaError

# A partition's directory is named after its topic, "-" and its number; file systems allow 255 characters.
MAX_NAME_LENGTH = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless a topic may be called `name`."""
    if not name:
        problem = "it is empty"
    elif name in (".", ".."):
        problem = "it means a directory"
    elif len(name) > MAX_NAME_LENGTH:
        problem = f"it has {len(name)} characters and {MAX_NAME_LENGTH} is the most"
    elif not _LEGAL.fullmatch(name):
        problem = "only ASCII letters, digits, '.', '_' and '-' are allowed"
    else:
        return
    shown = name if len(name) <= MAX_NAME_LENGTH else name[:20] + "..."
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"the topic name {shown!r} is refused: {problem}")


SimilarNames: TypeAlias = PersistentMap[str, tuple[str, ...]]
"""The topic names that hold a '.' or '_', by the name that metrics have for them, where '.' is '_'. Only one
topic of such a name can be created, but a store may hold several."""


def similar_names(names: Iterable[str]) -> SimilarNames:
    return renamed(PersistentMap(), (), names)


def renamed(similar: SimilarNames, gone: Iterable[str], new: Iterable[str]) -> SimilarNames:
    """Without the names of topics that are gone, then with those of new ones."""
    changed: dict[str, tuple[str, ...]] = {}
    for name in filter(_can_collide, gone):
        flat = _flattened(name)
        there = changed.get(flat, similar.get(flat, ()))
        changed[flat] = tuple(other for other in there if other != name)
    for name in filter(_can_collide, new):
        flat = _flattened(name)
        there = changed.get(flat, similar.get(flat, ()))
        changed[flat] = there if name in there else (*there, name)
    return similar.changed({flat: names or None for flat, names in changed.items()})


def colliding_name(name: str, existing: SimilarNames) -> str | None:
    """Another topic whose name differs only in '.' against '_', which metrics could not tell apart."""
    if not _can_collide(name):
        return None
    return next((other for other in existing.get(_flattened(name), ()) if other != name), None)


def _can_collide(name: str) -> bool:
    return "." in name or "_" in name


def _flattened(name: str) -> str:
    return name.replace(".", "_")
