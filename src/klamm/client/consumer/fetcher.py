"""Fetches in the background what the planner plans: one task per broker while there is something to fetch.

`kick` makes the fetcher check for something to fetch; it is called after every change that fetching depends
on. Tasks send one fetch after the other and end when there is nothing more to fetch. `close` cancels and
awaits them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from klamm.client.consumer.fetch_planner import FetchPlanner
from klamm.client.consumer.fetch_requests import FetchPlan
from klamm.client.consumer.partition_state import Need
from klamm.client.consumer.position_finder import PositionFinder
from klamm.client.errors import ClientError
from klamm.client.logs import client_logger
from klamm.client.network.connection import BrokerConnection
from klamm.client.network.network import Network
from klamm.protocol.apis import ApiKey

FETCH_LANE = "fetch"
"""The connections on which brokers hold fetches back until records arrive; other requests would wait behind
them."""

EXPRESS_LANE = "express"
"""The connections of fetches that do not wait; made when they are first needed."""


class _Landing:
    """Takes in the answer to one fetch as soon as it is received, not when the task that sent the fetch runs
    again: a poll that waits for the records is woken before that task."""

    __slots__ = ("_fetcher", "_plan", "ended", "failure", "is_for_thread")

    def __init__(self, fetcher: Fetcher, plan: FetchPlan, ended: asyncio.Future[None]) -> None:
        self._fetcher = fetcher
        self._plan = plan
        self.ended = ended
        self.failure: Exception | None = None
        """No answer came, or it could not be taken in."""
        self.is_for_thread = False
        """True if a thread waited for the records of the answer."""

    def done(self) -> bool:
        return self.ended.done()

    def set_result(self, response: Any, /) -> None:
        try:
            self.is_for_thread = self._fetcher.take(self._plan, response)
        except Exception as error:
            self.failure = error
        self.ended.set_result(None)

    def set_exception(self, error: Exception, /) -> None:
        self.failure = error
        self.ended.set_result(None)


class Fetcher:
    """Runs on one loop, from `start` to `close`.

    `on_news` is called when a poll has something to return. It returns True if a thread waited for that; the
    thread kicks the fetcher after it has taken the records.
    """

    def __init__(
        self, network: Network, planner: FetchPlanner, finder: PositionFinder, on_news: Callable[[], bool]
    ) -> None:
        self._network = network
        self._planner = planner
        self._finder = finder
        self._on_news = on_news
        self._logger = client_logger("fetcher", network.client_id)
        self._timeout_seconds = network.config.seconds("request.timeout.ms") + network.config.seconds(
            "fetch.max.wait.ms"
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[tuple[int, bool], asyncio.Task[None]] = {}
        """The tasks by broker and whether they send express fetches."""
        self._finding: dict[Need, asyncio.Task[None]] = {}
        self._is_kicked = False
        self._resting: list[asyncio.Future[None]] = []
        """Tasks that wait until a thread has taken its records, that is until the next kick."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._network.on_metadata(lambda _: self.kick())
        self.kick()

    def kick(self) -> None:
        """Have the loop check soon for something new to fetch. To be called on the loop's own thread."""
        if not self._is_kicked and not self._is_closed and self._loop is not None:
            self._is_kicked = True
            self._loop.call_soon(self._drive)

    async def close(self) -> None:
        self._is_closed = True
        self._stop_timer()
        tasks = [*self._tasks.values(), *self._finding.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- inside

    def _drive(self) -> None:
        """Start the tasks that have something to do."""
        self._is_kicked = False
        if self._is_closed:
            return
        assert self._loop is not None
        for resting in self._resting:
            if not resting.done():
                resting.set_result(None)
        self._resting.clear()
        survey = self._planner.survey(self._loop.time())
        for node_id in survey.nodes:
            self._begin(node_id, is_express=False)
        for node_id in survey.express_nodes:
            self._begin(node_id, is_express=True)
        for need in survey.needs - self._finding.keys():
            self._finding[need] = self._spawn(self._find(need), f"klamm-positions-{need.name.lower()}")
        if survey.lacks_leaders:
            self._network.request_refresh()
        self._stop_timer()
        if survey.wake_at is not None:
            self._timer = self._loop.call_at(survey.wake_at, self.kick)

    def _begin(self, node_id: int, *, is_express: bool) -> None:
        if (node_id, is_express) not in self._tasks:
            work = self._fetch_from(node_id, is_express)
            self._tasks[node_id, is_express] = self._spawn(work, f"klamm-fetch-{node_id}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        assert self._loop is not None
        # A context of its own: the context of a kick may hold a deadline, which must not end this task.
        return self._loop.create_task(work, name=name, context=Context())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _find(self, need: Need) -> None:
        try:
            await self._finder.run(need)
        except asyncio.CancelledError:
            self._is_closed = True
            raise
        except Exception:
            self._logger.exception("looking for offsets failed")
        finally:
            del self._finding[need]
            if not self._is_closed:
                self._on_news()  # a position that somebody waits for, or an error
                self.kick()

    async def _fetch_from(self, node_id: int, is_express: bool) -> None:
        network = self._network
        lane = EXPRESS_LANE if is_express else FETCH_LANE
        try:
            while not self._is_closed:
                connection = await network.connection(node_id, lane)
                if not connection.writable:
                    await connection.drained()
                version = connection.version(ApiKey.FETCH)
                plan = self._planner.plan(node_id, self._now(), version, is_express=is_express)
                if plan is None:
                    return
                await self._fetch(connection, plan)
        except ClientError as error:
            self._logger.debug("cannot fetch from broker %d: %s", node_id, error)
            self._planner.unreachable(node_id, error, self._now(), random.random())
            if not self._is_closed:
                network.request_refresh()
                self._on_news()
        except asyncio.CancelledError:
            self._is_closed = True  # cancelled by `close` or by the loop's end: start nothing more
            raise
        except Exception:
            self._logger.exception("fetching from broker %d failed", node_id)
        finally:
            del self._tasks[node_id, is_express]
            self.kick()

    async def _fetch(self, connection: BrokerConnection, plan: FetchPlan) -> None:
        """One fetch, from the request to the moment when the next may be made ready."""
        assert self._loop is not None
        landing = _Landing(self, plan, self._loop.create_future())
        try:
            connection.send_to(landing, plan.request, plan.version, self._timeout_seconds)
            await landing.ended
        except ClientError:
            self._planner.failed(plan, self._now(), random.random())
            raise
        except BaseException:
            self._planner.abandoned(plan)
            raise
        if landing.failure is not None:
            # Otherwise its partitions would never be fetched again.
            self._planner.failed(plan, self._now(), random.random())
            raise landing.failure
        if landing.is_for_thread:
            await self._let_go_first()

    def take(self, plan: FetchPlan, response: Any) -> bool:
        """Take an answer in. Returns True if a thread waited for its records."""
        outcome = self._planner.answered(plan, response, self._now(), random.random())
        counters = self._network.counters
        counters.fetches += 1
        counters.fetch_errors += outcome.errors
        counters.bytes_received += outcome.size
        if outcome.needs_metadata:
            self._network.request_refresh()
        if not outcome.size:
            self.kick()  # a partition may have to be fetched from another broker now
        return bool(outcome.size or outcome.errors) and self._on_news()

    async def _let_go_first(self) -> None:
        """Wait until the thread that waits for records has taken them. To prepare the next fetch first would
        hold the interpreter lock for longer than the thread needs; the thread kicks when it has the
        records."""
        if self._is_kicked:
            return
        assert self._loop is not None
        resting: asyncio.Future[None] = self._loop.create_future()
        self._resting.append(resting)
        await resting

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()
