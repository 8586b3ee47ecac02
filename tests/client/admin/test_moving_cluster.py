"""What an admin does when whom it asks has moved, is gone, or is older than we are."""

from __future__ import annotations

import re

import pytest

from klamm import (
    BatchFailed,
    BrokerError,
    ClientMisused,
    ErrorCode,
    GroupError,
    NewTopic,
    TimedOut,
    TopicExists,
    UnknownTopic,
)
from klamm.aio import Admin
from klamm.client.admin.types import ConfigResource
from klamm.client.results import OffsetAndTime, TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from klamm.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.k15_describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from klamm.protocol.messages.k16_list_groups import ListedGroup, ListGroupsResponse
from klamm.protocol.messages.k19_create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from klamm.protocol.messages.k20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from klamm.protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from klamm.protocol.messages.k43_elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from klamm.protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from klamm.protocol.messages.k69_consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    Member,
    TopicPartitions,
)
from klamm.protocol.messages.k69_consumer_group_describe import DescribedGroup as ConsumerDescribedGroup
from klamm.protocol.messages.k75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tests.client.admin.fake_cluster import FakeCluster
from tests.client.network.fake_broker import HANG_UP

ORDERS = TopicPartition("orders", 0)
QUICKLY = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1}


@pytest.fixture
async def cluster():
    async with FakeCluster() as made:
        yield made


@pytest.fixture
async def admin(cluster):
    async with Admin(cluster.bootstrap, **QUICKLY) as made:
        yield made


# ---- the controller


def create_at_the_controller(cluster):
    """Only the controller creates; the others say who they are not."""

    def create(broker, request):
        results = []
        for topic in request.topics:
            code = ErrorCode.NONE if broker == cluster.controller else ErrorCode.NOT_CONTROLLER
            if code == ErrorCode.NONE and (topic.name, 0) in cluster.leaders:
                code = ErrorCode.TOPIC_ALREADY_EXISTS
            elif code == ErrorCode.NONE:
                cluster.leaders[topic.name, 0] = broker
            results.append(CreatableTopicResult(name=topic.name, error_code=code, configs=[]))
        return CreateTopicsResponse(topics=results)

    return create


async def test_a_controller_that_moved_is_looked_for_anew(cluster, admin):
    create = create_at_the_controller(cluster)

    def move(broker, request):
        cluster.controller = 2
        return create(broker, request)

    cluster.handlers[ApiKey.CREATE_TOPICS] = move
    await admin.create_topic("orders")
    assert [broker for broker, _ in cluster.requests(CreateTopicsRequest)] == [1, 2]


async def test_only_what_is_open_is_asked_for_again(cluster, admin):
    create = create_at_the_controller(cluster)

    def refuse_one(broker, request):
        response = create(broker, request)
        if len(cluster.requests(CreateTopicsRequest)) == 1:
            response.topics[1].error_code = ErrorCode.NOT_CONTROLLER
            del cluster.leaders["b", 0]
        return response

    cluster.handlers[ApiKey.CREATE_TOPICS] = refuse_one
    cluster.leaders["taken", 0] = 1
    with pytest.raises(BatchFailed) as failed:
        await admin.create_topics([NewTopic("a"), NewTopic("b"), NewTopic("taken")])
    assert list(failed.value.results) == ["a", "b"]
    assert isinstance(failed.value.errors["taken"], TopicExists)
    asked = [[topic.name for topic in request.topics] for _, request in cluster.requests(CreateTopicsRequest)]
    assert asked == [["a", "b", "taken"], ["b"]]


async def test_a_topic_whose_first_answer_was_lost_counts_as_created(cluster, admin):
    create = create_at_the_controller(cluster)

    def lose_the_first(broker, request):
        answer = create(broker, request)
        return HANG_UP if len(cluster.requests(CreateTopicsRequest)) == 1 else answer

    cluster.handlers[ApiKey.CREATE_TOPICS] = lose_the_first
    assert (await admin.create_topic("orders")).name == "orders"
    assert len(cluster.requests(CreateTopicsRequest)) == 2


