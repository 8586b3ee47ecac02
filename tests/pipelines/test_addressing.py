"""Which pipeline takes a record that was sent back, and when."""

from __future__ import annotations

from pyspark.sql import SparkSession

from klamm.pipelines.addressing import is_for
from klamm.pipelines.positions import Position
from klamm.pipelines.state import Attempt

GROUP = "shop.table"
SOURCES = ["orders", "other_source"]
SCHEMA = "topic STRING, partition INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, wanted BOOLEAN"


def at(offset: int) -> dict[str, Position]:
    return {"orders": {"orders": {"0": offset}}}


def headers(address: str = GROUP, *, topic: str = "orders", **more: str) -> list[tuple[str, bytes]]:
    told = {"klamm.for": address, "klamm.topic": topic} | {f"klamm.{name}": more[name] for name in more}
    return [("trace", b"t"), *((name, text.encode()) for name, text in told.items())]


def test_what_came_back_is_taken_exactly_if_the_record_is_not_read_otherwise(spark: SparkSession) -> None:
    # The third epoch of a pipeline: they began at 0, 5 by a replay, and 10 by a batch that was not done.
    last = {"orders": {"orders": {"0": 10}, "shop.retry": {"0": 2}}}
    attempt = Attempt.first(at(0)).next({"orders": {**at(5)["orders"], "shop.retry": {"0": 0}}}).again(last)

    def of(number: int, offset: int, **more: str) -> list[tuple[str, bytes]]:
        return headers(generation=f"{attempt.pipeline_id}.{number}", offset=str(offset), **more)

    def retried(number: int, offset: int) -> list[tuple[str, bytes]]:
        """Rejected when it came through a retry topic, at this offset."""
        return [*of(number, 1), ("klamm.retry.of", b"shop.retry-0/%d" % offset)]

    cases = [
        (0, None, True),
        (0, [("trace", b"t")], True),
        (0, [("klamm.for", None), ("klamm.topic", b"orders")], True),
        (0, headers("shop.other"), False),
        (0, headers("shop.other", topic="elsewhere"), True),  # passed on by somebody, with all its headers
        (0, headers(), True),
        (0, headers(offset="12"), True),
        (0, headers(generation="", offset="x"), True),
        (0, headers(source="clean"), True),
        (0, headers(source="other_source"), False),  # a rule of another source of the same topic
        (0, of(1, 12), False),  # read by the second epoch, and by this one
        (0, of(1, 7), False),  # by the second
        (0, of(1, 3), True),  # by none since
        (0, of(2, 12), False),
        (0, of(2, 7), True),
        (0, of(3, 12), True),
        (0, retried(2, 3), False),  # the third epoch begins there, too, and reads it again
        (0, retried(2, 1), True),
        (0, retried(3, 3), True),
        (0, [*of(2, 7), ("klamm.retry.of", b"x")], True),
        (1, of(1, 3), False),  # a partition that starts do not name is read from the oldest on
        (0, headers(generation="ffffffff.9", offset="3"), False),  # of another pipeline id
    ]
    rows = [("orders", partition, given, wanted) for partition, given, wanted in cases]
    frame = spark.createDataFrame(rows, SCHEMA).withColumn("found", is_for(GROUP, attempt, "orders", SOURCES))
    assert [row.found for row in frame.collect()] == [wanted for _, _, wanted in cases]


def test_a_first_epoch_takes_what_it_has_refused(spark: SparkSession) -> None:
    attempt = Attempt.first(at(7))
    told = [
        headers(generation=attempt.epoch, offset="9"),
        headers(generation="old.1", offset="9"),
        headers(generation="old.1", offset="3"),
    ]
    frame = spark.createDataFrame([("orders", 0, each, True) for each in told], SCHEMA)
    assert [row[0] for row in frame.select(is_for(GROUP, attempt, "orders", SOURCES)).collect()] == [
        True,
        False,
        True,
    ]
