"""The handlers of administration on a real cluster service, in every version."""

from __future__ import annotations

import pytest

from klamm.apis import (
    k19_create_topics,
    k20_delete_topics,
    k32_describe_configs,
    k33_alter_configs,
    k37_create_partitions,
    k44_incremental_alter_configs,
    k60_describe_cluster,
    k74_list_config_resources,
    k75_describe_topic_partitions,
)
from klamm.apis.config_resources import MOST_CONFIGS
from klamm.cluster.controller import partitions
from klamm.cluster.controller.topics import NewTopic
from klamm.model.errors import ErrorCode
from klamm.model.ids import new_topic_id
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages import k19_create_topics as m19
from klamm.protocol.messages import k20_delete_topics as m20
from klamm.protocol.messages import k32_describe_configs as m32
from klamm.protocol.messages import k33_alter_configs as m33
from klamm.protocol.messages import k37_create_partitions as m37
from klamm.protocol.messages import k44_incremental_alter_configs as m44
from klamm.protocol.messages import k60_describe_cluster as m60
from klamm.protocol.messages import k74_list_config_resources as m74
from klamm.protocol.messages import k75_describe_topic_partitions as m75

from .handlers import NOT_ASKED, scenario_with_broker, versions_of


def creatable(name, partitions=-1, replicas=-1, assignments=(), **configs):
    return m19.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            m19.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in assignments
        ],
        configs=[
            m19.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


@pytest.mark.parametrize("version", versions_of(ApiKey.CREATE_TOPICS))
def test_creating_topics(tmp_path, version):
    async def work(broker):
        request = m19.CreateTopicsRequest(
            topics=[
                creatable("a", 3, 1, retention_ms="5"),
                creatable("b"),
                creatable("c", assignments=[(0, [1]), (1, [1])]),
                creatable("twice"),
                creatable("twice"),
                creatable("bad", retention_ms=None),
                creatable("worse", replicas=2),
            ]
        )
        answer = await broker.ask(k19_create_topics, request, version)
        results = {result.name: result for result in answer.topics}
        assert len(answer.topics) == len(results) == 6
        assert {name: result.error_code for name, result in results.items()} == {
            "a": 0,
            "b": 0,
            "c": 0,
            "twice": ErrorCode.INVALID_REQUEST,
            "bad": ErrorCode.INVALID_CONFIG,
            "worse": ErrorCode.INVALID_REPLICATION_FACTOR,
        }
        assert results["a"].error_message is None and results["worse"].error_message
        assert {name: len(topic.partitions) for name, topic in broker.cluster.image.topics.items()} == {
            "a": 3,
            "b": 1,
            "c": 2,
        }
        if version >= 5:
            assert (results["a"].num_partitions, results["a"].replication_factor) == (3, 1)
            configs = {config.name: config for config in results["a"].configs}
            assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
            assert (configs["segment.ms"].value, configs["segment.ms"].config_source) == ("604800000", 5)
            assert results["worse"].configs == []
        if version >= 7:
            assert results["a"].topic_id == broker.cluster.image.topics["a"].topic_id
        again = await broker.ask(
            k19_create_topics, m19.CreateTopicsRequest(topics=[creatable("a", 1, 1)]), version
        )
        assert again.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        dry = m19.CreateTopicsRequest(topics=[creatable("dry", 2, 1)], validate_only=True)
        (result,) = (await broker.ask(k19_create_topics, dry, version)).topics
        assert result.error_code == 0 and "dry" not in broker.cluster.image.topics
        if version >= 5:
            assert result.num_partitions == 2 and result.configs

    scenario_with_broker(tmp_path, work)


@pytest.mark.parametrize("version", versions_of(ApiKey.DELETE_TOPICS))
def test_deleting_topics(tmp_path, version):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic(name) for name in "abcd"])
        topics = broker.cluster.image.topics
        unknown = new_topic_id()
        if version < 6:
            request = m20.DeleteTopicsRequest(topic_names=["a", "none", "c", "c"])
            expected = [(None, 42), (None, 42), ("a", 0), ("none", 3)]
        else:
            both = m20.DeleteTopicState(name="d", topic_id=topics["d"].topic_id)
            request = m20.DeleteTopicsRequest(
                topics=[
                    m20.DeleteTopicState(name="a"),
                    m20.DeleteTopicState(topic_id=topics["b"].topic_id),
                    m20.DeleteTopicState(name="none"),
                    m20.DeleteTopicState(topic_id=unknown),
                    m20.DeleteTopicState(name="c"),
                    m20.DeleteTopicState(topic_id=topics["c"].topic_id),
                    both,
                    m20.DeleteTopicState(),
                ]
            )
            expected = [
                (None, 100),
                (None, 42),
                (None, 42),
                (None, 42),
                (None, 42),
                ("a", 0),
                ("b", 0),
                ("none", 3),
            ]
        answer = await broker.ask(k20_delete_topics, request, version)
        told = [
            (each.name if each.error_code in (0, 3) else None, each.error_code) for each in answer.responses
        ]
        assert sorted(told, key=str) == sorted(expected, key=str)
        assert set(broker.cluster.image.topics) == ({"b", "c", "d"} if version < 6 else {"c", "d"})

    scenario_with_broker(tmp_path, work)


