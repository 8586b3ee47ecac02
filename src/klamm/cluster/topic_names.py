"""Which names a topic may have."""

from __future__ import annotations

import re
from collections.abc import Iterable

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


def colliding_name(name: str, existing: Iterable[str]) -> str | None:
    """Another topic whose name differs only in '.' against '_', which metrics could not tell apart."""
    if "." not in name and "_" not in name:
        return None
    flat = name.replace(".", "_")
    length = len(name)
    for other in existing:
        if len(other) == length and other != name and other.replace(".", "_") == flat:
            return other
    return None
