"""A broker's registration: who may have an id, and what happens when a session ends."""

from __future__ import annotations

import asyncio

import pytest

from klamm.cluster import layout
from klamm.cluster.loading import prepare_store
from klamm.cluster.service import ClusterService
from klamm.config.loading import BrokerConfig
from klamm.coordination.store import State
from klamm.coordination.watchdog import LoopWatchdog
from klamm.model.ids import NEVER_INTACT, IntactEpochs
from klamm.node import membership
from klamm.node.membership import IdIsTaken, Membership
from tests.cluster.model_sessions import SharedModel
from tests.cluster.scenario import TIME_LIMIT_S, broker
from tests.waiting import until

SESSION_TIMEOUT_S = 60.0


class Member:
    """A broker over the model, and what became of it, in order."""

    def __init__(self, model, broker_id=1, session_timeout_s=SESSION_TIMEOUT_S):
        self.model = model
        self.events = []
        self.store = None
        self.cluster = ClusterService(model.session(), BrokerConfig({"node.id": str(broker_id)}))
        self.membership = Membership(
            broker_id,
            self._new_store,
            self.cluster,
            session_timeout_s=session_timeout_s,
            watchdog=LoopWatchdog(session_timeout_s),
            on_registered=self.events.append,
            on_lost=self._on_lost,
            on_cut_off=lambda: self.events.append("cut off"),
        )
        self.broker = broker(broker_id)

    def _new_store(self):
        self.store = self.model.session()
        return self.store

    async def _on_lost(self):
        assert self.membership.broker_epoch is None, "nothing may be obeyed in the epoch that is over"
        self.events.append("lost")

    async def start(self, intact_epochs=NEVER_INTACT):
        store = await self.membership.open()
        await self.cluster.join(store, None, None)
        await self.membership.register(self.broker, intact_epochs)


def run(scenario):
    async def main():
        model = SharedModel()
        await prepare_store(model)
        await asyncio.wait_for(scenario(model), TIME_LIMIT_S)

    asyncio.run(main())


async def registration_of(model, broker_id):
    path = layout.broker_path(broker_id)
    node = await model.get(path)
    return layout.decode_registration(path, node), node


def test_the_broker_epoch_is_the_revision_of_the_registration():
    async def scenario(model):
        member = Member(model)
        await member.start(IntactEpochs(15, 17))
        registration, node = await registration_of(model, 1)
        assert member.events == [node.created_rev] and member.membership.broker_epoch == node.created_rev
        assert registration.intact_epochs == IntactEpochs(15, 17)
        assert member.membership.intact_epochs == IntactEpochs(15, node.created_rev)
        assert registration.broker.endpoints == member.broker.endpoints
        await until(lambda: member.cluster.controller is not None)
        assert member.cluster.controller.broker_id == 1
        await member.membership.close()

    run(scenario)


def test_the_end_of_an_earlier_session_of_the_same_broker_is_waited_for():
    async def scenario(model):
        first, second = Member(model), Member(model)
        await first.start()
        starting = asyncio.create_task(second.start())
        await until(lambda: second.store is not None and second.store._watches, "it waits for the node")
        await asyncio.sleep(0)
        assert not starting.done()
        await first.membership.close()
        await starting
        assert second.events[0] > first.events[0]
        await second.membership.close()

    run(scenario)


def test_an_id_that_another_broker_keeps_is_refused(monkeypatch):
    monkeypatch.setattr(membership, "PATIENCE_IN_TIMEOUTS", 0.0)

    async def scenario(model):
        first, second = Member(model), Member(model)
        await first.start()
        with pytest.raises(IdIsTaken, match="another broker with the id 1 is alive"):
            await second.start()
        await second.membership.close()
        assert (await registration_of(model, 1))[1].created_rev == first.events[0]
        await first.membership.close()

    run(scenario)


def test_a_broker_whose_session_ended_registers_again_as_one_that_stopped_cleanly():
    """It stops its replicas first, and it has lost nothing."""

    async def scenario(model):
        member = Member(model)
        await member.start()
        (epoch,) = member.events
        await until(lambda: member.cluster.controller is not None)
        member.store.go_to(State.EXPIRED)
        await until(lambda: len(member.events) == 3)
        assert member.events[:2] == [epoch, "lost"] and member.events[2] > epoch
        registration, node = await registration_of(model, 1)
        assert registration.intact_epochs == (epoch, epoch) and node.created_rev == member.events[2]
        await until(lambda: member.cluster.controller is not None)
        member.store.go_to(State.EXPIRED)
        await until(lambda: len(member.events) == 5)
        registration, _ = await registration_of(model, 1)
        assert registration.intact_epochs == (epoch, member.events[2]), "no controller may have seen the last"
        await until(lambda: member.cluster.controller is not None)
        await member.membership.close()

    run(scenario)


def test_a_broker_that_is_cut_off_from_the_store_stops_when_the_controller_disowns_it():
    async def scenario(model):
        member = Member(model)
        await member.start()
        (epoch,) = member.events
        await until(lambda: member.cluster.controller is not None)
        member.membership.on_disowned(epoch)
        await asyncio.sleep(0)
        assert member.events == [epoch], "the store can be asked: the controller may be behind"
        member.store.go_to(State.SUSPENDED)
        member.membership.on_disowned(epoch - 1)
        await asyncio.sleep(0)
        assert member.events == [epoch], "that was an earlier epoch"
        member.membership.on_disowned(epoch)
        await until(lambda: len(member.events) == 4)
        assert member.events[:3] == [epoch, "lost", "cut off"] and member.events[3] > epoch
        await until(lambda: member.cluster.controller is not None)
        await member.membership.close()

    run(scenario)
