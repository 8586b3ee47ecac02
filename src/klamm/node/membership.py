"""This broker's place in a cluster: its session with the store, its registration, and the elections.

A broker is in the cluster for as long as its node `/brokers/ids/<id>` lives, which is as long as its session
does. If the session ends while the broker lives on, others have been elected to lead what it led: so it stops
all its replicas, opens a new session and registers again, in a new broker epoch. It has lost no records by
that, so it counts as one that had stopped cleanly, also if no controller has noticed its last epochs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from klamm.cluster import layout
from klamm.cluster.election import ControllerElection
from klamm.cluster.image import BrokerImage, Endpoint
from klamm.cluster.layout import Registration
from klamm.cluster.service import ClusterService
from klamm.coordination.engines import pause_thread
from klamm.coordination.store import Create, NodeExists, NoNode, Set, State, Store, StoreError
from klamm.coordination.watchdog import Watchdog
from klamm.model.ids import NEVER_INTACT, IntactEpochs

logger = logging.getLogger("klamm.node")

RETRY_S = 0.5
"""Pause before a broker whose session has ended tries again to register."""

PATIENCE_IN_TIMEOUTS = 1.5
"""How many session timeouts a broker waits for the end of a session that holds its id: one of its own, before
a crash, ends within one."""


class IdIsTaken(Exception):
    """Another broker that is alive has this broker's id."""


