"""Asking the controller, whoever that is, until one answers or the time is over."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from klamm.client.errors import ConnectionFailed
from klamm.cluster.controller.partitions import new_partition
from klamm.cluster.election import Controller
from klamm.cluster.image import BrokerImage, TopicImage, image_of_topics
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId
from klamm.node import controller_link
from klamm.node.controller_link import ControllerLink
from klamm.node.peers import FORWARDING
from klamm.protocol.messages.k07_controlled_shutdown import ControlledShutdownResponse, RemainingPartition
from klamm.protocol.messages.k19_create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from klamm.protocol.messages.k56_alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.protocol.messages.k58_envelope import EnvelopeResponse


class FakeCluster:
    """What the link knows of a cluster. `controllers` come in turns, one for each look."""

    is_controller = False

    def __init__(self, *controllers):
        self._controllers = list(controllers)
        topic = TopicImage("t", TopicId(bytes(16)), (new_partition((1, 2)),), {})
        self.image = image_of_topics("c", 2, {"t": topic})
        self.brokers_are(1, 2)

    def brokers_are(self, *broker_ids):
        self.image = replace(self.image, brokers={each: BrokerImage(each, {}) for each in broker_ids})

    @property
    def controller(self):
        broker_id = self._controllers.pop(0) if len(self._controllers) > 1 else self._controllers[0]
        return None if broker_id is None else Controller(broker_id, 1)


class FakePeers:
    def __init__(self, *answers):
        self._answers = list(answers)
        self.calls = []

    async def call(self, broker_id, lane, request, timeout_s=None):
        self.calls.append((broker_id, lane, request))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(controller_link, "FIRST_PAUSE_S", 0.0)


def envelope(data):
    return EnvelopeResponse(response_data=data)


def test_a_request_is_forwarded_until_a_controller_answers():
    peers = FakePeers(
        ConnectionFailed("gone"), EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER), envelope(b"answer")
    )
    link = ControllerLink(1, FakeCluster(None, 1, 2, 3, 3), peers)
    assert asyncio.run(link.forward(b"frame", "10.1.2.3")) == b"answer"
    assert [(broker_id, lane) for broker_id, lane, _ in peers.calls] == [
        (2, FORWARDING),
        (3, FORWARDING),
        (3, FORWARDING),
    ]
    sent = peers.calls[0][2]
    assert (sent.request_data, sent.client_host_address) == (b"frame", b"10.1.2.3")


def test_without_a_controller_there_is_no_answer(monkeypatch):
    monkeypatch.setattr(controller_link, "FORWARDING_S", 0.01)
    link = ControllerLink(1, FakeCluster(None), FakePeers())
    assert asyncio.run(link.forward(b"frame", "host")) is None
    with pytest.raises(KafkaError) as caught:
        asyncio.run(link.create_topics(CreateTopicsRequest()))
    assert caught.value.code is ErrorCode.NOT_CONTROLLER and caught.value.code.retriable


def test_topics_are_asked_for_again_if_the_controller_was_replaced():
    refused = CreateTopicsResponse(
        topics=[CreatableTopicResult(name="t", error_code=ErrorCode.NOT_CONTROLLER)]
    )
    made = CreateTopicsResponse(topics=[CreatableTopicResult(name="t")])
    link = ControllerLink(1, FakeCluster(2), FakePeers(refused, made))
    assert asyncio.run(link.create_topics(CreateTopicsRequest())) is made


def test_isrs_are_asked_for_once():
    link = ControllerLink(1, FakeCluster(2), FakePeers(ConnectionFailed("gone"), AlterPartitionResponse()))
    with pytest.raises(ConnectionFailed):
        asyncio.run(link.alter_partition(AlterPartitionRequest()))
    assert isinstance(asyncio.run(link.alter_partition(AlterPartitionRequest())), AlterPartitionResponse)


def test_a_leader_that_does_not_reach_the_controller_asks_by_way_of_others_in_turn():
    request, applied = AlterPartitionRequest(), AlterPartitionResponse()
    not_there_either = AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
    cluster = FakeCluster(2)
    cluster.brokers_are(1, 2, 3, 4)
    peers = FakePeers(
        *(ConnectionFailed("cut"), not_there_either),
        *(ConnectionFailed("cut"), ConnectionFailed("cut")),
        *(ConnectionFailed("cut"), applied),
    )
    link = ControllerLink(1, cluster, peers)
    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            asyncio.run(link.alter_partition(request))
    assert asyncio.run(link.alter_partition(request)) is applied
    assert [broker_id for broker_id, _, _ in peers.calls] == [2, 3, 2, 4, 2, 3]


@pytest.mark.parametrize("controller", [None, 1])
def test_a_leader_that_knows_no_controller_asks_by_way_of_others(controller):
    """As one that is cut off from the store alone: it may have been the controller."""
    stale = AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    cluster = FakeCluster(controller)
    cluster.brokers_are(1, 2, 3)
    peers = FakePeers(AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER), stale)
    link = ControllerLink(1, cluster, peers)
    with pytest.raises(KafkaError, match="there is no controller now"):
        asyncio.run(link.alter_partition(AlterPartitionRequest()))
    assert asyncio.run(link.alter_partition(AlterPartitionRequest())) is stale
    assert [broker_id for broker_id, _, _ in peers.calls] == [2, 3]


def test_a_request_is_passed_on_for_another_broker_and_never_in_a_circle():
    applied = AlterPartitionResponse()

    async def scenario():
        links = {}

        class Neighbours:
            async def call(self, broker_id, lane, request, timeout_s=None):
                calls.append(broker_id)
                if broker_id == 9:
                    return applied
                return await links[broker_id].relay_alter_partition(request)

        calls = []
        links[2] = ControllerLink(2, FakeCluster(3), Neighbours())
        links[3] = ControllerLink(3, FakeCluster(2), Neighbours())
        request = AlterPartitionRequest(broker_id=1)
        refused = await links[2].relay_alter_partition(request)
        assert refused.error_code == ErrorCode.NOT_CONTROLLER and calls == [3, 2]
        own = await links[2].relay_alter_partition(AlterPartitionRequest(broker_id=2))
        assert own.error_code == ErrorCode.NOT_CONTROLLER and calls == [3, 2]
        links[3] = ControllerLink(3, FakeCluster(9), Neighbours())
        assert await links[2].relay_alter_partition(request) is applied

    asyncio.run(scenario())


def test_a_shutdown_waits_until_no_leader_is_left():
    left = ControlledShutdownResponse(
        remaining_partitions=[RemainingPartition(topic_name="t", partition_index=0)]
    )
    stale = ControlledShutdownResponse(error_code=ErrorCode.NOT_CONTROLLER)
    link = ControllerLink(1, FakeCluster(2), FakePeers(stale, left, ControlledShutdownResponse()))
    assert asyncio.run(link.shut_down(7)) is True


def test_a_shutdown_does_not_wait_for_replicas_that_are_not_alive():
    left = ControlledShutdownResponse(
        remaining_partitions=[RemainingPartition(topic_name="t", partition_index=0)]
    )
    cluster = FakeCluster(2)
    cluster.brokers_are(1, 3)
    assert asyncio.run(ControllerLink(1, cluster, FakePeers(left)).shut_down(7)) is False