def test_deleting_can_be_forbidden(tmp_path):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("a")])
        for version, code in ((2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)):
            request = m20.DeleteTopicsRequest(topic_names=["a"])
            (response,) = (await broker.ask(k20_delete_topics, request, version)).responses
            assert response.error_code == code
        assert "a" in broker.cluster.image.topics

    scenario_with_broker(tmp_path, work, {"delete.topic.enable": "false"})


@pytest.mark.parametrize("version", versions_of(ApiKey.CREATE_PARTITIONS))
def test_adding_partitions(tmp_path, version):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("a"), NewTopic("b"), NewTopic("c")])
        one = m37.CreatePartitionsAssignment(broker_ids=[1])
        request = m37.CreatePartitionsRequest(
            topics=[
                m37.CreatePartitionsTopic(name="a", count=3, assignments=None),
                m37.CreatePartitionsTopic(name="b", count=2, assignments=[one]),
                m37.CreatePartitionsTopic(name="c", count=1, assignments=None),
                m37.CreatePartitionsTopic(name="none", count=2, assignments=None),
            ]
        )
        answer = await broker.ask(k37_create_partitions, request, version)
        assert {each.name: each.error_code for each in answer.results} == {
            "a": 0,
            "b": 0,
            "c": ErrorCode.INVALID_PARTITIONS,
            "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        twice = m37.CreatePartitionsRequest(
            topics=[m37.CreatePartitionsTopic(name="a", count=9, assignments=None)] * 2
        )
        (result,) = (await broker.ask(k37_create_partitions, twice, version)).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
        dry = m37.CreatePartitionsRequest(
            topics=[m37.CreatePartitionsTopic(name="a", count=9, assignments=None)], validate_only=True
        )
        (result,) = (await broker.ask(k37_create_partitions, dry, version)).results
        assert result.error_code == 0
        assert {name: len(topic.partitions) for name, topic in broker.cluster.image.topics.items()} == {
            "a": 3,
            "b": 2,
            "c": 1,
        }

    scenario_with_broker(tmp_path, work)


