"""Connections to other brokers, which end when those brokers leave the cluster."""

from __future__ import annotations

import asyncio

import pytest

from klamm.client.errors import ConnectionFailed
from klamm.cluster.image import BrokerImage, Endpoint
from klamm.config.loading import BrokerConfig
from klamm.node.peers import CONTROL, Peers
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k16_list_groups import ListGroupsRequest
from tests.client.network.fake_broker import SILENCE, FakeBroker
from tests.waiting import until

PATIENCE_S = 20.0
"""Less than a request may take."""


async def test_a_request_to_a_broker_that_leaves_the_cluster_fails_at_once() -> None:
    async with FakeBroker(2) as broker:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: SILENCE
        brokers = {2: BrokerImage(2, {"BROKERS": Endpoint("127.0.0.1", broker.port)})}
        peers = Peers(1, "BROKERS", BrokerConfig({}), lambda: brokers)
        call = asyncio.create_task(peers.call(2, CONTROL, ListGroupsRequest()))
        try:
            await until(lambda: broker.count(ApiKey.LIST_GROUPS), "the request has arrived")
            brokers.clear()
            peers.on_brokers_changed()
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(ConnectionFailed, match="has left the cluster"):
                    await call
        finally:
            call.cancel()
            await peers.close()
