"""`close(timeout)` ends in its time, whatever hangs, and says what was given up."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import klamm
from klamm import aio
from klamm.client.consumer.lease import Lease, Place
from klamm.client.consumer.positions import Positions
from klamm.client.consumer.subscription import Listeners
from klamm.client.results import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from tests.client.consumer.test_commits import LEFT, PARTITION, SlowGroup, at, commits_of, engine_of, turns
from tests.client.network.fake_broker import SILENCE, FakeBroker, topic_of

LIMIT_S = 20.0
"""Less than any time-out of a client that `close` must not wait for."""

SHORT_S = 0.05


class HangingCoordinator(FakeBroker):
    """Says that it is the coordinator of every group, and then nothing more."""

    def __init__(self) -> None:
        super().__init__()
        self.has_commit = asyncio.Event()
        self.answers[ApiKey.METADATA] = lambda request, version: self.metadata(topic_of("t", [1]))
        self.answers[ApiKey.FIND_COORDINATOR] = lambda request, version: FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=1, host="127.0.0.1", port=self.port, error_code=0)
                for key in request.coordinator_keys
            ]
        )
        self.answers[ApiKey.OFFSET_COMMIT] = self.commit
        for key in (ApiKey.OFFSET_FETCH, ApiKey.LIST_OFFSETS, ApiKey.FETCH):
            self.answers[key] = lambda request, version: SILENCE

    def commit(self, request: Any, version: int) -> object:
        self.has_commit.set()
        return SILENCE


async def commit_and_close_aio(broker: HangingCoordinator) -> None:
    consumer = aio.Consumer(broker.bootstrap, group="g")
    consumer.assign(("t", 0))
    await consumer.commit({("t", 0): 5}, wait=False)
    await broker.has_commit.wait()
    await consumer.close(SHORT_S)


async def commit_and_close_plain(broker: HangingCoordinator) -> None:
    consumer = await asyncio.to_thread(klamm.Consumer, broker.bootstrap, group="g")
    await asyncio.to_thread(consumer.commit, {("t", 0): 5}, wait=False)
    await broker.has_commit.wait()
    await asyncio.to_thread(consumer.close, SHORT_S)


@pytest.mark.parametrize("commit_and_close", [commit_and_close_aio, commit_and_close_plain])
async def test_a_coordinator_that_does_not_answer_a_commit(
    commit_and_close: Callable[[HangingCoordinator], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with HangingCoordinator() as broker, asyncio.timeout(LIMIT_S):
        await commit_and_close(broker)
    assert "perhaps not committed: t-0 at 5" in caplog.text


async def test_what_is_finished_does_not_wait_longer_for_a_commit_that_is_under_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    positions = Positions(threading.Lock())
    positions.assign([PARTITION])
    positions.seek(PARTITION, 20)
    state = positions.get(PARTITION)
    positions.leases[state] = Lease(state, Place(15, 0))
    commits = commits_of(SlowGroup(), positions, interval_seconds=3600.0)
    commits.is_polled = True
    under_way = asyncio.create_task(commits.commit(at(10)))
    await turns()
    async with asyncio.timeout(LIMIT_S):
        await commits.commit_finished(SHORT_S)
    under_way.cancel()
    assert "not committed: t-0 at 15; no answer" in caplog.text


async def test_a_callback_that_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    async def on_revoked(partitions: set[TopicPartition]) -> None:
        await asyncio.Event().wait()

    group = SlowGroup()
    engine, _ = engine_of(group)
    engine.subscribe("t", Listeners(on_revoked=on_revoked))
    engine.positions.assign([PARTITION])
    async with asyncio.timeout(LIMIT_S):
        await engine.farewell(time.monotonic() + SHORT_S)
    assert group.begun == [LEFT]
    assert "on_revoked did not end in time, and was cancelled: t-0" in caplog.text


async def test_a_time_out_in_a_callback_is_the_users_to_see() -> None:
    async def on_revoked(partitions: set[TopicPartition]) -> None:
        raise TimeoutError("mine")

    engine, _ = engine_of(SlowGroup())
    engine.subscribe("t", Listeners(on_revoked=on_revoked))
    engine.positions.assign([PARTITION])
    with pytest.raises(TimeoutError, match="mine"):
        await engine.farewell(time.monotonic() + LIMIT_S)


@pytest.fixture(autouse=True)
def _warnings_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "klamm")