def test_a_topic_that_the_store_does_not_take_is_refused_and_the_others_are_made(tmp_path, monkeypatch):
    """The real limit is far above the most partitions of one request on this one broker."""
    monkeypatch.setattr(partitions, "MAX_VALUE_BYTES", 300)

    async def work(broker):
        request = m19.CreateTopicsRequest(topics=[creatable("large", 100, 1), creatable("small", 1, 1)])
        large, small = (await broker.ask(k19_create_topics, request, 7)).topics
        assert (large.error_code, small.error_code) == (ErrorCode.INVALID_PARTITIONS, ErrorCode.NONE)
        assert "the topic large is refused with 100 partitions" in large.error_message
        await broker.cluster.create_topics([NewTopic("grown")])
        wanted = [
            m37.CreatePartitionsTopic(name=name, count=count, assignments=None)
            for name, count in (("grown", 100), ("small", 2))
        ]
        answer = await broker.ask(k37_create_partitions, m37.CreatePartitionsRequest(topics=wanted), 3)
        grown, small = answer.results
        assert (grown.error_code, small.error_code) == (ErrorCode.INVALID_PARTITIONS, ErrorCode.NONE)
        assert "the topic grown is refused with 100 partitions" in grown.error_message
        assert {name: len(topic.partitions) for name, topic in broker.cluster.image.topics.items()} == {
            "grown": 1,
            "small": 2,
        }

    scenario_with_broker(tmp_path, work)


async def described(broker, resource_type, name, keys=None, version=4, **options):
    resource = m32.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys
    )
    request = m32.DescribeConfigsRequest(resources=[resource], **options)
    (result,) = (await broker.ask(k32_describe_configs, request, version)).results
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result


async def altered(broker, resource_type, name, *configs, validate_only=False, version=1):
    request = m44.IncrementalAlterConfigsRequest(
        resources=[
            m44.AlterConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configs=[
                    m44.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in configs
                ],
            )
        ],
        validate_only=validate_only,
    )
    (response,) = (await broker.ask(k44_incremental_alter_configs, request, version)).responses
    return response


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_CONFIGS))
def test_describing_configurations(tmp_path, version):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("t", config={"retention.ms": "5"})])
        result = await described(broker, 2, "t", version=version, include_synonyms=True)
        keys = {key.name: key for key in result.configs}
        assert len(keys) > 25
        assert (keys["retention.ms"].value, keys["retention.ms"].config_source) == ("5", 1)
        assert [(each.name, each.value, each.source) for each in keys["retention.ms"].synonyms] == [
            ("retention.ms", "5", 1)
        ]
        assert (keys["segment.bytes"].value, keys["segment.bytes"].config_source) == ("2000000", 4)
        assert not keys["retention.ms"].read_only and not keys["retention.ms"].is_sensitive
        if version >= 3:
            assert keys["retention.ms"].config_type == 5 and keys["retention.ms"].documentation is None
            result = await described(broker, 2, "t", ["retention.ms"], version, include_documentation=True)
            assert "segment" in result.configs[0].documentation
        some = await described(broker, 2, "t", ["flush.ms", "no.such.key"], version)
        assert [key.name for key in some.configs] == ["flush.ms"]
        assert some.configs[0].synonyms == []
        assert len((await described(broker, 2, "t", [], version)).configs) == len(keys)

    scenario_with_broker(tmp_path, work, {"log.segment.bytes": "2000000"})


