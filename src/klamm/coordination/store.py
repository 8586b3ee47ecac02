"""The coordination store: a small tree of nodes with versions, behind which engines can be changed.

It is shaped like ZooKeeper, because that is the one meaning all engines can share:

* A path is `/`-separated; `/` itself always exists. A node is created under a parent that exists and deleted
  when it has no children.
* A version starts at 0 and rises by one with every Set. `created_rev` is the revision of the whole store
  that created the node: a node that was deleted and made again has a larger one.
* `txn` is atomic: all of its operations happen or none does.
* A watch says only "something under here may have changed, read again". It may fire without a change, and
  several changes may fire it once.

Calls return awaitables that start at once, so many of them can be sent before the first is awaited. Sessions
and the nodes that die with them come with the second broker; `Node.owner` is where they will show.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

ANY_VERSION = -1

# ZooKeeper's limit for one request, less room for its framing; an engine refuses larger values.
MAX_VALUE_BYTES = 1_000_000


class StoreError(Exception):
    """A transaction that was not applied, or a node that could not be read. The text names the path."""


class NoNode(StoreError):
    """The node, or the parent of one to be created, does not exist."""


class NodeExists(StoreError):
    """The node to be created is there already."""


class NotEmpty(StoreError):
    """The node to be deleted has children."""


class BadVersion(StoreError):
    """The node has another version than the one named."""


class Unavailable(StoreError):
    """No answer. The outcome is not known: read again before deciding anything."""


class Node(NamedTuple):
    value: bytes
    version: int
    created_rev: int
    owner: int
    """The session whose end deletes the node; 0 for none."""


class Check(NamedTuple):
    """Fail the transaction unless the node has this version."""

    path: str
    version: int


class Create(NamedTuple):
    path: str
    value: bytes = b""


class Set(NamedTuple):
    path: str
    value: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    path: str
    version: int = ANY_VERSION


Operation = Check | Create | Set | Delete


class Watch(Protocol):
    def cancel(self) -> None:
        """The callback is not called any more."""


class Store(Protocol):
    """What an engine offers. All calls and callbacks belong to the event loop that opened it."""

    async def open(self) -> None:
        """Connect, creating what is missing; Unavailable if that takes too long."""

    async def close(self) -> None:
        """Let everything submitted finish, then disconnect."""

    def get(self, path: str) -> Awaitable[Node]:
        """NoNode, Unavailable."""

    def list(self, path: str) -> Awaitable[list[str]]:
        """The names (not paths) of the children, sorted. NoNode, Unavailable."""

    def txn(self, operations: Sequence[Operation]) -> Awaitable[int]:
        """The revision it made.

        NoNode, NodeExists, NotEmpty, BadVersion: nothing was applied. Unavailable: read again.
        """

    def watch(self, prefix: str, callback: Callable[[], None]) -> Watch:
        """Call `callback` after changes at or below `prefix`, by any process, and after a reconnect."""

    def sync(self) -> Awaitable[None]:
        """Once done, reads see every transaction that was answered to anybody before the call."""


def check_path(path: str) -> str:
    """Returns `path`; ValueError if it is malformed, which is a bug of ours."""
    if path == "/":
        return path
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{path!r} is not a path")
    if any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise ValueError(f"{path!r} has an empty or relative part")
    return path


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_under(prefix: str, path: str) -> bool:
    """Whether `path` is `prefix` or lies below it."""
    return path == prefix or prefix == "/" or path.startswith(prefix + "/")
