"""One consumer's membership against real brokers: what a group's coordinator asks of it, and how it ends."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

import klamm
from klamm.client.consumer.group.membership import Phase
from klamm.client.errors import ClientMisused, FencedMember, GroupError, PollOverdue
from klamm.client.results import CommittedOffset, Record, TopicPartition
from klamm.model.errors import ErrorCode
from klamm.testing.broker import Broker
from tests.client.groups.workers import QUICK, send
from tests.client.topics import make_topic, unique
from tests.waiting import wait_until

SOON_SECONDS = 0.05


class Member:
    """A consumer that polls in a thread of its own, as a group needs it to."""

    def __init__(self, bootstrap: str, group: str, **options: Any) -> None:
        self.consumer = klamm.Consumer(bootstrap, group=group, start="earliest", **(QUICK | options))
        self.assigned: list[set[TopicPartition]] = []
        self.lost: list[set[TopicPartition]] = []
        self.records: list[Record] = []
        self.failure: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def subscribe(self, topics: Any) -> Member:
        self.consumer.subscribe(topics, on_assigned=self.assigned.append, on_lost=self.lost.append)
        return self

    def start(self) -> Member:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self.records += self.consumer.poll(timeout=SOON_SECONDS)
        except BaseException as failure:
            self.failure = failure

    @property
    def numbers(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    @property
    def coordinator(self) -> Any:
        return self.consumer._engine.group

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(20)

    def close(self) -> None:
        self.stop()
        self.consumer.close()


@pytest.fixture
def open_members() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_new_partition_is_read_by_whoever_gets_it(bootstrap: str, open_members: ExitStack) -> None:
    topic, group = make_topic(bootstrap, partitions=1), unique("group")
    members = [
        open_members.enter_context(closing(Member(bootstrap, group).subscribe([topic]).start()))
        for _ in range(2)
    ]
    wait_until(lambda: sum(len(member.numbers) for member in members) == 1, "one has the one partition")
    with klamm.Admin(bootstrap) as admin:
        admin.create_partitions(topic, 4)
    wait_until(lambda: sorted(len(member.numbers) for member in members) == [2, 2], "each has two")


def test_the_leader_watches_topics_that_only_others_want(bootstrap: str, open_members: ExitStack) -> None:
    ours, theirs, group = make_topic(bootstrap), make_topic(bootstrap), unique("group")
    leader = open_members.enter_context(closing(Member(bootstrap, group).subscribe([ours]).start()))
    wait_until(lambda: leader.numbers == {0}, "the first is there")
    other = open_members.enter_context(closing(Member(bootstrap, group).subscribe([theirs]).start()))
    wait_until(lambda: other.numbers == {0}, "the second has its topic")
    assert leader.coordinator.is_leader and not other.coordinator.is_leader
    with klamm.Admin(bootstrap) as admin:
        admin.create_partitions(theirs, 3)
    wait_until(lambda: other.numbers == {0, 1, 2}, "the new partitions arrive")


def test_a_pattern_takes_in_topics_that_come_later(bootstrap: str, open_members: ExitStack) -> None:
    prefix, group = unique("pattern"), unique("group")
    make_topic(bootstrap, f"{prefix}-a")
    member = Member(bootstrap, group).subscribe(re.compile(rf"{prefix}-.*"))
    open_members.enter_context(closing(member.start()))
    wait_until(lambda: len(member.consumer.assignment()) == 1, "the first topic")
    make_topic(bootstrap, f"{prefix}-b", partitions=2)
    wait_until(lambda: len(member.consumer.assignment()) == 3, "the second topic")
    assert member.consumer.subscription() == {f"{prefix}-a", f"{prefix}-b"}


def test_a_cooperative_member_reads_on_while_the_group_waits_for_another(
    bootstrap: str, open_members: ExitStack
) -> None:
    topic, group = make_topic(bootstrap, partitions=4), unique("group")

    def member() -> Member:
        made = Member(bootstrap, group, partition_assignment_strategy=["cooperative-sticky"])
        return open_members.enter_context(closing(made.subscribe([topic]).start()))

    reads, sleeps = member(), member()
    wait_until(lambda: len(reads.numbers) == 2 and len(sleeps.numbers) == 2, "each has two")
    sleeps.stop()  # it does not poll, and the rebalance has to wait for it
    newcomer = member()
    group_of_reads = reads.coordinator
    wait_until(lambda: group_of_reads._membership.phase is Phase.JOINING, "it has joined again")
    before = len(reads.records)
    asyncio.run(send(bootstrap, topic, {number: [b"1"] for number in range(4)}))
    wait_until(lambda: len(reads.records) == before + 2, "it reads what is its own")
    assert group_of_reads._membership.phase is Phase.JOINING, "the rebalance is not over"
    assert not newcomer.numbers


def test_a_static_member_comes_back_without_a_rebalance(bootstrap: str, open_members: ExitStack) -> None:
    topic, group = make_topic(bootstrap, partitions=4), unique("group")

    def member(name: str) -> Member:
        made = Member(bootstrap, group, group_instance_id=name).subscribe([topic]).start()
        return open_members.enter_context(closing(made))

    stays, returns = member("stays"), member("returns")
    wait_until(lambda: len(stays.numbers) == 2 and len(returns.numbers) == 2, "each has two")
    wait_until(lambda: len(stays.assigned[-1:]) == 1 and not stays.coordinator.rebalance_due, "and knows it")
    had, generation, rebalances = returns.numbers, stays.coordinator.generation, len(stays.assigned)
    returns.close()
    again = member("returns")
    wait_until(lambda: again.numbers == had, "it has what it had")
    assert stays.coordinator.generation == generation
    assert len(stays.assigned) == rebalances


def test_a_static_member_whose_name_is_taken_is_fenced(bootstrap: str, open_members: ExitStack) -> None:
    topic, group = make_topic(bootstrap, partitions=2), unique("group")
    first = Member(bootstrap, group, group_instance_id="name").subscribe([topic]).start()
    open_members.enter_context(closing(first))
    wait_until(lambda: len(first.numbers) == 2, "it has both")
    second = Member(bootstrap, group, group_instance_id="name").subscribe([topic]).start()
    open_members.enter_context(closing(second))
    wait_until(lambda: first.failure is not None, "the first is told")
    assert isinstance(first.failure, FencedMember)
    assert "group_instance_id" in str(first.failure)
    assert first.lost == [{TopicPartition(topic, 0), TopicPartition(topic, 1)}]
    for _ in range(2):
        with pytest.raises(FencedMember):
            first.consumer.poll(timeout=0)
    wait_until(lambda: len(second.numbers) == 2, "the second has both")


def test_members_without_a_strategy_in_common_are_refused(bootstrap: str, open_members: ExitStack) -> None:
    topic, group = make_topic(bootstrap), unique("group")
    first = Member(bootstrap, group, partition_assignment_strategy=["range"]).subscribe([topic]).start()
    open_members.enter_context(closing(first))
    wait_until(lambda: first.numbers == {0}, "the first is there")
    second = Member(bootstrap, group, partition_assignment_strategy=["sticky"]).subscribe([topic]).start()
    open_members.enter_context(closing(second))
    wait_until(lambda: second.failure is not None, "the second is told")
    assert isinstance(second.failure, GroupError)
    assert second.failure.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "partition_assignment_strategy" in str(second.failure)


def test_the_strategy_that_all_know_is_taken(bootstrap: str, open_members: ExitStack) -> None:
    topic, group = make_topic(bootstrap, partitions=2), unique("group")
    lists = (["range", "cooperative-sticky"], ["cooperative-sticky"])
    members = []
    for strategies in lists:
        made = Member(bootstrap, group, partition_assignment_strategy=strategies).subscribe([topic]).start()
        members.append(open_members.enter_context(closing(made)))
        wait_until(lambda: all(member.numbers for member in members), "both have a part")
    assert {member.coordinator.strategy for member in members} == {"cooperative-sticky"}


def test_a_session_timeout_out_of_bounds_is_refused(bootstrap: str) -> None:
    options: dict[str, Any] = {"session_timeout_ms": 1_000, "heartbeat_interval_ms": 100}
    topic = make_topic(bootstrap)
    with klamm.Consumer(bootstrap, group=unique("group"), topics=[topic], **options) as consumer:
        with pytest.raises(GroupError, match="6 seconds to 30 minutes") as raised:
            consumer.poll(timeout=10)
        assert raised.value.code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_who_does_not_poll_leaves_and_comes_back(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap), unique("group")
    asyncio.run(send(bootstrap, topic, {0: [b"1", b"2"]}))
    consumer = klamm.Consumer(
        bootstrap, group=group, start="earliest", max_poll_interval_ms=500, max_poll_records=1, **QUICK
    )
    lost: list[set[TopicPartition]] = []
    with consumer:
        consumer.subscribe([topic], on_lost=lost.append)
        assert [record.offset for record in consumer.poll(timeout=10)] == [0]
        left = consumer._engine.group
        assert left is not None
        wait_until(lambda: left.generation < 0, "it has left")
        with pytest.raises(GroupError, match="not a member"):
            consumer.commit()
        with pytest.warns(PollOverdue, match="max_poll_interval_ms"):
            records = consumer.poll(timeout=10)
        assert [record.offset for record in records] == [0], "what was not committed is read again"
        assert lost == [{TopicPartition(topic, 0)}]


# ---- commits


def test_a_consumer_that_chose_its_partitions_commits_without_a_membership(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, partitions=2), unique("group")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with klamm.Consumer(bootstrap, group=group, start="earliest") as consumer:
        consumer.assign([first])
        consumer.commit({first: CommittedOffset(7, "a note", 0), second: 3})
        assert consumer.committed([first, second]) == {
            first: CommittedOffset(7, "a note", 0),
            second: CommittedOffset(3),
        }
        assert consumer._engine.group is not None
        assert consumer._engine.group.generation == -1
    with klamm.Consumer(bootstrap, group=unique("nobody")) as stranger:
        assert stranger.committed([first]) == {}


def test_a_stranger_cannot_commit_into_a_group_with_members(bootstrap: str, open_members: ExitStack) -> None:
    topic, group = make_topic(bootstrap), unique("group")
    member = open_members.enter_context(closing(Member(bootstrap, group).subscribe([topic]).start()))
    wait_until(lambda: member.numbers == {0}, "the group has a member")
    with klamm.Consumer(bootstrap, group=group) as stranger:
        with pytest.raises(GroupError) as raised:
            stranger.commit({TopicPartition(topic, 0): 1})
        assert raised.value.code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_that_the_broker_refuses_says_what(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap), unique("group")
    with klamm.Consumer(bootstrap, group=group) as consumer:
        with pytest.raises(GroupError, match=f"committing {topic}-0") as raised:
            consumer.commit({TopicPartition(topic, 0): CommittedOffset(1, "x" * 10_000)})
        assert raised.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_commits_need_a_group(bootstrap: str) -> None:
    with klamm.Consumer(bootstrap) as consumer, pytest.raises(ClientMisused, match="group"):
        consumer.commit({TopicPartition("t", 0): 1})


# ---- the coordinator goes away


def test_a_member_survives_a_restart_of_its_coordinator(open_members: ExitStack) -> None:
    with Broker() as broker:
        topic, group = make_topic(broker.bootstrap, partitions=2), unique("group")
        members = [
            open_members.enter_context(closing(Member(broker.bootstrap, group).subscribe([topic]).start()))
            for _ in range(2)
        ]
        wait_until(lambda: all(len(member.numbers) == 1 for member in members), "each has one")
        heartbeats = [member.consumer.counters()["heartbeats"] for member in members]
        broker.restart()
        for member, before in zip(members, heartbeats, strict=True):
            wait_until(
                lambda member=member, before=before: member.consumer.counters()["heartbeats"] > before + 3,
                "heartbeats go on",
            )
        wait_until(lambda: all(len(member.numbers) == 1 for member in members), "each has one still")
        for member in members:
            member.consumer.commit(dict.fromkeys(member.consumer.assignment(), 5))
        # Only now: when one leaves, the other gets its partition.
        for member in members:
            member.close()
            assert member.failure is None
