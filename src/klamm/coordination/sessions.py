"""Sessions of the embedded engine: how the processes that share a store file notice one another's end.

A session has two files beside the store's file. Its live file is held by flock for as long as the session's
process lives, and the process stamps the monotonic clock into it. Its wake-up pipe (a FIFO) is read by the
session's thread alone. Peers hold the other end, which serves twice: a byte in it says "the store has
changed", and the kernel reports its reader's death at once. So nobody polls for changes or for deaths.

* The lock is free: the process is dead. Its session may be ended at once.
* The lock is held, and the stamp has not changed for the session timeout: the process is paused. Its session
  may be ended, too; should the process go on, it finds its session gone before it changes anything.

A session without peers does not stamp. So a stamp is never compared with the clock: a peer measures how long
it has itself seen the same stamp, and starts anew if it was away in the meantime.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress

# How often in a session timeout a session stamps, and looks at the stamps of others.
TICKS_PER_TIMEOUT = 6
# A process that is dying closes its pipe a moment before it frees its lock. Looking again is spread out to a
# tick, in case something else holds the lock.
FIRST_RETRY_S = 0.002

_STAMP = struct.Struct("<d")
_WAKE_UP = b"\0"
_READ_BYTES = 4096


def live_path(store_path: str, session_id: int) -> str:
    return f"{store_path}.session-{session_id:x}"


def wake_path(store_path: str, session_id: int) -> str:
    return f"{store_path}.session-{session_id:x}.wake"


def is_dead(store_path: str, session_id: int) -> bool:
    """True if no process holds the live file of the session."""
    try:
        descriptor = os.open(live_path(store_path, session_id), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        # Shared: two peers that look at the same time do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def remove_files(store_path: str, session_id: int) -> None:
    for path in (wake_path(store_path, session_id), live_path(store_path, session_id)):
        with suppress(FileNotFoundError):
            os.unlink(path)


class WakeUps:
    """What a store's thread sleeps on: calls of its own process, changes by peers, the deaths of peers."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._reader = self._writer = -1
        self._readers: list[int] = []
        self._is_woken = False

    def open(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self.listen_to(self._reader)

    def listen_to(self, descriptor: int) -> None:
        """Wake up for what is written into this pipe."""
        self._poll.register(descriptor, select.POLLIN)
        self._readers.append(descriptor)

    def forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        if descriptor in self._readers:
            self._readers.remove(descriptor)

    def watch_reader_of(self, descriptor: int) -> None:
        """Wake up when the process that reads from this pipe has died."""
        self._poll.register(descriptor, 0)

    def wake(self) -> None:
        """Called by any thread of this process; free of cost while the sleeper has not come round."""
        if not self._is_woken:
            self._is_woken = True
            with suppress(BlockingIOError):
                os.write(self._writer, _WAKE_UP)

    def sleep(self, timeout_s: float | None) -> list[int]:
        """Wait to be woken; returns the pipes whose reader has died."""
        events = self._poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))
        dead = []
        for descriptor, event in events:
            if descriptor in self._readers:
                with suppress(BlockingIOError):
                    os.read(descriptor, _READ_BYTES)
            elif event & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                dead.append(descriptor)
        # Before the calls are looked at: one that comes after this wakes the thread again.
        self._is_woken = False
        return dead

    def close(self) -> None:
        """Nobody may sleep or call `wake` any more."""
        if self._reader >= 0:
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1


class OwnSession:
    """The session of one store. It begins with the store's first transaction or watch."""

    def __init__(self, store_path: str, timeout_s: float, wake_ups: WakeUps) -> None:
        self._store_path = store_path
        self._wake_ups = wake_ups
        self._live = -1
        self._wake = -1
        self.id = secrets.randbits(62) + 1
        self.timeout_s = timeout_s
        self.is_registered = False
        """The store's file knows the session, or may know it."""
        self.has_ended = False

    def hold_files(self) -> None:
        """Create the live file and the wake-up pipe, before peers can read of the session."""
        if self._live >= 0:
            return
        live, wake = live_path(self._store_path, self.id), wake_path(self._store_path, self.id)
        try:
            self._live = os.open(live, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._live, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._live, bytes(_STAMP.size), 0)
            os.mkfifo(wake, 0o644)
            # Also for writing: a pipe whose last writer leaves would report its end again and again.
            self._wake = os.open(wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self.release_files()
            raise
        self._wake_ups.listen_to(self._wake)

    def stamp(self, now: float) -> None:
        """A disk that does not take the stamp lets the session end, as it should."""
        if self._live >= 0:
            with suppress(OSError):
                os.pwrite(self._live, _STAMP.pack(now), 0)

    def release_files(self) -> None:
        if self._live < 0:
            return
        remove_files(self._store_path, self.id)
        if self._wake >= 0:
            self._wake_ups.forget(self._wake)
            os.close(self._wake)
        os.close(self._live)
        self._live = self._wake = -1


class Peer:
    """The session of another store that shares the file."""

    def __init__(self, store_path: str, session_id: int, timeout_s: float, now: float) -> None:
        self._store_path = store_path
        self.id = session_id
        self.timeout_s = timeout_s
        self._stamp = b""
        self._seen_at = now
        self.wake_pipe = -1

    def connect(self) -> bool:
        """False if nobody reads from the pipe, or this process has no descriptor left: try again later."""
        path = wake_path(self._store_path, self.id)
        with suppress(OSError):
            self.wake_pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return self.wake_pipe >= 0

    def wake(self) -> None:
        if self.wake_pipe >= 0:
            # A full pipe wakes as well, and the death of its reader is reported elsewhere.
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self.wake_pipe, _WAKE_UP)

    def is_over(self, now: float) -> bool:
        """True if the session may be ended: its process is dead, or was paused for the session timeout."""
        if is_dead(self._store_path, self.id):
            return True
        self._look(now)
        return now - self._seen_at > self.timeout_s

    def start_anew(self, now: float) -> None:
        self._seen_at = now

    def _look(self, now: float) -> None:
        try:
            with open(live_path(self._store_path, self.id), "rb", buffering=0) as live:
                stamp = live.read(_STAMP.size)
        except FileNotFoundError:
            return
        if stamp != self._stamp:
            self._stamp, self._seen_at = stamp, now

    def close(self) -> None:
        if self.wake_pipe >= 0:
            os.close(self.wake_pipe)
            self.wake_pipe = -1


