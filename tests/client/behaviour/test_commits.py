"""Commits: by hand and by themselves, and that a group goes on where they say."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import klamm
from klamm.client.results import CommittedOffset, TopicPartition
from tests.client.behaviour.conftest import NewTopic
from tests.client.faces import Face
from tests.client.reading import collect, fill, poll_until, values
from tests.waiting import wait_until


def test_by_hand(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    sent = fill(face, bootstrap, topic, 10)
    options = {"group": topic, "topics": [topic], "start": "earliest", "enable_auto_commit": False}
    with face.consumer(bootstrap, **options) as consumer:
        got = consumer.poll(timeout=20, max_records=4)
        assert consumer.committed([partition]) == {}
        consumer.commit()
        assert consumer.committed([partition])[partition].offset == len(got)
        collect(consumer, 10 - len(got))
    # Without a commit the rest was not finished.
    with face.consumer(bootstrap, **options) as consumer:
        assert values(collect(consumer, 10 - len(got))) == sent[len(got) :]


def test_offsets_of_ones_own(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(face, bootstrap, topic, 10)
    with face.consumer(bootstrap, group=topic, enable_auto_commit=False) as consumer:
        consumer.assign([one, other])
        consumer.commit({one: 3, other: CommittedOffset(0, "nothing yet")})
        committed = consumer.committed([one, other])
        assert committed[one].offset == 3
        assert (committed[other].offset, committed[other].metadata) == (0, "nothing yet")
    with face.consumer(bootstrap, group=topic, topics=[topic], start="latest") as consumer:
        assert collect(consumer, 7)[0].offset == 3


def test_without_waiting(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    fill(face, bootstrap, topic, 10)
    with face.consumer(
        bootstrap, group=topic, topics=[topic], start="earliest", enable_auto_commit=False
    ) as consumer:
        collect(consumer, 10)
        consumer.commit(wait=False)
        wait_until(
            lambda: consumer.committed([partition]).get(partition, CommittedOffset(-1)).offset == 10,
            "the commit arrived",
        )


def test_close_finishes_commits_that_nobody_waited_for(
    face: Face, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    fill(face, bootstrap, topic, 10)
    options = {"group": topic, "topics": [topic], "start": "earliest", "enable_auto_commit": False}
    with face.consumer(bootstrap, **options) as consumer:
        collect(consumer, 10)
        consumer.commit(wait=False)
    with face.consumer(bootstrap, **options) as consumer:
        assert consumer.committed([partition])[partition].offset == 10


def test_by_themselves(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """In the background, what an earlier poll gave; never what is being worked on."""
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    fill(face, bootstrap, topic, 10)
    with face.consumer(
        bootstrap,
        group=topic,
        topics=[topic],
        start="earliest",
        auto_commit_interval_ms=50,
        max_poll_records=4,
    ) as consumer:
        given = 0
        while given < 8:
            finished = given
            given += len(consumer.poll(timeout=20))
        wait_until(
            lambda: consumer.committed([partition]).get(partition, CommittedOffset(-1)).offset == finished,
            "what was finished is committed",
        )
        assert finished < given


def test_iteration_finishes_a_record_when_the_next_is_asked_for(
    face: Face, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    sent = fill(face, bootstrap, topic, 10)
    options = {"group": topic, "topics": [topic], "start": "earliest", "auto_commit_interval_ms": 50}
    with face.consumer(bootstrap, **options) as consumer:
        assert values(list(itertools.islice(consumer, 6))) == sent[:6]
        wait_until(
            lambda: consumer.committed([partition]).get(partition, CommittedOffset(-1)).offset == 5,
            "five records are committed: the sixth is being worked on",
        )


def take_by_poll(consumer: Any) -> int:
    return len(consumer.poll(timeout=20, max_records=4))


def take_by_poll_arrow(consumer: Any) -> int:
    return int(consumer.poll_arrow(timeout=20, max_records=4).num_rows)


def take_by_iteration(consumer: Any) -> int:
    return len(list(itertools.islice(consumer, 4)))


WAYS: list[Callable[[Any], int]] = [take_by_poll, take_by_poll_arrow, take_by_iteration]


def committed_offset(face: Face, bootstrap: str, group: str) -> int:
    with face.consumer(bootstrap, group=group) as consumer:
        return next(iter(consumer.committed([(group, 0)]).values()), CommittedOffset(0)).offset


@pytest.mark.parametrize("take", WAYS)
def test_leaving_the_block_commits_what_was_handed_out(
    face: Face, bootstrap: str, new_topic: NewTopic, take: Callable[[Any], int]
) -> None:
    topic = new_topic()
    fill(face, bootstrap, topic, 10)
    with face.consumer(bootstrap, group=topic, topics=[topic], start="earliest") as consumer:
        count = take(consumer)
        assert count
    assert committed_offset(face, bootstrap, topic) == count


@pytest.mark.parametrize("take", WAYS)
@pytest.mark.parametrize("how", ["exception", "close", "no automatic commits"])
def test_otherwise_what_was_handed_out_last_is_not_committed(
    face: Face, bootstrap: str, new_topic: NewTopic, take: Callable[[Any], int], how: str
) -> None:
    topic = new_topic()
    fill(face, bootstrap, topic, 10)
    consumer = face.consumer(
        bootstrap,
        group=topic,
        topics=[topic],
        start="earliest",
        enable_auto_commit=how != "no automatic commits",
    )
    with pytest.raises(ZeroDivisionError) if how == "exception" else nullcontext(), consumer:
        count = take(consumer)
        assert count
        if how == "exception":
            raise ZeroDivisionError
        if how == "close":
            consumer.close()
    is_finished_one_by_one = take is take_by_iteration and how != "no automatic commits"
    assert committed_offset(face, bootstrap, topic) == (count - 1 if is_finished_one_by_one else 0)


def test_close_commits_what_is_finished(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(face, bootstrap, topic, 10)
    consumer = face.consumer(bootstrap, group=topic, topics=[topic], start="earliest")
    collect(consumer, 10)
    consumer.poll(timeout=0)  # what came before is finished
    consumer.close()
    assert committed_offset(face, bootstrap, topic) == 10


def test_seek_and_commit(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    fill(face, bootstrap, topic, 10)
    with face.consumer(bootstrap, group=topic, topics=[topic], enable_auto_commit=False) as consumer:
        poll_until(consumer, consumer.assignment, "it is assigned")
        consumer.seek(partition, 7)
        consumer.commit()
        assert consumer.committed([partition])[partition].offset == 7


def test_a_commit_without_a_group(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with face.consumer(bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(klamm.ClientMisused, match=r"commit\(\) needs a group"):
            consumer.commit({(topic, 0): 1})


@pytest.mark.filterwarnings("ignore::klamm.client.errors.PollOverdue")
def test_a_member_that_was_thrown_out(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """It worked for longer than it may between two polls: its commit is refused, and a poll joins again."""
    topic = new_topic()
    fill(face, bootstrap, topic, 5)
    with (
        face.consumer(
            bootstrap,
            group=topic,
            topics=[topic],
            start="earliest",
            enable_auto_commit=False,
            max_poll_interval_ms=500,
            session_timeout_ms=6000,
            heartbeat_interval_ms=100,
        ) as consumer,
        face.admin(bootstrap) as admin,
    ):
        collect(consumer, 5)
        wait_until(lambda: not admin.describe_group(topic).members, "the member is out")
        with pytest.raises(klamm.GroupError) as refused:
            consumer.commit()
        assert "poll" in refused.value.advice
        assert len(collect(consumer, 5)) == 5
        consumer.commit()
