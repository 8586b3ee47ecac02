"""Dead-letter records that go through a retry topic: each once, whatever breaks meanwhile."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.results import CommittedOffset, Record
from klamm.pipelines import originals
from klamm.pipelines.originals import RedriveFailed
from klamm.pipelines.redrive import redrive
from klamm.pipelines.retry import redriving
from klamm.pipelines.retry.log import MOST_EPOCH, Identity, Marks, RetryLog
from klamm.pipelines.retry.redriving import redrive_through_topic
from klamm.pipelines.retry.session import Retried, RetrySession
from klamm.pipelines.retry.topics import retry_topic
from klamm.pipelines.retry.writer import OrderedWriter, Outgoing, ShutOut
from klamm.pipelines.state import Attempt, State
from tests.pipelines.running import Shop
from tests.spark.topics import records_of

PIPELINES = """
@source(topic="{topic}", schema="n BIGINT, amount DOUBLE")
def orders(rows):
    return rows

@pipeline(to=topic("{topic}.out"))
def totals(orders):
    return orders
"""
TWO_SOURCES = """
@source(topic="{topic}", schema="n BIGINT, amount DOUBLE")
def orders(rows):
    return rows

@source(topic="{topic}", schema="n BIGINT, amount DOUBLE")
def others(rows):
    return rows

@pipeline(to=topic("{topic}.out"))
def totals(orders, others):
    return orders.union(others)