async def test_one_that_was_there_before_does_not(cluster, admin):
    cluster.leaders["orders", 0] = 1
    create = create_at_the_controller(cluster)
    cluster.handlers[ApiKey.CREATE_TOPICS] = lambda broker, request: (
        HANG_UP if len(cluster.requests(CreateTopicsRequest)) == 1 else create(broker, request)
    )
    with pytest.raises(TopicExists):
        await admin.create_topic("orders")


async def test_a_topic_is_created_when_it_has_leaders(cluster, admin):
    create = create_at_the_controller(cluster)
    looks = []
    metadata = cluster.handlers[ApiKey.METADATA]

    def elect_late(broker, request):
        if any(topic.name == "orders" for topic in request.topics) and ("orders", 0) in cluster.leaders:
            looks.append(cluster.leaders["orders", 0])
            if len(looks) == 3:
                cluster.leaders["orders", 0] = 2
        return metadata(broker, request)

    def create_without_leader(broker, request):
        answer = create(broker, request)
        cluster.leaders["orders", 0] = -1
        return answer

    cluster.handlers |= {ApiKey.METADATA: elect_late, ApiKey.CREATE_TOPICS: create_without_leader}
    await admin.create_topic("orders")
    assert looks == [-1, -1, -1]


@pytest.mark.parametrize("newest", [5, 6])
async def test_topics_are_deleted_as_old_brokers_know_it(cluster, admin, newest):
    cluster.newest[ApiKey.DELETE_TOPICS] = newest
    cluster.leaders["orders", 0] = 1

    def delete(broker, request):
        names = request.topic_names if newest < 6 else [topic.name for topic in request.topics]
        for name in names:
            cluster.leaders.pop((name, 0))
        return DeleteTopicsResponse(responses=[DeletableTopicResult(name=name) for name in names])

    cluster.handlers[ApiKey.DELETE_TOPICS] = delete
    await admin.delete_topic("orders")
    assert len(cluster.requests(DeleteTopicsRequest)) == 1
    assert not cluster.leaders


# ---- leaders


def offsets_at_the_leader(cluster, code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
    def list_offsets(broker, request):
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=one.partition_index,
                            offset=100 + broker,
                            error_code=0
                            if cluster.real_leaders[topic.name, one.partition_index] == broker
                            else code,
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return list_offsets


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], ids=lambda one: one.name
)
async def test_each_leader_is_asked_and_one_that_moved_is_found(cluster, admin, code):
    cluster.leaders = {("orders", 0): 1, ("orders", 1): 2, ("orders", 2): 1}
    cluster.real_leaders = {**cluster.leaders, ("orders", 2): 2}
    answer = offsets_at_the_leader(cluster, code)

    def move(broker, request):
        if len(cluster.requests(ListOffsetsRequest)) == 2:
            cluster.leaders = cluster.real_leaders
        return answer(broker, request)

    cluster.handlers[ApiKey.LIST_OFFSETS] = move
    wanted = {TopicPartition("orders", number): "latest" for number in range(3)}
    found = await admin.list_offsets(wanted)
    assert found == {
        TopicPartition("orders", 0): OffsetAndTime(101, -1),
        TopicPartition("orders", 1): OffsetAndTime(102, -1),
        TopicPartition("orders", 2): OffsetAndTime(102, -1),
    }
    assert list(found) == list(wanted)
    assert len(cluster.requests(ListOffsetsRequest)) == 3


async def test_a_partition_that_is_not_there_fails_at_once_and_alone(cluster, admin):
    cluster.leaders = cluster.real_leaders = {("orders", 0): 1}
    cluster.handlers[ApiKey.LIST_OFFSETS] = offsets_at_the_leader(cluster)
    with pytest.raises(BatchFailed) as failed:
        await admin.list_offsets({ORDERS: "latest", ("orders", 7): "latest", ("bills", 0): "latest"})
    assert failed.value.results == {ORDERS: OffsetAndTime(101, -1)}
    assert {str(one): type(error) for one, error in failed.value.errors.items()} == {
        "orders-7": UnknownTopic,
        "bills-0": UnknownTopic,
    }
    assert "failed for 2 of 3" in str(failed.value)


