"""What the controller says reaches each broker in order and once it is obeyed, and no other epoch of it."""

from __future__ import annotations

import asyncio

import pytest

from klamm.cluster import channels
from klamm.cluster.announcing import EPOCH_OF_DELETED, Requests
from klamm.cluster.channels import Channels
from klamm.cluster.image import BrokerImage, ClusterImage
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k04_leader_and_isr import LeaderAndIsrRequest
from klamm.protocol.messages.k05_stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from klamm.protocol.messages.k06_update_metadata import UpdateMetadataRequest
from tests.waiting import until

from .fake_brokers import FakeBrokers
from .scenario import TIME_LIMIT_S


class Scenario:
    def __init__(self):
        self.brokers = FakeBrokers()
        self.deleted = []
        self.was_replaced = False
        self.channels = Channels(
            self.brokers.send,
            full=lambda broker_id: requests(0),
            on_deleted=lambda broker_id, topic_ids: self.deleted.append((broker_id, topic_ids)),
            on_roles=lambda broker, response: None,
            on_replaced=self._replaced,
        )

    def _replaced(self):
        self.was_replaced = True

    def tell(self, told, **epochs):
        """Tell brokers requests by number; `epochs` are all living brokers: b2=100."""
        brokers = {
            int(name[1:]): BrokerImage(int(name[1:]), {}, epoch=epoch) for name, epoch in epochs.items()
        }
        image = ClusterImage("c", 1, brokers)
        return self.channels.tell(image, {each: requests(number) for each, number in told.items()})

    def heard(self, broker_id):
        """The numbers of what the broker has heard, each once for its three requests."""
        numbers = [request.controller_epoch for each, request in self.brokers.heard if each == broker_id]
        assert [numbers[at : at + 2] for at in range(0, len(numbers), 2)] == [[n, n] for n in numbers[::2]]
        return numbers[::2]


def requests(number):
    return Requests(
        UpdateMetadataRequest(controller_epoch=number), None, LeaderAndIsrRequest(controller_epoch=number)
    )


def run(scenario, monkeypatch):
    monkeypatch.setattr(channels, "FIRST_PAUSE_S", 0.0)

    async def main():
        parts = Scenario()
        try:
            await asyncio.wait_for(scenario(parts), TIME_LIMIT_S)
        finally:
            parts.channels.close()

    asyncio.run(main())


def test_each_broker_hears_everything_in_order_and_a_slow_one_holds_up_no_other(monkeypatch):
    async def scenario(parts):
        gate = parts.brokers.gates[2] = asyncio.Event()
        told = [parts.tell({2: number, 3: number}, b2=7, b3=8) for number in range(1, 6)]
        await asyncio.gather(*(of_3 for _, of_3 in told))
        assert parts.heard(3) == [1, 2, 3, 4, 5] and parts.heard(2) == []
        assert not any(of_2.done() for of_2, _ in told)
        gate.set()
        await asyncio.gather(*(of_2 for of_2, _ in told))
        assert parts.heard(2) == [1, 2, 3, 4, 5]

    run(scenario, monkeypatch)


