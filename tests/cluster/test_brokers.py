"""Three brokers in one process that share a store: one cluster, as far as metadata goes."""

from __future__ import annotations

import pytest

from klamm.config.alterations import AlterOperation
from klamm.config.rows import ResourceType
from klamm.coordination.store import State
from klamm.model.errors import ErrorCode
from klamm.node import membership
from klamm.node.broker import CannotStart
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k06_update_metadata import UpdateMetadataRequest
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k18_api_versions import ApiVersionsRequest
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.k43_elect_leaders import ElectLeadersRequest
from klamm.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.k46_list_partition_reassignments import ListPartitionReassignmentsRequest
from klamm.protocol.messages.k60_describe_cluster import DescribeClusterRequest
from klamm.protocol.messages.k64_unregister_broker import UnregisterBrokerRequest
from klamm.testing.broker import Broker
from klamm.testing.cluster import Cluster
from klamm.testing.wire import WireConnection
from tests.waiting import wait_until


@pytest.fixture
def cluster():
    with Cluster(brokers=3) as cluster:
        yield cluster


def ask(cluster, broker_id, request, version):
    with WireConnection(cluster.address(broker_id)) as wire:
        return wire.call(request, version)


def metadata_of(cluster, broker_id):
    """The brokers, the controller, and the leaders of all partitions, as a broker tells them."""
    answer = ask(cluster, broker_id, MetadataRequest(topics=None), 12)
    topics = {
        topic.name: [(part.leader_id, sorted(part.replica_nodes)) for part in topic.partitions]
        for topic in answer.topics
    }
    return sorted(broker.node_id for broker in answer.brokers), answer.controller_id, topics


def agreement(cluster):
    """What all running brokers tell, or None if they differ."""
    told = [metadata_of(cluster, broker_id) for broker_id in cluster.running]
    return told[0] if all(each == told[0] for each in told) else None


def agrees_on(cluster, brokers):
    def look():
        told = agreement(cluster)
        return told if told is not None and told[0] == brokers and told[1] in brokers else None

    return wait_until(
        look, lambda: f"{brokers} are told: {[metadata_of(cluster, n) for n in cluster.running]}"
    )


def create(cluster, broker_id, name, partitions=3, factor=3):
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)]
    )
    (topic,) = ask(cluster, broker_id, request, 7).topics
    assert topic.error_code == 0, topic


def test_a_topic_made_through_any_broker_is_told_by_all(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    for broker_id in cluster.ids:
        create(cluster, broker_id, f"by-{broker_id}")
        # The answer comes when all brokers know the topic.
        _, told, topics = agreement(cluster)
        assert told == controller
        assert [sorted(replicas) for _, replicas in topics[f"by-{broker_id}"]] == [[1, 2, 3]] * 3
        assert {leader for leader, _ in topics[f"by-{broker_id}"]} == {1, 2, 3}


def others(cluster, broker_id):
    return [each for each in cluster.running if each != broker_id]


def test_a_needed_topic_is_made_through_a_broker_that_is_not_the_controller(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    other = others(cluster, controller)[0]
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="needed")], allow_auto_topic_creation=True)
    (topic,) = ask(cluster, other, asked, 12).topics
    assert topic.error_code == 0 and len(topic.partitions) == 1
    found = ask(cluster, other, FindCoordinatorRequest(key="group"), 3)
    assert found.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert set(agreement(cluster)[2]) == {"needed", "__consumer_offsets"}


def test_groups_wait_until_enough_brokers_can_keep_their_offsets(tmp_path):
    cluster = Cluster(brokers=3, data_dir=tmp_path)
    try:
        cluster.start_broker(1)
        found = ask(cluster, 1, FindCoordinatorRequest(key="group"), 3)
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE and "1 broker" in found.error_message
        assert metadata_of(cluster, 1)[2] == {}
        cluster.start()
        agrees_on(cluster, [1, 2, 3])
        ask(cluster, 1, FindCoordinatorRequest(key="group"), 3)
        told = agreement(cluster)[2]["__consumer_offsets"]
        assert {tuple(replicas) for _, replicas in told} == {(1, 2, 3)}
    finally:
        cluster.stop()