def test_describing_brokers_and_groups_and_what_is_not_there(tmp_path):
    async def work(broker):
        own = {key.name: key for key in (await described(broker, 4, "1")).configs}
        assert (own["broker.rack"].value, own["broker.rack"].config_source) == ("east", 4)
        assert own["broker.rack"].read_only and not own["message.max.bytes"].read_only
        assert (await described(broker, 4, "")).configs == []
        assert (await altered(broker, 4, "", ("message.max.bytes", 0, "9"))).error_code == 0
        (only,) = (await described(broker, 4, "")).configs
        assert (only.name, only.value, only.config_source) == ("message.max.bytes", "9", 3)
        (group,) = (await described(broker, 32, "g", ["consumer.session.timeout.ms"])).configs
        assert (group.value, group.config_source) == ("45000", 5)
        for resource_type, name, code in (
            (2, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (2, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (4, "2", ErrorCode.INVALID_REQUEST),
            (4, "x", ErrorCode.INVALID_REQUEST),
            (32, "", ErrorCode.INVALID_REQUEST),
            (8, "1", ErrorCode.INVALID_REQUEST),
            (99, "1", ErrorCode.INVALID_REQUEST),
        ):
            result = await described(broker, resource_type, name)
            assert (result.error_code, result.configs) == (code, []) and result.error_message

    scenario_with_broker(tmp_path, work, {"broker.rack": "east"})


@pytest.mark.parametrize("version", versions_of(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_altering_step_by_step(tmp_path, version):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("t")])
        ok = await altered(
            broker, 2, "t", ("cleanup.policy", 2, "compact"), ("retention.ms", 0, "5"), version=version
        )
        assert (ok.error_code, ok.error_message, ok.resource_name) == (0, None, "t")
        topic = broker.cluster.image.topics["t"]
        assert topic.config == {"cleanup.policy": "delete,compact", "retention.ms": "5"}
        await altered(
            broker, 2, "t", ("cleanup.policy", 3, "delete"), ("retention.ms", 1, None), version=version
        )
        assert broker.cluster.image.topics["t"].config == {"cleanup.policy": "compact"}
        bad = await altered(broker, 2, "t", ("flush.ms", 0, "1"), ("segment.ms", 0, "0"), version=version)
        assert bad.error_code == ErrorCode.INVALID_CONFIG and "segment.ms" in bad.error_message
        assert broker.cluster.image.topics["t"].config == {"cleanup.policy": "compact"}
        dry = await altered(broker, 2, "t", ("flush.ms", 0, "1"), validate_only=True, version=version)
        assert dry.error_code == 0 and "flush.ms" not in broker.cluster.image.topics["t"].config
        odd = await altered(broker, 2, "t", ("flush.ms", 7, "1"), version=version)
        assert odd.error_code == ErrorCode.INVALID_REQUEST
        read_only = await altered(broker, 4, "1", ("log.dirs", 0, "x"), version=version)
        assert read_only.error_code == ErrorCode.INVALID_REQUEST
        await altered(broker, 4, "1", ("message.max.bytes", 0, "99"), version=version)
        assert broker.config["message.max.bytes"] == 99
        await altered(broker, 32, "g", ("consumer.session.timeout.ms", 0, "50000"), version=version)
        assert broker.cluster.image.group_configs == {"g": {"consumer.session.timeout.ms": "50000"}}

    scenario_with_broker(tmp_path, work)


def test_more_settings_than_there_are_keys_are_refused(tmp_path):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("t")])
        configs = [(f"key {number}", 0, "1") for number in range(MOST_CONFIGS + 1)]
        refused = await altered(broker, 2, "t", *configs)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "1001 settings of one resource" in refused.error_message

    scenario_with_broker(tmp_path, work)


def test_a_resource_named_twice_is_refused(tmp_path):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("t")])
        config = m44.AlterableConfig(name="flush.ms", config_operation=0, value="1")
        resource = m44.AlterConfigsResource(resource_type=2, resource_name="t", configs=[config])
        request = m44.IncrementalAlterConfigsRequest(resources=[resource, resource])
        answer = await broker.ask(k44_incremental_alter_configs, request, 1)
        assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2
        assert broker.cluster.image.topics["t"].config == {}

    scenario_with_broker(tmp_path, work)


