"""Dead letters go back to their topics, once."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.client.results import CommittedOffset, Record
from klamm.pipelines import originals, replay
from klamm.pipelines import redrive as redriving
from klamm.pipelines.originals import RedriveFailed
from klamm.pipelines.redrive import Marks, redrive
from klamm.pipelines.runner import run
from klamm.pipelines.state import ProjectBusy, State
from tests.pipelines.running import Shop
from tests.spark.topics import records_of

OFFSETS = itertools.count(5)
LETTERS = [("table", "decode"), ("table", "amount is positive"), ("other", "decode")]
PIPELINES = """
@source(topic="{topic}", schema="n BIGINT, amount DOUBLE")
def orders(rows):
    return rows

@pipeline(to=to_table("table"))
@expect("amount is positive", "amount > 0", otherwise="dead_letter")
def table(orders):
    return orders

@pipeline(to=to_table("other"))
def other(orders):
    return orders
"""
FAILING = """
@source(topic="{topic}", schema="n BIGINT, amount DOUBLE")
@expect("amount is positive", "amount > 0", otherwise="dead_letter")
@expect("n is small", "n < 9", otherwise="fail")
def orders(rows):
    return rows

@pipeline(to=to_table("table"))
def table(orders):
    return orders

@pipeline(to=to_table("other"))
def other(orders):
    return orders
