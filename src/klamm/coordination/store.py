"""The coordination store: the interface that every engine implements, a small tree of nodes with versions.

It behaves as ZooKeeper does, because all engines can do that:

* A path is `/`-separated; `/` itself always exists. A node is created under a parent that exists and deleted
  when it has no children.
* A version starts at 0 and rises by one with every Set. `created_rev` is the revision of the whole store
  that created the node: a node that was deleted and made again has a larger one.
* `txn` is atomic: all of its operations happen or none does.
* A watch says only "something under here may have changed, read again". It may fire without a change, and
  several changes may fire it once. It always fires after a reconnect.
* An open store has a session. An ephemeral node belongs to the session that created it (`Node.owner`) and is
  deleted when the session ends: at once when the store is closed or its process dies, after the session
  timeout when the process is paused or cut off. A session that has ended stays so: every call of its store
  raises SessionExpired, and a transaction that was on its way changes nothing. The caller opens a new store.

Calls return awaitables that start at once, so many of them can be sent before the first is awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

ANY_VERSION = -1

# The least session timeout that every engine can hold, and a time that a busy machine does not use up.
DEFAULT_SESSION_TIMEOUT_S = 6.0

# ZooKeeper takes no request of more than 1,048,575 bytes (jute.maxbuffer). All engines have the limits that
# follow from it, so that what one engine holds can be moved to another.
MAX_VALUE_BYTES = 1_000_000
MAX_TXN_BYTES = 1_040_000
# How many bytes ZooKeeper needs for an operation beside its path and its value, and room for a chroot.
MAX_CHROOT_BYTES = 32
OPERATION_FRAMING_BYTES = 48 + MAX_CHROOT_BYTES


class State(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No connection. The session may have ended: whoever acts by its ephemeral nodes stops acting."""
    EXPIRED = "expired"
    """The session has ended, and its ephemeral nodes are gone. No other state follows."""


class StoreError(Exception):
    """A transaction that was not applied, or a node that could not be read. The text names the path."""


class OperationFailed(StoreError):
    """Nothing was applied, because of one operation (or one read, which has neither operation nor index)."""

    def __init__(
        self, text: str, path: str = "", operation: Operation | None = None, index: int | None = None
    ) -> None:
        super().__init__(text)
        self.path = path
        self.operation = operation
        """The operation of the transaction that could not be done."""
        self.index = index
        """Its place in the transaction, from 0."""


class NoNode(OperationFailed):
    """The node, or the parent of one to be created, does not exist."""


class NodeExists(OperationFailed):
    """The node to be created is there already."""


class NotEmpty(OperationFailed):
    """The node to be deleted has children."""


class BadVersion(OperationFailed):
    """The node has another version than the one named."""


class EphemeralParent(OperationFailed):
    """The parent of the node to be created is ephemeral, and such a node has no children."""


class TooLarge(OperationFailed):
    """A value, or a transaction as a whole, is larger than a store takes. Nothing was sent."""


class Unavailable(StoreError):
    """No answer. The outcome is not known: read again before deciding anything."""


class SessionExpired(StoreError):
    """The session has ended, and this call changed nothing."""


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
    ephemeral: bool = False


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
    """What an engine offers. All calls and callbacks belong to the event loop that opened it.

    Every call may raise Unavailable or SessionExpired beside the errors named.
    """

    @property
    def session_id(self) -> int:
        """What `Node.owner` says of this store's ephemeral nodes; never 0 once the store is open."""

    @property
    def state(self) -> State: ...

    async def open(self) -> None:
        """Connect, creating what is missing; Unavailable if that takes too long."""

    async def close(self) -> None:
        """Let everything submitted finish, end the session, then disconnect."""

    def on_state(self, callback: Callable[[State], None]) -> None:
        """Call `callback` with every state that follows; the first, CONNECTED, is there when `open` is."""

    def get(self, path: str) -> Awaitable[Node]:
        """NoNode."""

    def list(self, path: str) -> Awaitable[list[str]]:
        """The names (not paths) of the children, sorted. NoNode."""

    def txn(self, operations: Sequence[Operation]) -> Awaitable[int]:
        """The revision it made.

        NoNode, NodeExists, NotEmpty, BadVersion, EphemeralParent, TooLarge: nothing was applied, and the
        error names the operation. Unavailable: read again.
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


def check_operations(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """What every engine does before a transaction: ValueError for a bug of ours, or TooLarge."""
    total_bytes = 0
    for index, operation in enumerate(operations):
        check_path(operation.path)
        if operation.path == "/" and isinstance(operation, Delete):
            raise ValueError("/ is never deleted")
        value = operation.value if isinstance(operation, Create | Set) else b""
        if len(value) > MAX_VALUE_BYTES:
            text = f"the value of {operation.path} has {len(value)} bytes; {MAX_VALUE_BYTES} is the most"
            raise TooLarge(text, operation.path, operation, index)
        total_bytes += operation_bytes(operation)
    if total_bytes > MAX_TXN_BYTES:
        index, largest = max(enumerate(operations), key=lambda pair: operation_bytes(pair[1]))
        raise TooLarge(
            f"a transaction of {len(operations)} operations has {total_bytes} bytes; {MAX_TXN_BYTES} is the "
            f"most. Its largest operation is that of {largest.path}",
            largest.path,
            largest,
            index,
        )
    return tuple(operations)


def operation_bytes(operation: Operation) -> int:
    """What the operation counts against MAX_TXN_BYTES."""
    size = OPERATION_FRAMING_BYTES + len(operation.path.encode())
    return size + len(operation.value) if isinstance(operation, Create | Set) else size


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_under(prefix: str, path: str) -> bool:
    """Whether `path` is `prefix` or lies below it."""
    return path == prefix or prefix == "/" or path.startswith(prefix + "/")
