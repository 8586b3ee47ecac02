"""Dead letters go back to their topics, once."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import klamm
from klamm.client.results import CommittedOffset, Record
from klamm.pipelines import redrive as redriving
from klamm.pipelines.redrive import Marks, RedriveFailed, redrive
from tests.pipelines.running import Shop
from tests.spark.topics import records_of

OFFSETS = itertools.count(5)
LETTERS = [("table", "decode"), ("table", "amount is positive"), ("other", "decode")]


def bury(shop: Shop, pipeline: str, rule: str, value: bytes, **more: bytes) -> None:
    headers = {
        "trace": b"t1",
        "klamm.pipeline": pipeline.encode(),
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
    shop = Shop(tmp_path, klamm_bootstrap, "")
    with klamm.Admin(klamm_bootstrap) as admin:
        admin.create_topic(shop.project.dead_letters, 1)
    return shop


def values(shop: Shop) -> list[bytes | None]:
    return [record.value for record in records_of(shop.bootstrap, shop.topic)]


def test_a_second_redrive_sends_nothing(shop: Shop) -> None:
    for number, (pipeline, rule) in enumerate(LETTERS):
        bury(shop, pipeline, rule, b"value %d" % number)
    assert redrive(shop.project, dry_run=True).sent == {shop.topic: 3}
    assert values(shop) == []
    assert redrive(shop.project).sent == {shop.topic: 3}
    assert redrive(shop.project).total == 0
    assert values(shop) == [b"value 0", b"value 1", b"value 2"]
    first = records_of(shop.bootstrap, shop.topic)[0]
    assert (first.key, first.partition, first.timestamp) == (b"k", 1, 1700000000000)
    assert list(first.headers) == [("trace", b"t1"), ("klamm.redriven", b"1")]


def test_a_rule_is_redriven_and_the_others_wait(shop: Shop) -> None:
    for number, (pipeline, rule) in enumerate(LETTERS):
        bury(shop, pipeline, rule, b"value %d" % number)
    assert redrive(shop.project, rule="decode", pipeline="other").total == 1
    assert redrive(shop.project, rule="decode").total == 1
    bury(shop, "other", "decode", b"value 3")
    assert redrive(shop.project).total == 2
    assert redrive(shop.project).total == 0
    assert values(shop) == [b"value 2", b"value 0", b"value 1", b"value 3"]


def test_a_record_that_comes_back_again_counts_its_returns(shop: Shop) -> None:
    bury(shop, "table", "decode", b"value", klamm_redriven=b"2")
    assert redrive(shop.project).total == 1
    assert dict(records_of(shop.bootstrap, shop.topic)[0].headers)["klamm.redriven"] == b"3"


def test_a_record_that_two_pipelines_have_refused_goes_back_once(shop: Shop) -> None:
    for pipeline in ("table", "other"):
        bury(shop, pipeline, "decode", b"bad", klamm_offset=b"17")
    done = redrive(shop.project)
    assert (done.sent, done.repeated) == ({shop.topic: 1}, 1)
    assert values(shop) == [b"bad"]
    assert redrive(shop.project).total == 0, "both letters are done with"


def test_what_has_no_way_back_is_kept_and_told(shop: Shop) -> None:
    bury(shop, "table", "decode", b"gone", klamm_topic=b"a-topic-that-was-deleted")
    bury(shop, "table", "decode", b"row", klamm_content=b"row")
    done = redrive(shop.project)
    assert done.total == 0 and sorted(done.kept.values()) == [1, 1]
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
        patched.setattr(redriving, "Consumer", LateConsumer)
        with pytest.raises(RedriveFailed, match=r"offset 0 of 1.*Try again"):
            redrive(shop.project)
    assert redrive(shop.project).total == 1
    assert values(shop) == [b"value"]