@pytest.mark.parametrize("code", [None, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_what_is_not_obeyed_is_told_again(monkeypatch, code):
    """Also when a broker does not know its own new epoch yet: that is not delivered."""

    async def scenario(parts):
        parts.brokers.codes[2] = [code, code, ErrorCode.NONE, code]
        first, second = parts.tell({2: 1}, b2=7) + parts.tell({2: 2}, b2=7)
        await asyncio.gather(first, second)
        assert parts.heard(2) == [1, 2] and parts.brokers.attempts == 7

    run(scenario, monkeypatch)


def test_a_broker_that_registered_again_is_told_nothing_in_its_old_epoch(monkeypatch):
    async def scenario(parts):
        gate = parts.brokers.gates[2] = asyncio.Event()
        (old,) = parts.tell({2: 1}, b2=7)
        await until(lambda: parts.brokers.attempts == 1)
        (new,) = parts.tell({2: 2}, b2=9)
        gate.set()
        await asyncio.gather(old, new)
        assert parts.heard(2) == [2]

    run(scenario, monkeypatch)


def test_a_channel_ends_when_its_broker_says_that_it_registered_again(monkeypatch):
    async def scenario(parts):
        parts.brokers.codes[2] = [ErrorCode.STALE_BROKER_EPOCH]
        await asyncio.gather(*parts.tell({2: 1}, b2=7), *parts.tell({2: 2}, b2=7))
        await asyncio.gather(*parts.tell({2: 3}, b2=7))
        assert parts.heard(2) == [] and parts.brokers.attempts == 1
        await asyncio.gather(*parts.tell({2: 4}, b2=8))
        assert parts.heard(2) == [4] and not parts.was_replaced

    run(scenario, monkeypatch)


def test_a_broker_that_knows_a_later_controller_ends_the_term(monkeypatch):
    async def scenario(parts):
        parts.brokers.codes[2] = [ErrorCode.STALE_CONTROLLER_EPOCH]
        await asyncio.gather(*parts.tell({2: 1}, b2=7))
        assert parts.was_replaced and parts.heard(2) == []

    run(scenario, monkeypatch)


def test_nobody_waits_for_a_broker_that_is_gone(monkeypatch):
    async def scenario(parts):
        parts.brokers.gates[2] = asyncio.Event()
        told = parts.tell({2: 1}, b2=7) + parts.tell({2: 2}, b2=7)
        parts.tell({3: 3}, b3=8)
        await asyncio.gather(*told)
        assert parts.heard(2) == []

    run(scenario, monkeypatch)


def test_one_full_set_of_requests_takes_the_place_of_very_many(monkeypatch):
    monkeypatch.setattr(channels, "MAX_WAITING", 3)

    async def scenario(parts):
        gate = parts.brokers.gates[2] = asyncio.Event()
        told = parts.tell({2: 1}, b2=7)
        await until(lambda: parts.brokers.attempts == 1)
        for number in range(2, 6):
            told += parts.tell({2: number}, b2=7)
        told += parts.tell({2: 6}, b2=7)
        gate.set()
        await asyncio.gather(*told)
        assert parts.heard(2) == [1, 0, 6]

    run(scenario, monkeypatch)


def test_a_bug_of_ours_does_not_leave_a_broker_with_half_of_what_it_must_hear(monkeypatch):
    monkeypatch.setattr(channels, "LONGEST_PAUSE_S", 0.0)

    async def scenario(parts):
        parts.brokers.codes[2] = [ValueError("a bug")]
        told = [*parts.tell({2: 1}, b2=7), *parts.tell({2: 2}, b2=7)]
        await asyncio.gather(*told)
        assert parts.heard(2) == [0], "a full set"
        await asyncio.gather(*parts.tell({2: 3}, b2=7))
        assert parts.heard(2) == [0, 3]

    run(scenario, monkeypatch)


def test_deletions_are_confirmed_by_the_answer(monkeypatch):
    def stopped(name, epoch):
        partition = StopReplicaPartitionState(partition_index=0, leader_epoch=epoch, delete_partition=True)
        return StopReplicaTopicState(
            topic_name=name, topic_id=name.encode() * 16, partition_states=[partition]
        )

    async def scenario(parts):
        request = StopReplicaRequest(topic_states=[stopped("d", EPOCH_OF_DELETED), stopped("m", 4)])
        image = ClusterImage("c", 1, {2: BrokerImage(2, {}, epoch=7)})
        parts.brokers.codes[2] = [None]
        await asyncio.gather(*parts.channels.tell(image, {2: Requests(None, request, None)}))
        assert parts.deleted == [(2, [b"d" * 16])], "the other was moved away"

    run(scenario, monkeypatch)
