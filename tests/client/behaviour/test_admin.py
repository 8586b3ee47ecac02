"""Administration: what is made can be seen, changed and deleted, and what is wrong is said per thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import klamm
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.model.errors import ErrorCode
from tests.client.behaviour.conftest import BrokerUnderTest, NewTopic
from tests.client.behaviour.members import Member
from tests.client.faces import Face
from tests.client.reading import fill
from tests.client.topics import unique
from tests.waiting import wait_until


@pytest.fixture
def admin(face: Face, bootstrap: str) -> Iterator[Any]:
    with face.admin(bootstrap) as made:
        yield made


def test_topics(admin: Any) -> None:
    name = unique("admin")
    created = admin.create_topic(name, 3, 1, configs={"retention.ms": 3_600_000})
    assert (created.name, created.partitions, created.replication_factor) == (name, 3, 1)
    assert name in admin.list_topics()
    described = admin.describe_topic(name)
    assert described.name == name and described.topic_id == created.topic_id
    assert [one.partition for one in described.partitions] == [0, 1, 2]
    for one in described.partitions:
        assert one.leader in one.replicas and one.leader in one.in_sync_replicas
    admin.create_partitions(name, 5)
    assert len(admin.describe_topic(name).partitions) == 5
    admin.delete_topic(name)
    assert name not in admin.list_topics()
    with pytest.raises(klamm.UnknownTopic):
        admin.describe_topic(name)


def test_defaults_of_the_broker(admin: Any) -> None:
    name = unique("admin")
    admin.create_topic(name)
    assert len(admin.describe_topic(name).partitions) == 1


def test_several_topics_and_their_errors(admin: Any, new_topic: NewTopic) -> None:
    there, fresh = new_topic(), unique("admin")
    with pytest.raises(klamm.BatchFailed) as failed:
        admin.create_topics(
            [klamm.NewTopic(there, 1), klamm.NewTopic(fresh, 1), klamm.NewTopic("not/legal", 1)]
        )
    assert set(failed.value.results) == {fresh}
    assert isinstance(failed.value.errors[there], klamm.TopicExists)
    assert isinstance(failed.value.errors["not/legal"], klamm.InvalidTopic)
    assert failed.value.errors["not/legal"].code is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(klamm.InvalidTopic, match=r"'not/legal'.*1 to 249 letters"):
        admin.create_topic("not/legal")
    with pytest.raises(klamm.TopicExists):
        admin.create_topic(there)
    with pytest.raises(klamm.ClientError) as refused:
        admin.create_topic(unique("admin"), configs={"no.such.setting": "1"})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    with pytest.raises(klamm.ClientError):
        admin.create_partitions(there, 1)


def test_nothing_is_made_when_only_validating(admin: Any) -> None:
    name = unique("admin")
    admin.create_topic(name, 2, validate_only=True)
    assert name not in admin.list_topics()


def value_of(admin: Any, resource: klamm.ConfigResource, key: str) -> str | None:
    value: str | None = admin.describe_config(resource)[key].value
    return value


def test_settings(admin: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    resource = klamm.ConfigResource.topic(topic)
    before = admin.describe_config(resource)["retention.ms"]
    assert before.is_default
    admin.alter_config(resource, set={"retention.ms": 1234, "cleanup.policy": "delete"})
    # Apache Kafka shows a change a moment after it was made.
    wait_until(lambda: value_of(admin, resource, "retention.ms") == "1234", "it is changed")
    changed = admin.describe_config(resource, ["retention.ms"])
    assert set(changed) == {"retention.ms"} and not changed["retention.ms"].is_default
    admin.alter_config(resource, append={"cleanup.policy": "compact"}, delete=["retention.ms"])
    wait_until(lambda: value_of(admin, resource, "cleanup.policy") == "delete,compact", "it is appended")
    assert value_of(admin, resource, "retention.ms") == before.value
    with pytest.raises(klamm.ClientError) as refused:
        admin.alter_config(resource, set={"retention.ms": "soon"})
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_settings_of_a_broker(admin: Any) -> None:
    cluster = admin.describe_cluster()
    settings = admin.describe_config(klamm.ConfigResource.broker(cluster.brokers[0].broker_id))
    assert "log.retention.ms" in settings


def test_the_cluster(admin: Any, broker: BrokerUnderTest) -> None:
    cluster = admin.describe_cluster()
    (one,) = cluster.brokers
    assert cluster.cluster_id
    assert f"{one.host}:{one.port}" == broker.bootstrap
    assert admin.broker_versions(one.broker_id).apis


def test_groups_and_their_offsets(face: Face, bootstrap: str, admin: Any, new_topic: NewTopic) -> None:
    topic, group = new_topic(2), unique("admin")
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(face, bootstrap, topic, 10)
    member = Member(
        face.consumer(bootstrap, group=group, topics=[topic], start="earliest", client_id="watched")
    )
    member.wait_for(10)
    member.ask(lambda consumer: consumer.commit())
    described = admin.describe_group(group)
    assert described.state == "Stable" and described.protocol_type == "consumer"
    assert [watched.client_id for watched in described.members] == ["watched"]
    assert described.members[0].partitions == {one, other}
    assert group in [listed.group for listed in admin.list_groups()]
    assert admin.list_group_offsets(group)[one].offset == 10
    assert admin.group_lag(group)[one] == 0
    with pytest.raises(klamm.GroupError):
        admin.delete_group(group)
    with pytest.raises(klamm.ClientError):
        admin.alter_group_offsets(group, {one: 3})
    member.close()

    admin.alter_group_offsets(group, {one: 3, other: CommittedOffset(0, "by hand")})
    altered = admin.list_group_offsets(group)
    assert altered[one].offset == 3
    assert (altered[other].offset, altered[other].metadata) == (0, "by hand")
    assert admin.group_lag(group) == {one: 7, other: 0}
    admin.delete_group_offsets(group, [other])
    assert set(admin.list_group_offsets(group)) == {one}
    admin.delete_group(group)
    assert group not in [listed.group for listed in admin.list_groups()]
    with pytest.raises(klamm.GroupError):
        admin.describe_group(group)


def test_offsets_and_records(face: Face, bootstrap: str, admin: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    fill(face, bootstrap, topic, 10)
    assert admin.list_offsets({partition: "latest"})[partition].offset == 10
    assert admin.delete_records({partition: 4}) == {partition: 4}
    assert admin.list_offsets({partition: "earliest"})[partition].offset == 4
    assert admin.delete_records({partition: -1}) == {partition: 10}
    with pytest.raises(klamm.ClientError) as refused:
        admin.delete_records({partition: 1000})
    assert isinstance(refused.value.errors[partition], klamm.OffsetOutOfRange)


def test_log_directories(face: Face, bootstrap: str, admin: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    fill(face, bootstrap, topic, 10)
    (directories,) = admin.describe_log_dirs(partitions=[partition]).values()
    sizes = [one.replicas[partition].size_bytes for one in directories if partition in one.replicas]
    assert len(sizes) == 1 and sizes[0] > 0


def test_producers(face: Face, bootstrap: str, admin: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    with face.producer(bootstrap) as producer:
        for _ in range(3):
            producer.send(topic, b"value").result()
        (active,) = admin.describe_producers([(topic, 0)])[TopicPartition(topic, 0)]
    assert active.last_sequence == 2
