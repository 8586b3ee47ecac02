"""The engine for many machines: a ZooKeeper ensemble, spoken to by kazoo.

kazoo runs in threads of its own. The event loop hands it requests and gets answers, states and events by
`call_soon_threadsafe`; nothing of ours waits in kazoo's threads. kazoo's own futures are not used: its thread
calls an object of ours instead, which saves a switch of threads per call and knows the answer's revision.

* While there is no connection, calls wait here and not in kazoo: a call that is given up has not been sent.
* When a connection breaks, reads that were on their way are sent again on the next one. The outcome of a
  transaction is not known (Unavailable).
* kazoo makes a new session when the old one has expired. A store is one session, so it stops kazoo then, and
  a gate makes sure that no request of the old session slips into the new one.
* Watches are ZooKeeper's persistent recursive ones (3.6 and newer), which kazoo does not offer: we send the
  request and read the events ourselves. With an older server every watch fires once a second.
* kazoo's thread keeps the session alive even while the event loop hangs. Whoever opens a store for a process
  that must not act without its loop has it watched (`watchdog.py`).

A path below `chroot` in ZooKeeper is the same path without it here.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from klamm.coordination.callers import DEFAULT_TIMEOUT_S, Callers, PrefixWatch, ignore_failure
from klamm.coordination.store import (
    DEFAULT_SESSION_TIMEOUT_S,
    BadVersion,
    Check,
    Create,
    Delete,
    EphemeralParent,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OperationFailed,
    SessionExpired,
    Set,
    State,
    StoreError,
    Unavailable,
    check_operations,
    check_path,
    parent_of,
)

# A server takes sessions of at least two of its ticks, by default 4 s; less than this a pause for garbage
# collection in a server uses up.
MIN_SESSION_TIMEOUT_S = 6.0
# kazoo wakes its thread by a byte per request in a pipe, and waits for room in it. This many always fit.
MAX_IN_FLIGHT_CALLS = 100
# How soon kazoo tries the next server when one is gone, at first and at last.
RECONNECT_DELAY_S = 0.05
MAX_RECONNECT_DELAY_S = 1.0
CONNECT_SHARE = 0.25
"""The part of a session timeout in which a server has to take the session over."""
# How often watches fire if the server cannot tell what has changed.
REREAD_INTERVAL_S = 1.0
# kazoo needs this long at most to say goodbye to a server that answers.
STOP_TIMEOUT_S = 5.0

_EPHEMERAL_FLAG = 1
_PERSISTENT_RECURSIVE = 1


class _AddWatch:
    """ZooKeeper's request for a watch that stays; a request as kazoo sends it."""

    type = 106

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        path = self.path.encode()
        return len(path).to_bytes(4, "big") + path + _PERSISTENT_RECURSIVE.to_bytes(4, "big")

    @staticmethod
    def deserialize(_buffer: bytes, _offset: int) -> bool:
        return True


class _Call(NamedTuple):
    request: Any
    future: asyncio.Future[Any]
    convert: Callable[[Any, int], Any]
    """From kazoo's answer and its revision to the caller's."""
    path: str
    may_repeat: bool


class _Answer:
    """What kazoo's thread calls with the answer to one request, perhaps more than once."""

    def __init__(self, store: ZooKeeperStore, call: _Call) -> None:
        self._store = store
        self._call: _Call | None = call

    def set(self, response: Any) -> None:
        self._finish(response, None)

    def set_exception(self, error: BaseException) -> None:
        self._finish(None, error)

    def _finish(self, response: Any, error: BaseException | None) -> None:
        call, self._call = self._call, None
        if call is not None:
            # kazoo notes the revision of an answer just before it passes the answer on, in the same thread.
            self._store._post(self._store._on_answer, call, response, self._store._client.last_zxid, error)


class _Pause:
    """Blocks kazoo's thread when it passes on an answer, or the loss of the connection."""

    def __init__(self, until: Callable[[], object]) -> None:
        self._until = until

    def set(self, _response: Any) -> None:
        self._until()

    def set_exception(self, _error: BaseException) -> None:
        self._until()