def test_a_topic_deleted_through_any_broker_is_gone_everywhere(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    for broker_id in cluster.ids:
        create(cluster, controller, "gone")
        directories = [cluster.data_dir / f"broker-{each}" / "gone-0" for each in cluster.ids]
        assert all(directory.is_dir() for directory in directories)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")])
        (answer,) = ask(cluster, broker_id, request, 6).responses
        assert answer.error_code == ErrorCode.NONE
        assert agreement(cluster)[2] == {} and not any(directory.is_dir() for directory in directories)
    control = cluster.broker(controller).node.cluster
    wait_until(lambda: not control.image.deleted_topics, "all brokers have confirmed the deletions")


def test_settings_made_through_any_broker_hold_on_all(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    other = others(cluster, controller)[0]
    for resource_type, name, key, value in (
        (ResourceType.BROKER, "", "log.retention.ms", "77000"),
        (ResourceType.BROKER, str(other), "log.retention.ms", "88000"),
    ):
        config = AlterableConfig(name=key, config_operation=AlterOperation.SET, value=value)
        resource = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=[config])
        (answer,) = ask(cluster, other, IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        assert answer.error_code == ErrorCode.NONE, answer.error_message
    for broker_id in cluster.ids:
        expected = 88_000 if broker_id == other else 77_000
        assert cluster.broker(broker_id).node.config["log.retention.ms"] == expected


def test_another_broker_takes_over_from_a_controller_that_dies(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    create(cluster, controller, "kept")
    cluster.kill(controller)
    left = others(cluster, controller)
    _, successor, topics = agrees_on(cluster, left)
    assert successor in left
    assert {leader for leader, _ in topics["kept"]} == set(left), "the dead broker leads nothing"
    for broker_id in left:
        create(cluster, broker_id, f"after-{broker_id}", factor=2)
    assert set(agreement(cluster)[2]) == {"kept", *(f"after-{broker_id}" for broker_id in left)}
    cluster.start_broker(controller)
    _, told, topics = agrees_on(cluster, [1, 2, 3])
    assert told == successor and len(topics) == 3


def test_a_broker_that_stops_cleanly_hands_over_and_is_seen_again(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    create(cluster, controller, "t")
    leaving = others(cluster, controller)[0]
    epoch = cluster.broker(leaving).node.broker_epoch
    cluster.stop_broker(leaving)
    # The leaders had moved before the broker left, so that no other broker tells of it as a leader.
    _, told, topics = agrees_on(cluster, others(cluster, leaving))
    assert told == controller and leaving not in {leader for leader, _ in topics["t"]}
    cluster.start_broker(leaving)
    agrees_on(cluster, [1, 2, 3])
    assert cluster.broker(leaving).node.broker_epoch > epoch
    assert cluster.broker(leaving).node._intact_epochs().last == epoch


def test_the_controller_itself_stops_cleanly(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    create(cluster, controller, "t")
    cluster.stop_broker(controller)
    left = others(cluster, controller)
    _, _, topics = agrees_on(cluster, left)
    assert {leader for leader, _ in topics["t"]} <= set(left)


def test_a_broker_whose_session_ends_registers_again(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    create(cluster, controller, "t")
    for broker_id in (others(cluster, controller)[0], controller):
        node = cluster.broker(broker_id).node
        epoch = node.broker_epoch

        async def end_session(node=node):
            store = node.membership._store
            await store.txn([])
            store._lose_session()

        cluster.broker(broker_id).run(end_session())
        wait_until(lambda node=node, epoch=epoch: (node.broker_epoch or 0) > epoch, "it has registered again")
        wait_until(
            lambda: all(knows_all_epochs(cluster, each) for each in cluster.ids), "all brokers know of that"
        )
        agrees_on(cluster, [1, 2, 3])
        # It follows again, also what is in the same leader epoch as before.
        wait_until(
            lambda broker_id=broker_id: isrs(cluster, broker_id, "t") == [[1, 2, 3]] * 3,
            "all replicas are in sync",
        )
        create(cluster, broker_id, f"after-{broker_id}")
    assert all(node.membership._store.state is State.CONNECTED for node in map(node_of(cluster), cluster.ids))


def isrs(cluster, broker_id, topic):
    image = cluster.broker(broker_id).node.cluster.image
    return [sorted(partition.isr) for partition in image.topics[topic].partitions]


def knows_all_epochs(cluster, broker_id):
    told = cluster.broker(broker_id).node.cluster.image.brokers
    nodes = [cluster.broker(each).node for each in cluster.ids]
    return [told[node.node_id].epoch if node.node_id in told else None for node in nodes] == [
        node.broker_epoch for node in nodes
    ]


def node_of(cluster):
    return lambda broker_id: cluster.broker(broker_id).node


def test_a_broker_that_starts_has_no_role_before_a_controller_gives_it_one(cluster, monkeypatch):
    """What the store says may be older than its restart."""
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    create(cluster, controller, "t")
    starting = others(cluster, controller)[0]
    cluster.kill(starting)
    register = membership.Membership.register
    roles = []

    async def look_and_register(self, *args):
        roles.extend((each.leader, each.follower) for each in cluster.broker(starting).node.partitions)
        await register(self, *args)

    monkeypatch.setattr(membership.Membership, "register", look_and_register)
    cluster.start_broker(starting)
    assert roles == [(None, None)] * 3
    wait_until(lambda: isrs(cluster, starting, "t") == [[1, 2, 3]] * 3, "it follows, and is in sync")


def test_apis_between_brokers_are_unknown_to_clients(cluster):
    address = cluster.address(1)
    between_brokers = {key for key in ApiKey if API_VERSIONS[key].is_inter_broker}
    for_brokers = cluster.broker(1).node.cluster.image.brokers[1].endpoints["BROKERS"]
    with WireConnection(f"127.0.0.1:{for_brokers.port}") as wire:
        told = {each.api_key for each in wire.call(ApiVersionsRequest(), 0).api_keys}
        assert told & between_brokers == between_brokers
        stale = UpdateMetadataRequest(controller_epoch=0, broker_epoch=1 << 40)
        assert wire.call(stale, 8).error_code == ErrorCode.BROKER_NOT_AVAILABLE
        epoch = cluster.broker(1).node.broker_epoch
        for controller_epoch, broker_epoch, code in (
            (0, epoch, ErrorCode.STALE_CONTROLLER_EPOCH),
            (99, epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
        ):
            stale = UpdateMetadataRequest(controller_epoch=controller_epoch, broker_epoch=broker_epoch)
            assert wire.call(stale, 8).error_code == code
    with WireConnection(address) as wire:
        assert not {each.api_key for each in wire.call(ApiVersionsRequest(), 0).api_keys} & between_brokers
        with pytest.raises(ConnectionError):
            wire.call(stale, 8)


def test_a_client_cannot_fetch_as_a_follower(cluster):
    create(cluster, 1, "topic", partitions=1)
    partition = cluster.broker(1).node.partitions.get("topic", 0)
    leader = cluster.broker(partition.leader_id).node
    follower_id = others(cluster, leader.node_id)[0]
    known = leader.partitions.get("topic", 0).leader
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=follower_id, replica_epoch=1 << 40),
        session_epoch=-1,
        topics=[FetchTopic(topic_id=partition.topic_id, partitions=[FetchPartition(partition=0)])],
    )
    answer = ask(cluster, leader.node_id, request, 17)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and not answer.responses
    assert 1 << 40 not in {follower.broker_epoch for follower in known.followers}


def test_reassignments_and_elections_are_asked_of_any_broker(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    create(cluster, controller, "t", partitions=1, factor=1)
    ((leader, _),) = agreement(cluster)[2]["t"]
    other = others(cluster, controller)[0]
    target = others(cluster, leader)
    partition = ReassignablePartition(partition_index=0, replicas=target)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])])
    answer = ask(cluster, other, request, 1)
    assert answer.error_code == ErrorCode.NONE and answer.responses[0].partitions[0].error_code == 0
    (moved,) = ask(cluster, other, ListPartitionReassignmentsRequest(topics=None), 0).topics
    assert moved.partitions[0].adding_replicas == target and moved.partitions[0].removing_replicas == [leader]
    answer = ask(cluster, other, ElectLeadersRequest(topic_partitions=None), 2)
    assert answer.error_code == ErrorCode.NONE
    answer = ask(cluster, other, UnregisterBrokerRequest(broker_id=other), 0)
    assert answer.error_code == ErrorCode.INVALID_REQUEST, "it is alive"
    assert ask(cluster, other, UnregisterBrokerRequest(broker_id=9), 0).error_code == (
        ErrorCode.BROKER_ID_NOT_REGISTERED
    )


def test_a_broker_that_is_gone_is_forgotten_by_all(cluster):
    _, controller, _ = agrees_on(cluster, [1, 2, 3])
    gone, asked = others(cluster, controller)
    create(cluster, controller, "t", partitions=1)
    cluster.kill(gone)
    images = [cluster.broker(broker_id).node.cluster for broker_id in (controller, asked)]
    wait_until(lambda: all(gone not in each.image.brokers for each in images), "all know that it is gone")
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
    assert ask(cluster, controller, delete, 6).responses[0].error_code == ErrorCode.NONE
    wait_until(
        lambda: [each.brokers for each in images[0].image.deleted_topics.values()] == [(gone,)],
        "only the broker that is gone may still have files of the deleted topic",
    )
    answer = ask(cluster, asked, UnregisterBrokerRequest(broker_id=gone), 0)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert not images[0].image.deleted_topics, "nobody waits for it any longer"
    for broker_id in (controller, asked):
        described = ask(cluster, broker_id, DescribeClusterRequest(), 2)
        assert [each.broker_id for each in described.brokers] == sorted((controller, asked))
        again = ask(cluster, broker_id, UnregisterBrokerRequest(broker_id=gone), 0)
        assert again.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    cluster.start_broker(gone)
    agrees_on(cluster, [1, 2, 3])


def test_an_id_that_a_living_broker_has_is_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(membership, "PATIENCE_IN_TIMEOUTS", 0.05)
    settings = dict(cluster.broker(1)._settings)
    settings |= {
        "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "log.dirs": str(tmp_path),
    }
    with pytest.raises(CannotStart, match="another broker with the id 1 is alive"):
        Broker(settings).start()
    agrees_on(cluster, [1, 2, 3])
