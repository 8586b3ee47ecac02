"""Documents as trees that fold, for a page. A core.

A tree has a limit of nodes, so that a value of a megabyte does not become a page of a hundred.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from klamm.operating.records.views.text import decoded, visible

MOST_NODES = 3_000
MOST_DEPTH = 60
MOST_CHARACTERS = 5_000
"""Of one text in the tree; the raw view has all of it."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    """The name in its object, the number in its list, or nothing for the root."""
    kind: str
    """object, list, text, number, word (true, false, null) or more (children that are left out)."""
    text: str
    """A scalar as JSON; of an object or a list how much it holds."""
    path: str = ""
    """The field as a filter names it; nothing within lists."""
    children: tuple[Node, ...] = ()

    def as_json(self) -> dict[str, Any]:
        children = [each.as_json() for each in self.children]
        return {
            "name": self.name,
            "kind": self.kind,
            "text": self.text,
            "path": self.path,
            "children": children,
        }


def tree_of(document: Any) -> Node:
    return _node("", document, "", 0, [MOST_NODES])


def jsonable(value: Any) -> Any:
    """What JSON has no word for, as a text: bytes as a text if they are one, else as base64."""
    if isinstance(value, bytes):
        text = decoded(value)
        return base64.b64encode(value).decode() if text is None else text
    return str(value)


def as_text(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2, default=jsonable)


def _node(name: str, value: Any, path: str, depth: int, left: list[int]) -> Node:
    left[0] -= 1
    name = visible(name)[:200]
    if isinstance(value, bytes):
        value = jsonable(value)
    if isinstance(value, dict | list):
        is_object = isinstance(value, dict)
        size = len(value)
        nouns = ("field", "fields") if is_object else ("element", "elements")
        text = f"{size:,} {nouns[size != 1]}"
        kind = "object" if is_object else "list"
        if depth >= MOST_DEPTH:
            return Node(name, kind, f"{text}, too deep to be shown", path)
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        children: list[Node] = []
        for key, inner in pairs:
            if left[0] <= 0:
                children.append(Node("", "more", f"{size - len(children):,} more are in the raw view"))
                break
            children.append(_node(str(key), inner, _below(path, key), depth + 1, left))
        return Node(name, kind, text, path, tuple(children))
    if isinstance(value, str):
        shown = json.dumps(value[:MOST_CHARACTERS], ensure_ascii=False)
        if len(value) > MOST_CHARACTERS:
            shown += f" … {len(value) - MOST_CHARACTERS:,} more characters"
        return Node(name, "text", visible(shown), path)
    is_word = isinstance(value, bool) or value is None
    return Node(name, "word" if is_word else "number", json.dumps(value, default=str)[:400], path)


def _below(path: str, key: Any) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]" if path else ""
    if not key or set(key) & set(" .[]\"'()=<>!~\t\n\\"):
        return ""
    return f"{path}.{key}" if path else key
