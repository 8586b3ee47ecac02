"""One controller at a time: elected, replaced when its session ends, silent while it is cut off."""

from __future__ import annotations

import asyncio

from klamm.cluster import layout
from klamm.cluster.election import Controller, ControllerElection
from klamm.cluster.loading import prepare_store
from klamm.coordination.sqlite import SqliteStore
from klamm.coordination.store import Set, State
from tests.waiting import until

from .model_sessions import SharedModel
from .scenario import TIME_LIMIT_S


class Candidate:
    """A broker that stands for election, and what it was told."""

    def __init__(self, store, broker_id):
        self.store = store
        self.told = []
        self.controller = None
        self.election = ControllerElection(
            store,
            broker_id,
            on_elected=lambda term: self.told.append(term.epoch),
            on_resigned=lambda: self.told.append("resigned"),
            on_controller=self._see,
        )
        self.task = asyncio.create_task(self.election.run())

    def _see(self, controller):
        self.controller = controller

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def elect(count, scenario):
    async def main():
        model = SharedModel()
        await prepare_store(model)
        candidates = [Candidate(model.session(), number) for number in range(1, count + 1)]
        try:
            await settle()
            await asyncio.wait_for(scenario(model, *candidates), TIME_LIMIT_S)
        finally:
            for candidate in candidates:
                await candidate.stop()

    asyncio.run(main())


async def settle():
    """The model answers at once, so after some turns of the loop nothing is under way."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_one_of_all_is_elected_and_all_know_it():
    async def scenario(model, *candidates):
        first = candidates[0]
        assert [each.told for each in candidates] == [[1], [], []]
        assert {each.controller for each in candidates} == {Controller(1, 1)}
        assert first.election.term == (1, (await model.get(layout.CONTROLLER_EPOCH)).version)

    elect(3, scenario)


def test_when_the_controllers_session_ends_another_is_elected_in_a_later_epoch():
    async def scenario(model, first, second):
        first.store.go_to(State.EXPIRED)
        await settle()
        assert first.told == [1, "resigned"] and first.task.done() and first.election.term is None
        assert second.told == [2] and second.controller == Controller(2, 2)

    elect(2, scenario)


def test_a_controller_that_is_cut_off_stops_at_once_and_goes_on_in_its_term_if_it_is_still_its():
    async def scenario(model, first, second):
        first.store.go_to(State.SUSPENDED)
        assert first.told == [1, "resigned"], "before anything is awaited"
        await settle()
        assert second.told == []
        first.store.go_to(State.CONNECTED)
        await settle()
        assert first.told == [1, "resigned", 1] and second.told == []

    elect(2, scenario)


def test_a_controller_that_was_replaced_while_it_was_cut_off_does_not_go_on():
    async def scenario(model, first, second):
        first.store.go_to(State.SUSPENDED)
        first.store.end()
        await settle()
        assert second.told == [2]
        first.store.go_to(State.CONNECTED)
        await settle()
        assert first.told == [1, "resigned"] and first.controller == Controller(2, 2)

    elect(2, scenario)


def test_an_election_whose_answer_was_lost_is_found_to_be_won():
    async def scenario(model, first, second):
        second.store.loses_answers = True
        first.store.go_to(State.EXPIRED)
        await settle()
        await until(lambda: second.told == [2])

    elect(2, scenario)


def test_an_epoch_that_was_raised_by_hand_ends_the_term():
    async def scenario(model, first, second):
        model.apply([Set(layout.CONTROLLER_EPOCH, layout.encode(7))])
        first.store.go_to(State.SUSPENDED)
        first.store.go_to(State.CONNECTED)
        await settle()
        told = [*first.told, *second.told]
        assert told == [1, "resigned", 8]

    elect(2, scenario)


def test_brokers_of_one_machine_elect_through_their_file(tmp_path):
    async def main():
        stores = [SqliteStore(tmp_path / "store.db") for _ in range(3)]
        for store in stores:
            await store.open()
        await prepare_store(stores[0])
        candidates = [Candidate(store, number) for number, store in enumerate(stores)]
        try:
            for epoch in (1, 2, 3):
                await until(lambda: any(each.election.term for each in candidates))
                (elected,) = [each for each in candidates if each.election.term]
                assert elected.told == [epoch]
                await elected.stop()
                assert elected.told == [epoch, "resigned"]
                await elected.store.close()
                candidates.remove(elected)
        finally:
            for candidate in candidates:
                await candidate.stop()
                await candidate.store.close()

    asyncio.run(asyncio.wait_for(main(), TIME_LIMIT_S))
