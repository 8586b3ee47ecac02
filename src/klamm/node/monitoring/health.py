"""Whether a broker can serve: what `/readyz` answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from klamm.coordination.store import StoreError

if TYPE_CHECKING:
    from klamm.node.broker import BrokerNode

STORE_TIMEOUT_S = 2.0
"""Less than the time after which probes usually give up."""

FRESH_S = 1.0
"""How long an answer of the store holds, however many probes there are."""


class Health:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._looking: asyncio.Task[str | None] | None = None
        self._looked_s = float("-inf")

    async def why_not_ready(self) -> str | None:
        """One line, or None if the broker is ready."""
        node = self._node
        if node.stage:
            return node.stage
        if node.membership is not None and node.broker_epoch is None:
            return "the broker is not registered: its session has ended, and it tries to register again"
        return await self._why_no_store()

    async def _why_no_store(self) -> str | None:
        loop = asyncio.get_running_loop()
        if self._looking is None or (self._looking.done() and loop.time() - self._looked_s >= FRESH_S):
            self._looked_s = loop.time()
            self._looking = loop.create_task(self._look(), name="klamm-readiness")
        return await asyncio.shield(self._looking)

    async def _look(self) -> str | None:
        try:
            await asyncio.wait_for(asyncio.ensure_future(self._node.store.list("/")), STORE_TIMEOUT_S)
        except TimeoutError:
            return f"the coordination store has not answered within {STORE_TIMEOUT_S:g} s"
        except StoreError as error:
            return " ".join(f"the coordination store does not answer: {error}".split())
        return None
