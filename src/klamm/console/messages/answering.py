"""Answers questions about the messages of a topic, from the brokers.

Reading and decoding run in threads, step by step: a search through millions of records does not hold up the
pages of others, and ends when nobody reads its answer any more.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from klamm.client.admin.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.producer.producer import Producer
from klamm.client.results import Record, SentRecord
from klamm.console.addresses import message_url
from klamm.console.console import Console
from klamm.console.messages.question import Question
from klamm.operating.errors import CannotDo
from klamm.operating.offsets import ends_of
from klamm.operating.records.as_json import NewRecord
from klamm.operating.records.cursors import cursor_text
from klamm.operating.records.exporting import ExportFormat, export
from klamm.operating.records.full import full_record
from klamm.operating.records.snippets import Wanted, cli, pyspark, python
from klamm.operating.records.spans import Span, chosen_partitions, nearest, spans_of, within
from klamm.operating.records.stepping import Steps, in_thread
from klamm.operating.records.tailing import TailStep, tail
from klamm.operating.records.views.view import Format, Schema
from klamm.operating.records.walking import Step, read_record, walk

PAGE_S = 8.0
"""How long a page without a stream may search before it answers with what it found."""

MOST_STREAMS = 64
"""How many searches, tails and exports run at the same time. Each has a consumer with some megabytes."""


class Messages:
    """The messages of one cluster."""

    def __init__(self, console: Console) -> None:
        self._settings = console.settings
        self._changes = console.changes
        self._streams = 0

    # ---- lists

    async def page(self, question: Question) -> dict[str, Any]:
        """A page of records. A search that takes long ends early: it goes on at `next`."""
        spans, offline = await self.spans(question)
        rows: list[dict[str, Any]] = []
        found: dict[str, Any] = step_json(Step((), question.at, 0, 0, 0, True), offline)
        until = time.monotonic() + PAGE_S
        async with self._walk(question, spans) as steps:
            async for step in steps:
                found = step_json(step, offline)
                rows += found["rows"]
                if time.monotonic() > until:
                    break
        found["rows"] = rows
        if not rows and found["is_end"]:
            found["nearest"] = await self._nearest(question, spans)
        return found

    async def search(self, question: Question) -> AsyncIterator[dict[str, Any]]:
        """The steps of a walk, as they come."""
        spans, offline = await self.spans(question)
        rows = 0
        async with self._walk(question, spans) as steps:
            async for step in steps:
                found = step_json(step, offline)
                rows += len(step.rows)
                if step.is_end and not rows:
                    found["nearest"] = await self._nearest(question, spans)
                yield found

    async def tail(self, question: Question) -> AsyncIterator[dict[str, Any]]:
        """New records as they come, for ever; from `at` on, or from now on."""
        partitions = await chosen_partitions(self._admin, [question.topic], question.partitions or None)
        ends = await ends_of(self._admin, partitions)
        positions = {each.partition: end.last for each, end in ends.items()}
        positions |= {each: offset for each, offset in question.at.items() if each in positions}
        work = tail(self._consumer, question.topic, positions, question.make_row(), passes=question.passes())
        async with self._stream(), Steps(work) as steps:
            async for step in steps:
                yield _tail_json(step)

    async def export(self, question: Question, format_: ExportFormat) -> AsyncIterator[bytes]:
        spans, _ = await self.spans(question)
        work = export(self._consumer, question.topic, spans, format_, passes=question.passes())
        async with self._stream(), Steps(work) as pieces:
            async for piece in pieces:
                if piece:
                    yield piece

    async def spans(self, question: Question) -> tuple[dict[int, Span], list[int]]:
        """What is asked for in each partition, and the partitions that have no leader."""
        admin, committed = self._admin, question.read_committed
        partitions = await chosen_partitions(admin, [question.topic], question.partitions or None)
        found = await spans_of(admin, partitions, question.range, read_committed=committed)
        spans = within(found, await ends_of(admin, partitions, read_committed=committed))
        return spans, [each.partition for each in partitions if each.partition not in spans]

    # ---- one record

    async def record(
        self, topic: str, partition: int, offset: int, format_: Format, schema: Schema | None
    ) -> dict[str, Any]:
        """A record in full. Raises CannotDo if there is none."""
        record = await self.raw_record(topic, partition, offset)
        found = await in_thread(lambda: full_record(record, format_, schema).as_json())
        found["key_filter"] = _key_filter(record)
        found["source_url"] = _source_url(found["refusal"])
        return dict(found)

    async def raw_record(self, topic: str, partition: int, offset: int) -> Record:
        (chosen,) = await chosen_partitions(self._admin, [topic], [partition])
        end = (await ends_of(self._admin, [chosen])).get(chosen)
        if end is None:
            raise CannotDo(f"{chosen} has no leader", advice="Start a broker that has its replica")
        record = None
        if end.first <= offset < end.last:
            record = await in_thread(lambda: read_record(self._consumer, chosen, offset))
        if record is None:
            where = f"it has {end.first:,} to {end.last - 1:,}" if end.last > end.first else "it is empty"
            gap = ", with gaps" if end.first <= offset < end.last else ""
            raise CannotDo(f"{topic}-{partition} has no record at offset {offset:,}: {where}{gap}")
        return record

    async def produce(self, topic: str, record: NewRecord) -> SentRecord:
        """Send a record. Raises ReadOnly if the console changes nothing."""
        self._changes.check_allowed()
        async with Producer(self._settings.bootstrap, config=self._settings.config) as producer:
            return await producer.send(
                topic, record.value, record.key, record.headers, record.partition, record.timestamp
            )

    # ---- snippets

    async def snippets(self, question: Question) -> dict[str, str]:
        """What reads the same records: a command, and programs. Instead of one that is not possible there is
        a comment that says why."""
        spans, _ = await self.spans(question)
        wanted = Wanted(
            self._settings.bootstrap,
            question.topic,
            spans,
            question.filter_text,
            question.range_text,
            not question.partitions,
        )
        makers: dict[str, Callable[[Wanted], str]] = {"cli": cli, "python": python, "pyspark": pyspark}
        return {name: _snippet(make, wanted) for name, make in makers.items()}

    # ---- inside

    def _consumer(self, **options: Any) -> Consumer:
        return Consumer(self._settings.bootstrap, config=self._settings.config, **options)

    @property
    def _admin(self) -> Admin:
        return self._changes.admin

    @asynccontextmanager
    async def _walk(self, question: Question, spans: dict[int, Span]) -> AsyncIterator[Steps[Step]]:
        work = walk(
            self._consumer,
            question.topic,
            spans,
            question.make_row(),
            order=question.order,
            positions=question.at,
            passes=question.passes(),
            limit=question.limit,
            read_committed=question.read_committed,
        )
        async with self._stream(), Steps(work) as steps:
            yield steps

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[None]:
        if self._streams >= MOST_STREAMS:
            raise CannotDo(
                f"{MOST_STREAMS} searches and live tails run already", advice="Stop one, or try again later"
            )
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    async def _nearest(self, question: Question, spans: dict[int, Span]) -> dict[str, Any]:
        found = await nearest(self._admin, question.topic, spans)
        return {
            "before": found.before,
            "after": found.after,
            "before_at": cursor_text({each: span.first for each, span in spans.items()}),
            "after_at": cursor_text({each: span.stop or 0 for each, span in spans.items()}),
            "newest": found.newest,
        }


def step_json(step: Step, offline: Sequence[int]) -> dict[str, Any]:
    """`offline` are partitions that could not even be asked."""
    return {
        "rows": [row.as_json() for row in step.rows],
        "next": cursor_text(step.positions),
        "passed": step.passed,
        "total": step.total,
        "scanned": step.scanned,
        "is_end": step.is_end,
        "unanswered": sorted({*step.unanswered, *offline}),
    }


def _tail_json(step: TailStep) -> dict[str, Any]:
    return {
        "rows": [row.as_json() for row in step.rows],
        "next": cursor_text(step.positions),
        "scanned": step.scanned,
        "skipped": step.skipped,
    }


def _snippet(make: Callable[[Wanted], str], wanted: Wanted) -> str:
    try:
        return make(wanted)
    except CannotDo as problem:
        return f"# {problem}\n"


def _key_filter(record: Record) -> str | None:
    """The filter that only this key passes; None for a key that is not a text."""
    if record.key is None:
        return "key = null"
    try:
        text = record.key.decode()
    except UnicodeDecodeError:
        return None
    if len(text) > 1_000:
        return None
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'key = "{quoted}"'


def _source_url(refusal: dict[str, Any] | None) -> str | None:
    if refusal is None or refusal["topic"] is None:
        return None
    return message_url(refusal["topic"], refusal["partition"], refusal["offset"])