class Membership:
    def __init__(
        self,
        node_id: int,
        new_store: Callable[[], Store],
        cluster: ClusterService,
        *,
        session_timeout_s: float,
        watchdog: Watchdog,
        on_registered: Callable[[int], None],
        on_lost: Callable[[], Awaitable[None]],
        on_cut_off: Callable[[], None] = lambda: None,
    ) -> None:
        """`watchdog` runs while this broker has a session. `on_registered` gets the broker epoch. `on_lost`
        stops all replicas; it is awaited before the broker registers again. `on_cut_off` is called when that
        cannot be at once: until `on_registered` this broker knows nothing of the cluster that is true."""
        self._node_id = node_id
        self._new_store = new_store
        self._cluster = cluster
        self._session_timeout_s = session_timeout_s
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._on_cut_off = on_cut_off
        self._watchdog = watchdog
        self._store: Store | None = None
        self._broker: BrokerImage | None = None
        self._task: asyncio.Task[None] | None = None
        self._disowned = asyncio.Event()
        self.broker_epoch: int | None = None
        """None while this broker is not registered."""
        self.intact_epochs = NEVER_INTACT
        """Up to the last registration, also if its session has ended."""

    @property
    def store(self) -> Store | None:
        """The store of the present session."""
        return self._store

    async def open(self) -> Store:
        """Begin a session; raises a StoreError."""
        self._store = self._new_store()
        await self._store.open()
        self._watchdog.start()
        return self._store

    async def register(self, broker: BrokerImage, intact_epochs: IntactEpochs) -> None:
        """Raises IdIsTaken or a StoreError. From here on this broker takes part in elections."""
        self._broker = broker
        self.intact_epochs = intact_epochs
        await self._register(broker)
        self._task = asyncio.create_task(self._run(), name="klamm-membership")

    async def change_endpoints(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Tell the cluster other addresses of this broker, in the same broker epoch."""
        assert self._broker is not None, "the broker has not registered"
        self._broker = replace(self._broker, endpoints=endpoints)
        while self.broker_epoch is not None:
            try:
                await self._change_registration(self._broker)
                return
            except StoreError as error:
                logger.warning(
                    "the addresses of broker %d cannot be stored; retrying: %s", self._node_id, error
                )
                await asyncio.sleep(RETRY_S)

    async def _change_registration(self, broker: BrokerImage) -> None:
        store, path = self._store, layout.broker_path(self._node_id)
        assert store is not None
        with suppress(NoNode):  # the session has ended: the broker registers again, with these addresses
            node = await store.get(path)
            if node.owner == store.session_id:
                registration = layout.decode_registration(path, node)._replace(broker=broker)
                await store.txn([Set(path, layout.encode_registration(registration), node.version)])

    async def close(self) -> None:
        """Leave the cluster."""
        self._watchdog.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._store is not None:
            await self._store.close()

    def on_disowned(self, broker_epoch: int) -> None:
        """The controller does not know this broker epoch. While the store cannot be reached that is how a
        broker hears that its session has ended; otherwise the store tells, and the controller may be behind.

        Without this, a broker that is cut off from the store alone would lead on in its own eyes, and whoever
        reads from it would wait for records that others get.
        """
        is_cut_off = self._store is not None and self._store.state is State.SUSPENDED
        if is_cut_off and broker_epoch == self.broker_epoch:
            self._disowned.set()

    def pause(self, until: Callable[[], object]) -> None:
        """For tests in the process of this broker: stop the broker where it is, as SIGSTOP stops a process.

        The event loop and the thread that keeps the session alive both call `until`, which blocks them.
        """

        def pause_both() -> None:
            if self._store is not None:
                pause_thread(self._store, until)
            until()

        self._watchdog.pause(pause_both)

    async def _register(self, broker: BrokerImage) -> None:
        registration = Registration(broker, self.intact_epochs)
        store = self._store
        assert store is not None
        path = layout.broker_path(self._node_id)
        deadline = asyncio.get_running_loop().time() + PATIENCE_IN_TIMEOUTS * self._session_timeout_s
        changed = asyncio.Event()
        watch = store.watch(path, changed.set)
        try:
            while True:
                changed.clear()
                try:
                    await store.txn([Create(path, layout.encode_registration(registration), ephemeral=True)])
                except NodeExists:
                    if await self._is_own(store, path):
                        break  # an attempt whose outcome was not known had succeeded
                    await self._wait_for_end(changed, deadline)
                    continue
                break
            node = await store.get(path)
        finally:
            watch.cancel()
        self.broker_epoch = node.created_rev
        self.intact_epochs = self.intact_epochs.with_next(node.created_rev)
        self._on_registered(node.created_rev)
        logger.info("broker %d is registered in broker epoch %d", self._node_id, node.created_rev)

    async def _is_own(self, store: Store, path: str) -> bool:
        try:
            return (await store.get(path)).owner == store.session_id
        except NoNode:
            return False

    async def _wait_for_end(self, changed: asyncio.Event, deadline: float) -> None:
        """Wait until the node of another session with this broker's id may have gone."""
        left_s = deadline - asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(changed.wait(), max(0.0, left_s))
        except TimeoutError:
            raise IdIsTaken(
                f"another broker with the id {self._node_id} is alive in this cluster: "
                "stop it, or choose another id (node.id)"
            ) from None

    async def _run(self) -> None:
        while True:
            assert self._store is not None
            election = ControllerElection(
                self._store,
                self._node_id,
                on_elected=self._cluster.on_elected,
                on_resigned=self._cluster.on_resigned,
                on_controller=self._cluster.on_controller,
            )
            try:
                is_cut_off = await self._until_over(election)
            except Exception:
                # A bug of ours must not leave a broker that takes part in no election.
                logger.exception("the election of a controller failed; broker %d tries again", self._node_id)
                await asyncio.sleep(RETRY_S)
                continue
            logger.error(
                "the session of broker %d has ended: the cluster took it for dead, since it hung or was cut "
                "off for longer than broker.session.timeout.ms. It stops its replicas and registers again",
                self._node_id,
            )
            self.broker_epoch = None
            await self._on_lost()
            if is_cut_off:
                self._on_cut_off()
            await self._rejoin()

    async def _until_over(self, election: ControllerElection) -> bool:
        """Stand for election until the session has ended, as the store says or the controller. True if the
        store cannot be reached."""
        running = asyncio.ensure_future(election.run())
        disowned = asyncio.ensure_future(self._disowned.wait())
        try:
            await asyncio.wait((running, disowned), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancelled(running, disowned)
            raise
        is_cut_off = not running.done()
        if is_cut_off:
            logger.warning(
                "broker %d cannot reach the store, and the cluster does not know it", self._node_id
            )
        outcome, _ = await _cancelled(running, disowned)
        self._disowned.clear()
        if isinstance(outcome, Exception):
            raise outcome
        return is_cut_off

    async def _rejoin(self) -> None:
        assert self._broker is not None
        while True:
            try:
                if self._store is not None:
                    await self._store.close()
                self._store = self._new_store()
                await self._store.open()
                self._cluster.use_store(self._store)
                await self._register(self._broker)
                return
            except (StoreError, IdIsTaken) as error:
                logger.warning("broker %d cannot register again: %s", self._node_id, error)
                self._on_cut_off()
                await asyncio.sleep(RETRY_S)


async def _cancelled(*tasks: asyncio.Future[Any]) -> list[Any]:
    """Cancel tasks and wait for their ends; returns what they returned or raised."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)
