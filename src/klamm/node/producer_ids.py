"""Producer ids, taken from the controller a block at a time so that most requests wait for nobody.

The next block is asked for when little of the current one is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from klamm.client.errors import ClientError
from klamm.model.errors import ErrorCode, KafkaError

ASKED_AT_PERCENT_LEFT = 10
"""As in Kafka: enough to last while the controller is asked."""

PATIENCE_S = 2.0
"""How long a producer waits for a block before it is told to try again: an election takes less."""


class ProducerIdBlocks:
    """After a restart a new block is begun: what is left of the old one is lost, and no id is given twice."""

    def __init__(self, ask: Callable[[], Awaitable[range]]) -> None:
        """`ask` has the controller give a block; it raises a ClientError or KafkaError without one."""
        self._ask = ask
        self._block = range(0)
        self._following: range | None = None
        self._asking: asyncio.Task[None] | None = None
        self._fewest = 0
        """Ids left at which the following block is asked for."""

    async def next(self) -> int:
        """The next producer id; COORDINATOR_LOAD_IN_PROGRESS while no controller gives a block."""
        while not self._block:
            if self._following is None:
                await self._wait_for_block()
            else:
                self._block, self._following = self._following, None
                self._fewest = len(self._block) * ASKED_AT_PERCENT_LEFT // 100
        producer_id, self._block = self._block[0], self._block[1:]
        if len(self._block) <= self._fewest and self._following is None:
            self._ask_soon()
        return producer_id

    async def shut_down(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _ask_soon(self) -> asyncio.Task[None]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._get(), name="klamm-producer-ids")
            self._asking.add_done_callback(_look_at)
        return self._asking

    async def _get(self) -> None:
        self._following = await self._ask()

    async def _wait_for_block(self) -> None:
        """Several producers wait for one request."""
        try:
            await asyncio.wait_for(asyncio.shield(self._ask_soon()), PATIENCE_S)
        except (ClientError, KafkaError, TimeoutError) as error:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"no producer id can be given now, because the controller gives none: {error}",
            ) from error


def _look_at(task: asyncio.Task[None]) -> None:
    """Whoever needs an id asks again: a block that was not given in advance is not an error yet."""
    if not task.cancelled():
        task.exception()