@pytest.mark.parametrize("version", versions_of(ApiKey.ALTER_CONFIGS))
def test_replacing_a_configuration(tmp_path, version):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("t", config={"retention.ms": "5"})])

        async def replaced(name, value):
            resource = m33.AlterConfigsResource(
                resource_type=2, resource_name="t", configs=[m33.AlterableConfig(name=name, value=value)]
            )
            request = m33.AlterConfigsRequest(resources=[resource])
            (response,) = (await broker.ask(k33_alter_configs, request, version)).responses
            return response.error_code

        assert await replaced("flush.ms", "1") == 0
        assert broker.cluster.image.topics["t"].config == {"flush.ms": "1"}
        assert await replaced("flush.ms", None) == ErrorCode.INVALID_REQUEST
        assert await replaced("flush.sm", "1") == ErrorCode.INVALID_CONFIG
        assert broker.cluster.image.topics["t"].config == {"flush.ms": "1"}

    scenario_with_broker(tmp_path, work)


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_CLUSTER))
def test_describing_the_cluster(tmp_path, version):
    async def work(broker):
        answer = await broker.ask(k60_describe_cluster, m60.DescribeClusterRequest(), version)
        assert (answer.error_code, answer.controller_id) == (0, 1)
        assert answer.cluster_id == broker.cluster.image.cluster_id
        assert [(each.broker_id, each.host, each.port) for each in answer.brokers] == [(1, "localhost", 9092)]
        assert answer.cluster_authorized_operations == NOT_ASKED
        asking = m60.DescribeClusterRequest(include_cluster_authorized_operations=True)
        told = await broker.ask(k60_describe_cluster, asking, version)
        assert told.cluster_authorized_operations == 8096
        if version >= 1:
            for endpoint_type, code in ((2, 114), (9, 115)):
                request = m60.DescribeClusterRequest(endpoint_type=endpoint_type)
                assert (await broker.ask(k60_describe_cluster, request, version)).error_code == code

    scenario_with_broker(tmp_path, work)


def test_listing_what_has_a_configuration(tmp_path):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("b"), NewTopic("a")])
        await altered(broker, 32, "g", ("consumer.session.timeout.ms", 0, "50000"))
        assert (
            await broker.ask(k74_list_config_resources, m74.ListConfigResourcesRequest(), 0)
        ).config_resources == []
        everything = await broker.ask(k74_list_config_resources, m74.ListConfigResourcesRequest(), 1)
        listed = [(each.resource_type, each.resource_name) for each in everything.config_resources]
        assert sorted(listed) == [(2, "a"), (2, "b"), (4, "1"), (32, "g")]
        groups = m74.ListConfigResourcesRequest(resource_types=[32])
        assert len((await broker.ask(k74_list_config_resources, groups, 1)).config_resources) == 1
        odd = m74.ListConfigResourcesRequest(resource_types=[5])
        answer = await broker.ask(k74_list_config_resources, odd, 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    scenario_with_broker(tmp_path, work)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 2000])
def test_describing_partitions_page_by_page(tmp_path, limit):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("b", 3), NewTopic("a", 2), NewTopic("c", 4)])
        seen, cursor, pages = [], None, 0
        while True:
            request = m75.DescribeTopicPartitionsRequest(response_partition_limit=limit, cursor=cursor)
            answer = await broker.ask(k75_describe_topic_partitions, request, 0)
            page = [
                (topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions
            ]
            assert len(page) <= min(limit, 5)
            seen += page
            pages += 1
            assert pages < 20
            cursor = answer.next_cursor
            if cursor is None:
                break
        assert seen == [("a", 0), ("a", 1), *(("b", n) for n in range(3)), *(("c", n) for n in range(4))]

    scenario_with_broker(tmp_path, work, {"max.request.partition.size.limit": "5"})


def test_describing_partitions_of_named_topics(tmp_path):
    async def work(broker):
        await broker.cluster.create_topics([NewTopic("a", 2)])
        topics = [m75.TopicRequest(name=name) for name in ("none", "a", "a b")]
        answer = await broker.ask(
            k75_describe_topic_partitions, m75.DescribeTopicPartitionsRequest(topics=topics), 0
        )
        assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in answer.topics] == [
            ("a", 0, 2),
            ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
        ]
        first = answer.topics[0].partitions[0]
        assert (first.eligible_leader_replicas, first.last_known_elr, first.leader_id) == ([], [], 1)
        cursor = m75.Cursor(topic_name="a", partition_index=-1)
        bad = m75.DescribeTopicPartitionsRequest(topics=topics, cursor=cursor)
        answer = await broker.ask(k75_describe_topic_partitions, bad, 0)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.INVALID_REQUEST}

    scenario_with_broker(tmp_path, work)
