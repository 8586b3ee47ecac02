"""Groups of a real broker: what is seen of them, and seeks that are planned, done and undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import klamm.aio
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.operating.errors import CannotDo
from klamm.operating.groups import (
    By,
    Like,
    Saved,
    To,
    describe,
    plan_delete_offsets,
    plan_seek,
    seek,
    summarize,
)
from klamm.operating.ranges import Bound, Kind
from klamm.operating.seeking import parse_choice, parse_undo, undo_text
from klamm.testing import Broker
from tests.client.admin.wire_member import WireMember
from tests.client.topics import unique

MANY = 1_200


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
async def admin(broker: Broker) -> AsyncIterator[klamm.aio.Admin]:
    async with klamm.aio.Admin(broker.bootstrap) as made:
        yield made


@pytest.fixture
async def topic(broker: Broker, admin: klamm.aio.Admin) -> str:
    """Two partitions of ten records each."""
    name = unique("topic")
    await admin.create_topic(name, 2, 1)
    async with klamm.aio.Producer(broker.bootstrap) as producer:
        for number in range(20):
            await producer.send(name, b"value", partition=number % 2)
    return name


async def committed(admin: klamm.aio.Admin, group: str) -> dict[int, int]:
    found = await admin.list_group_offsets(group)
    return {partition.partition: each.offset for partition, each in found.items()}


async def test_a_group_is_summarized_and_described(
    broker: Broker, admin: klamm.aio.Admin, topic: str
) -> None:
    group = unique("group")
    await admin.alter_group_offsets(group, {(topic, 1): CommittedOffset(4, "four")})
    member = WireMember(broker.bootstrap, group, TopicPartition(topic, 0))
    try:
        listings = [each for each in await admin.list_groups() if each.group == group]
        (summary,) = await summarize(admin, listings)
        assert (summary.state, summary.protocol_type, summary.assignor) == ("Stable", "consumer", "range")
        assert (summary.members, summary.topics, summary.lag, summary.error) == (1, (topic,), 6, "")
        details = await describe(admin, group)
        owned, read = details.partitions
        assert (owned.member is not None and owned.member.member_id, owned.committed, owned.lag) == (
            member.member_id,
            None,
            None,
        )
        assert (read.committed, read.first, read.end, read.lag) == (CommittedOffset(4, "four", -1), 0, 10, 6)
        assert details.lag == 6
        with pytest.raises(CannotDo, match=f"group {group} is in use: it has 1 member. Stop its consumers"):
            await plan_seek(admin, group, To(Bound(Kind.START)))
    finally:
        member.close()


async def test_a_deleted_topic_does_not_hide_the_rest(admin: klamm.aio.Admin, topic: str) -> None:
    group, gone = unique("group"), unique("topic")
    await admin.create_topic(gone, 1, 1)
    await admin.alter_group_offsets(group, {(topic, 0): 7, (gone, 0): 0})
    await admin.delete_topic(gone)
    listings = [each for each in await admin.list_groups() if each.group == group]
    assert (await summarize(admin, listings))[0].lag == 3
    lags = {each.partition.topic: (each.end, each.lag) for each in (await describe(admin, group)).partitions}
    assert lags[topic] == (10, 3) and lags.get(gone, (None, None)) == (None, None)


async def test_seeks_are_planned_done_and_undone(admin: klamm.aio.Admin, topic: str) -> None:
    group = unique("group")
    with pytest.raises(CannotDo, match=f"group {group} has no committed offsets. Name topics"):
        await plan_seek(admin, group, To(Bound(Kind.START)))
    first = await plan_seek(admin, group, To(Bound(Kind.OFFSET, 4)), [parse_choice(f"{topic}:0")])
    assert await committed(admin, group) == {}, "a plan does nothing"
    await seek(admin, first)
    assert await committed(admin, group) == {0: 4}

    plan = await plan_seek(admin, group, To(Bound(Kind.END)), [parse_choice(topic)])
    assert (plan.passed_over, plan.read_again) == (6, 0)
    await seek(admin, plan)
    assert await committed(admin, group) == {0: 10, 1: 10}
    undo = await plan_seek(admin, group, Saved(parse_undo(undo_text(plan), "undo.json")))
    await seek(admin, undo)
    assert await committed(admin, group) == {0: 4}

    await seek(admin, await plan_seek(admin, group, By(3)))
    assert await committed(admin, group) == {0: 7}
    await seek(admin, await plan_seek(admin, group, To(Bound(Kind.TIME, 1000))))
    assert await committed(admin, group) == {0: 0}

    other = unique("group")
    await seek(admin, await plan_seek(admin, other, Like(group)))
    assert await committed(admin, other) == {0: 0}
    with pytest.raises(CannotDo, match=f"{topic} has no partition 7: it has 0 to 1"):
        await plan_seek(admin, group, To(Bound(Kind.END)), [parse_choice(f"{topic}:7")])

    chosen = await plan_delete_offsets(admin, other, [parse_choice(topic)])
    assert chosen == {TopicPartition(topic, 0): CommittedOffset(0)}
    with pytest.raises(CannotDo, match=f"group {other} has no committed offsets of nowhere"):
        await plan_delete_offsets(admin, other, [parse_choice("nowhere")])


async def test_many_groups_take_few_requests(admin: klamm.aio.Admin, topic: str) -> None:
    prefix = unique("many")
    for number in range(MANY):
        await admin.alter_group_offsets(f"{prefix}-{number:04}", {(topic, 0): number % 10})
    async with klamm.aio.Admin(admin._network.config.list_("bootstrap.servers")) as fresh:
        listings = [each for each in await fresh.list_groups() if each.group.startswith(prefix)]
        found = await summarize(fresh, listings)
        assert [each.lag for each in found] == [10 - number % 10 for number in range(MANY)]
        assert fresh.counters()["requests"] < 30, fresh.counters()