class Peers:
    """All other sessions of a store's file, as the file last said."""

    def __init__(self, store_path: str, own: OwnSession, wake_ups: WakeUps, now: Callable[[], float]) -> None:
        self._store_path = store_path
        self._own = own
        self._wake_ups = wake_ups
        self._now = now
        self._peers: dict[int, Peer] = {}
        self._watched: dict[int, Peer] = {}
        self._next_tick: float | None = None
        self._last_tick = 0.0
        self._retry_s = FIRST_RETRY_S

    def follow(self, timeouts_ms: Mapping[int, int]) -> None:
        """`timeouts_ms`: all sessions of the file, our own among them perhaps."""
        now = self._now()
        for session_id in [each for each in self._peers if each not in timeouts_ms]:
            self._unwatch(self._peers[session_id])
            self._peers.pop(session_id).close()
        for session_id, timeout_ms in timeouts_ms.items():
            if session_id == self._own.id or session_id in self._peers:
                continue
            self._peers[session_id] = Peer(self._store_path, session_id, timeout_ms / 1000, now)
            self._connect(self._peers[session_id])
            # The first stamp, and the first look at the new peer, are due at once.
            self._next_tick, self._retry_s = now, FIRST_RETRY_S
        if not self._peers:
            self._next_tick = None

    def wake(self) -> None:
        for peer in self._peers.values():
            peer.wake()

    def seconds_to_tick(self) -> float | None:
        return None if self._next_tick is None else self._next_tick - self._now()

    def on_dead_pipes(self, pipes: list[int]) -> None:
        for pipe in pipes:
            self._unwatch(self._watched[pipe])
            self._next_tick = self._now()
            self._retry_s = FIRST_RETRY_S

    def tick(self) -> bool:
        """If it is time, stamp and look at the peers; True if sessions are over."""
        now = self._now()
        if self._next_tick is None or now < self._next_tick:
            return False
        interval_s = min(self._own.timeout_s, *(peer.timeout_s for peer in self._peers.values()))
        interval_s /= TICKS_PER_TIMEOUT
        if now - self._last_tick > interval_s * TICKS_PER_TIMEOUT / 2:
            # We were away: stamps that were written meanwhile were not seen, or all of us were paused.
            for peer in self._peers.values():
                peer.start_anew(now)
        self._last_tick = now
        self._own.stamp(now)
        for peer in self._peers.values():
            self._connect(peer)
        over = self.over()
        self._next_tick = now + interval_s
        if over or any(peer.wake_pipe not in self._watched for peer in self._peers.values()):
            self._next_tick = now + min(self._retry_s, interval_s)
            self._retry_s *= 2
        return bool(over)

    def over(self) -> list[int]:
        """The peers whose sessions may be ended."""
        now = self._now()
        return [session_id for session_id, peer in self._peers.items() if peer.is_over(now)]

    def stamp(self) -> None:
        """Besides the ticks: while the thread waits for the disk or for a lock."""
        if self._peers:
            self._own.stamp(self._now())

    def close(self) -> None:
        self.follow({})

    def _connect(self, peer: Peer) -> None:
        if peer.wake_pipe < 0 and peer.connect():
            self._watched[peer.wake_pipe] = peer
            self._wake_ups.watch_reader_of(peer.wake_pipe)

    def _unwatch(self, peer: Peer) -> None:
        if self._watched.pop(peer.wake_pipe, None) is not None:
            self._wake_ups.forget(peer.wake_pipe)