"""
OFFSETS = itertools.count()
CHILD_S = 120.0


class Redriven:
    """A project with a pipeline that has run, and dead-letter records of it."""

    def __init__(self, shop: Shop, partitions: int = 1) -> None:
        self.shop = shop
        self.project = shop.project
        self.topic = retry_topic(shop.project, "totals", "orders")
        self.attempt = Attempt.first({"orders": {shop.topic: {"0": 0, "1": 0}}})
        State(shop.project).keep_attempt("totals", self.attempt)
        self.buried: list[bytes] = []
        with klamm.Admin(shop.bootstrap) as admin:
            admin.create_topic(shop.project.dead_letters, partitions)

    def bury(self, count: int = 1, *, rule: str = "decode", partition: int = 0, **more: object) -> None:
        with klamm.Producer(self.shop.bootstrap) as producer:
            for _ in range(count):
                value = b"value %d" % len(self.buried)
                told = {
                    "pipeline": "totals",
                    "rule": rule,
                    "source": "orders",
                    "generation": self.attempt.epoch,
                    "topic": self.shop.topic,
                    "partition": 1,
                    "offset": next(OFFSETS),
                    "timestamp": 1_700_000_000_000,
                    "content": "record",
                    "error": "bad",
                } | more
                headers = {
                    f"klamm.{name.replace('_', '.')}": str(text).encode() for name, text in told.items()
                }
                letters = self.project.dead_letters
                producer.send(
                    letters, value, key=b"k", headers={"trace": b"t", **headers}, partition=partition
                )
                self.buried.append(value)
            producer.flush()

    def redrive(self, **more: Any) -> originals.Redriven:
        return redrive_through_topic(self.project, "totals", **more)

    def retried(self, topic: str = "") -> list[Record]:
        records = records_of(self.shop.bootstrap, topic or self.topic)
        return [record for record in records if "klamm.letter" in dict(record.headers)]

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.retried()]

    def assert_each_once(self) -> None:
        assert Counter(self.values()) == Counter(self.buried)


@pytest.fixture(params=["klamm_bootstrap", pytest.param("apache_kafka", marks=pytest.mark.long)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path, request.getfixturevalue(request.param), PIPELINES)


@pytest.fixture
def redriven(shop: Shop) -> Redriven:
    return Redriven(shop)


def test_what_was_sent_is_addressed_and_not_sent_again(redriven: Redriven) -> None:
    redriven.bury(2)
    assert redriven.redrive(dry_run=True).sent == {redriven.topic: 2}
    with klamm.Admin(redriven.shop.bootstrap) as admin:
        assert redriven.topic not in admin.list_topics(), "to look changes nothing"
    assert redriven.redrive().sent == {redriven.topic: 2}
    assert redriven.redrive().total == redriven.redrive(dry_run=True).total == 0
    redriven.assert_each_once()
    first = redriven.retried()[0]
    headers = dict(first.headers)
    assert (first.key, headers["trace"], headers["klamm.redriven"]) == (b"k", b"t", b"1")
    assert headers["klamm.for"] == redriven.project.group_of("totals").encode()
    assert headers["klamm.letter"] == b"0/0" and headers["klamm.topic"] == redriven.shop.topic.encode()
    assert records_of(redriven.shop.bootstrap, redriven.shop.topic) == [], "the topic itself gets nothing"
    assert redrive(redriven.project, dry_run=True).total == 0, "nor will it"
    with klamm.Admin(redriven.shop.bootstrap) as admin:
        kept = admin.describe_config(klamm.ConfigResource.topic(redriven.topic), ["retention.ms"])
    assert kept["retention.ms"].value == "-1"


def test_a_rule_is_redriven_and_the_others_wait(redriven: Redriven) -> None:
    for rule in ("decode", "amount is positive", "decode"):
        redriven.bury(rule=rule)
    assert redriven.redrive(rule="amount is positive").total == 1
    assert redriven.redrive(rule="amount is positive").total == 0
    redriven.bury(rule="amount is positive")
    assert redriven.redrive(rule="decode").total == 2
    assert redriven.redrive().total == 1
    redriven.assert_each_once()


def struck(before: bool, number: int) -> Iterator[None]:
    """Break off a redrive at its write of this number: before the request, or when its answer comes."""
    writes = itertools.count()
    original = OrderedWriter.write

    def write(self: OrderedWriter, records: Sequence[Outgoing]) -> None:
        is_now = next(writes) == number
        if is_now and before:
            raise KeyboardInterrupt
        original(self, records)
        if is_now:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrderedWriter, "write", write)
        yield


def test_a_redrive_that_is_broken_off_anywhere_sends_each_record_once(
    redriven: Redriven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "CHUNK_RECORDS", 2)
    writes = 5  # the opening, three batches, the marks
    for number in range(writes):
        for before in (True, False):
            redriven.bury(5)
            for _ in struck(before, number):
                with pytest.raises(KeyboardInterrupt):
                    redriven.redrive()
            if number == 2:  # a second one does not come far either
                for _ in struck(not before, 1):
                    with pytest.raises(KeyboardInterrupt):
                        redriven.redrive()
            redriven.redrive()
    assert redriven.redrive(dry_run=True).total == 0
    redriven.assert_each_once()


def test_what_a_killed_redrive_had_on_the_way_does_not_arrive_after_the_next_has_begun(
    redriven: Redriven,
) -> None:
    redriven.bury(2)
    redriven.redrive(rule="none of that name")
    with clients(redriven) as (first, second), writer(redriven) as dead, writer(redriven) as alive:
        first.create([redriven.shop.topic])
        assert first.open(dead).sent == set()
        first.send(dead, [record((0, 0))])
        assert second.open(alive).sent == {(0, 0)}
        with pytest.raises(ShutOut, match="another redrive has begun"):
            first.send(dead, [record((0, 1))])
        second.send(alive, [record((0, 1))])
        second.close(alive, Marks(second.read().marks.topic_id).advanced("*", {0: 2}, ()))
    assert [dict(each.headers)["klamm.letter"] for each in redriven.retried()] == [b"0/0", b"0/1"]
    assert redriven.redrive().total == 0


def test_of_two_redrives_that_begin_at_the_same_time_one_goes_on(
    redriven: Redriven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find the topic empty, and neither knows of the other's producer id."""
    with clients(redriven) as (first, second), writer(redriven) as one, writer(redriven) as other:
        first.create([redriven.shop.topic])
        empty = second.read()
        first.open(one)
        reads = iter([empty])
        original = RetrySession.read
        monkeypatch.setattr(RetrySession, "read", lambda self: next(reads, None) or original(self))
        log = second.open(other)
        assert len(log.openings) == 3, "it began once more when it saw the other one"
        with pytest.raises(ShutOut):
            first.send(one, [record((0, 0))])
        assert second.send(other, [record((0, 0))]) == {}


