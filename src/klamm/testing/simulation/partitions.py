"""The replicas of a simulated broker: their roles, their fetches from leaders, and the fetches of followers.

What `replication/partitions.py` and `replication/fetcher.py` do with files and sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from klamm.cluster.image import ClusterImage, ImageDelta, PartitionImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition
from klamm.replication.follower import FetchPosition
from klamm.testing.simulation.network import Answer, Node
from klamm.testing.simulation.peers import broker_name
from klamm.testing.simulation.replica import FetchAnswer, Replica
from klamm.testing.simulation.topics import INDEXES

_FETCH_WAIT_S = 2.0
_FETCH_TIMEOUT_S = 5.0
_RETRY_S = 0.5
_TURN_S = 0.001
"""How long replicas take to change their roles."""

Positions = dict[int, FetchPosition]


class _Parked(NamedTuple):
    positions: Positions
    answer: Answer


class SimulatedPartitions:
    def __init__(self, owner: Node, replicas: Sequence[Replica]) -> None:
        self._owner = owner
        self._node_id = replicas[0].broker_id
        self._replicas = replicas
        self.broker_epoch = -1
        """Of the last registration."""
        self._turn = asyncio.Lock()
        self._parked_fetches: dict[int, _Parked] = {}
        self._fetching_from: dict[int, None] = {}
        self._is_stopped = False

    def __iter__(self) -> Iterator[Replica]:
        """None is ever moved to other brokers."""
        return iter(())

    def of(self, place: TopicPartition) -> Replica:
        return self._replicas[INDEXES[place]]

    # ---- what the controller says

    async def apply(self, new: ClusterImage, delta: ImageDelta) -> None:
        """This broker is the controller."""
        await self._take(
            {
                name: {index: change.after.partitions[index] for index in change.partitions}
                for name, change in delta.topics.items()
                if change.after is not None
            }
        )

    async def apply_settings(self, new: ClusterImage, delta: ImageDelta) -> None:
        """Another broker is the controller; roles come apart."""
        async with self._turn:
            await asyncio.sleep(_TURN_S)

    async def take_roles(
        self, topics: Mapping[str, tuple[TopicId, Mapping[int, PartitionImage]]]
    ) -> dict[TopicPartition, KafkaError]:
        await self._take({name: states for name, (_, states) in topics.items()})
        return {}

    async def stop_replicas(self, places: Mapping[TopicPartition, bool]) -> dict[TopicPartition, KafkaError]:
        assert not places, "no replica of the simulated topics is moved or deleted"
        return {}

    async def _take(self, topics: Mapping[str, Mapping[int, PartitionImage]]) -> None:
        async with self._turn:
            await asyncio.sleep(_TURN_S)
            for name, states in topics.items():
                for index, state in states.items():
                    if self._node_id in state.replicas:
                        replica = self.of(TopicPartition(name, index))
                        if replica.take_over(state, self.broker_epoch, self._owner.loop.now_ms):
                            self.wake_fetches(replica.index)
            for replica in self._replicas:
                if replica.follower is not None:
                    self._fetch_from(replica.follower.leader_id)

    def resign_all(self) -> None:
        for replica in self._replicas:
            replica.resign()

    # ---- as leader

    def produce(
        self,
        index: int,
        producer_id: int,
        sequence: int,
        is_idempotent: bool,
        acks_all: bool,
        answer: Answer,
    ) -> None:
        if self._replicas[index].produce(producer_id, sequence, is_idempotent, acks_all, answer):
            self.wake_fetches(index)

    def on_fetch(self, replica_id: int, broker_epoch: int, positions: Positions, answer: Answer) -> None:
        answers: dict[int, FetchAnswer] = {}
        must_answer = False
        for index, position in positions.items():
            one = self._replicas[index].on_fetch(replica_id, broker_epoch, position, self._owner.loop.now_ms)
            answers[index] = one
            must_answer |= bool(one.records) or one.error is not ErrorCode.NONE or one.diverging[1] >= 0
        if must_answer:
            answer(answers)
            return
        parked = _Parked(positions, answer)
        self._parked_fetches[replica_id] = parked
        self._owner.later(_FETCH_WAIT_S, self._answer_fetch, replica_id, parked)

    def wake_fetches(self, index: int) -> None:
        for replica_id, parked in list(self._parked_fetches.items()):
            if index in parked.positions:
                self._answer_fetch(replica_id, parked)

    def _answer_fetch(self, replica_id: int, parked: _Parked) -> None:
        if self._parked_fetches.get(replica_id) is parked:
            del self._parked_fetches[replica_id]
            parked.answer(
                {index: self._replicas[index].records_for(one) for index, one in parked.positions.items()}
            )

    # ---- as follower

    def stop_fetching(self) -> None:
        self._is_stopped = True

    def _fetch_from(self, leader_id: int) -> None:
        if leader_id in self._fetching_from or self._is_stopped:
            return
        positions: Positions = {}
        for replica in self._replicas:
            if replica.follower is not None and replica.follower.leader_id == leader_id:
                position = replica.follower.next_fetch()
                if position is not None:
                    positions[replica.index] = position
        if not positions:
            return
        self._fetching_from[leader_id] = None
        payload = (self._node_id, self.broker_epoch, positions)

        def answered(answer: dict[int, FetchAnswer] | None) -> None:
            if self._is_stopped:
                return
            is_well = answer is not None
            for index, one in (answer or {}).items():
                is_well &= self._replicas[index].on_fetch_answer(positions[index], one)
            if is_well:
                self._fetch_again(leader_id)
            else:
                self._owner.later(_RETRY_S, self._fetch_again, leader_id)

        network = self._owner.network
        network.request(self._owner, broker_name(leader_id), "fetch", payload, answered, _FETCH_TIMEOUT_S)

    def _fetch_again(self, leader_id: int) -> None:
        del self._fetching_from[leader_id]
        self._fetch_from(leader_id)
