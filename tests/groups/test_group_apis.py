"""The group APIs, version by version, over a coordinator on fakes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.apis import (
    k08_offset_commit,
    k09_offset_fetch,
    k10_find_coordinator,
    k11_join_group,
    k12_heartbeat,
    k13_leave_group,
    k14_sync_group,
    k15_describe_groups,
    k16_list_groups,
    k42_delete_groups,
    k47_offset_delete,
)
from klamm.apis.registry import Request
from klamm.apis.steps import AT_ONCE, run
from klamm.cluster.image import (
    OFFSETS_TOPIC,
    BrokerDelta,
    BrokerImage,
    Endpoint,
    ImageDelta,
    PartitionImage,
    TopicImage,
    image_of_topics,
    topic_delta,
)
from klamm.groups import loading
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_TOPIC_ID, TopicId
from klamm.protocol.messages import k08_offset_commit as m08
from klamm.protocol.messages import k09_offset_fetch as m09
from klamm.protocol.messages import k47_offset_delete as m47
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.k12_heartbeat import HeartbeatRequest
from klamm.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.protocol.messages.k15_describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.k16_list_groups import ListGroupsRequest
from klamm.protocol.messages.k42_delete_groups import DeleteGroupsRequest
from tests.apis.outcomes import answer_of
from tests.groups.fakes import Coordination, settle
from tests.groups.scenario import subscription
from tests.groups.test_coordinator import run_async
from tests.replies import FakeReply

TOPIC_ID = TopicId(bytes(15) + b"\x09")
OTHER_ID = bytes(15) + b"\x0a"


def topic(name: str, topic_id: bytes, partition_count: int) -> TopicImage:
    partition = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
    return TopicImage(name, TopicId(topic_id), (partition,) * partition_count, {})


class FakeBroker:
    """What handlers reach, with groups that work and a cluster that knows one topic, `t`."""

    def __init__(self) -> None:
        self.node_id = 1
        self.coordination = Coordination()
        self.groups = self.coordination.coordinator
        self.clock = self.coordination.time
        self.partitions = SimpleNamespace(is_offline=lambda topic, index: False)
        node = BrokerImage(1, {"PLAINTEXT": Endpoint("example.org", 9092)})
        known = topic("t", TOPIC_ID, 2)
        brokers = {1: BrokerDelta(None, node)}
        image = image_of_topics("c", 1, {"t": known}).with_delta(ImageDelta(brokers=brokers))
        self.cluster = SimpleNamespace(image=image, ensure_offsets_topic=self._ensure_offsets_topic)

    async def _ensure_offsets_topic(self) -> None:
        count = self.coordination.log.partition_count
        self.change_topic(OFFSETS_TOPIC, topic(OFFSETS_TOPIC, OTHER_ID, count))

    def change_topic(self, name: str, after: TopicImage | None) -> None:
        image = self.cluster.image
        delta = topic_delta(image.topics.get(name), after)
        self.cluster.image = image.with_delta(ImageDelta(topics={name: delta}))

    async def start(self) -> FakeBroker:
        await self.coordination.start()
        return self

    def call(self, module: Any, message: Any, version: int) -> tuple[Any, FakeReply]:
        connection: Any = SimpleNamespace(client_host="127.0.0.1", listener_name="PLAINTEXT")
        reply = FakeReply()
        return module.handle(self, Request(message, version, "client", connection, reply)), reply

    async def ask(self, module: Any, message: Any, version: int) -> Any:
        """The response, as the client sees it after a trip over the wire in this version."""
        return await answer_of(*self.call(module, message, version), version)

    async def join(self, version: int, member_id: str = "", group_id: str = "g") -> Any:
        message = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
        )
        return await self.ask(k11_join_group, message, version)

    async def commit(self, version: int, partition: int, offset: int, **changes: Any) -> list[int]:
        message = m08.OffsetCommitRequest(
            group_id=changes.pop("group_id", "g"),
            topics=[
                m08.OffsetCommitRequestTopic(
                    name=changes.pop("name", "t"),
                    topic_id=changes.pop("topic_id", TOPIC_ID),
                    partitions=[
                        m08.OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=4,
                            committed_metadata=None,
                        )
                    ],
                )
            ],
            **changes,
        )
        response = await self.ask(k08_offset_commit, message, version)
        return [each.error_code for topic in response.topics for each in topic.partitions]


@pytest.mark.parametrize("version", range(7))
@run_async
async def test_find_coordinator(version: int) -> None:
    broker = await FakeBroker().start()

    async def find(key_type: int) -> Any:
        message = FindCoordinatorRequest(key="g", key_type=key_type, coordinator_keys=["g"])
        response = await broker.ask(k10_find_coordinator, message, version)
        return response if version < 4 else response.coordinators[0]

    found = await find(0)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "example.org", 9092)
    assert OFFSETS_TOPIC in broker.cluster.image.topics
    assert found.error_message == ("NONE" if 1 <= version <= 3 else "")
    if version >= 1:
        assert (await find(1)).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await find(2)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("key_type", [0, 1])
@run_async
async def test_coordinators_are_made_one_after_the_other_when_they_are_encoded(key_type: int) -> None:
    broker = await FakeBroker().start()
    group_ids = [f"g{number}" for number in range(1_000)]
    message = FindCoordinatorRequest(key_type=key_type, coordinator_keys=group_ids)
    outcome, _ = broker.call(k10_find_coordinator, message, 4)
    _, response = run(await outcome, float("inf"))
    assert not isinstance(response.coordinators, list)
    assert [each.key for each in response.coordinators] == group_ids


@run_async
async def test_no_coordinator_without_the_topic_of_offsets() -> None:
    broker = await FakeBroker().start()
    log = broker.coordination.log
    log.partition_count = 0  # deleted right after it was made
    assert await coordinator_code(broker) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    # Deleted while the request waits for the group to be loaded, and made again with fewer partitions.
    log.partition_count, log.led = 3, set()
    broker.groups.update_leadership()
    assert broker.groups.partition_for("h") > 0
    asked = asyncio.ensure_future(coordinator_code(broker, "h"))
    await settle()
    broker.change_topic(OFFSETS_TOPIC, topic(OFFSETS_TOPIC, OTHER_ID, 1))
    await broker.coordination.time.advance(loading.LOAD_WAIT_MS)
    assert await asked == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def coordinator_code(broker: FakeBroker, group_id: str = "g") -> int:
    message = FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
    return int((await broker.ask(k10_find_coordinator, message, 4)).coordinators[0].error_code)


@run_async
async def test_the_coordinator_is_named_once_it_can_be_asked() -> None:
    broker = await FakeBroker().start()
    log = broker.coordination.log
    log.led.clear()  # the image has the topic already, its logs are still being made
    broker.groups.update_leadership()
    log.load_gate.clear()
    asked = asyncio.ensure_future(coordinator_code(broker))
    await settle()
    assert not asked.done()
    log.led.update(range(log.partition_count))
    broker.groups.update_leadership()
    await settle()
    assert not asked.done(), "the group is not loaded yet"
    log.load_gate.set()
    assert await asked == ErrorCode.NONE
    fetch = m09.OffsetFetchRequest(groups=[m09.OffsetFetchRequestGroup(group_id="g", topics=None)])
    fetched = await broker.ask(k09_offset_fetch, fetch, 8)
    assert fetched.groups[0].error_code == ErrorCode.NONE


@run_async
async def test_a_coordinator_that_loads_for_long_is_not_named() -> None:
    broker = await FakeBroker().start()
    broker.coordination.log.led.clear()
    broker.groups.update_leadership()
    asked = asyncio.ensure_future(coordinator_code(broker))
    await settle()
    assert not asked.done()
    await broker.coordination.time.advance(loading.LOAD_WAIT_MS)
    assert await asked == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(10))
@run_async
async def test_join_sync_heartbeat_leave(version: int) -> None:
    broker = await FakeBroker().start()
    joined = await broker.join(version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = await broker.join(version, joined.member_id)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == joined.members[0].member_id

    identity = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"x")
    sync = SyncGroupRequest(
        **identity, protocol_type="consumer", protocol_name="range", assignments=[assignment]
    )
    synced = await broker.ask(k14_sync_group, sync, min(version, 5))
    assert (synced.error_code, synced.assignment) == (0, b"x")
    heartbeat = await broker.ask(k12_heartbeat, HeartbeatRequest(**identity), min(version, 4))
    assert heartbeat.error_code == 0

    leave = LeaveGroupRequest(
        group_id="g",
        member_id=joined.member_id,
        members=[MemberIdentity(member_id=joined.member_id), MemberIdentity(member_id="stranger")],
    )
    left = await broker.ask(k13_leave_group, leave, min(version, 5))
    assert left.error_code == 0
    if version >= 3:
        assert [each.error_code for each in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    heartbeat = await broker.ask(k12_heartbeat, HeartbeatRequest(**identity), min(version, 4))
    assert heartbeat.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("count", "code"), [(50, ErrorCode.NONE), (51, ErrorCode.INVALID_REQUEST)])
@run_async
async def test_a_member_has_fifty_protocols_at_most(count: int, code: ErrorCode) -> None:
    broker = await FakeBroker().start()
    protocols = [JoinGroupRequestProtocol(name=f"{number}", metadata=b"") for number in range(count)]
    message = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols
    )
    assert (await broker.ask(k11_join_group, message, 3)).error_code == code


@run_async
async def test_many_members_leave_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k13_leave_group, "MOST_AT_ONCE", 2)
    broker = await FakeBroker().start()
    joined = await broker.join(3)
    members = [*(MemberIdentity(member_id=f"stranger {number}") for number in range(4))]
    members.insert(3, MemberIdentity(member_id=joined.member_id))
    message = LeaveGroupRequest(group_id="g", members=members)
    left = await broker.ask(k13_leave_group, message, 4)
    unknown, none = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE
    assert [each.error_code for each in left.members] == [unknown, unknown, unknown, none, unknown]
    nobody = LeaveGroupRequest(group_id="no such group", members=[])
    assert (await broker.ask(k13_leave_group, nobody, 4)).error_code == unknown


@run_async
async def test_a_parked_join_is_a_future() -> None:
    broker = await FakeBroker().start()
    await broker.join(3)
    second = asyncio.ensure_future(broker.join(3))
    await asyncio.sleep(0)
    assert not second.done()
    broker.groups.stop()
    assert (await second).error_code == ErrorCode.NOT_COORDINATOR


@run_async
async def test_requests_that_no_group_sees() -> None:
    broker = await FakeBroker().start()
    assert (await broker.join(9, group_id="")).error_code == ErrorCode.INVALID_GROUP_ID
    assert (await broker.join(9, member_id="stranger")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    sync = await broker.ask(k14_sync_group, SyncGroupRequest(group_id="g"), 5)
    assert sync.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    sync = await broker.ask(k14_sync_group, SyncGroupRequest(group_id="g"), 4)
    assert sync.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    for version in (2, 3):
        left = await broker.ask(k13_leave_group, LeaveGroupRequest(group_id="g"), version)
        assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(2, 11))
@run_async
async def test_commit_errors(version: int) -> None:
    broker = await FakeBroker().start()
    assert await broker.commit(version, 0, 5) == [ErrorCode.NONE]
    assert await broker.commit(version, 2, 5) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await broker.commit(version, -1, 5) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await broker.commit(version, 0, 5, name="no", topic_id=OTHER_ID) == [unknown]
    unknown = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    codes = await broker.commit(version, 0, 5, group_id="new", generation_id_or_member_epoch=1, member_id="m")
    assert codes == [unknown]


@run_async
async def test_only_versions_2_to_4_choose_a_retention() -> None:
    broker = await FakeBroker().start()
    await broker.commit(4, 0, 5, retention_time_ms=1000)
    await broker.commit(5, 1, 5)
    first, second = (broker.groups.offsets_of("g").get("t", index) for index in (0, 1))
    assert first is not None and first.expire_timestamp_ms == broker.clock.now_ms() + 1000
    assert second is not None and second.expire_timestamp_ms == -1
    assert await broker.commit(4, 0, 6, retention_time_ms=2**63 - 1) == [ErrorCode.NONE]  # for ever


@pytest.mark.parametrize("version", range(1, 11))
@run_async
async def test_fetch(version: int) -> None:
    broker = await FakeBroker().start()
    await broker.commit(version if version >= 6 else 6, 1, 5)

    async def fetch(group_id: str, *, everything: bool, topic_id: bytes = TOPIC_ID) -> Any:
        wanted = m09.OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0, 1])
        group = m09.OffsetFetchRequestGroup(group_id=group_id, topics=None if everything else [wanted])
        old = m09.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])
        request = m09.OffsetFetchRequest(
            group_id=group_id, topics=None if everything else [old], groups=[group]
        )
        response = await broker.ask(k09_offset_fetch, request, version)
        return response if version < 8 else response.groups[0]

    found = await fetch("g", everything=False)
    assert found.error_code == 0
    assert [each.committed_offset for each in found.topics[0].partitions] == [-1, 5]
    assert found.topics[0].partitions[1].committed_leader_epoch == (4 if version >= 5 else -1)
    stranger = await fetch("stranger", everything=False)
    assert [(each.committed_offset, each.error_code) for each in stranger.topics[0].partitions] == [
        (-1, 0)
    ] * 2
    if version >= 2:
        found = await fetch("g", everything=True)
        assert [each.partition_index for each in found.topics[0].partitions] == [1]
    if version >= 10:
        unknown = await fetch("g", everything=False, topic_id=OTHER_ID)
        assert {each.error_code for each in unknown.topics[0].partitions} == {ErrorCode.UNKNOWN_TOPIC_ID}
    broker.coordination.log.led.clear()
    moved = await fetch("g", everything=False)
    code = moved.error_code if version >= 2 else moved.topics[0].partitions[0].error_code
    assert code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", [2, 9, 10])
@run_async
async def test_an_offset_of_an_earlier_topic_of_the_name_is_not_shown(version: int) -> None:
    broker = await FakeBroker().start()
    assert await broker.commit(version, 0, 5, topic_id=TOPIC_ID if version >= 10 else ZERO_TOPIC_ID) == [0]
    broker.change_topic("t", topic("t", OTHER_ID, 2))
    wanted = m09.OffsetFetchRequestTopics(topic_id=OTHER_ID, partition_indexes=[0])
    request = m09.OffsetFetchRequest(groups=[m09.OffsetFetchRequestGroup(group_id="g", topics=[wanted])])
    response = await broker.ask(k09_offset_fetch, request, 10)
    assert response.groups[0].topics[0].partitions[0].committed_offset == -1


@pytest.mark.parametrize("everything", [False, True])
@run_async
async def test_an_offset_of_a_deleted_topic_is_not_shown(everything: bool) -> None:
    """It is deleted in the background, after the topic."""
    broker = await FakeBroker().start()
    assert await broker.commit(9, 0, 5) == [0]
    broker.change_topic("t", None)
    wanted = m09.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    group = m09.OffsetFetchRequestGroup(group_id="g", topics=None if everything else [wanted])
    (found,) = (await broker.ask(k09_offset_fetch, m09.OffsetFetchRequest(groups=[group]), 9)).groups
    shown = [each.committed_offset for topic in found.topics for each in topic.partitions]
    assert shown == ([] if everything else [-1])


@pytest.mark.parametrize("version", range(7))
@run_async
async def test_describe(version: int) -> None:
    broker = await FakeBroker().start()
    await broker.coordination.joined()
    request = DescribeGroupsRequest(groups=["g", "stranger"], include_authorized_operations=False)
    known, unknown = (await broker.ask(k15_describe_groups, request, version)).groups
    assert (known.group_state, known.protocol_type, known.protocol_data) == ("Stable", "consumer", "range")
    assert known.members[0].member_assignment == b"x"
    assert known.authorized_operations == -(2**31)
    assert unknown.group_state == "Dead"
    assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
    broker.coordination.log.led.clear()
    (moved, _) = (await broker.ask(k15_describe_groups, request, version)).groups
    assert moved.error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", range(6))
@run_async
async def test_list(version: int) -> None:
    broker = await FakeBroker().start()
    await broker.coordination.joined("busy")
    await broker.commit(8, 0, 1, group_id="simple")

    async def names(**filters: list[str]) -> set[str]:
        response = await broker.ask(k16_list_groups, ListGroupsRequest(**filters), version)
        return {group.group_id for group in response.groups}

    assert await names() == {"busy", "simple"}
    if version >= 4:
        assert await names(states_filter=["stable"]) == {"busy"}
        assert await names(states_filter=["Dead"]) == set()
    if version >= 5:
        assert await names(types_filter=["Classic"]) == {"busy", "simple"}
        assert await names(types_filter=["consumer"]) == set()


@run_async
async def test_many_groups_are_listed_in_steps_while_groups_come_and_go() -> None:
    broker = await FakeBroker().start()
    names = [f"simple-{number}" for number in range(4 * AT_ONCE)]
    for name in names:
        await broker.commit(8, 0, 1, group_id=name)
    await broker.coordination.joined("busy")
    assert len(list(broker.call(k16_list_groups, ListGroupsRequest(), 5)[0])) == 5, "the fifth for one group"
    steps, reply = broker.call(k16_list_groups, ListGroupsRequest(), 5)
    next(steps)
    kept, deleted = names[AT_ONCE:], names[:AT_ONCE]
    for name in deleted:
        await broker.groups.delete_group(name)
    await broker.coordination.joined(kept[0])
    listed = [group.group_id for group in (await answer_of(steps, reply, 5)).groups]
    assert len(listed) == len(set(listed)), "each once"
    assert {"busy", *kept} <= set(listed)
    assert not set(deleted) <= set(listed), "those that were deleted before their turn are left out"


@run_async
async def test_a_list_of_groups_is_not_continued_in_another_leader_epoch() -> None:
    broker = await FakeBroker().start()
    for number in range(2 * AT_ONCE):
        await broker.commit(8, 0, 1, group_id=f"simple-{number}")
    steps, reply = broker.call(k16_list_groups, ListGroupsRequest(), 5)
    next(steps)
    for partition in range(broker.coordination.log.partition_count):
        broker.coordination.log.begin_epoch(partition)
    answer = await answer_of(steps, reply, 5)
    assert (answer.error_code, answer.groups) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])


@run_async
async def test_delete_groups_and_offsets() -> None:
    broker = await FakeBroker().start()
    await broker.coordination.joined("busy")
    await broker.commit(8, 0, 1, group_id="simple")
    request = m47.OffsetDeleteRequest(
        group_id="simple",
        topics=[
            m47.OffsetDeleteRequestTopic(
                name=name, partitions=[m47.OffsetDeleteRequestPartition(partition_index=0)]
            )
            for name in ("t", "no")
        ],
    )
    response = await broker.ask(k47_offset_delete, request, 0)
    codes = [topic.partitions[0].error_code for topic in response.topics]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await broker.commit(8, 0, 1, group_id="simple")
    request = DeleteGroupsRequest(groups_names=["busy", "simple", "stranger"])
    response = await broker.ask(k42_delete_groups, request, 2)
    codes = [result.error_code for result in response.results]
    assert codes == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