class ZooKeeperStore:
    """One session with the ensemble at `hosts` ("host:port,host:port")."""

    def __init__(
        self,
        hosts: str,
        chroot: str = "",
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_S,
    ) -> None:
        self._name = f"zookeeper://{hosts}{chroot}"
        self._hosts = hosts
        self._chroot = chroot
        self._timeout_s = timeout_s
        self._session_timeout_s = session_timeout_s
        self._callers = Callers(self._name, timeout_s)
        self._client: Any = None
        self._gate = threading.Lock()
        self._may_send = False
        self._is_lost = False
        """Both are changed by kazoo's thread under the gate."""
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_inbox_announced = False
        self._waiting: deque[_Call] = deque()
        self._in_flight = 0
        self._session_id = 0
        self._connected: asyncio.Future[None] | None = None
        self._armed: set[str] = set()
        self._reread_timer: asyncio.TimerHandle | None = None
        self._closing = False

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def state(self) -> State:
        return self._callers.state

    def on_state(self, callback: Callable[[State], None]) -> None:
        self._callers.on_state(callback)

    async def open(self) -> None:
        self._callers.begin()
        self._client = _new_client(self._hosts, self._session_timeout_s)
        self._client.add_listener(self._on_link)
        _read_events(self._client, lambda path: self._post(self._on_event, path))
        self._connected = self._callers.loop.create_future()
        self._client.start_async()
        try:
            await asyncio.wait_for(self._connected, self._timeout_s)
            await self._create_chroot()
        except (TimeoutError, StoreError) as error:
            await self.close()
            reason = str(error) or (
                f"no server answered in {self._timeout_s:g} s. "
                "Look whether ZooKeeper runs there and the address is right"
            )
            raise Unavailable(f"{self._name}: {reason}") from None

    async def close(self) -> None:
        if self._client is None or self._closing:
            return
        self._closing = True
        if self.state is State.CONNECTED:
            await self._callers.all_answered()
        self._callers.refuse(lambda: Unavailable(f"{self._name} is closed"))
        if self._reread_timer is not None:
            self._reread_timer.cancel()
        if self.state is not State.EXPIRED:
            await self._stop_client()
        self._callers.end()

    def get(self, path: str) -> asyncio.Future[Node]:
        def convert(answer: Any, _revision: int) -> Node:
            value, stat = answer
            return Node(value or b"", stat.version, stat.czxid, stat.ephemeralOwner)

        request = _requests().GetData(self._full(check_path(path)), None)
        return self._submit(request, convert, path)

    def list(self, path: str) -> asyncio.Future[list[str]]:
        request = _requests().GetChildren(self._full(check_path(path)), None)
        return self._submit(request, lambda answer, _revision: sorted(answer), path)

    def txn(self, operations: Sequence[Operation]) -> asyncio.Future[int]:
        checked = check_operations(operations)

        def convert(answer: Any, revision: int) -> int:
            for index, outcome in enumerate(answer):
                if isinstance(outcome, Exception) and not isinstance(outcome, _not_its_fault()):
                    raise _error_of(outcome, checked[index].path, checked[index], index)
            return revision

        request = _requests().Transaction([self._request_of(operation) for operation in checked])
        return self._submit(request, convert, may_repeat=False)

    def watch(self, prefix: str, callback: Callable[[], None]) -> PrefixWatch:
        watch = self._callers.watch(prefix, callback)
        if self.state is State.CONNECTED and prefix not in self._armed:
            self._arm(prefix)
        return watch

    def sync(self) -> asyncio.Future[None]:
        return self._submit(_requests().Sync(self._full("/")), lambda _answer, _revision: None, "/")

    def pause_thread(self, until: Callable[[], object]) -> None:
        """For tests: kazoo's thread calls `until` when it has the answer to a request that changes nothing.

        The request does not wait with the calls of the loop, because a loop that is paused takes no answers.
        """
        self._client._call(_requests().Sync(self._full("/")), _Pause(until))

    # ---- requests, on the loop

    def _full(self, path: str) -> str:
        if path == "/":
            return self._chroot or "/"
        return self._chroot + path

    def _request_of(self, operation: Operation) -> Any:
        requests = _requests()
        path = self._full(operation.path)
        match operation:
            case Check(_, version):
                return requests.CheckVersion(path, version)
            case Create(_, value, ephemeral):
                return requests.Create(path, value, _open_acl(), _EPHEMERAL_FLAG if ephemeral else 0)
            case Set(_, value, version):
                return requests.SetData(path, value, version)
            case Delete(_, version):
                return requests.Delete(path, version)

    async def _create_chroot(self) -> None:
        missing = []
        path = self._chroot
        while path and path != "/":
            missing.append(path)
            path = parent_of(path)
        for path in reversed(missing):
            request = _requests().Create(path, b"", _open_acl(), 0)
            with suppress(NodeExists):
                await self._submit(request, lambda _answer, _revision: None, path)

    def _submit(
        self, request: Any, convert: Callable[[Any, int], Any], path: str = "", *, may_repeat: bool = True
    ) -> asyncio.Future[Any]:
        future = self._callers.new_call()
        if not future.done():
            self._waiting.append(_Call(request, future, convert, path, may_repeat))
            self._send()
        return future

    def _send(self) -> None:
        while self._waiting and self._in_flight < MAX_IN_FLIGHT_CALLS:
            call = self._waiting[0]
            if not call.future.done():
                with self._gate:
                    if not self._may_send:
                        return
                    self._client._call(call.request, _Answer(self, call))
                self._in_flight += 1
            self._waiting.popleft()

    def _on_answer(self, call: _Call, response: Any, revision: int, error: Exception | None) -> None:
        self._in_flight -= 1
        if not call.future.done():
            if error is not None and call.may_repeat and isinstance(error, _lost_connection()):
                self._waiting.appendleft(call)
            else:
                self._settle(call, response, revision, error)
        self._callers.forget_answered()
        self._send()

    def _settle(self, call: _Call, response: Any, revision: int, error: Exception | None) -> None:
        try:
            if error is not None:
                raise _error_of(error, call.path)
            call.future.set_result(call.convert(response, revision))
        except StoreError as failure:
            call.future.set_exception(failure)

    # ---- watches, on the loop

    def _arm(self, prefix: str) -> None:
        """Have the server tell us of changes. What changed before it does is not told, so fire then."""
        self._armed.add(prefix)
        request = _AddWatch(self._full(prefix))
        armed = self._submit(request, lambda _answer, _revision: self._callers.fire([prefix]), prefix)
        armed.add_done_callback(self._on_armed)

    def _on_armed(self, armed: asyncio.Future[Any]) -> None:
        ignore_failure(armed)
        if not armed.cancelled() and isinstance(armed.exception(), _NoWatches) and not self._reread_timer:
            self._reread()

    def _reread(self) -> None:
        self._callers.fire_all()
        self._reread_timer = self._callers.loop.call_later(REREAD_INTERVAL_S, self._reread)

    def _on_event(self, full_path: str) -> None:
        self._callers.fire([full_path[len(self._chroot) :] or "/"])

    # ---- the connection

    def _on_link(self, link: str) -> None:
        """Called by kazoo's thread with CONNECTED, SUSPENDED or LOST."""
        with self._gate:
            self._is_lost = self._is_lost or link == "LOST"
            # Once lost, a connection is one of the next session, which is not ours.
            self._may_send = link == "CONNECTED" and not self._is_lost
        if self._is_lost:
            self._post(self._on_lost)
        elif link == "CONNECTED":
            self._post(self._on_connected, self._client.client_id[0])
        else:
            self._post(self._on_suspended)

    def _on_connected(self, session_id: int) -> None:
        assert self._connected is not None
        self._session_id = session_id
        self._callers.change_state(State.CONNECTED)
        if not self._connected.done():
            self._connected.set_result(None)
        self._armed.clear()
        for prefix in self._callers.prefixes:
            self._arm(prefix)
        self._send()

    def _on_suspended(self) -> None:
        if self.state is State.CONNECTED:
            self._callers.change_state(State.SUSPENDED)

    def _on_lost(self) -> None:
        if self._closing or self.state is State.EXPIRED:
            return
        self._callers.refuse(self._expired)
        self._callers.fail_all(self._expired())
        self._waiting.clear()
        self._callers.change_state(State.EXPIRED)
        self._in_thread(self._stop_kazoo)

    def _expired(self) -> SessionExpired:
        return SessionExpired(
            f"the session of this process with {self._name} has ended: open the store again"
        )

    async def _stop_client(self) -> None:
        stopped = asyncio.Event()

        def stop() -> None:
            self._stop_kazoo()
            self._post(stopped.set)

        self._in_thread(stop)
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), STOP_TIMEOUT_S)

    def _stop_kazoo(self) -> None:
        # A server that does not answer: kazoo's thread is a daemon, and the session ends by its timeout.
        with suppress(Exception):
            self._client.stop()
            self._client.close()

    def _in_thread(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="klamm-zookeeper-stop", daemon=True).start()

    def _post(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Have the loop call this, from any thread. Answers that come together wake the loop once."""
        self._inbox.append((callback, arguments))
        if not self._is_inbox_announced:
            self._is_inbox_announced = True
            # A closed loop raises: then no caller is left to be answered.
            with suppress(RuntimeError):
                self._callers.loop.call_soon_threadsafe(self._read_inbox)

    def _read_inbox(self) -> None:
        # Before the look: what is posted after this announces itself again.
        self._is_inbox_announced = False
        while self._inbox:
            callback, arguments = self._inbox.popleft()
            callback(*arguments)


class _NoWatches(StoreError):
    """The server is too old for persistent watches."""


# ---- kazoo, which is imported when it is used first


def _new_client(hosts: str, session_timeout_s: float) -> Any:
    try:
        from kazoo.client import KazooClient
    except ImportError:
        raise StoreError("ZooKeeper needs the package kazoo: pip install 'klamm[zookeeper]'") from None
    retries = {
        "max_tries": -1,
        "delay": RECONNECT_DELAY_S,
        "max_delay": MAX_RECONNECT_DELAY_S,
        "max_jitter": 0.1,
    }
    client = KazooClient(hosts=hosts, timeout=session_timeout_s, connection_retry=retries)
    _connect_quickly(client, session_timeout_s * CONNECT_SHARE)
    return client


def _connect_quickly(client: Any, limit_s: float) -> None:
    """Give up a server that does not take the session in this time, and try again or the next one.

    kazoo waits for a whole session timeout, shared among the servers. A server that is being stopped or
    started may accept a connection and never answer: then the session would have ended before kazoo tries
    again.
    """
    connection, handler = client._connection, client.handler
    invoke, create_connection = connection._invoke, handler.create_connection

    def invoke_quickly(timeout: float, request: Any, xid: int | None = None) -> Any:
        if isinstance(request, _requests().Connect):
            timeout = min(timeout, limit_s)
        return invoke(timeout, request, xid)

    def create_quickly(*arguments: Any, timeout: float, **options: Any) -> Any:
        return create_connection(*arguments, timeout=min(timeout, limit_s), **options)

    connection._invoke, handler.create_connection = invoke_quickly, create_quickly


def _read_events(client: Any, on_event: Callable[[str], None]) -> None:
    """Call `on_event` with the path of every event; kazoo only knows events of its own watches."""
    connection = client._connection
    of_kazoo = connection._read_watch_event

    def read(buffer: bytes, offset: int) -> None:
        event, _ = _requests().Watch.deserialize(buffer, offset)
        on_event(event.path)
        of_kazoo(buffer, offset)

    connection._read_watch_event = read


def _requests() -> Any:
    from kazoo.protocol import serialization

    return serialization


def _open_acl() -> Any:
    from kazoo.security import OPEN_ACL_UNSAFE

    return OPEN_ACL_UNSAFE


def _not_its_fault() -> tuple[type[Exception], ...]:
    """What a transaction answers for the operations before and after the one that failed."""
    from kazoo.exceptions import RolledBackError, RuntimeInconsistency

    return RolledBackError, RuntimeInconsistency


def _lost_connection() -> tuple[type[Exception], ...]:
    from kazoo.exceptions import ConnectionClosedError, ConnectionLoss

    return ConnectionLoss, ConnectionClosedError


def _error_of(
    error: BaseException, path: str, operation: Operation | None = None, index: int | None = None
) -> StoreError:
    """Our error for one of kazoo's."""
    from kazoo import exceptions as kazoo

    failures: list[tuple[type[Exception], type[OperationFailed], str]] = [
        (kazoo.NoNodeError, NoNode, "there is no {path}"),
        (kazoo.NodeExistsError, NodeExists, "{path} exists already"),
        (kazoo.NotEmptyError, NotEmpty, "{path} has children"),
        (kazoo.BadVersionError, BadVersion, "{path} has another version than the one named"),
        (
            kazoo.NoChildrenForEphemeralsError,
            EphemeralParent,
            "{path} cannot be created in an ephemeral node",
        ),
    ]
    for theirs, ours, text in failures:
        if isinstance(error, theirs):
            if ours is NoNode and isinstance(operation, Create):
                text = f"there is no {parent_of(path)} to create {{path}} in"
            return ours(text.format(path=path), path, operation, index)
    if isinstance(error, kazoo.SessionExpiredError):
        return SessionExpired("the session with ZooKeeper has ended: open the store again")
    if isinstance(error, kazoo.UnimplementedError):
        return _NoWatches("ZooKeeper does not know this request: it is older than 3.6")
    return Unavailable(f"ZooKeeper did not do it, or did not say so: {type(error).__name__} {error}".rstrip())