async def test_a_leader_that_never_settles_ends_in_time_with_the_last_cause(cluster, admin):
    cluster.leaders = {("orders", 0): 1}
    cluster.real_leaders = {("orders", 0): 2}
    cluster.handlers[ApiKey.LIST_OFFSETS] = offsets_at_the_leader(cluster)
    with pytest.raises(BatchFailed) as failed:
        await admin.list_offsets({ORDERS: "latest"}, timeout=0.2)
    error = failed.value.errors[ORDERS]
    assert isinstance(error, TimedOut)
    assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert re.search(r"orders-0.* timed out after \d(\.\d+)? s; .*NOT_LEADER_OR_FOLLOWER", str(error))


# ---- coordinators


def describe_at_the_coordinator(cluster):
    def describe(broker, request):
        code = ErrorCode.NONE if broker == cluster.coordinator else ErrorCode.NOT_COORDINATOR
        return DescribeGroupsResponse(
            groups=[
                DescribedGroup(group_id=group, error_code=code, group_state="Empty")
                for group in request.groups
            ]
        )

    return describe


@pytest.mark.parametrize(("finds", "fetches", "asked"), [(3, 7, [3, 3]), (6, 9, [1, 1])])
async def test_offsets_of_groups_as_old_brokers_know_it(cluster, admin, finds, fetches, asked):
    """Old brokers are asked about each group alone."""
    cluster.newest = {ApiKey.FIND_COORDINATOR: finds, ApiKey.OFFSET_FETCH: fetches}
    find = cluster.handlers[ApiKey.FIND_COORDINATOR]

    def find_alone(broker, request):
        request.coordinator_keys = request.coordinator_keys or [request.key]
        place = find(broker, request).coordinators[0]
        return FindCoordinatorResponse(node_id=place.node_id, host=place.host, port=place.port)

    def topics(group, kind, partition_kind):
        partition = partition_kind(partition_index=0, committed_offset=len(group))
        return [kind(name="orders", partitions=[partition])]

    def fetch(broker, request):
        if fetches < 8:
            named = topics(request.group_id, OffsetFetchResponseTopic, OffsetFetchResponsePartition)
            return OffsetFetchResponse(topics=named)
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(
                    group_id=one.group_id,
                    topics=topics(one.group_id, OffsetFetchResponseTopics, OffsetFetchResponsePartitions),
                )
                for one in request.groups
            ]
        )

    cluster.handlers |= {ApiKey.OFFSET_FETCH: fetch}
    if finds < 4:
        cluster.handlers[ApiKey.FIND_COORDINATOR] = find_alone
    found = await admin.list_groups_offsets(["a", "bb", "ccc"])
    assert {group: offsets[ORDERS].offset for group, offsets in found.items()} == {"a": 1, "bb": 2, "ccc": 3}
    kinds = (FindCoordinatorRequest, OffsetFetchRequest)
    assert [len(cluster.requests(kind)) for kind in kinds] == asked


async def test_a_group_of_the_new_protocol_is_described(cluster, admin):
    """DescribeGroups does not know it; a broker without the new protocol is not asked."""

    def describe(broker, request):
        groups = [
            DescribedGroup(
                group_id=group, error_code=ErrorCode.NONE if group == "old" else ErrorCode.GROUP_ID_NOT_FOUND
            )
            for group in request.groups
        ]
        return DescribeGroupsResponse(groups=groups)

    def describe_new(broker, request):
        held = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=bytes(16), topic_name=ORDERS.topic, partitions=[ORDERS.partition])
            ]
        )
        nothing = Assignment(topic_partitions=[])
        member = Member(
            member_id="m",
            client_id="c",
            client_host="h",
            member_epoch=1,
            subscribed_topic_names=["orders"],
            assignment=held,
            target_assignment=nothing,
        )
        found = {"new": ErrorCode.NONE, "nobody": ErrorCode.GROUP_ID_NOT_FOUND}
        groups = [
            ConsumerDescribedGroup(
                group_id=group,
                error_code=found[group],
                group_state="Stable",
                assignor_name="uniform",
                members=[member],
            )
            for group in request.group_ids
        ]
        return ConsumerGroupDescribeResponse(groups=groups)

    cluster.handlers[ApiKey.DESCRIBE_GROUPS] = describe
    async with Admin(cluster.bootstrap, **QUICKLY) as old:
        with pytest.raises(GroupError):
            await old.describe_group("new")
    cluster.handlers[ApiKey.CONSUMER_GROUP_DESCRIBE] = describe_new
    with pytest.raises(BatchFailed) as failed:
        await admin.describe_groups(["old", "new", "nobody"])
    assert list(failed.value.errors) == ["nobody"]
    new = failed.value.results["new"]
    assert (new.state, new.strategy, new.protocol_type) == ("Stable", "uniform", "consumer")
    assert new.members[0].partitions == {ORDERS} and new.members[0].topics == ("orders",)
    asked = [request.group_ids for _, request in cluster.requests(ConsumerGroupDescribeRequest)]
    assert asked == [["new", "nobody"]]


