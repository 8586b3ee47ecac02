"""Dead letters: rows that break a rule, sent to the project's dead-letter topic with what is wrong with them.

A dead letter has the key and the value of the record, its headers, and:

    klamm.rule          the expectation's name, or "decode"
    klamm.error         what is wrong, in words
    klamm.pipeline      the pipeline that met it
    klamm.generation    in which of its lives: a replay begins a new one
    klamm.source        the source, transform or pipeline that has the rule
    klamm.topic, klamm.partition, klamm.offset, klamm.timestamp (ms)     where the record is
    klamm.content       "record"; or "row": a transform has dropped the columns that carry the record, so that
                        the value is what was left of the row, as JSON, and coordinates may be missing; or
                        "coordinates": with all this it was larger than the broker takes, so that just the
                        headers above are here, and the record is where they say

They are sent while the rows go by, in one pass, by a function in Spark's Python workers whose result is
filtered on. It is given one column, which is null for good rows, so that these cost little. A batch of rows
goes on when all its dead letters are acknowledged. At least once: a task that Spark runs again sends again.
docs/adr/0013-dead-letters-in-one-pass.md has the reasons.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from klamm.client.errors import ClientError, RecordTooLarge, TopicExists
from klamm.client.plain.admin import Admin
from klamm.client.plain.producer import Producer
from klamm.pipelines.addressing import FOR, GENERATION, OFFSET, SOURCE, TOPIC
from klamm.pipelines.definitions import CARRIED, CONTENTS, DECODE_RULE
from klamm.pipelines.project import Project
from klamm.pipelines.state import Generation
from pyspark_klamm.sink import forget_producer, producer_for

HEADER_PREFIX = "klamm."
RULE, ERROR, PIPELINE = "klamm.rule", "klamm.error", "klamm.pipeline"
PARTITION, TIMESTAMP = "klamm.partition", "klamm.timestamp"
CONTENT = "klamm.content"
IS_RECORD, IS_ROW, IS_ELSEWHERE = "record", "row", "coordinates"
"""What klamm.content says."""
_OURS = frozenset(
    {RULE, ERROR, PIPELINE, GENERATION, SOURCE, TOPIC, PARTITION, OFFSET, TIMESTAMP, CONTENT, FOR}
)

DELIVERY_TIMEOUT_S = 120.0
"""How long a batch waits for the acknowledgements of its dead letters before its task fails."""

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)

logger = logging.getLogger("klamm.pipelines")

Explain = Callable[[bytes], str | None]
"""Says more about a value that could not be decoded than Spark did; None if it knows no more."""


@dataclass(frozen=True)
class DeadLetters:
    """Where the dead letters of one pipeline go. Travels to workers."""

    topic: str
    settings: tuple[tuple[str, str], ...]
    pipeline: str
    life: str | None

    @classmethod
    def of(cls, project: Project, pipeline: str, life: Generation | None) -> DeadLetters:
        settings = {**project.client_settings("producer"), "bootstrap.servers": project.bootstrap}
        return cls(
            project.dead_letters, tuple(sorted(settings.items())), pipeline, life.life if life else None
        )

    def send(
        self,
        frame: DataFrame,
        is_bad: Column,
        rule: Column,
        error: Column,
        *,
        node: str,
        columns: list[str],
        explain: Explain | None,
    ) -> DataFrame:
        """The frame without the bad rows, which are sent when the others are read.

        `columns` are those of the user, which are sent if the record itself is no longer there.
        """
        parts = [
            rule.alias("rule"),
            error.alias("error"),
            *[F.col(name) for name in CARRIED if name in frame.columns and name != "_timestamp"],
        ]
        if "_timestamp" in frame.columns:
            parts.append(F.unix_millis("_timestamp").alias("_timestamp"))
        is_record = all(name in frame.columns for name in CONTENTS)
        if not is_record:
            shown = [F.col(f"`{name.replace('`', '``')}`") for name in columns if name not in CARRIED]
            parts.append(F.to_json(F.struct(*shown)).alias("row"))
        keep = self._udf(node, explain)
        return frame.filter(keep(F.when(is_bad, F.to_json(F.struct(*parts)))))

    def _udf(self, node: str, explain: Explain | None) -> Any:
        letters = self

        def keep(bad: pa.Array) -> pa.Array:
            return send_batch(letters, node, explain, bad)

        udf = arrow_udf(keep, returnType="boolean")  # type: ignore[call-overload]
        # Or Spark might call it twice for a row, or not at all.
        return udf.asNondeterministic()


def send_batch(letters: DeadLetters, node: str, explain: Explain | None, bad: pa.Array) -> pa.Array:
    """In a worker: send the rows that are there as JSON, wait for the broker, and say which rows stay."""
    is_good = pc.is_null(bad)
    if bad.null_count < len(bad):
        rows = [json.loads(text) for text in bad.drop_null().to_pylist()]
        _send(letters, [_record(letters, node, explain, row) for row in rows])
    return is_good


def _send(letters: DeadLetters, records: list[dict[str, Any]]) -> None:
    settings = dict(letters.settings)
    try:
        try:
            _send_together(producer_for(settings), letters.topic, records)
        except RecordTooLarge:
            forget_producer(settings)
            _send_one_by_one(producer_for(settings), letters.topic, records)
    except ClientError:
        forget_producer(settings)  # what it still holds must not be sent beside what the next attempt sends
        raise


def _send_together(producer: Producer, topic: str, records: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(records, SCHEMA)
    sent = producer.send_arrow(batch, topic, value="value", key="key", headers="headers")
    sent.result(timeout=DELIVERY_TIMEOUT_S)


def _send_one_by_one(producer: Producer, topic: str, records: list[dict[str, Any]]) -> None:
    """Slowly: some of them are too large. Their records were not, before our headers came to them."""
    for record in records:
        try:
            _send_together(producer, topic, [record])
        except RecordTooLarge:
            _send_together(producer, topic, [_coordinates_of(record)])


def _coordinates_of(letter: dict[str, Any]) -> dict[str, Any]:
    """The dead letter without what is in the record, and in the row if it is made of one."""
    headers = [header for header in letter["headers"] if is_ours(header["key"])]
    for header in headers:
        if header["key"] == CONTENT and header["value"] == IS_RECORD.encode():
            header["value"] = IS_ELSEWHERE.encode()
    return {"key": None, "value": None, "headers": headers}


def _record(letters: DeadLetters, node: str, explain: Explain | None, row: dict[str, Any]) -> dict[str, Any]:
    """The dead letter of one row. JSON has bytes as base64, and leaves out what is null."""
    is_record = "row" not in row
    value = _bytes(row.get("_value")) if is_record else row["row"].encode()
    error = row.get("error")
    if row["rule"] == DECODE_RULE and explain is not None and is_record and value is not None:
        error = explain(value) or error
    named = {
        RULE: row["rule"],
        ERROR: error,
        PIPELINE: letters.pipeline,
        GENERATION: letters.life,
        SOURCE: node,
        TOPIC: row.get("_topic"),
        PARTITION: row.get("_partition"),
        OFFSET: row.get("_offset"),
        TIMESTAMP: row.get("_timestamp"),
        CONTENT: IS_RECORD if is_record else IS_ROW,
    }
    kept = [
        {"key": header["key"], "value": _bytes(header.get("value"))}
        for header in row.get("_headers", [])
        if not is_ours(header["key"])
    ]
    ours = [{"key": name, "value": str(text).encode()} for name, text in named.items() if text is not None]
    return {"key": _bytes(row.get("_key")), "value": value, "headers": kept + ours}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def is_ours(header: str | None) -> bool:
    """Whether a header of this name is one that a dead letter gets, or that tells of the one before it.
    klamm.redriven stays with its record."""
    return header in _OURS


def make_topic(project: Project) -> None:
    """Make the dead-letter topic if it is not there, on the driver, before the first letter needs it."""
    settings: Mapping[str, str] = project.client_settings("admin")
    try:
        with Admin(project.bootstrap, config=settings) as admin:
            if project.dead_letters not in admin.list_topics():
                admin.create_topic(project.dead_letters)
    except TopicExists:
        return  # somebody else was quicker
    except ClientError as error:
        # It may be there and hidden from us, or made when it is written to; if not, the first letter says so.
        logger.warning("the dead-letter topic %s could not be made: %s", project.dead_letters, error)
