"""Dead-letter records that go into the table of their pipeline: each once, whatever breaks meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines import originals, redrive, replay
from klamm.pipelines.redrive_to_table import redrive_to_table, why_not
from klamm.pipelines.runner import run
from klamm.pipelines.state import Attempt, State
from klamm.pipelines.tables.table import Batch, Table
from klamm.pipelines.tables.versions import history
from tests.pipelines.running import Shop
from tests.pipelines.tables.writing import SCHEMA

TABLE = """
@source(topic="{topic}", schema="n BIGINT, amount DOUBLE")
@expect("amount is positive", "amount > 0", otherwise="dead_letter")
@expect("n is even", "n % 2 = 0", otherwise="dead_letter")
def orders(rows):
    return rows

@pipeline(to=to_table("orders"))
def table(orders):
    return orders
"""
FORGIVING = TABLE.replace("amount > 0", "amount != 0")
MORE_FORGIVING = FORGIVING.replace("n % 2 = 0", "n > 0")


def send(shop: Shop, *orders: tuple[int, float]) -> None:
    shop.send_raw(json.dumps({"n": n, "amount": amount}).encode() for n, amount in orders)


def numbers(shop: Shop) -> list[int]:
    return sorted(shop.delta("orders").to_pyarrow_table(columns=["n"])["n"].to_pylist())


def test_a_mended_record_reaches_the_table_and_the_next_redrive_finds_nothing(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    send(shop, (2, 1.0), (4, -1.0))
    run(shop.project, once=True, spark=spark, upkeep=None)
    assert numbers(shop) == [2]
    shop.write(FORGIVING)
    assert redrive_to_table(shop.project, "table", spark=spark).rows == 1
    assert numbers(shop) == [2, 4]
    assert redrive_to_table(shop.project, "table", spark=spark).total == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_dead_letters_reach_the_table_once_whatever_breaks(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    send(shop, (2, 1.0), (4, -1.0), (6, 1.0), (8, -1.0), (11, 1.0))
    shop.send_raw([b"not JSON"])
    run(shop.project, once=True, spark=spark)
    assert numbers(shop) == [2, 6]
    found = redrive_to_table(shop.project, "table", dry_run=True)
    assert found.total == 4 and found.rows == 0

    # Nothing was mended: all are bad again, and stay where the next redrive finds them.
    assert redrive_to_table(shop.project, "table", spark=spark).rows == 0
    assert redrive_to_table(shop.project, "table", dry_run=True).total == 4

    # One rule at a time. A redrive that is broken off before or after its commit adds nothing twice.
    shop.write(FORGIVING)
    append = Table.append
    for when in ("before", "after"):
        with pytest.MonkeyPatch.context() as patch:

            def struck(self: Table, *arguments: object, when: str = when) -> None:
                if when == "after":
                    append(self, *arguments)  # type: ignore[arg-type]
                raise OSError("the disk has gone away")

            patch.setattr(Table, "append", struck)
            with pytest.raises(OSError, match="the disk has gone away"):
                redrive_to_table(shop.project, "table", rule="amount is positive", spark=spark)
        assert numbers(shop) == ([2, 6] if when == "before" else [2, 4, 6, 8])
    assert redrive_to_table(shop.project, "table", rule="amount is positive", spark=spark).total == 0
    assert redrive.redrive(shop.project, dry_run=True).total == 2, "topics get none that the table has"
    shop.write(MORE_FORGIVING)
    done = redrive_to_table(shop.project, "table", spark=spark)
    assert (done.total, done.rows) == (2, 1)
    assert numbers(shop) == [2, 4, 6, 8, 11]
    assert redrive_to_table(shop.project, "table", dry_run=True).total == 1, "what is not JSON stays"
    assert history(Table(str(shop.table("orders"))), 1)[0].what == "2 dead-letter records redriven"

    # The pipeline goes on; a replay reads the originals, and what it reads is not redriven again.
    send(shop, (12, 1.0))
    run(shop.project, once=True, spark=spark)
    with pytest.raises(replay.ReplayRefused, match="nothing to replay"):
        replay.plan(shop.project, "table", "latest")
    planned = replay.plan(shop.project, "table", 1)
    assert planned.base is None, "versions before a redrive lack its rows"
    replay.carry_out(shop.project, replay.plan(shop.project, "table", "earliest"), spark=spark)
    assert numbers(shop) == [2, 4, 6, 8, 11, 12]
    found = redrive_to_table(shop.project, "table", spark=spark)
    assert (found.total, found.rows) == (1, 0) and found.repeated >= 1
    assert numbers(shop) == [2, 4, 6, 8, 11, 12]


def test_dead_letters_that_do_not_count_are_left(klamm_bootstrap: str, tmp_path: Path) -> None:
    """Those of a batch that is not in the table, which may run again, and of a replay that was given up."""
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    state = State(shop.project)
    attempt = Attempt.first({"orders": {shop.topic: {"0": 0, "1": 0}}})
    attempt = attempt.again({"orders": {shop.topic: {"0": 50, "1": 50}}})
    given_up = attempt.next({"orders": {shop.topic: {"0": 0, "1": 0}}})
    state.keep_attempt("table", replace(attempt, used_epochs=given_up.epochs[-1].number))
    table = Table(str(shop.table("orders")))
    table.append([], Batch(f"{shop.name}.table", 1, 0, end={shop.topic: {"0": 100, "1": 100}}), SCHEMA, ())

    def dead_letter(offset: int, epoch: str) -> None:
        headers = {
            "klamm.pipeline": "table",
            "klamm.rule": "n is even",
            "klamm.source": "orders",
            "klamm.topic": shop.topic,
            "klamm.partition": "0",
            "klamm.offset": str(offset),
            "klamm.generation": epoch,
            "klamm.content": "record",
        }
        with klamm.Producer(klamm_bootstrap) as producer:
            encoded = {name: value.encode() for name, value in headers.items()}
            producer.send(shop.project.dead_letters, b"{}", headers=encoded, partition=0).result()

    dead_letter(10, f"{attempt.pipeline_id}.1")
    dead_letter(11, given_up.epoch)
    dead_letter(60, f"{attempt.pipeline_id}.1")  # a later epoch reads it from 50 on
    found = redrive_to_table(shop.project, "table", dry_run=True)
    assert (found.total, found.repeated) == (1, 2)
    dead_letter(100, attempt.epoch)
    dead_letter(12, f"{attempt.pipeline_id}.1")
    assert redrive_to_table(shop.project, "table", dry_run=True).total == 1, "it stops at the open batch"
    table.append([], Batch(f"{shop.name}.table", 1, 1, end={shop.topic: {"0": 101, "1": 100}}), SCHEMA, ())
    assert redrive_to_table(shop.project, "table", dry_run=True).total == 3
    state.keep_attempt("table", replace(attempt, number=0))
    with pytest.raises(originals.RedriveFailed, match="does not know the last attempt"):
        redrive_to_table(shop.project, "table", dry_run=True)


@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        ('topic("t")', "does not write to a table"),
        ('to_table("orders"), mode="upsert", keys="n"', "rows of its table change"),
        ('to_table("orders")', "has no batch yet"),
    ],
)
def test_others_need_their_topic(klamm_bootstrap: str, tmp_path: Path, sink: str, reason: str) -> None:
    from klamm.pipelines.discovery import load_definitions

    shop = Shop(tmp_path, klamm_bootstrap, TABLE.replace('to_table("orders")', sink))
    node = load_definitions(shop.project).pipelines["table"]
    assert reason in why_not(shop.project, node)
    with pytest.raises(originals.RedriveFailed, match="through a retry topic"):
        redrive_to_table(shop.project, "table")