async def test_a_coordinator_that_moved_is_found(cluster, admin):
    cluster.handlers[ApiKey.DESCRIBE_GROUPS] = describe_at_the_coordinator(cluster)
    assert (await admin.describe_group("billing")).coordinator == 1
    cluster.coordinator = 2
    assert (await admin.describe_group("billing")).coordinator == 2
    assert [broker for broker, _ in cluster.requests(DescribeGroupsRequest)] == [1, 1, 2]


async def test_a_coordinator_that_is_gone_is_replaced(cluster, admin):
    cluster.handlers[ApiKey.DESCRIBE_GROUPS] = describe_at_the_coordinator(cluster)
    cluster.coordinator = 2
    await admin.describe_group("billing")
    describe = cluster.handlers[ApiKey.DESCRIBE_GROUPS]

    def die(broker, request):
        if broker == 2:
            cluster.stop(2)
            cluster.coordinator = 1
            return HANG_UP
        return describe(broker, request)

    cluster.handlers[ApiKey.DESCRIBE_GROUPS] = die
    assert (await admin.describe_group("billing")).coordinator == 1


async def test_a_group_that_old_brokers_call_dead_is_not_there(cluster, admin):
    cluster.newest[ApiKey.DESCRIBE_GROUPS] = 5
    cluster.handlers[ApiKey.DESCRIBE_GROUPS] = lambda broker, request: DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=group, group_state="Dead") for group in request.groups]
    )
    with pytest.raises(GroupError) as refused:
        await admin.describe_group("nobody")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


# ---- all brokers


async def test_every_broker_is_asked_for_its_groups_and_one_that_is_gone_is_named(cluster, admin):
    cluster.handlers[ApiKey.LIST_GROUPS] = lambda broker, request: ListGroupsResponse(
        groups=[ListedGroup(group_id=f"of-{broker}", protocol_type="consumer", group_state="Stable")]
    )
    assert [one.group for one in await admin.list_groups()] == ["of-1", "of-2"]
    cluster.stop(2)
    async with Admin(cluster.bootstrap, **QUICKLY) as later:
        with pytest.raises(BatchFailed) as failed:
            await later.list_groups(timeout=0.5)
    assert [one.group for one in failed.value.results[1]] == ["of-1"]
    assert isinstance(failed.value.errors[2], TimedOut)


async def test_a_broker_is_asked_about_itself(cluster, admin):
    def describe(broker, request):
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(resource_type=one.resource_type, resource_name=one.resource_name)
                for one in request.resources
            ]
        )

    cluster.handlers[ApiKey.DESCRIBE_CONFIGS] = describe
    brokers = [ConfigResource.broker(1), ConfigResource.broker(2)]
    await admin.describe_configs([*brokers, ConfigResource.topic("orders")])
    asked = {
        one.resource_name: broker
        for broker, request in cluster.requests(DescribeConfigsRequest)
        for one in request.resources
    }
    assert (asked["1"], asked["2"]) == (1, 2)
    with pytest.raises(BatchFailed) as failed:
        await admin.describe_configs([ConfigResource.broker(7), brokers[0]])
    assert list(failed.value.results) == [brokers[0]]
    assert failed.value.errors[ConfigResource.broker(7)].code is ErrorCode.BROKER_NOT_AVAILABLE
    with pytest.raises(ClientMisused):
        await admin.describe_config("orders")  # type: ignore[arg-type]


