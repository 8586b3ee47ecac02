"""A simulated coordination store: nodes with versions, ephemeral nodes, sessions that expire.

The server (`StoreServer`) is a node of the network, so it can be cut off, paused or down. `StoreSession` is a
broker's side of it: it keeps a session alive, tells its owner of CONNECTED, SUSPENDED and EXPIRED, and reads
everything again whenever something may have changed. A transaction without an answer has an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from klamm.testing.simulation.network import Network, Node

STORE = "store"
SESSION_TIMEOUT_S = 6.0
_PING_INTERVAL_S = 2.0
_REQUEST_TIMEOUT_S = 2.5
_RETRY_S = 0.5


class SessionState(Enum):
    CONNECTED = auto()
    SUSPENDED = auto()
    EXPIRED = auto()


class StoredNode(NamedTuple):
    value: Any
    version: int
    created_rev: int
    owner: int


Snapshot = dict[str, StoredNode]


class Check(NamedTuple):
    path: str
    version: int


class Create(NamedTuple):
    path: str
    value: Any
    is_ephemeral: bool = False


class Set(NamedTuple):
    path: str
    value: Any
    version: int


class Delete(NamedTuple):
    path: str


Operation = Check | Create | Set | Delete


class StoreServer(Node):
    def __init__(self, network: Network) -> None:
        super().__init__(STORE, network)
        self.nodes: Snapshot = {}
        self.revision = 0
        self._sessions: dict[int, tuple[str, float]] = {}
        """Session id → (the broker's name, when it was last heard of)."""
        self.is_up = True
        self._watch_sessions()

    def handle(self, kind: str, payload: Any, answer: Callable[[Any], None]) -> None:
        session_id, body = payload
        if kind == "open":
            self.revision += 1
            session_id = self.revision
            self._sessions[session_id] = (body, self.loop.time())
            answer((session_id, self.revision))
            return
        if session_id not in self._sessions:
            answer("expired")
            return
        self._sessions[session_id] = (self._sessions[session_id][0], self.loop.time())
        if kind == "ping":
            answer(self.revision)
        elif kind == "read":
            answer((self.revision, dict(self.nodes)))
        else:
            answer(self._transact(session_id, body))

    def _transact(self, session_id: int, operations: Sequence[Operation]) -> tuple[str, Any]:
        """("done", revision) or ("refused", the operation that failed)."""
        for operation in operations:
            node = self.nodes.get(operation.path)
            deleted = any(isinstance(one, Delete) and one.path == operation.path for one in operations)
            if isinstance(operation, Create):
                is_right = node is None or deleted
            elif isinstance(operation, Delete):
                is_right = node is not None
            else:
                is_right = node is not None and node.version == operation.version
            if not is_right:
                return "refused", operation
        self.revision += 1
        for operation in operations:
            if isinstance(operation, Delete):
                del self.nodes[operation.path]
            elif isinstance(operation, Create):
                owner = session_id if operation.is_ephemeral else 0
                self.nodes[operation.path] = StoredNode(operation.value, 0, self.revision, owner)
            elif isinstance(operation, Set):
                node = self.nodes[operation.path]
                self.nodes[operation.path] = node._replace(value=operation.value, version=node.version + 1)
        if not all(isinstance(operation, Check | Set) for operation in operations):
            self._tell_watchers()
        return "done", self.revision

    def _watch_sessions(self) -> None:
        now_s = self.loop.time()
        for session_id, (_, heard_s) in list(self._sessions.items()):
            if now_s - heard_s > SESSION_TIMEOUT_S:
                del self._sessions[session_id]
                owned = [path for path, node in self.nodes.items() if node.owner == session_id]
                for path in owned:
                    del self.nodes[path]
                self.revision += 1
                if owned:
                    self._tell_watchers()
        self.later(1.0, self._watch_sessions)

    def _tell_watchers(self) -> None:
        for name, _ in list(self._sessions.values()):
            self.network.request(self, name, "watch", self.revision, _ignore, _REQUEST_TIMEOUT_S)


def _ignore(_: Any) -> None:
    pass


class StoreSession:
    def __init__(
        self,
        owner: Node,
        on_state: Callable[[SessionState], None],
        on_snapshot: Callable[[Snapshot], None],
    ) -> None:
        self._owner = owner
        self._on_state = on_state
        self._on_snapshot = on_snapshot
        self.id = 0
        self.state = SessionState.SUSPENDED
        self._seen_revision = -1
        self._is_reading = False
        self._open()

    def txn(
        self, operations: Sequence[Operation], on_answer: Callable[[tuple[str, Any] | None], None]
    ) -> None:
        """("done", revision), ("refused", operation), or None: read again."""

        def done(answer: Any) -> None:
            if answer == "expired":
                self._expire()
                answer = None
            on_answer(answer)

        self._request("txn", tuple(operations), done)

    def read(self) -> None:
        """Read everything; `on_snapshot` gets it."""
        if not self._is_reading:
            self._is_reading = True
            self._request("read", None, self._on_read)

    def on_watch(self, revision: int) -> None:
        if revision > self._seen_revision and self.state is not SessionState.EXPIRED:
            self.read()

    def _request(self, kind: str, body: Any, on_answer: Callable[[Any], None]) -> None:
        owner = self._owner
        owner.network.request(owner, STORE, kind, (self.id, body), on_answer, _REQUEST_TIMEOUT_S)

    def _open(self) -> None:
        def opened(answer: Any) -> None:
            if answer is None:
                self._owner.later(_RETRY_S, self._open)
                return
            self.id, _ = answer
            self._set_state(SessionState.CONNECTED)
            self.read()
            self._owner.later(_PING_INTERVAL_S, self._ping)

        self._request("open", self._owner.name, opened)

    def _ping(self) -> None:
        def answered(answer: Any) -> None:
            if self.state is SessionState.EXPIRED:
                return
            if answer == "expired":
                self._expire()
                return
            if answer is None:
                self._set_state(SessionState.SUSPENDED)
            else:
                # Level-triggered: whatever was missed while we were away is read now.
                if self.state is SessionState.SUSPENDED or answer != self._seen_revision:
                    self.read()
                self._set_state(SessionState.CONNECTED)
            self._owner.later(_PING_INTERVAL_S if answer is not None else _RETRY_S, self._ping)

        if self.state is not SessionState.EXPIRED:
            self._request("ping", None, answered)

    def _on_read(self, answer: Any) -> None:
        self._is_reading = False
        if answer == "expired":
            self._expire()
        elif answer is None:
            self._set_state(SessionState.SUSPENDED)
        elif self.state is not SessionState.EXPIRED:
            self._seen_revision, snapshot = answer
            self._on_snapshot(snapshot)

    def _expire(self) -> None:
        if self.state is not SessionState.EXPIRED:
            self._set_state(SessionState.EXPIRED)

    def _set_state(self, state: SessionState) -> None:
        if state is not self.state:
            self.state = state
            self._on_state(state)