def test_when_all_epochs_are_used_a_new_producer_goes_on(redriven: Redriven) -> None:
    with clients(redriven) as (first, second), writer(redriven) as one, writer(redriven) as other:
        first.create([redriven.shop.topic])
        worn = Identity(one.new_identity().producer_id, MOST_EPOCH - 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OrderedWriter, "new_identity", lambda self: worn)
            first.open(one)
        names = []
        for session in (second, first):
            names.append(session.open(other).openings[-1].identity)
        assert names[0] == (worn.producer_id, MOST_EPOCH - 1)
        assert names[1].producer_id != worn.producer_id and names[1].epoch == 0
        with pytest.raises(ShutOut):
            one.write([Outgoing(None, b"late", [])])


def test_dead_letters_that_do_not_count_are_left(redriven: Redriven) -> None:
    attempt = redriven.attempt.again({"orders": {redriven.shop.topic: {"1": 50}, redriven.topic: {"0": 7}}})
    State(redriven.project).keep_attempt("totals", attempt)
    redriven.bury(offset=60)  # the later epoch reads it again
    redriven.bury(offset=10, retry=f"{redriven.topic}-0/7")  # and this one in the retry topic
    redriven.bury(
        offset=11, generation="ffffffff.3"
    )  # of another pipeline id, and older than all epochs of this one
    done = redriven.redrive()
    assert (done.total, done.repeated) == (0, 3)
    redriven.bury(offset=12, retry=f"{redriven.topic}-0/6")
    redriven.bury(offset=13, content="row")
    redriven.bury(offset=14, pipeline="another")
    redriven.bury(offset=12, retry=f"{redriven.topic}-0/6")  # the same, sent by a task that ran twice
    done = redriven.redrive()
    assert (done.total, done.repeated, list(done.kept.values())) == (1, 4, [1])
    headers = dict(redriven.retried()[0].headers)
    assert headers["klamm.retry.of"] == f"{redriven.topic}-0/6".encode() and "klamm.retry" not in headers


def test_records_of_an_open_batch_wait(redriven: Redriven) -> None:
    with klamm.Admin(redriven.shop.bootstrap) as admin:
        admin.create_topic(redriven.topic, 1)
        group = redriven.project.group_of("totals")
        reached = {(redriven.shop.topic, 1): CommittedOffset(100), (redriven.topic, 0): CommittedOffset(5)}
        admin.alter_group_offsets(group, reached)
    redriven.bury(offset=1)
    redriven.bury(offset=100)
    redriven.bury(offset=2)
    done = redriven.redrive()
    assert (done.total, list(done.waiting.values())) == (1, [2])
    with klamm.Admin(redriven.shop.bootstrap) as admin:
        admin.alter_group_offsets(group, {(redriven.shop.topic, 1): CommittedOffset(101)})
    redriven.bury(offset=3, retry=f"{redriven.topic}-0/5")
    done = redriven.redrive()
    assert (done.total, list(done.waiting.values())) == (2, [1])


def test_what_the_broker_refuses_stays_and_does_not_hold_up_the_others(redriven: Redriven) -> None:
    redriven.bury(3)
    with klamm.Admin(redriven.shop.bootstrap) as admin:
        admin.create_topic(redriven.topic, 1, configs={"max.message.bytes": 1000})
        redriven.bury(trace="x" * 900)
        redriven.bury()
        done = redriven.redrive()
        assert (done.total, list(done.kept.values())) == (4, [1])
        assert "larger than" in next(iter(done.kept))
        assert redriven.redrive().total == 0
        admin.alter_config(klamm.ConfigResource.topic(redriven.topic), set={"max.message.bytes": 100_000})
    assert redriven.redrive().total == 1
    redriven.assert_each_once()
    assert redriven.redrive(dry_run=True).total == 0


