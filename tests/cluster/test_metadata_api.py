"""The Metadata handler on a real cluster service, in every version."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from klamm.apis import k03_metadata, k37_create_partitions, k60_describe_cluster
from klamm.apis.registry import Request
from klamm.apis.steps import run
from klamm.cluster import departed
from klamm.cluster.controller.topics import NewTopic
from klamm.cluster.image import OFFSETS_TOPIC
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_TOPIC_ID, new_topic_id
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages import k03_metadata as m03
from klamm.protocol.messages import k37_create_partitions as m37
from klamm.protocol.messages import k60_describe_cluster as m60
from tests.replies import FakeReply

from .handlers import NOT_ASKED, Connection, scenario_with_broker, versions_of


def named(*names):
    return [m03.MetadataRequestTopic(name=name) for name in names]


def by_name(response):
    return {topic.name: topic for topic in response.topics}


@pytest.mark.parametrize("version", versions_of(ApiKey.METADATA))
def test_metadata_of_all_of_none_and_of_some_topics(tmp_path, version):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("a", 2), NewTopic("b", 1)])
        await broker.cluster.ensure_offsets_topic()
        everything = m03.MetadataRequest(topics=[] if version == 0 else None)
        answer = await broker.ask(k03_metadata, everything, version)
        topics = by_name(answer)
        assert set(topics) == {"a", "b", OFFSETS_TOPIC}
        assert [each.partition_index for each in topics["a"].partitions] == [0, 1]
        first = topics["a"].partitions[0]
        assert (first.error_code, first.leader_id, first.replica_nodes, first.isr_nodes) == (0, 1, [1], [1])
        assert (answer.brokers[0].node_id, answer.brokers[0].host, answer.brokers[0].port) == (
            1,
            "localhost",
            9092,
        )
        if version >= 1:
            assert topics[OFFSETS_TOPIC].is_internal and not topics["a"].is_internal
            assert answer.controller_id == 1
            none = await broker.ask(k03_metadata, m03.MetadataRequest(topics=[]), version)
            assert none.topics == [] and len(none.brokers) == 1
        if version >= 2:
            assert answer.cluster_id == broker.cluster.image.cluster_id
        if version >= 7:
            assert first.leader_epoch == 0
        if version >= 8:
            assert topics["a"].topic_authorized_operations == NOT_ASKED
            assert answer.cluster_authorized_operations == NOT_ASKED
            asking = m03.MetadataRequest(topics=named("a"), include_topic_authorized_operations=True)
            told = await broker.ask(k03_metadata, asking, version)
            assert told.topics[0].topic_authorized_operations == 0b1101_1111_1000
        if version >= 10:
            assert topics["a"].topic_id == broker.cluster.image.topics["a"].topic_id != ZERO_TOPIC_ID
        some = await broker.ask(k03_metadata, m03.MetadataRequest(topics=named("b", "b")), version)
        assert [topic.name for topic in some.topics] == ["b"]

    scenario_with_broker(tmp_path, work)


def test_metadata_tells_the_address_of_the_listener(tmp_path):
    async def work(broker):
        answer = await broker.ask(k03_metadata, m03.MetadataRequest(topics=[]), 13, "INSIDE")
        assert [(each.host, each.port) for each in answer.brokers] == [("inside", 9093)]
        cluster = await broker.ask(k60_describe_cluster, m60.DescribeClusterRequest(), 2, "INSIDE")
        assert [(each.host, each.port) for each in cluster.brokers] == [("inside", 9093)]

    scenario_with_broker(tmp_path, work)


@pytest.mark.parametrize("version", versions_of(ApiKey.METADATA))
def test_metadata_creates_what_is_missing_when_it_may(tmp_path, version):
    async def work(broker):
        asked = m03.MetadataRequest(topics=named("new", "a b", OFFSETS_TOPIC))
        topics = by_name(await broker.ask(k03_metadata, asked, version))
        assert topics["new"].error_code == 0 and len(topics["new"].partitions) == 3
        assert topics["a b"].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert len(topics[OFFSETS_TOPIC].partitions) == 50
        if version >= 4:
            asked = m03.MetadataRequest(topics=named("other"), allow_auto_topic_creation=False)
            (other,) = (await broker.ask(k03_metadata, asked, version)).topics
            assert (other.error_code, other.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        assert set(broker.cluster.image.topics) == {"new", OFFSETS_TOPIC}

    scenario_with_broker(tmp_path, work, {"num.partitions": "3"})


def test_metadata_creates_nothing_when_the_broker_forbids_or_cannot(tmp_path):
    async def forbidden(broker):
        asked = m03.MetadataRequest(topics=named("new"))
        (topic,) = (await broker.ask(k03_metadata, asked, 12)).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def impossible(broker):
        asked = m03.MetadataRequest(topics=named("new"))
        (topic,) = (await broker.ask(k03_metadata, asked, 12)).topics
        assert topic.error_code == ErrorCode.INVALID_REPLICATION_FACTOR

    scenario_with_broker(tmp_path, forbidden, {"auto.create.topics.enable": "false"})
    scenario_with_broker(tmp_path, impossible, {"default.replication.factor": "3"})


def test_metadata_by_topic_id(tmp_path):
    async def work(broker):
        (topic,) = await broker.cluster.create_topics([NewTopic("a")])
        unknown = new_topic_id()
        asked = m03.MetadataRequest(
            topics=[
                m03.MetadataRequestTopic(topic_id=topic.topic_id, name=None),
                m03.MetadataRequestTopic(topic_id=unknown, name=None),
            ]
        )
        found, missing = (await broker.ask(k03_metadata, asked, 12)).topics
        assert (found.name, found.topic_id, found.error_code) == ("a", topic.topic_id, 0)
        assert (missing.name, missing.topic_id, missing.error_code) == (
            None,
            unknown,
            ErrorCode.UNKNOWN_TOPIC_ID,
        )
        early, _ = (await broker.ask(k03_metadata, asked, 11)).topics
        assert early.error_code == ErrorCode.INVALID_REQUEST

    scenario_with_broker(tmp_path, work)


def test_metadata_follows_changes_of_a_topic(tmp_path):
    async def work(broker):
        everything = m03.MetadataRequest(topics=None)
        await broker.cluster.create_topics([NewTopic("a"), NewTopic("b")])
        before = by_name(await broker.ask(k03_metadata, everything, 12))
        grow = m37.CreatePartitionsRequest(
            topics=[m37.CreatePartitionsTopic(name="a", count=2, assignments=None)], timeout_ms=1000
        )
        await broker.ask(k37_create_partitions, grow, 3)
        await broker.cluster.delete_topics(["b"])
        await broker.cluster.create_topics([NewTopic("b", 5)])
        after = by_name(await broker.ask(k03_metadata, everything, 12))
        assert len(after["a"].partitions) == 2 and len(after["b"].partitions) == 5
        assert after["b"].topic_id != before["b"].topic_id

    scenario_with_broker(tmp_path, work)


def test_metadata_of_thousands_of_partitions_is_made_once(tmp_path):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic(f"t{number}", 40) for number in range(100)])
        request = Request(m03.MetadataRequest(topics=None), 12, None, Connection("PLAINTEXT"), FakeReply())
        _, first = run(k03_metadata.handle(broker, request), float("inf"))
        _, second = run(k03_metadata.handle(broker, request), float("inf"))
        assert [id(topic) for topic in list(first.topics)] == [id(topic) for topic in list(second.topics)]

    scenario_with_broker(tmp_path, work)


def test_many_clients_asking_for_one_new_topic_get_it(tmp_path):
    async def work(broker):
        request = m03.MetadataRequest(topics=named("new"))
        answers = await asyncio.gather(*(broker.ask(k03_metadata, request, 12) for _ in range(20)))
        assert {answer.topics[0].error_code for answer in answers} == {0}
        assert len({answer.topics[0].topic_id for answer in answers}) == 1

    scenario_with_broker(tmp_path, work)


def test_metadata_lists_a_broker_that_died_for_a_moment_more(tmp_path, monkeypatch):
    async def work(broker):
        view, image = broker.cluster.view, broker.cluster.image
        (living,) = image.brokers.values()
        view.begin_with(replace(image, brokers={1: living, 2: replace(living, id=2)}))
        view.begin_with(replace(image, brokers={1: living}))

        async def listed():
            answer = await broker.ask(k03_metadata, m03.MetadataRequest(topics=[]), 12)
            return [each.node_id for each in answer.brokers]

        assert await listed() == [1, 2]
        described = await broker.ask(k60_describe_cluster, m60.DescribeClusterRequest(), 0)
        assert [each.broker_id for each in described.brokers] == [1]
        monkeypatch.setattr(departed, "LISTED_SECONDS", 0.0)
        assert await listed() == [1]

    scenario_with_broker(tmp_path, work)
