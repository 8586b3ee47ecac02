"""What a request about groups names twice is answered once, and long requests are done in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.apis import (
    k08_offset_commit,
    k09_offset_fetch,
    k10_find_coordinator,
    k13_leave_group,
    k15_describe_groups,
    k42_delete_groups,
    k47_offset_delete,
)
from klamm.protocol.messages import k08_offset_commit as m08
from klamm.protocol.messages import k09_offset_fetch as m09
from klamm.protocol.messages import k47_offset_delete as m47
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.k15_describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.k42_delete_groups import DeleteGroupsRequest
from tests.groups.test_coordinator import run_async
from tests.groups.test_group_apis import TOPIC_ID, FakeBroker, topic


@run_async
async def test_find_coordinator() -> None:
    broker = await FakeBroker().start()
    request = FindCoordinatorRequest(coordinator_keys=["g", "h", "g"])
    response = await broker.ask(k10_find_coordinator, request, 4)
    assert [each.key for each in response.coordinators] == ["g", "h"]


@pytest.mark.parametrize("version", [7, 9, 10])
@run_async
async def test_offset_fetch(version: int) -> None:
    broker = await FakeBroker().start()
    await broker.commit(9, 1, 77)
    topics = [
        m09.OffsetFetchRequestTopics(name="t", topic_id=TOPIC_ID, partition_indexes=[0, 1, 0]),
        m09.OffsetFetchRequestTopics(name="t", topic_id=TOPIC_ID, partition_indexes=[1]),
    ]
    old_topics = [
        m09.OffsetFetchRequestTopic(name="t", partition_indexes=each.partition_indexes) for each in topics
    ]
    group = m09.OffsetFetchRequestGroup(group_id="g", topics=topics)
    request = m09.OffsetFetchRequest(group_id="g", topics=old_topics, groups=[group, group])
    response = await broker.ask(k09_offset_fetch, request, version)
    if version >= 8:
        (response,) = response.groups
    (answered,) = response.topics
    assert [each.committed_offset for each in answered.partitions] == [-1, 77]


@run_async
async def test_offset_delete() -> None:
    broker = await FakeBroker().start()
    await broker.commit(9, 1, 77)
    asked = m47.OffsetDeleteRequestTopic(
        name="t", partitions=[m47.OffsetDeleteRequestPartition(partition_index=each) for each in (1, 9, 1)]
    )
    request = m47.OffsetDeleteRequest(group_id="g", topics=[asked, asked])
    with pytest.MonkeyPatch.context() as monkeypatch:
        deleted = Pieces(monkeypatch, broker, "delete_offsets")
        (answered,) = (await broker.ask(k47_offset_delete, request, 0)).topics
    assert [(each.partition_index, each.error_code) for each in answered.partitions] == [(1, 0), (9, 3)]
    assert deleted.sizes == [1]


@run_async
async def test_leave_group() -> None:
    broker = await FakeBroker().start()
    member_id = (await broker.join(3)).member_id
    request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)] * 2)
    response = await broker.ask(k13_leave_group, request, 3)
    assert [(each.member_id, each.error_code) for each in response.members] == [(member_id, 0)]


@run_async
async def test_describe_and_delete_groups() -> None:
    broker = await FakeBroker().start()
    await broker.commit(9, 1, 77)
    described = await broker.ask(k15_describe_groups, DescribeGroupsRequest(groups=["g", "g"]), 5)
    assert [each.group_id for each in described.groups] == ["g"]
    deleted = await broker.ask(k42_delete_groups, DeleteGroupsRequest(groups_names=["g", "g"]), 2)
    assert [(each.group_id, each.error_code) for each in deleted.results] == [("g", 0)]


class Pieces:
    """How many offsets each call of a method of the coordinator was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: FakeBroker, method: str) -> None:
        self.sizes: list[int] = []
        original: Any = getattr(broker.groups, method)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.sizes.append(len(arguments[-1]))
            return original(*arguments, **options)

        monkeypatch.setattr(broker.groups, method, counted)


@run_async
async def test_many_offsets_are_committed_and_deleted_in_pieces() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(k08_offset_commit, "MOST_AT_ONCE", 2)
        monkeypatch.setattr(k47_offset_delete, "MOST_AT_ONCE", 2)
        broker = await FakeBroker().start()
        broker.change_topic("t", topic("t", TOPIC_ID, 5))
        committed = Pieces(monkeypatch, broker, "commit")
        deleted = Pieces(monkeypatch, broker, "delete_offsets")
        partitions = [
            m08.OffsetCommitRequestPartition(partition_index=index, committed_offset=index)
            for index in range(5)
        ]
        commit = m08.OffsetCommitRequest(
            group_id="g", topics=[m08.OffsetCommitRequestTopic(name="t", partitions=partitions)]
        )
        (answered,) = (await broker.ask(k08_offset_commit, commit, 9)).topics
        assert [each.error_code for each in answered.partitions] == [0] * 5
        assert committed.sizes == [2, 2, 1]
        offsets = broker.groups.offsets_of("g")
        assert [offsets.get("t", index).offset for index in range(5)] == list(range(5))  # type: ignore[union-attr]
        asked = m47.OffsetDeleteRequestTopic(
            name="t",
            partitions=[m47.OffsetDeleteRequestPartition(partition_index=index) for index in range(5)],
        )
        delete = m47.OffsetDeleteRequest(group_id="g", topics=[asked])
        (answered,) = (await broker.ask(k47_offset_delete, delete, 0)).topics
        assert [each.error_code for each in answered.partitions] == [0] * 5
        assert deleted.sizes == [2, 2, 1]