"""
TABLE = PIPELINES[: PIPELINES.index('@pipeline(to=to_table("other"))')].replace(
    'DOUBLE")', 'DOUBLE", read={"maxOffsetsPerTrigger": 8})'
)


def bury(shop: Shop, pipeline: str, rule: str, value: bytes, **more: bytes) -> None:
    headers = {
        "trace": b"t1",
        "klamm.pipeline": pipeline.encode(),
        "klamm.generation": b"aa.1",
        "klamm.source": b"orders",
        "klamm.rule": rule.encode(),
        "klamm.topic": shop.topic.encode(),
        "klamm.partition": b"1",
        "klamm.offset": b"%d" % next(OFFSETS),
        "klamm.timestamp": b"1700000000000",
        "klamm.error": b"bad",
        **{name.replace("_", "."): each for name, each in more.items()},
    }
    with klamm.Producer(shop.bootstrap) as producer:
        producer.send(shop.project.dead_letters, value, key=b"k", headers=headers, partition=0).result()


@pytest.fixture
def shop(klamm_bootstrap: str, tmp_path: Path) -> Shop:
    shop = Shop(tmp_path, klamm_bootstrap, PIPELINES)
    with klamm.Admin(klamm_bootstrap) as admin:
        admin.create_topic(shop.project.dead_letters, 1)
    return shop


def values(shop: Shop) -> list[bytes | None]:
    return [record.value for record in records_of(shop.bootstrap, shop.topic)]


def test_a_second_redrive_sends_nothing(shop: Shop) -> None:
    first_offset = next(OFFSETS) + 1
    for number, (pipeline, rule) in enumerate(LETTERS):
        bury(shop, pipeline, rule, b"value %d" % number)
    assert redrive(shop.project, dry_run=True).sent == {shop.topic: 3}
    assert values(shop) == []
    assert redrive(shop.project).sent == {shop.topic: 3}
    assert redrive(shop.project).total == 0
    assert values(shop) == [b"value 0", b"value 1", b"value 2"]
    first = records_of(shop.bootstrap, shop.topic)[0]
    assert (first.key, first.partition, first.timestamp) == (b"k", 1, 1700000000000)
    address = f"{shop.project.name}.table".encode()
    assert dict(first.headers) == {
        "trace": b"t1",
        "klamm.redriven": b"1",
        "klamm.for": address,
        "klamm.topic": shop.topic.encode(),
        "klamm.generation": b"aa.1",
        "klamm.offset": b"%d" % first_offset,
        "klamm.source": b"orders",
    }


def test_a_rule_is_redriven_and_the_others_wait(shop: Shop) -> None:
    for number, (pipeline, rule) in enumerate(LETTERS):
        bury(shop, pipeline, rule, b"value %d" % number)
    assert redrive(shop.project, rule="decode", pipeline="other").total == 1
    assert redrive(shop.project, rule="decode").total == 1
    bury(shop, "other", "decode", b"value 3")
    assert redrive(shop.project).total == 2
    assert redrive(shop.project).total == 0
    assert values(shop) == [b"value 2", b"value 0", b"value 1", b"value 3"]


@pytest.mark.parametrize(("before", "after"), [(b"2", b"3"), (b"twice", b"1")])
def test_a_record_that_comes_back_again_counts_its_returns(shop: Shop, before: bytes, after: bytes) -> None:
    bury(shop, "table", "decode", b"value", klamm_redriven=before, klamm_file=b"a.log")
    assert redrive(shop.project).total == 1
    headers = dict(records_of(shop.bootstrap, shop.topic)[0].headers)
    assert (headers["klamm.redriven"], headers["klamm.file"]) == (after, b"a.log")


def addresses(shop: Shop) -> list[bytes | None]:
    return [dict(record.headers).get("klamm.for") for record in records_of(shop.bootstrap, shop.topic)]


def test_a_record_goes_back_once_to_each_pipeline_that_has_refused_it(shop: Shop) -> None:
    for pipeline in ("table", "other", "table"):
        bury(shop, pipeline, "decode", b"bad", klamm_offset=b"17")
    done = redrive(shop.project)
    assert (done.sent, done.repeated) == ({shop.topic: 2}, 1)
    names = [shop.project.group_of(pipeline).encode() for pipeline in ("table", "other")]
    assert addresses(shop) == names
    assert redrive(shop.project).total == 0, "all letters are done with"


def test_what_goes_back_for_all_goes_back_once_and_names_nobody(shop: Shop) -> None:
    for pipeline in ("table", "other"):
        bury(shop, pipeline, "decode", b"bad", klamm_offset=b"17")
    done = redrive(shop.project, for_all=True)
    assert (done.sent, done.repeated) == ({shop.topic: 1}, 1)
    assert addresses(shop) == [None]
    assert redrive(shop.project).total == 0, "both letters are done with"


def test_letters_of_a_pipeline_that_is_gone_wait_until_they_may_go_to_all(shop: Shop) -> None:
    for pipeline in ("table", "former", "other", "table"):
        bury(shop, pipeline, "decode", b"of " + pipeline.encode())
    done = redrive(shop.project)
    assert done.total == 3
    ((reason, count),) = done.waiting.items()
    assert "former is no longer in the project; --for-all" in reason and count == 1
    assert redrive(shop.project, dry_run=True).total == 0, "the others are done with"
    bury(shop, "table", "decode", b"a new one")
    assert redrive(shop.project, for_all=True).total == 2
    assert sorted(values(shop)[-2:], key=str) == [b"a new one", b"of former"]
    assert redrive(shop.project, for_all=True).total == 0


def test_letters_that_came_before_a_pipeline_was_removed_wait_as_well(shop: Shop) -> None:
    bury(shop, "table", "decode", b"sent")
    assert redrive(shop.project, pipeline="table").total == 1
    for value in (b"later", b"last"):
        bury(shop, "table", "decode", value)
    shop.write(PIPELINES.replace("def table(", "def renamed("))
    done = redrive(shop.project)
    assert (done.total, done.waiting.total()) == (0, 2)
    assert redrive(shop.project, for_all=True).total == 2
    assert values(shop) == [b"sent", b"later", b"last"]


@pytest.mark.parametrize("pipeline", ["table", None])
def test_nothing_is_sent_again_however_many_chunks_there_are(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, pipeline: str | None
) -> None:
    monkeypatch.setattr(originals, "CHUNK_RECORDS", 3)
    bury(shop, "former", "decode", b"waits")
    for number in range(10):
        bury(shop, "table", "decode", b"%d" % number)
    for total in (10, 0, 0):
        assert redrive(shop.project, pipeline=pipeline, dry_run=True).total == total
        assert redrive(shop.project, pipeline=pipeline).total == total
    assert values(shop) == [b"%d" % number for number in range(10)]


def test_letters_of_other_epochs_and_of_topics_made_anew_are_no_copies(shop: Shop) -> None:
    bury(shop, "table", "decode", b"first epoch", klamm_offset=b"17")
    bury(shop, "table", "decode", b"second epoch", klamm_offset=b"17", klamm_generation=b"aa.2")
    bury(shop, "table", "decode", b"made anew", klamm_offset=b"17", klamm_timestamp=b"1700000000001")
    assert redrive(shop.project).total == 3
    assert values(shop) == [b"first epoch", b"second epoch", b"made anew"]


def test_marks_that_a_commit_has_no_room_for_are_told_before_anything_is_sent(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(shop, "table", "decode", b"value")
    with monkeypatch.context() as patched:
        patched.setattr(redriving, "MOST_METADATA_BYTES", 10)
        with pytest.raises(RedriveFailed, match="nothing more was sent"):
            redrive(shop.project, rule="decode")
    assert values(shop) == []
    assert redrive(shop.project, rule="decode").total == 1


def test_a_record_that_the_broker_refuses_does_not_hold_up_the_others(shop: Shop) -> None:
    in_a_year = str(int((time.time() + 365 * 86400) * 1000)).encode()
    for value, more in ((b"before", {}), (b"bad", {"klamm_timestamp": in_a_year}), (b"after", {})):
        bury(shop, "table", "decode", value, **more)
    done = redrive(shop.project)
    assert (done.total, list(done.kept.values())) == (2, [1])
    assert "INVALID_TIMESTAMP" in next(iter(done.kept))
    assert sorted(values(shop), key=str) == [b"after", b"before"]


def test_what_there_is_instead_is_named(shop: Shop) -> None:
    bury(shop, "table", "decode", b"value")
    assert redrive(shop.project, rule="decod").others == {"table, decode"}


def test_one_redrive_at_a_time(shop: Shop) -> None:
    with (
        State(shop.project).lock("a test", "redrive.lock"),
        pytest.raises(ProjectBusy, match="in use: process"),
    ):
        redrive(shop.project)
    with State(shop.project).lock("running its pipelines"):
        assert redrive(shop.project).total == 0, "pipelines may run meanwhile"


def test_a_letter_that_does_not_carry_its_record_brings_it_back_all_the_same(shop: Shop) -> None:
    with klamm.Producer(shop.bootstrap) as producer:
        placed = producer.send(
            shop.topic,
            b"large",
            key=b"k",
            headers={"trace": b"t2", "klamm.redriven": b"1"},
            partition=1,
            timestamp=1700000000000,
        ).result()
    bury(shop, "table", "decode", b"", klamm_offset=b"%d" % placed.offset, klamm_content=b"coordinates")
    bury(shop, "table", "decode", b"", klamm_offset=b"999", klamm_content=b"coordinates")
    done = redrive(shop.project)
    assert (done.total, list(done.kept.values())) == (1, [1])
    assert "they do not carry the original record" in next(iter(done.kept))
    back = records_of(shop.bootstrap, shop.topic)[-1]
    assert (back.key, back.value, back.partition) == (b"k", b"large", 1)
    found = dict(back.headers)
    assert (found["trace"], found["klamm.redriven"]) == (b"t2", b"2")


def test_a_record_that_is_too_large_to_go_back_does_not_hold_up_the_others(shop: Shop) -> None:
    with klamm.Admin(shop.bootstrap) as admin:
        admin.alter_config(klamm.ConfigResource.topic(shop.topic), set={"max.message.bytes": 1000})
    for value in (b"before", b"x" * 900, b"after"):
        bury(shop, "table", "decode", value)
    done = redrive(shop.project)
    assert (done.total, list(done.kept.values())) == (2, [1])
    assert values(shop) == [b"before", b"after"]


@pytest.mark.long
def test_pipelines_that_had_taken_a_record_do_not_get_it_twice(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, PIPELINES)
    shop.send(20, amount=1)
    shop.send(6, amount=-1)
    run(shop.project, once=True, spark=spark)
    shop.assert_each_once("table", range(20))
    shop.assert_each_once("other")
    shop.write(PIPELINES.replace("amount > 0", "amount <> 0"))
    done = redrive(shop.project)
    assert (done.sent, done.of_rows) == ({shop.topic: 6}, 6)
    statuses = run(shop.project, once=True, spark=spark)
    assert {status.pipeline: status.rows_out for status in statuses} == {"table": 6, "other": 0}
    shop.assert_each_once("table")
    shop.assert_each_once("other")


@pytest.mark.long
def test_a_batch_that_is_made_again_counts_and_not_its_first_try(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, FAILING)
    shop.send(5, amount=1)
    shop.send(3, amount=-1)
    shop.send(2, amount=1)
    assert {status.state for status in run(shop.project, once=True, spark=spark)} == {"failed"}
    shop.write(FAILING.replace("amount > 0", "amount <> 0").replace("n < 9", "n < 99"))
    # One before its batch is made again, the other afterwards: their letters are of the first try.
    assert redrive(shop.project, pipeline="table").total > 0
    run(shop.project, once=True, spark=spark)
    assert redrive(shop.project).total > 0
    run(shop.project, once=True, spark=spark)
    shop.assert_each_once("table")
    shop.assert_each_once("other")


@pytest.mark.faults
def test_a_replay_has_each_record_once_wherever_it_begins(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)

    def replayed(from_: str) -> None:
        replay.carry_out(shop.project, replay.plan(shop.project, "table", from_))
        run(shop.project, once=True, spark=spark)

    shop.send(4, amount=-1)
    shop.send(20, amount=1)
    run(shop.project, once=True, spark=spark)
    replayed("earliest")
    shop.assert_each_once("table", range(4, 24))
    shop.write(TABLE.replace("amount > 0", "amount <> 0"))
    # Those of the first epoch were refused again in the second: what comes back of the first counts no more.
    assert redrive(shop.project).sent == {shop.topic: 8}
    run(shop.project, once=True, spark=spark)
    shop.assert_each_once("table")
    replayed("earliest")
    shop.assert_each_once("table")
    # Begins behind what had been refused, and before what came back of it.
    replayed("12")
    shop.assert_each_once("table")
    shutil.rmtree(shop.project.state)
    shutil.rmtree(shop.project.tables)
    run(shop.project, once=True, spark=spark)
    shop.assert_each_once("table")


def test_what_has_no_way_back_is_kept_and_told(shop: Shop) -> None:
    bury(shop, "table", "decode", b"gone", klamm_topic=b"a-topic-that-was-deleted")
    bury(shop, "table", "decode", b"row", klamm_content=b"row")
    bury(shop, "table", "decode", b"no partition", klamm_partition=b"9")
    done = redrive(shop.project)
    assert done.total == 0 and sorted(done.kept.values()) == [1, 1, 1]
    assert any("a-topic-that-was-deleted" in reason for reason in done.kept)


def test_a_project_without_dead_letters_has_nothing_to_redrive(klamm_bootstrap: str, tmp_path: Path) -> None:
    assert redrive(Shop(tmp_path, klamm_bootstrap, "").project).total == 0


def test_marks_of_other_tools_are_just_offsets() -> None:
    marks = Marks.of(CommittedOffset(7, "by hand"), 0)
    assert marks.is_done("table/decode", 6) and not marks.is_done("table/decode", 7)
    assert Marks.of(None, 3).base == 3


class LateConsumer(klamm.Consumer):
    """One that gets nothing in time, as from a broker that is busy or changes its leaders."""

    def poll(self, timeout: float | None = None, max_records: int | None = None) -> list[Record]:
        return []


def test_letters_that_do_not_come_in_time_are_not_taken_for_sent(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(shop, "table", "decode", b"value")
    with monkeypatch.context() as patched:
        patched.setattr(originals, "Consumer", LateConsumer)
        with pytest.raises(RedriveFailed, match=r"offset 0 of 1.*Try again"):
            redrive(shop.project)
    assert redrive(shop.project).total == 1
    assert values(shop) == [b"value"]
