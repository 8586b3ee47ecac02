"""A simulated coordination store: the data of the embedded engine behind the simulated network.

The server (`StoreServer`) holds nodes and sessions in the tables of the embedded engine
(`coordination/tree.py`), in memory. It is a node of the network, so it can be cut off or paused. It ends a
session that it has not heard of for the session timeout, as ZooKeeper does; in some runs also at once when
the session's process dies, as the embedded engine does. `SimulatedStore` is a broker's side of it: an engine
like the others. A call without an answer has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from klamm.coordination import tree
from klamm.coordination.callers import Callers, PrefixWatch
from klamm.coordination.store import (
    Node as StoredNode,
)
from klamm.coordination.store import (
    NoNode,
    Operation,
    OperationFailed,
    SessionExpired,
    State,
    Unavailable,
    check_operations,
)
from klamm.testing.simulation.network import Answer, Network, Node

STORE = "store"
SESSION_TIMEOUT_S = 6.0
_PING_INTERVAL_S = 2.0
_PING_TIMEOUT_S = 2.5
_RETRY_S = 0.5
_CALL_TIMEOUT_S = 5.0
_DEATH_NOTICED_S = 0.01
_EXPIRED = "expired"


class StoreServer(Node):
    def __init__(self, network: Network, *, notices_deaths: bool) -> None:
        super().__init__(STORE, network)
        self._notices_deaths = notices_deaths
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        tree.prepare(self._database, STORE)
        self._revision = 0
        self._sessions: dict[int, tuple[str, float]] = {}
        """Session id → (the broker's name, when it was last heard of)."""
        self._last_session_id = 0
        self.is_up = True
        self._watch_sessions()

    def close(self) -> None:
        self._database.close()

    def find(self, path: str) -> StoredNode | None:
        """For those who look at the store from outside."""
        try:
            return tree.get(self._database, path)
        except NoNode:
            return None

    def children(self, path: str) -> list[str]:
        return tree.children(self._database, path)

    def apply(self, operations: Sequence[Operation], session_id: int = 0) -> int:
        """All of the operations, or none; raises an OperationFailed."""
        database = self._database
        database.execute("BEGIN")
        try:
            self._revision = tree.apply(database, operations, session_id)
        except OperationFailed:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")
        self._tell_watchers(tree.changed_paths(operations))
        return self._revision

    def on_death(self, name: str) -> None:
        """A process was killed."""
        if self._notices_deaths:
            ended = [id_ for id_, (owner, _) in self._sessions.items() if owner == name]
            self.later(_DEATH_NOTICED_S, self._end, ended)

    def handle(self, kind: str, payload: Any, answer: Answer) -> None:
        session_id, body = payload
        if kind == "open":
            self._last_session_id += 1
            self._sessions[self._last_session_id] = (body, self.loop.time())
            tree.add_session(self._database, self._last_session_id, int(SESSION_TIMEOUT_S * 1000))
            answer((self._last_session_id, self._revision))
            return
        if session_id not in self._sessions:
            answer(_EXPIRED)
            return
        self._sessions[session_id] = (self._sessions[session_id][0], self.loop.time())
        try:
            answer(self._do(kind, session_id, body))
        except OperationFailed as error:
            answer(error)

    def _do(self, kind: str, session_id: int, body: Any) -> Any:
        if kind == "get":
            return tree.get(self._database, body)
        if kind == "list":
            return tree.children(self._database, body)
        if kind == "txn":
            return self.apply(body, session_id)
        if kind == "close":
            self._end([session_id])
        return self._revision

    def _watch_sessions(self) -> None:
        oldest_s = self.loop.time() - SESSION_TIMEOUT_S
        self._end([id_ for id_, (_, heard_s) in self._sessions.items() if heard_s < oldest_s])
        self.later(1.0, self._watch_sessions)

    def _end(self, session_ids: Sequence[int]) -> None:
        ended = [id_ for id_ in session_ids if self._sessions.pop(id_, None) is not None]
        if ended:
            paths = tree.end_sessions(self._database, ended)
            self._revision += 1
            self._tell_watchers(sorted(paths))

    def _tell_watchers(self, paths: Sequence[str]) -> None:
        for session_id, (name, _) in self._sessions.items():
            told = (session_id, self._revision, paths)
            self.network.request(self, name, "watch", told, _ignore, _CALL_TIMEOUT_S)


def _ignore(_: Any) -> None:
    pass


class SimulatedStore:
    """A broker's session with the store; see `coordination/store.py`."""

    def __init__(self, owner: Node) -> None:
        self._owner = owner
        self._callers = Callers("the simulated store", _CALL_TIMEOUT_S)
        self.session_id = 0
        self._seen_revision = -1
        self._is_closed = False

    @property
    def state(self) -> State:
        return self._callers.state

    async def open(self) -> None:
        self._callers.begin()
        answer = await self._owner.network.call(
            self._owner, STORE, "open", (0, self._owner.name), _CALL_TIMEOUT_S
        )
        if answer is None:
            raise Unavailable("the simulated store did not answer")
        self.session_id, self._seen_revision = answer
        self._callers.change_state(State.CONNECTED)
        self._owner.later(_PING_INTERVAL_S, self._ping)

    async def close(self) -> None:
        if not self._is_closed and self.session_id and self.state is not State.EXPIRED:
            await self._owner.network.call(
                self._owner, STORE, "close", (self.session_id, None), _PING_TIMEOUT_S
            )
        self._is_closed = True
        self._callers.end()

    def on_state(self, callback: Callable[[State], None]) -> None:
        self._callers.on_state(callback)

    def get(self, path: str) -> Awaitable[StoredNode]:
        return self._call("get", path)

    def list(self, path: str) -> Awaitable[list[str]]:
        return self._call("list", path)

    def txn(self, operations: Sequence[Operation]) -> Awaitable[int]:
        return self._call("txn", check_operations(operations))

    def watch(self, prefix: str, callback: Callable[[], None]) -> PrefixWatch:
        return self._callers.watch(prefix, callback)

    def sync(self) -> Awaitable[None]:
        return self._call("sync", None)

    def on_watch(self, session_id: int, revision: int, paths: Sequence[str]) -> None:
        """The server tells of a change."""
        if session_id == self.session_id:
            self._seen_revision = max(revision, self._seen_revision)
            self._callers.fire(paths)

    def _call(self, kind: str, body: Any) -> asyncio.Future[Any]:
        future = self._callers.new_call()

        def answered(answer: Any) -> None:
            if answer == _EXPIRED:
                self._expire()
            elif answer is None:
                _fail(future, Unavailable("the simulated store did not answer"))
            elif isinstance(answer, OperationFailed):
                _fail(future, answer)
            elif not future.done():
                future.set_result(answer)
            self._callers.forget_answered()

        if not future.done():
            payload = (self.session_id, body)
            self._owner.network.request(self._owner, STORE, kind, payload, answered, _CALL_TIMEOUT_S)
        return future

    def _ping(self) -> None:
        def answered(answer: Any) -> None:
            if self._is_closed or self.state is State.EXPIRED:
                return
            if answer == _EXPIRED:
                self._expire()
                return
            if answer is None:
                self._set_state(State.SUSPENDED)
            else:
                was_away = self.state is State.SUSPENDED
                self._set_state(State.CONNECTED)
                # Level-triggered: whatever was missed while we were away may have changed.
                if was_away or answer > self._seen_revision:
                    self._seen_revision = answer
                    self._callers.fire_all()
            self._owner.later(_PING_INTERVAL_S if answer is not None else _RETRY_S, self._ping)

        if not self._is_closed and self.state is not State.EXPIRED:
            payload = (self.session_id, None)
            self._owner.network.request(self._owner, STORE, "ping", payload, answered, _PING_TIMEOUT_S)

    def _expire(self) -> None:
        if self.state is not State.EXPIRED and not self._is_closed:
            self._callers.refuse(_expired)
            self._callers.fail_all(_expired())
            self._set_state(State.EXPIRED)

    def _set_state(self, state: State) -> None:
        if state is not self.state:
            self._callers.change_state(state)


def _expired() -> SessionExpired:
    return SessionExpired("the session with the simulated store has ended")


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
