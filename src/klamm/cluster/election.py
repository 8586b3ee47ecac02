"""Which broker is the controller: the one that holds `/controller`, elected through the coordination store.

One transaction creates `/controller`, which dies with its creator's session, and raises `/controller_epoch`.
Everything that the controller writes checks that epoch's version, so a controller that has been replaced
changes nothing, whatever it believes. A broker that is cut off from the store stops acting at once: it may
have been replaced. If it finds `/controller` its own when it is back, it goes on in the same term.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from klamm.cluster import layout
from klamm.cluster.loading import ControllerTerm
from klamm.coordination.store import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    SessionExpired,
    Set,
    State,
    Store,
    StoreError,
)

logger = logging.getLogger("klamm.cluster")

# How long to wait after the store failed before it is asked again. A reconnect ends the waiting.
RETRY_S = 1.0


class Controller(NamedTuple):
    """The broker that is the controller, as every broker can read it."""

    broker_id: int
    epoch: int


class ControllerElection:
    """Has this broker stand for election whenever there is no controller.

    `on_elected` begins a term of this broker, and `on_resigned` ends it; they come in turns. `on_controller`
    is told who the controller is, None if there is none. The callbacks must return quickly.
    """

    def __init__(
        self,
        store: Store,
        broker_id: int,
        *,
        on_elected: Callable[[ControllerTerm], None],
        on_resigned: Callable[[], None],
        on_controller: Callable[[Controller | None], None] = lambda controller: None,
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._on_elected = on_elected
        self._on_resigned = on_resigned
        self._on_controller = on_controller
        self._known: Controller | None = None
        self._term: ControllerTerm | None = None
        self._dirty = asyncio.Event()

    @property
    def term(self) -> ControllerTerm | None:
        """This broker's term as the controller, None if it is not the controller."""
        return self._term

    async def run(self) -> None:
        """Stand for election until the session ends or the task is cancelled; then the term is over."""
        watch = self._store.watch(layout.CONTROLLER, self._dirty.set)
        self._store.on_state(self._follow_state)
        try:
            while self._store.state is not State.EXPIRED:
                self._dirty.clear()
                if self._store.state is State.CONNECTED:
                    await self._look_and_stand()
                await self._dirty.wait()
        except SessionExpired:
            pass
        finally:
            watch.cancel()
            self._resign()

    def _follow_state(self, state: State) -> None:
        if state is not State.CONNECTED:
            self._resign()
        self._dirty.set()

    async def _look_and_stand(self) -> None:
        try:
            while not await self._look():
                await self._stand()
        except SessionExpired:
            raise
        except StoreError as error:
            logger.warning("the election of the controller waits for the store: %s", error)
            asyncio.get_running_loop().call_later(RETRY_S, self._dirty.set)

    async def _look(self) -> bool:
        """True if there is a controller. If that is this broker, its term begins or goes on."""
        try:
            node = await self._store.get(layout.CONTROLLER)
        except NoNode:
            self._resign()
            self._tell(None)
            return False
        controller = Controller(*layout.decode_controller(layout.CONTROLLER, node))
        if node.owner != self._store.session_id:
            # Also if the broker is this one in an earlier session: that one's end is waited for.
            self._resign()
        elif self._term is None:
            epoch_node = await self._store.get(layout.CONTROLLER_EPOCH)
            if int(layout.decode(layout.CONTROLLER_EPOCH, epoch_node)) != controller.epoch:
                # Somebody has raised the epoch by hand: only a new election makes a term that holds.
                await self._store.txn([Delete(layout.CONTROLLER, node.version)])
                return False
            self._begin(ControllerTerm(controller.epoch, epoch_node.version))
        self._tell(controller)
        return True

    async def _stand(self) -> None:
        """Try to become the controller; `_look` finds out who did."""
        node = await self._store.get(layout.CONTROLLER_EPOCH)
        epoch = int(layout.decode(layout.CONTROLLER_EPOCH, node)) + 1
        held = Create(layout.CONTROLLER, layout.encode_controller(self._broker_id, epoch), ephemeral=True)
        raised = Set(layout.CONTROLLER_EPOCH, layout.encode(epoch), node.version)
        with suppress(NodeExists, BadVersion):  # another broker was faster
            await self._store.txn([held, raised])

    def _begin(self, term: ControllerTerm) -> None:
        if self._store.state is State.CONNECTED:  # else that state was told while the store was read
            self._term = term
            self._on_elected(term)

    def _resign(self) -> None:
        if self._term is not None:
            self._term = None
            self._on_resigned()

    def _tell(self, controller: Controller | None) -> None:
        if controller != self._known:
            self._known = controller
            self._on_controller(controller)
