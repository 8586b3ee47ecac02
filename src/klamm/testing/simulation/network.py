"""Simulated nodes, and the network between them: requests and answers over connections like those of TCP.

* Messages from one node to another arrive in order, late at times. None is doubled.
* A cut is one-way and silent: what is sent into it stays there until the cut heals. A sender learns of it
  only by its own time-out, and then opens another connection. What the old one held is dropped, or arrives
  late, after newer requests: the receiver may have had it in a buffer.
* A killed process resets its connections; a machine that lost power says nothing.
* A paused node does nothing; its messages and timers are handled late, when it resumes.

An answer of None means that there was none: whether the request was handled is not known.
"""

from __future__ import annotations

import asyncio
import random
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable
from typing import Any

from klamm.testing.simulation.loop import ProcessLoop, VirtualLoop

Answer = Callable[[Any], None]

_LATE_CHANCE = 0.01
_LATE_DELAY_S = 0.8
"""About as long as TCP takes to send a lost segment again, a few times."""
_ARRIVES_AFTER_BREAK_CHANCE = 0.4


class Node:
    """A process on a machine. Everything that happens in it passes through `run`."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self.network = network
        self.loop = network.loop
        self.is_up = False
        self.is_paused = False
        self.incarnation = 0
        self.process_loop: ProcessLoop | None = None
        """What coroutines of this process run on, if it has any."""
        self._past_loops: list[ProcessLoop] = []
        self._backlog: deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = deque()
        network.nodes[name] = self

    def handle(self, kind: str, payload: Any, answer: Answer) -> None:
        """A request has arrived."""
        raise NotImplementedError

    def run(self, incarnation: int, callback: Callable[..., None], *arguments: Any) -> None:
        if incarnation != self.incarnation or not self.is_up:
            return
        if self.is_paused:
            self._backlog.append((incarnation, callback, arguments))
        elif self.process_loop is None:
            callback(*arguments)
        else:
            before = _get_running_loop()
            _set_running_loop(self.process_loop)
            try:
                callback(*arguments)
            finally:
                _set_running_loop(before)

    def new_process_loop(self, on_error: Callable[[dict[str, Any]], None]) -> ProcessLoop:
        """An event loop for the coroutines of this life of the process."""
        incarnation = self.incarnation
        if self.process_loop is not None:
            self._past_loops.append(self.process_loop)
        self.process_loop = ProcessLoop(self.loop, lambda callback: self.run(incarnation, callback), on_error)
        return self.process_loop

    def later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.loop.schedule(delay_s, self.run, self.incarnation, callback, *arguments)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        while self._backlog and not self.is_paused:
            self.run(*_flat(self._backlog.popleft()))

    def stop(self) -> None:
        """The process is gone, and with it all that it had planned."""
        self.is_up = False
        self.is_paused = False
        self.incarnation += 1
        self._backlog.clear()
        if self.process_loop is not None:
            self.process_loop.end()

    def dispose(self) -> None:
        """After the run."""
        for loop in (*self._past_loops, self.process_loop):
            if loop is not None:
                loop.dispose()


def _flat(planned: tuple[int, Callable[..., None], tuple[Any, ...]]) -> tuple[Any, ...]:
    incarnation, callback, arguments = planned
    return (incarnation, callback, *arguments)


class _Request:
    __slots__ = ("back", "incarnation", "is_open", "on_answer", "source", "target", "way")

    def __init__(self, source: Node, target: Node, way: _Way, back: _Way, on_answer: Answer) -> None:
        self.source = source
        self.target = target
        self.way = way
        self.back = back
        self.incarnation = source.incarnation
        self.on_answer = on_answer
        self.is_open = True

    def close(self, answer: Any) -> None:
        if self.is_open:
            self.is_open = False
            self.source.run(self.incarnation, self.on_answer, answer)


class _Way:
    """One direction between two nodes."""

    __slots__ = ("held", "is_cut", "open_requests", "ready_s")

    def __init__(self) -> None:
        self.is_cut = False
        self.ready_s = 0.0
        self.held: list[tuple[_Request, Callable[[], None]]] = []
        self.open_requests: dict[_Request, None] = {}


class Network:
    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.nodes: dict[str, Node] = {}
        self.slowness = 1.0
        self._ways: dict[tuple[str, str], _Way] = {}

    def request(
        self, source: Node, target: str, kind: str, payload: Any, on_answer: Answer, timeout_s: float
    ) -> None:
        """Send a request; `on_answer` gets what the target answers, or None."""
        way, back = self._way(source.name, target), self._way(target, source.name)
        request = _Request(source, self.nodes[target], way, back, on_answer)
        way.open_requests[request] = None
        self.loop.schedule(timeout_s, self._time_out, request)
        self._send(way, request, lambda: self._arrive(request, kind, payload))

    def call(
        self, source: Node, target: str, kind: str, payload: Any, timeout_s: float
    ) -> asyncio.Future[Any]:
        """As `request`, for coroutines of `source`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(answer: Any) -> None:
            if not future.done():
                future.set_result(answer)

        self.request(source, target, kind, payload, answered, timeout_s)
        return future

    def cut(self, source: str, target: str) -> None:
        self._way(source, target).is_cut = True

    def heal(self, source: str, target: str) -> None:
        way = self._way(source, target)
        way.is_cut = False
        held, way.held = way.held, []
        for request, deliver in held:
            if request.is_open or self.chance.random() < _ARRIVES_AFTER_BREAK_CHANCE:
                self._send(way, request, deliver)

    def heal_all(self) -> None:
        for source, target in list(self._ways):
            self.heal(source, target)

    def reset_connections(self, node: Node) -> None:
        """The process has ended: whoever waits for an answer of it is told that there is none."""
        for (_, target), way in self._ways.items():
            if target == node.name:
                for request in list(way.open_requests):
                    self._forget(request)
                    request.close(None)

    # ---- how

    def _way(self, source: str, target: str) -> _Way:
        way = self._ways.get((source, target))
        if way is None:
            way = self._ways[(source, target)] = _Way()
        return way

    def _send(self, way: _Way, request: _Request, deliver: Callable[[], None]) -> None:
        chance = self.chance.random()
        delay_s = (0.0005 + 0.002 * chance) * self.slowness
        if chance > 1 - _LATE_CHANCE:
            delay_s += _LATE_DELAY_S * self.chance.random()
        way.ready_s = max(way.ready_s, self.loop.time() + delay_s)
        self.loop.schedule_at(way.ready_s, self._deliver, way, request, deliver)

    def _deliver(self, way: _Way, request: _Request, deliver: Callable[[], None]) -> None:
        if way.is_cut:
            way.held.append((request, deliver))
        else:
            deliver()

    def _arrive(self, request: _Request, kind: str, payload: Any) -> None:
        target = request.target
        if not target.is_up:
            self._forget(request)
            request.close(None)
            return

        def answer(value: Any) -> None:
            if request.is_open:
                self._send(request.back, request, lambda: self._finish(request, value))

        target.run(target.incarnation, target.handle, kind, payload, answer)

    def _finish(self, request: _Request, value: Any) -> None:
        self._forget(request)
        request.close(value)

    def _time_out(self, request: _Request) -> None:
        if request.is_open:
            self._finish(request, None)

    def _forget(self, request: _Request) -> None:
        request.way.open_requests.pop(request, None)
