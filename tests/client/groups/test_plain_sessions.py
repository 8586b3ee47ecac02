"""Sessions and claims with plain threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

import klamm
from klamm.client.errors import ClaimRevoked, ClientMisused
from klamm.client.results import Record, TopicPartition
from tests.client.groups.conftest import NewTopic
from tests.client.groups.workers import QUICK, send
from tests.client.leaks import nothing_leaks
from tests.client.topics import unique
from tests.waiting import wait_until

STRATEGIES = ["range", "cooperative-sticky"]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def fill(bootstrap: str, topic: str, values: dict[int, list[bytes]]) -> None:
    asyncio.run(send(bootstrap, topic, values))


def new_consumer(bootstrap: str, group: str, topic: str, **options: Any) -> klamm.Consumer:
    return klamm.Consumer(bootstrap, group=group, topics=[topic], start="earliest", **(QUICK | options))


def committed(bootstrap: str, group: str, topic: str, partitions: int = 1) -> dict[int, int]:
    with klamm.Consumer(bootstrap, group=group) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)])
    return {partition.partition: offset.offset for partition, offset in found.items()}


class Worker:
    """Takes part in sessions, one thread per claim, and remembers what it saw."""

    def __init__(self, consumer: klamm.Consumer, *, is_held: bool = False, **how: Any) -> None:
        """Ownership, its workers stay with the record they have until the gate opens."""
        self.consumer = consumer
        self.how = how
        self.sessions: list[klamm.Session] = []
        self.started: list[Record] = []
        self.finished: list[Record] = []
        self.ends: list[BaseException | None] = []
        self.gate = threading.Event()
        if not is_held:
            self.gate.set()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._failure: BaseException | None = None
        self._thread.start()

    @property
    def claimed(self) -> set[int]:
        return {claim.partition for claim in self.sessions[-1].claims} if self.sessions else set()

    def _run(self) -> None:
        try:
            for session in self.consumer.sessions(**self.how):
                with session, ThreadPoolExecutor(4) as pool:
                    self.sessions.append(session)
                    for claim in session.claims:
                        pool.submit(self.work, claim)
        except BaseException as failure:
            self._failure = failure

    def work(self, claim: klamm.Claim) -> None:
        try:
            for record in claim:
                self.started.append(record)
                self.gate.wait()
                self.finished.append(record)
            self.ends.append(None)
        except BaseException as end:
            self.ends.append(end)
            raise

    def offsets(self, partition: int) -> list[int]:
        return [record.offset for record in self.finished if record.partition == partition]

    def close(self) -> None:
        self.gate.set()
        self.consumer.close()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the loop of sessions did not end"
        if self._failure is not None:
            raise AssertionError("the loop of sessions failed") from self._failure


def test_members_share_partitions_and_every_record_is_read_once(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(4), unique("group")
    fill(klamm_bootstrap, topic, {number: numbered(50) for number in range(4)})
    with nothing_leaks(), closing(Worker(new_consumer(klamm_bootstrap, group, topic))) as first:
        wait_until(lambda: len(first.finished) == 200, "one member reads everything")
        assert len(first.sessions) == 1
        with closing(Worker(new_consumer(klamm_bootstrap, group, topic))) as second:
            wait_until(lambda: len(first.claimed) == 2 and len(second.claimed) == 2, "both have a share")
            assert len(first.sessions) == 2
            assert first.sessions[0].ended and not first.sessions[1].ended
            fill(klamm_bootstrap, topic, {number: numbered(5) for number in range(4)})
            wait_until(lambda: len(first.finished) + len(second.finished) == 220, "both read on")
        wait_until(lambda: len(first.claimed) == 4, "one has everything again")
    for number in range(4):
        assert sorted(first.offsets(number) + second.offsets(number)) == list(range(55))
    assert committed(klamm_bootstrap, group, topic, 4) == dict.fromkeys(range(4), 55)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("on_revoke", ["drain", "cancel"])
def test_partitions_are_given_up_when_the_records_in_work_are_finished(
    klamm_bootstrap: str, klamm_topic: NewTopic, strategy: str, on_revoke: str
) -> None:
    topic, group = klamm_topic(2), unique("group")
    fill(klamm_bootstrap, topic, {number: numbered(10) for number in range(2)})
    options = {"partition_assignment_strategy": [strategy]}
    consumer = new_consumer(klamm_bootstrap, group, topic, **options)
    with closing(Worker(consumer, is_held=True, on_revoke=on_revoke)) as first:
        wait_until(lambda: len(first.started) == 2, "a record of each partition is in work")
        with closing(Worker(new_consumer(klamm_bootstrap, group, topic, **options))) as second:
            wait_until(lambda: first.sessions and first.sessions[0].ended, "the rebalance has come")
            assert not second.sessions, "nobody gets anything before the work is done"
            first.gate.set()
            wait_until(lambda: len(first.claimed) == 1 and len(second.claimed) == 1, "each has one")
            wait_until(lambda: len(first.finished) + len(second.finished) == 20, "all are read")
            for number in range(2):
                assert sorted(first.offsets(number) + second.offsets(number)) == list(range(10))
            ends = first.ends[:2]
            if on_revoke == "cancel":
                assert all(isinstance(end, ClaimRevoked) for end in ends), ends
            else:
                assert ends == [None, None]


def test_iterating_in_the_thread_of_the_session(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    fill(klamm_bootstrap, topic, {0: numbered(10)})
    with new_consumer(klamm_bootstrap, group, topic) as consumer:
        turns = 0
        for session in consumer.sessions(on_revoke="cancel"):
            turns += 1
            with session:
                (claim,) = session.claims
                for record in claim:
                    if turns == 1:
                        assert record.offset < 5
                        if record.offset == 4:
                            consumer.subscribe([topic])  # ends the session as a rebalance does
                    elif record.offset == 7:
                        claim.done(record)
                        break
            if turns == 2:
                break
        assert [record.offset for record in consumer.poll(timeout=10)] == [8, 9]
    assert turns == 2
    assert committed(klamm_bootstrap, group, topic) == {0: 10}, "leaving the block finished the poll"


def test_columns_of_a_claim(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    fill(klamm_bootstrap, topic, {0: numbered(10)})
    with new_consumer(klamm_bootstrap, group, topic) as consumer:
        for session in consumer.sessions():
            with session:
                (claim,) = session.claims
                first = claim.poll_arrow(max_records=4, timeout=10)
                assert first.column("offset").to_pylist() == [0, 1, 2, 3]
                second = claim.poll_arrow(max_records=4, timeout=10)
                assert second.column("offset").to_pylist() == [4, 5, 6, 7]
            assert claim.poll_arrow().num_rows == 0, "the claim has ended"
            break
        consumer.close()
    assert committed(klamm_bootstrap, group, topic) == {0: 4}, "the second was not finished"


def test_a_worker_that_fails_commits_nothing_unfinished(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    fill(klamm_bootstrap, topic, {0: numbered(5)})

    def work(claim: klamm.Claim) -> None:
        for record in claim:
            if record.offset == 3:
                raise ValueError("cannot be worked on")

    with (
        pytest.raises(ValueError, match="cannot be worked on"),
        new_consumer(klamm_bootstrap, group, topic) as consumer,
    ):
        for session in consumer.sessions():
            with session, ThreadPoolExecutor(1) as pool:
                pool.submit(work, session.claims[0]).result()
    assert committed(klamm_bootstrap, group, topic) == {0: 3}


def test_closing_waits_for_the_record_in_work(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    fill(klamm_bootstrap, topic, {0: numbered(5)})
    consumer = new_consumer(klamm_bootstrap, group, topic)
    worker = Worker(consumer, is_held=True)
    wait_until(lambda: worker.started, "a record is in work")
    closing_thread = threading.Thread(target=consumer.close)
    closing_thread.start()
    wait_until(lambda: worker.sessions[0].ended, "the session ends")
    assert closing_thread.is_alive()
    worker.gate.set()
    closing_thread.join(20)
    worker.close()
    assert worker.offsets(0) == [0]
    assert committed(klamm_bootstrap, group, topic) == {0: 1}


def test_closed_between_a_turn_of_the_loop_and_its_session(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic = klamm_topic(1)
    fill(klamm_bootstrap, topic, {0: numbered(5)})
    consumer = new_consumer(klamm_bootstrap, unique("group"), topic)
    turns = 0
    for session in consumer.sessions():
        turns += 1
        consumer.close()
        with session:
            assert [record for claim in session.claims for record in claim] == []
    assert turns == 1


def test_a_worker_may_close_the_consumer_itself(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    fill(klamm_bootstrap, topic, {0: numbered(5)})
    seen = []
    consumer = new_consumer(klamm_bootstrap, group, topic)
    for session in consumer.sessions():
        with session:
            for record in session.claims[0]:
                seen.append(record.offset)
                if record.offset == 2:
                    consumer.close()
    assert seen == [0, 1, 2]
    assert committed(klamm_bootstrap, group, topic) == {0: 2}


def test_a_thread_that_does_not_come_back_is_not_waited_for_too_long(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(1), unique("group")
    fill(klamm_bootstrap, topic, {0: numbered(5)})
    gate = threading.Event()
    got: list[int] = []

    def work(claim: klamm.Claim) -> None:
        for record in claim:
            got.append(record.offset)
            gate.wait()

    with new_consumer(klamm_bootstrap, group, topic) as consumer:
        for session in consumer.sessions(drain_timeout=0.2):
            with session:
                thread = threading.Thread(target=work, args=[session.claims[0]])
                thread.start()
                wait_until(lambda: got, "a record is in work")
            break
        gate.set()
        thread.join(20)
        assert got == [0], "after the session nothing more is handed out"
        assert consumer.poll(timeout=10)[0].offset == 0, "what was in work is handed out again"


def test_batches_and_commits_by_hand(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    fill(klamm_bootstrap, topic, {0: numbered(10)})
    sizes = []
    with new_consumer(klamm_bootstrap, group, topic, enable_auto_commit=False) as consumer:
        for session in consumer.sessions():
            with session:
                (claim,) = session.claims
                while records := claim.poll(4, timeout=1.0):
                    sizes.append(len(records))
                session.commit()
                assert claim.poll(timeout=0) == []
            break
    assert sizes == [4, 4, 2]
    assert committed(klamm_bootstrap, group, topic) == {0: 10}


@pytest.mark.parametrize(
    "use",
    [
        lambda consumer: consumer.sessions(on_revoke="stop"),
        lambda consumer: consumer.sessions(drain_timeout=1000),
        lambda consumer: next(next(consumer.sessions()).claims[0]),
    ],
    ids=["on_revoke", "drain_timeout", "not entered"],
)
def test_wrong_use_is_refused(
    klamm_bootstrap: str, klamm_topic: NewTopic, use: Callable[[klamm.Consumer], object]
) -> None:
    with (
        new_consumer(klamm_bootstrap, unique("group"), klamm_topic(1)) as consumer,
        pytest.raises(ClientMisused),
    ):
        use(consumer)


def test_polling_inside_a_session_is_refused(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    with new_consumer(klamm_bootstrap, unique("group"), klamm_topic(1)) as consumer:
        with next(consumer.sessions()), pytest.raises(ClientMisused, match="inside a session"):
            consumer.poll(timeout=0)
        assert consumer.poll(timeout=0) == []