# ---- elections and reassignments


def elections(*codes):
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic="orders",
                partition_result=[
                    PartitionResult(partition_id=number, error_code=code, error_message=None)
                    for number, code in enumerate(codes)
                ],
            )
        ]
    )


async def test_an_election_without_the_replica_fails_at_once(cluster, admin):
    """Its error is retriable, but the broker may be away for long."""
    codes = [ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    cluster.handlers[ApiKey.ELECT_LEADERS] = lambda broker, request: elections(*codes)
    partitions = [TopicPartition("orders", number) for number in range(3)]
    for asked in (partitions, None):
        with pytest.raises(BatchFailed) as failed:
            await admin.elect_leaders(asked)
        assert failed.value.results == {partitions[0]: True, partitions[1]: False}
        assert failed.value.errors[partitions[2]].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert len(cluster.requests(ElectLeadersRequest)) == 2


async def test_elections_are_asked_of_the_new_controller(cluster, admin):
    def elect(broker, request):
        cluster.controller = 2
        return elections(ErrorCode.NONE) if broker == 2 else ElectLeadersResponse(error_code=41)

    cluster.handlers[ApiKey.ELECT_LEADERS] = elect
    assert await admin.elect_leaders([ORDERS], unclean=True) == {ORDERS: True}
    asked = cluster.requests(ElectLeadersRequest)
    assert [(broker, request.election_type) for broker, request in asked] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_reassignment_that_is_cancelled_already(cluster, admin, is_lost):
    """It counts as cancelled if the answer to an earlier attempt was lost."""

    def cancel(broker, request):
        if is_lost and len(cluster.requests(AlterPartitionReassignmentsRequest)) == 1:
            return HANG_UP
        code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        one = ReassignablePartitionResponse(partition_index=0, error_code=code, error_message=None)
        topic = ReassignableTopicResponse(name="orders", partitions=[one])
        return AlterPartitionReassignmentsResponse(error_message=None, responses=[topic])

    cluster.handlers[ApiKey.ALTER_PARTITION_REASSIGNMENTS] = cancel
    if is_lost:
        await admin.alter_partition_reassignments({ORDERS: None})
    else:
        with pytest.raises(BatchFailed, match="cancelling the reassignment of orders-0"):
            await admin.alter_partition_reassignments({ORDERS: None})


# ---- pages


def page(name, numbers, following):
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(
                name=name,
                partitions=[
                    DescribeTopicPartitionsResponsePartition(
                        partition_index=number, leader_id=1, replica_nodes=[1], isr_nodes=[1]
                    )
                    for number in numbers
                ],
            )
        ],
        next_cursor=following,
    )


async def test_pages_are_put_together(cluster, admin):
    pages = {
        None: page("a", [0, 1], Cursor(topic_name="a", partition_index=2)),
        ("a", 2): page("a", [2], Cursor(topic_name="b", partition_index=0)),
        ("b", 0): page("b", [0], None),
    }

    def describe(broker, request):
        cursor = request.cursor
        return pages[None if cursor is None else (cursor.topic_name, cursor.partition_index)]

    cluster.handlers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = describe
    found = await admin.describe_topics(["b", "a"])
    assert {name: [one.partition for one in topic.partitions] for name, topic in found.items()} == {
        "b": [0],
        "a": [0, 1, 2],
    }


async def test_pages_that_go_in_circles_are_an_error(cluster, admin):
    circle = page("a", [0], Cursor(topic_name="a", partition_index=1))
    cluster.handlers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = lambda broker, request: circle
    with pytest.raises(BrokerError, match="repeats pages"):
        await admin.describe_topics()


async def test_brokers_without_pages_are_asked_for_metadata(cluster, admin):
    cluster.leaders = {("orders", 0): 1, ("orders", 1): 2, ("bills", 0): 1}
    found = await admin.describe_topics()
    assert {name: [one.leader for one in topic.partitions] for name, topic in found.items()} == {
        "bills": [1],
        "orders": [1, 2],
    }
    with pytest.raises(UnknownTopic):
        await admin.describe_topic("none")
