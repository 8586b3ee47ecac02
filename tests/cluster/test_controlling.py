"""A term of the controller over a store: who is told what, when it begins, goes on and is over."""

from __future__ import annotations

import asyncio

from klamm.cluster import channels, controlling, layout
from klamm.cluster.announcing import FULL, INCREMENTAL
from klamm.cluster.controller.elections import UNCLEAN_KEY
from klamm.cluster.controller.isr import IsrProposal
from klamm.cluster.controller.topics import NewTopic
from klamm.cluster.election import ControllerElection
from klamm.cluster.image import NO_LEADER, PartitionImage
from klamm.cluster.layout import Registration
from klamm.cluster.service import ClusterService
from klamm.config.loading import BrokerConfig
from klamm.config.rows import ResourceType
from klamm.coordination.store import Create, Delete
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.k04_leader_and_isr import LeaderAndIsrRequest
from klamm.protocol.messages.k06_update_metadata import UpdateMetadataRequest
from tests.waiting import until

from .fake_brokers import FakeBrokers
from .model_sessions import SharedModel
from .scenario import TIME_LIMIT_S, broker


class Scenario:
    """Broker 1 with a real service; the other brokers are fakes that a test registers."""

    def __init__(self):
        self.model = SharedModel()
        self._outside = self.model.session()
        self.others = FakeBrokers()
        self.applied = []
        self.cluster = ClusterService(self.model.session(), BrokerConfig({"node.id": "1"}))
        self.cluster.subscribe(self._see)

    async def _see(self, old, new, delta):
        self.applied.append(delta)
        return {}

    async def start(self):
        store = self.store = self.model.session()
        await self.cluster.join(store, self.others.send, None)
        await self.register(1)
        election = ControllerElection(
            store,
            1,
            on_elected=self.cluster.on_elected,
            on_resigned=self.cluster.on_resigned,
            on_controller=self.cluster.on_controller,
        )
        self._task = asyncio.create_task(election.run())
        await until(lambda: self.cluster.is_controller)

    async def stop(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def register(self, broker_id):
        registration = Registration(broker(broker_id))
        path = layout.broker_path(broker_id)
        await self._outside.txn([Create(path, layout.encode_registration(registration))])
        return (await self.model.get(path)).created_rev

    async def leave(self, broker_id):
        await self._outside.txn([Delete(layout.broker_path(broker_id))])

    async def brokers_are(self, *broker_ids):
        await until(lambda: list(self.cluster.image.brokers) == list(broker_ids), f"{broker_ids} are alive")

    async def create(self, *replicas):
        (topic,) = await self.cluster.create_topics([NewTopic("t", assignment=[(0, replicas)])])
        return topic

    @property
    def partition(self) -> PartitionImage:
        return self.cluster.image.topics["t"].partitions[0]


def run(scenario, monkeypatch):
    monkeypatch.setattr(channels, "FIRST_PAUSE_S", 0.0)

    async def main():
        parts = Scenario()
        await parts.start()
        try:
            await asyncio.wait_for(scenario(parts), TIME_LIMIT_S)
        finally:
            await parts.stop()

    asyncio.run(main())


def test_a_broker_that_comes_hears_everything_and_then_what_changes(monkeypatch):
    async def scenario(parts):
        await parts.create(1)
        epoch = await parts.register(2)
        await parts.brokers_are(1, 2)
        await parts.cluster.create_topics([NewTopic("u", assignment=[(0, (2, 1))])])
        first, second = parts.others.heard_by(2, UpdateMetadataRequest)
        assert (first.type, second.type) == (FULL, INCREMENTAL)
        assert [topic.topic_name for topic in first.topic_states] == ["t"]
        assert [topic.topic_name for topic in second.topic_states] == ["u"]
        assert {first.broker_epoch, second.broker_epoch} == {epoch} and first.controller_epoch == 1
        full, roles = parts.others.heard_by(2, LeaderAndIsrRequest)
        assert full.topic_states == [] and [topic.topic_name for topic in roles.topic_states] == ["u"]

    run(scenario, monkeypatch)


def test_a_broker_that_restarts_leads_nothing_by_its_old_state(monkeypatch):
    """All that it hears in its new epoch was decided after its restart was noticed."""

    async def scenario(parts):
        await parts.register(2)
        await parts.brokers_are(1, 2)
        await parts.create(2, 1)
        assert parts.partition.leader == 2
        parts.others.heard.clear()
        await parts.leave(2)
        epoch = await parts.register(2)
        await until(lambda: parts.others.heard_by(2, LeaderAndIsrRequest))
        (roles,) = parts.others.heard_by(2, LeaderAndIsrRequest)
        (state,) = roles.topic_states[0].partition_states
        assert roles.broker_epoch == epoch and (state.leader, state.isr, state.leader_epoch) == (1, [1], 1)

    run(scenario, monkeypatch)


def test_a_change_does_not_wait_long_for_a_broker_and_an_isr_not_at_all(monkeypatch):
    monkeypatch.setattr(controlling, "TELLING_S", 0.01)

    async def scenario(parts):
        epoch = await parts.register(2)
        await parts.brokers_are(1, 2)
        parts.others.gates[2] = asyncio.Event()
        topic = await parts.create(1, 2)
        assert topic.name == "t"
        monkeypatch.setattr(controlling, "TELLING_S", 3600.0)
        image = parts.cluster.image
        proposal = IsrProposal(topic.topic_id, 0, 0, 0, ((1, image.brokers[1].epoch),))
        (after,) = await parts.cluster.alter_isrs(1, image.brokers[1].epoch, [proposal])
        assert after.isr == (1,) and epoch in parts.cluster.image.known_epochs.values()

    run(scenario, monkeypatch)


def test_a_leader_whose_proposal_is_superseded_is_told_the_state_again(monkeypatch):
    async def scenario(parts):
        epoch = await parts.register(2)
        await parts.brokers_are(1, 2)
        topic = await parts.create(2, 1)
        proposal = IsrProposal(topic.topic_id, 0, 0, 0, ((2, epoch),))
        (after,) = await parts.cluster.alter_isrs(2, epoch, [proposal])
        parts.others.heard.clear()
        other = proposal._replace(isr=((2, epoch), (1, -1)))
        (refused,) = await parts.cluster.alter_isrs(2, epoch, [other])
        assert isinstance(refused, KafkaError) and refused.code is ErrorCode.INVALID_UPDATE_VERSION
        await until(lambda: parts.others.heard_by(2, LeaderAndIsrRequest))
        (roles,) = parts.others.heard_by(2, LeaderAndIsrRequest)
        assert roles.topic_states[0].partition_states[0].partition_epoch == after.partition_epoch
        # The same for a leader on the controller's own broker, by a direct call.
        own_epoch = parts.cluster.image.brokers[1].epoch
        parts.applied.clear()
        (refused,) = await parts.cluster.alter_isrs(1, own_epoch, [proposal._replace(leader_epoch=-1)])
        assert refused.code is ErrorCode.FENCED_LEADER_EPOCH
        await until(lambda: parts.applied)
        assert parts.applied[0].topics["t"].partitions == (0,)

    run(scenario, monkeypatch)


def test_the_first_delta_of_a_term_has_all_partitions(monkeypatch):
    """The controller before may have died between its UpdateMetadata and its LeaderAndIsr."""

    async def scenario(parts):
        await parts.create(1)
        parts.applied.clear()
        term = parts.cluster._control._term
        parts.cluster.on_resigned()
        assert not parts.cluster.is_controller
        (refused,) = await parts.cluster.create_topics([NewTopic("u")])
        assert refused.code is ErrorCode.NOT_CONTROLLER
        parts.cluster.on_elected(term)
        await until(lambda: parts.cluster.is_controller and parts.applied)
        assert parts.applied[0].topics["t"].partitions == (0,)

    run(scenario, monkeypatch)


def test_the_first_delta_of_a_term_has_the_deletions_that_are_noted(monkeypatch):
    """This broker may have heard that the topic is gone, and not yet that its replicas are to go."""

    async def scenario(parts):
        await parts.register(2)
        await parts.brokers_are(1, 2)
        topic = await parts.create(1, 2)
        parts.others.gates[2] = asyncio.Event()
        monkeypatch.setattr(controlling, "TELLING_S", 0.01)
        await parts.cluster.delete_topics(["t"])
        parts.applied.clear()
        term = parts.cluster._control._term
        parts.cluster.on_resigned()
        parts.cluster.on_elected(term)
        await until(lambda: parts.cluster.is_controller and parts.applied)
        assert parts.applied[0].deleted_topics[topic.topic_id].brokers == (2,)

    run(scenario, monkeypatch)


def test_to_allow_unclean_elections_elects_and_ends_a_reassignment_that_only_lacked_a_leader(monkeypatch):
    async def scenario(parts):
        for broker_id in (2, 3):
            await parts.register(broker_id)
        await parts.brokers_are(1, 2, 3)
        await parts.create(2)
        assert await parts.cluster.reassign_partitions([(TopicPartition("t", 0), [3])]) == [None]
        await parts.leave(2)
        await parts.brokers_are(1, 3)
        assert (parts.partition.leader, parts.partition.isr) == (NO_LEADER, (2,))
        await parts.cluster.replace_config(ResourceType.TOPIC, "t", [(UNCLEAN_KEY, "true")])
        await until(lambda: parts.partition.leader == 3, "the replica that is alive leads")
        await until(lambda: not parts.partition.is_reassigned, "the reassignment is over")
        assert parts.partition.replicas == parts.partition.isr == (3,)

    run(scenario, monkeypatch)


def test_a_bug_of_ours_is_not_the_end_of_giving_leadership_back(monkeypatch):
    async def scenario(parts):
        looked = []

        def imbalanced(image):
            looked.append(image)
            raise ValueError("a bug")

        monkeypatch.setattr(controlling, "imbalanced_partitions", imbalanced)
        monkeypatch.setattr(controlling.Control, "_until_next_look", lambda self: asyncio.sleep(0))
        term = parts.cluster._control._term
        parts.cluster.on_resigned()
        parts.cluster.on_elected(term)
        await until(lambda: len(looked) > 1, "the controller looks again")

    run(scenario, monkeypatch)


def test_a_controller_that_another_replaced_says_nothing_more(monkeypatch):
    async def scenario(parts):
        await parts.register(2)
        await parts.brokers_are(1, 2)
        parts.others.codes[2] = [ErrorCode.STALE_CONTROLLER_EPOCH]
        await parts.create(1)
        await until(lambda: not parts.cluster.is_controller)
        parts.others.heard.clear()
        (refused,) = await parts.cluster.create_topics([NewTopic("u")])
        assert refused.code is ErrorCode.NOT_CONTROLLER and parts.others.heard == []

    run(scenario, monkeypatch)


def test_a_request_of_a_later_controller_ends_the_term(monkeypatch):
    async def scenario(parts):
        parts.cluster.obey(9)
        assert not parts.cluster.is_controller
        try:
            parts.cluster.obey(8)
            raise AssertionError("an older controller is obeyed")
        except KafkaError as error:
            assert error.code is ErrorCode.STALE_CONTROLLER_EPOCH

    run(scenario, monkeypatch)


def test_leaders_go_back_to_their_preferred_replicas(monkeypatch):
    async def scenario(parts):
        await parts.register(2)
        await parts.brokers_are(1, 2)
        topic = await parts.create(2, 1)
        await parts.leave(2)
        await until(lambda: parts.partition.leader == 1)
        epoch = await parts.register(2)
        await parts.brokers_are(1, 2)
        own_epoch = parts.cluster.image.brokers[1].epoch
        members = ((1, own_epoch), (2, epoch))
        proposal = IsrProposal(
            topic.topic_id, 0, parts.partition.leader_epoch, parts.partition.partition_epoch, members
        )
        await parts.cluster.alter_isrs(1, own_epoch, [proposal])
        assert parts.partition.leader == 1
        monkeypatch.setitem(parts.cluster.config._values, "leader.imbalance.check.interval.seconds", 0)
        control = parts.cluster._control
        control._start(control._rebalance_leaders())
        await until(lambda: parts.partition.leader == 2)

    run(scenario, monkeypatch)


def test_a_broker_that_cannot_use_a_replica_does_not_lead_it(monkeypatch):
    """It says so when it is told its role. Everybody is told; it is asked again when it registers anew."""

    async def scenario(parts):
        await parts.register(2)
        await parts.brokers_are(1, 2)
        parts.others.without_disk.add(2)
        await parts.create(2, 1)
        await until(lambda: parts.partition.leader == 1, "broker 1 leads")
        assert (parts.partition.isr, parts.partition.offline_replicas) == ((1,), (2,))
        told = parts.others.heard_by(2, UpdateMetadataRequest)[-1].topic_states[0].partition_states[0]
        assert told.offline_replicas == [2]
        parts.others.without_disk.clear()
        await parts.leave(2)
        await parts.register(2)
        await until(lambda: not parts.partition.offline_replicas, "it has a disk again")
        parts.others.without_disk.add(2)
        await parts.leave(2)
        await parts.register(2)
        await until(lambda: parts.partition.offline_replicas == (2,), "it says so again")

    run(scenario, monkeypatch)


def test_a_broker_that_can_use_a_replica_again_leads_it(monkeypatch):
    async def scenario(parts):
        await parts.register(2)
        await parts.brokers_are(1, 2)
        parts.others.without_disk.add(2)
        await parts.create(2)
        await until(lambda: parts.partition.offline_replicas == (2,))
        assert parts.partition.leader == NO_LEADER
        parts.others.without_disk.clear()
        epoch = parts.cluster.image.brokers[2].epoch
        topic_id = parts.cluster.image.topics["t"].topic_id
        await parts.cluster.change_replicas(2, epoch, offline=[], online=[(topic_id, 0)])
        assert (parts.partition.leader, parts.partition.offline_replicas) == (2, ())

    run(scenario, monkeypatch)


def test_what_is_offline_is_noted_although_the_store_fails(monkeypatch):
    """And it is not forgotten when the store is read again, which does not hold it."""
    monkeypatch.setattr(controlling, "RETRY_S", 0.0)

    async def scenario(parts):
        await parts.register(2)
        await parts.brokers_are(1, 2)
        parts.others.without_disk.add(2)
        monkeypatch.setattr(controlling, "TELLING_S", 0.0)
        gate = parts.others.gates[2] = asyncio.Event()
        await parts.create(2, 1)
        parts.store.loses_answers = True
        gate.set()
        await until(lambda: parts.partition.offline_replicas == (2,), "it is noted at last")
        assert not parts.store.loses_answers
        parts.store.loses_answers = True
        await parts.cluster.create_topics([NewTopic("u", assignment=[(0, (1,))])])
        await parts.cluster.create_topics([NewTopic("v", assignment=[(0, (1,))])])
        assert "u" in parts.cluster.image.topics and parts.partition.offline_replicas == (2,)

    run(scenario, monkeypatch)
