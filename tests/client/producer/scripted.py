"""A topic on scripted brokers: it checks and keeps what is produced, and answers as a test wants.

    async with ScriptedTopic() as topic:
        topic.script = [answer_with(ErrorCode.NOT_LEADER_OR_FOLLOWER), written_but_cut]
        ... produce to topic.bootstrap ...
        assert topic.values(0) == [...]

Each Produce request takes the next step of the script; without one it is written and answered as it should.
A request with another topic id than `topic_id`, of a topic that was deleted, is refused and takes no step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from klamm.aio import Producer
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k00_produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdResponse
from tests.client.network.fake_broker import HANG_UP, SILENCE, FakeBroker, topic_of
from tests.client.producer.cores import PartitionLog

TOPIC = "scripted"
PRODUCER_ID = 4000

Step = Callable[["ScriptedTopic", ProduceRequest], Any]

QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "reconnect_backoff_ms": 5}
LIMIT_S = 20.0


class ScriptedTopic:
    """One topic on one or more fake brokers; the first leads all partitions until `leaders` changes."""

    def __init__(self, partitions: int = 1, brokers: int = 1) -> None:
        self.brokers = [FakeBroker(node_id) for node_id in range(1, brokers + 1)]
        self.leaders = [1] * partitions
        self.epoch = 0
        self.topic_id = b"s" * 16
        self.logs = [PartitionLog() for _ in range(partitions)]
        self.script: list[Step] = []
        self.acks_seen: set[int] = set()
        for broker in self.brokers:
            broker.answers[ApiKey.METADATA] = lambda request, version: self.metadata(request)
            broker.answers[ApiKey.INIT_PRODUCER_ID] = lambda request, version: InitProducerIdResponse(
                producer_id=PRODUCER_ID, producer_epoch=0
            )
            broker.answers[ApiKey.PRODUCE] = lambda request, version: self.produce(request)

    async def __aenter__(self) -> ScriptedTopic:
        for broker in self.brokers:
            await broker.listen()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for broker in self.brokers:
            await broker.stop()

    @property
    def bootstrap(self) -> str:
        return self.brokers[0].bootstrap

    @property
    def produces(self) -> int:
        """How many Produce requests came."""
        return sum(broker.count(ApiKey.PRODUCE) for broker in self.brokers)

    def values(self, partition: int = 0) -> list[bytes | None]:
        return self.logs[partition].values

    # ---- answers

    def metadata(self, request: Any) -> Any:
        topic = topic_of(TOPIC, self.leaders, epoch=self.epoch, topic_id=self.topic_id)
        asked = request.topics is None or any(each.name == TOPIC for each in request.topics)
        return self.brokers[0].metadata(*([topic] if asked else []), brokers=self.brokers)

    def produce(self, request: ProduceRequest) -> Any:
        self.acks_seen.add(request.acks)
        if any(each.topic_id not in (self.topic_id, ZERO_TOPIC_ID) for each in request.topic_data):
            return answer_with(ErrorCode.UNKNOWN_TOPIC_ID)(self, request)
        step = self.script.pop(0) if self.script else written
        answer = step(self, request)
        return SILENCE if request.acks == 0 and answer is not HANG_UP else answer

    def write(self, request: ProduceRequest) -> ProduceResponse:
        return self.respond(request, lambda data: self._append(data))

    def respond(
        self, request: ProduceRequest, respond_to: Callable[[Any], PartitionProduceResponse]
    ) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[respond_to(data) for data in topic.partition_data],
                )
                for topic in request.topic_data
            ]
        )

    def _append(self, data: Any) -> PartitionProduceResponse:
        answer = self.logs[data.index].append(bytes(data.records))
        return PartitionProduceResponse(
            index=data.index,
            error_code=answer.error_code,
            base_offset=answer.base_offset,
            error_message=answer.message,
        )


# ---- steps


def written(topic: ScriptedTopic, request: ProduceRequest) -> Any:
    return topic.write(request)


def written_but_cut(topic: ScriptedTopic, request: ProduceRequest) -> Any:
    """The answer is lost with the connection."""
    topic.write(request)
    return HANG_UP


def written_but_silent(topic: ScriptedTopic, request: ProduceRequest) -> Any:
    topic.write(request)
    return SILENCE


def cut(topic: ScriptedTopic, request: ProduceRequest) -> Any:
    return HANG_UP


def unnamed(topic: ScriptedTopic, request: ProduceRequest) -> Any:
    """An answer that does not speak of the partitions it was asked about."""
    return ProduceResponse(responses=[])


def answer_with(code: ErrorCode, **more: Any) -> Step:
    """Refuse all partitions."""

    def refuse(topic: ScriptedTopic, request: ProduceRequest) -> Any:
        return topic.respond(
            request,
            lambda data: PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1, **more),
        )

    return refuse


def moved_to(node_id: int, epoch: int) -> Step:
    """Not the leader any more, and the answer says who is."""

    def refuse(topic: ScriptedTopic, request: ProduceRequest) -> Any:
        leader = LeaderIdAndEpoch(leader_id=node_id, leader_epoch=epoch)
        response = answer_with(ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader)(topic, request)
        port = topic.brokers[node_id - 1].port
        response.node_endpoints = [NodeEndpoint(node_id=node_id, host="127.0.0.1", port=port)]
        return response

    return refuse


# ---- producers


def producer_of(topic: ScriptedTopic, **options: Any) -> Producer:
    return Producer(topic.bootstrap, **{**QUICK, **options})


async def send_all(producer: Producer, count: int, **more: Any) -> list[Any]:
    """Numbers as values, all of them awaited. With batch_size=0 each has a request of its own."""
    deliveries = []
    for number in range(count):
        deliveries.append(producer.send(TOPIC, b"%d" % number, **more))
        await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT_S):
        return [await delivery for delivery in deliveries]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]
