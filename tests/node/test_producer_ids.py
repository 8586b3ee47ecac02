"""Producer ids: from the controller in blocks, asked for in advance, and never given twice."""

from __future__ import annotations

import asyncio

import pytest

import klamm
from klamm.client.errors import ConnectionFailed
from klamm.model.errors import ErrorCode, KafkaError
from klamm.node import producer_ids
from klamm.node.producer_ids import ProducerIdBlocks
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest
from klamm.testing import Cluster
from klamm.testing.wire import WireConnection
from tests.waiting import until, wait_until


class FakeController:
    """Gives blocks of ten while it `gives`."""

    def __init__(self) -> None:
        self.asked = 0
        self.gives = asyncio.Event()
        self.gives.set()

    async def ask(self) -> range:
        self.asked += 1
        first = 10 * self.asked
        await self.gives.wait()
        return range(first, first + 10)


async def test_the_next_block_is_asked_for_before_the_current_one_is_empty() -> None:
    controller = FakeController()
    blocks = ProducerIdBlocks(controller.ask)
    ids = [await blocks.next() for _ in range(8)]
    assert controller.asked == 1
    ids.append(await blocks.next())
    await until(lambda: controller.asked == 2)
    controller.gives.clear()
    ids += [await asyncio.wait_for(blocks.next(), 5) for _ in range(11)]
    assert ids == list(range(10, 30)), "nobody waited for the second block"
    await blocks.shut_down()


async def test_several_wait_for_one_block() -> None:
    controller = FakeController()
    controller.gives.clear()
    blocks = ProducerIdBlocks(controller.ask)
    waiting = [asyncio.ensure_future(blocks.next()) for _ in range(5)]
    await until(lambda: controller.asked == 1)
    controller.gives.set()
    assert sorted(await asyncio.gather(*waiting)) == [10, 11, 12, 13, 14]
    assert controller.asked == 1
    await blocks.shut_down()


@pytest.mark.parametrize("fails", [True, False], ids=["no connection", "no answer"])
async def test_without_a_controller_producers_are_told_to_try_again(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_ids, "PATIENCE_S", 0.01)

    async def ask() -> range:
        if fails:
            raise ConnectionFailed("gone")
        return await asyncio.get_running_loop().create_future()

    blocks = ProducerIdBlocks(ask)
    with pytest.raises(KafkaError) as refused:
        await blocks.next()
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await blocks.shut_down()


def test_every_broker_gives_ids_of_its_own_also_after_the_controller_has_changed() -> None:
    given: list[int] = []

    def give(cluster: Cluster, broker_id: int) -> int:
        with WireConnection(cluster.address(broker_id)) as wire:
            answer = wire.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
        if answer.error_code == ErrorCode.NONE:
            given.append(answer.producer_id)
        return int(answer.error_code)

    with Cluster(brokers=3) as cluster, klamm.Admin(cluster.bootstrap) as admin:
        for broker_id in cluster.ids:
            assert give(cluster, broker_id) == ErrorCode.NONE
        assert sorted(each // 1000 for each in given) == [0, 1, 2], "one block for each broker"
        controller = wait_until(lambda: admin.describe_cluster().controller_id, "there is a controller")
        cluster.kill(controller)
        for broker_id in cluster.running:
            node = cluster.broker(broker_id).node
            assert node is not None
            node._producer_ids._block = range(0)
            wait_until(lambda at=broker_id: give(cluster, at) == ErrorCode.NONE, "an id is given")
    assert len(set(given)) == len(given)