def test_what_goes_to_topics_and_what_is_retried_is_known_to_both(redriven: Redriven) -> None:
    redriven.bury(2)
    assert redrive(redriven.project).total == 2
    redriven.bury()
    assert redriven.redrive().sent == {redriven.topic: 1}
    redriven.bury()
    assert redrive(redriven.project).total == 1
    assert redriven.redrive(dry_run=True).total == 0


def test_a_topic_whose_notes_are_gone_is_refused(redriven: Redriven) -> None:
    redriven.bury()
    redriven.redrive()
    with klamm.Admin(redriven.shop.bootstrap) as admin:
        admin.delete_records({(redriven.topic, 0): 2})
        redriven.bury()
        assert redriven.redrive().total == 1, "the marks are still there"
        end = records_of(redriven.shop.bootstrap, redriven.topic)[-1].offset + 1
        admin.delete_records({(redriven.topic, 0): end})
    with pytest.raises(RedriveFailed, match="what was redriven, is gone"):
        redriven.redrive()
    assert redrive(redriven.project, dry_run=True).total == 2, "to topics it does without them"


def test_many_partitions_and_many_batches(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.pipelines.retry.session.MOST_BATCH_BYTES", 600)
    redriven = Redriven(shop, partitions=3)
    for partition in (0, 2, 1):
        redriven.bury(7, partition=partition)
    assert redriven.redrive().total == 21
    redriven.bury(1, partition=2)
    assert redriven.redrive().total == 1
    redriven.assert_each_once()


def test_a_record_goes_to_the_source_that_read_it(shop: Shop) -> None:
    shop.write(TWO_SOURCES)
    redriven = Redriven(shop)
    others = retry_topic(shop.project, "totals", "others")
    redriven.bury(source="others")
    redriven.bury(source="totals")  # one of the pipeline's own rules: either may have read it
    redriven.bury(source="totals", retry=f"{others}-0/9")
    assert redriven.redrive().sent == {redriven.topic: 1, others: 3}
    assert redriven.redrive().total == 0
    assert [record.value for record in redriven.retried(others)] == redriven.buried


def test_a_pipeline_that_has_not_run_is_to_run_first(shop: Shop) -> None:
    with pytest.raises(RedriveFailed, match="has not run yet in this folder"):
        redrive_through_topic(shop.project, "totals")


def record(place: tuple[int, int]) -> Retried:
    return Retried(place, None, b"v", [("klamm.letter", b"%d/%d" % place)])


class clients:
    """Two redrives of the same topic."""

    def __init__(self, redriven: Redriven) -> None:
        self._redriven = redriven

    def __enter__(self) -> tuple[RetrySession, RetrySession]:
        project, bootstrap = self._redriven.project, self._redriven.shop.bootstrap
        self._admin, self._consumer = klamm.Admin(bootstrap), klamm.Consumer(bootstrap)
        topic_id = self._admin.describe_topic(project.dead_letters).topic_id
        arguments = (project, self._consumer, self._admin, self._redriven.topic, topic_id)
        return RetrySession(*arguments), RetrySession(*arguments)

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._admin.close()


def writer(redriven: Redriven) -> OrderedWriter:
    return OrderedWriter(redriven.project, redriven.topic, 0)


def test_an_empty_log_has_nothing() -> None:
    assert not RetryLog().has("decode", (0, 0))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_redrives_that_are_killed_while_they_send_send_each_record_once(redriven: Redriven) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    kills = 0
    for number in range(5):
        for _ in range(3):
            redriven.bury(5)
            delay_s = chance.choice([0.0, 0.0003, 0.001, 0.003])
            command = [sys.executable, "-m", "tests.pipelines.retry.killed_redrive"]
            arguments = [str(redriven.shop.root), "totals", str(number), str(delay_s)]
            child = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=CHILD_S)
            assert child.returncode in (0, -signal.SIGKILL), child.stderr[-2000:]
            kills += child.returncode != 0
            redriven.redrive()
    print(f"seed {seed}: {kills} kills")
    assert kills, "the moments do not exist any more"
    redriven.assert_each_once()
