"""Tails, exports, and generators that run in threads."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
import time
from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.admin.admin import Admin
from klamm.client.plain.producer import Producer
from klamm.client.results import Record
from klamm.operating.records import tailing
from klamm.operating.records.exporting import ExportFormat, csv_lines, export
from klamm.operating.records.filters import parse_filter
from klamm.operating.records.matching import Matcher
from klamm.operating.records.rows import row_maker
from klamm.operating.records.spans import Span, nearest
from klamm.operating.records.stepping import Steps
from tests.operating.records.reading import consumers, make_topic, new_topic, send, spans
from tests.waiting import until

BASE = 1_700_000_000_000


# ---- tails


async def test_a_tail_brings_what_comes(klamm_bootstrap: str) -> None:
    name = new_topic("tailed")
    await make_topic(klamm_bootstrap, name, partitions=2)
    send(klamm_bootstrap, name, {0: [(BASE, b"before")]})
    seen: list[str] = []
    positions = {0: 1, 1: 0}
    passes = Matcher(parse_filter("value ~ wanted"))
    async with Steps(
        tailing.tail(consumers(klamm_bootstrap), name, positions, row_maker(), passes=passes)
    ) as steps:
        first = await anext(steps)
        assert first.rows == () and first.skipped == 0
        send(klamm_bootstrap, name, {0: [(BASE, b"wanted 1"), (BASE, b"other")], 1: [(BASE, b"wanted 2")]})
        while len(seen) < 2:
            step = await anext(steps)
            seen += [row.value.text for row in step.rows if row.value]
        assert sorted(seen) == ["wanted 1", "wanted 2"]
        assert step.positions == {0: 3, 1: 1}


async def test_a_slow_watcher_is_told_how_many_were_skipped(
    klamm_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailing, "MOST_BEHIND", 3_000)
    name = new_topic("fast")
    await make_topic(klamm_bootstrap, name)
    with Producer(klamm_bootstrap) as producer:
        for number in range(5_000):
            producer.send(name, b"%d" % number)
    async with Steps(
        tailing.tail(consumers(klamm_bootstrap), name, {0: 0}, row_maker(), most_rows=50)
    ) as steps:
        rows, skipped = [], 0
        while not rows:
            step = await anext(steps)
            rows, skipped = list(step.rows), skipped + step.skipped
    assert [row.offset for row in rows] == list(range(4_950, 5_000)) and skipped == 4_950
    monkeypatch.setattr(tailing, "MOST_BEHIND", 10_000)
    async with Steps(
        tailing.tail(consumers(klamm_bootstrap), name, {0: 1_000}, row_maker(), most_rows=50)
    ) as steps:
        given_, skipped = 0, 0
        while given_ + skipped < 4_000:
            step = await anext(steps)
            given_, skipped = given_ + len(step.rows), skipped + step.skipped
    assert given_ + skipped == 4_000 and given_ >= 50


# ---- exports


async def exported(bootstrap: str, topic: str, format_: ExportFormat, **options: object) -> bytes:
    found = await spans(bootstrap, topic)
    return b"".join(export(consumers(bootstrap), topic, found, format_, **options))  # type: ignore[arg-type]


async def test_exports(klamm_bootstrap: str) -> None:
    name = new_topic("exported")
    await make_topic(klamm_bootstrap, name)
    with Producer(klamm_bootstrap) as producer:
        producer.send(name, b'=HYPERLINK("http://evil")', b"-1", (("h", b"x"),), timestamp=BASE)
        producer.send(name, b"a,b\r\nc", None, timestamp=BASE)
        producer.send(name, None, b"\xff\x00", timestamp=BASE)
    lines = (await exported(klamm_bootstrap, name, ExportFormat.JSONL)).splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [0, 1, 2]
    text = (await exported(klamm_bootstrap, name, ExportFormat.CSV)).decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert rows[0]["value"] == '\'=HYPERLINK("http://evil")' and rows[0]["key"] == "'-1"
    assert json.loads(rows[0]["headers"]) == [{"name": "h", "value": "x"}]
    assert (rows[1]["value"], rows[1]["key_encoding"]) == ("a,b\r\nc", "null")
    assert (rows[2]["key"], rows[2]["key_encoding"], rows[2]["value_encoding"]) == ("/wA=", "base64", "null")
    assert rows[0]["timestamp"] == "2023-11-14T22:13:20.000Z"
    one = await exported(klamm_bootstrap, name, ExportFormat.JSONL, most_records=1)
    assert len(one.splitlines()) == 1
    none = await exported(klamm_bootstrap, name, ExportFormat.JSONL, passes=Matcher(parse_filter("zug")))
    assert none == b""


@given(st.lists(st.tuples(st.none() | st.binary(), st.none() | st.text().map(str.encode)), max_size=5))
def test_any_record_is_one_row_of_csv_without_formulas(
    pairs: list[tuple[bytes | None, bytes | None]],
) -> None:
    records = [Record("t", 0, each, 0, key, value) for each, (key, value) in enumerate(pairs)]
    rows = list(csv.reader(io.StringIO(csv_lines(records).decode(), newline="")))
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        assert len(row) == 9 and not any(cell[:1] in tuple("=+-@\t\r") for cell in row if cell)
        if row[7] == "text" and record.value is not None:
            assert row[6].removeprefix("'") == record.value.decode().removeprefix("'")


# ---- empty ranges


async def test_where_the_nearest_records_are(klamm_bootstrap: str) -> None:
    name = new_topic("near")
    await make_topic(klamm_bootstrap, name, partitions=2)
    async with Admin(klamm_bootstrap) as admin:
        assert await nearest(admin, name, {0: Span(0, 0), 1: Span(0, 0)}) == (0, 0, None)
        send(klamm_bootstrap, name, {0: [(BASE, b"a"), (BASE + 9, b"b")], 1: [(BASE + 5, b"c")]})
        assert await nearest(admin, name, {0: Span(2, 2), 1: Span(0, 0)}) == (2, 1, (0, 1, BASE + 9))
        assert await nearest(admin, name, {1: Span(1, 1)}) == (1, 0, (1, 0, BASE + 5))


# ---- threads


async def test_steps_do_not_hold_up_the_loop() -> None:
    def slow() -> Generator[int, None, None]:
        for number in range(3):
            time.sleep(0.05)
            yield number

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    async with Steps(slow()) as steps:
        assert [step async for step in steps] == [0, 1, 2]
    ticking.cancel()
    assert ticks > 20


async def test_steps_are_closed_when_their_reader_leaves_or_is_cancelled() -> None:
    closed = threading.Event()
    is_under_way, may_go_on = threading.Event(), threading.Event()

    def endless() -> Generator[int, None, None]:
        try:
            yield 1
            is_under_way.set()
            may_go_on.wait(30)
            yield 2
        finally:
            closed.set()

    async def read() -> None:
        async with Steps(endless()) as steps:
            async for _ in steps:
                pass

    reading = asyncio.create_task(read())
    await until(is_under_way.is_set)
    reading.cancel()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await until(closed.is_set, "the generator is closed")


async def test_steps_pass_errors_on() -> None:
    def failing() -> Generator[int, None, None]:
        yield 1
        raise ValueError("broken")

    async with Steps(failing()) as steps:
        assert await anext(steps) == 1
        with pytest.raises(ValueError, match="broken"):
            await anext(steps)
