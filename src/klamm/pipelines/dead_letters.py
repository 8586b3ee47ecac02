"""Dead-letter records: rows that break an expectation or cannot be decoded, sent to the dead-letter topic.

A dead-letter record has the key, the value and the headers of the original record, and these headers:

    klamm.rule          the expectation's name, or "decode"
    klamm.error         what is wrong, in words
    klamm.pipeline      the pipeline that wrote the dead-letter record
    klamm.generation    the pipeline's id and epoch; a replay begins a new epoch
    klamm.source        the source, transform or pipeline that has the expectation
    klamm.topic, klamm.partition, klamm.offset, klamm.timestamp (ms)     of the original record
    klamm.retry         where the record lay in a retry topic, if it came through one (`retry/topics.py`)
    klamm.content       "record": key and value are the original's. "row": a transform has dropped the columns
                        that carry the original, so the value is the row as JSON, and coordinates may be
                        missing. "coordinates": with these headers the record was larger than the broker
                        accepts, so only the headers were sent

A Python function in Spark's workers sends the records while the rows pass, in one pass over the data, and
returns which rows stay. It gets one column, which is null for good rows, so good rows cost little. A batch of
rows goes on when the broker has acknowledged all its dead-letter records. Delivery is at least once: a task
that Spark runs again sends again. The reasons are in docs/adr/0013-dead-letters-in-one-pass.md.
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
from klamm.model.dead_letter_headers import ERROR as ERROR
from klamm.model.dead_letter_headers import PIPELINE as PIPELINE
from klamm.model.dead_letter_headers import RULE as RULE
from klamm.pipelines.addressing import EPOCH, FOR, OFFSET, RETRIED_FROM, SOURCE, TOPIC
from klamm.pipelines.definitions import CARRIED, CONTENTS, DECODE_RULE
from klamm.pipelines.project import Project
from klamm.pipelines.state import Attempt
from pyspark_klamm.retried import PARTITION as PARTITION
from pyspark_klamm.retried import PLACE
from pyspark_klamm.retried import TIMESTAMP as TIMESTAMP
from pyspark_klamm.sink import forget_producer, producer_for
from pyspark_klamm.worker_memory import freeze_loaded_objects

LETTER = "klamm.letter"
"""The header of a retried record with the place of its dead-letter record."""
CONTENT = "klamm.content"
IS_RECORD, IS_ROW, IS_ELSEWHERE = "record", "row", "coordinates"
"""The values of klamm.content."""
_OURS = frozenset(
    {
        RULE,
        ERROR,
        PIPELINE,
        EPOCH,
        SOURCE,
        TOPIC,
        PARTITION,
        OFFSET,
        TIMESTAMP,
        CONTENT,
        FOR,
        LETTER,
        RETRIED_FROM,
    }
)

DELIVERY_TIMEOUT_S = 120.0
"""How long a batch waits for the acknowledgements of its dead-letter records before its task fails."""

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)

logger = logging.getLogger("klamm.pipelines")

Explain = Callable[[bytes], str | None]
"""From a value that Spark could not decode to what is wrong with it; None if nothing is found."""


@dataclass(frozen=True)
class DeadLetters:
    """Sends the dead-letter records of one pipeline. Pickled to Spark's workers."""

    topic: str
    settings: tuple[tuple[str, str], ...]
    pipeline: str
    epoch: str | None

    @classmethod
    def of(cls, project: Project, pipeline: str, attempt: Attempt | None) -> DeadLetters:
        settings = {**project.client_settings("producer"), "bootstrap.servers": project.bootstrap}
        return cls(
            project.dead_letters,
            tuple(sorted(settings.items())),
            pipeline,
            attempt.epoch if attempt else None,
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
        """The frame without its bad rows, which are sent to the dead-letter topic when the frame is read.

        `columns` are the user's columns. They are sent if the frame no longer carries the original record.
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
        dead_letters = self

        def keep(bad: pa.Array) -> pa.Array:
            return send_batch(dead_letters, node, explain, bad)

        udf = arrow_udf(keep, returnType="boolean")  # type: ignore[call-overload]
        # Spark may call a deterministic function twice for a row, or not at all.
        return udf.asNondeterministic()


def send_batch(dead_letters: DeadLetters, node: str, explain: Explain | None, bad: pa.Array) -> pa.Array:
    """In a worker: send the bad rows, given as JSON, wait for the broker, and return which rows stay."""
    is_good = pc.is_null(bad)
    if bad.null_count < len(bad):
        rows = [json.loads(text) for text in bad.drop_null().to_pylist()]
        _send(dead_letters, [_record(dead_letters, node, explain, row) for row in rows])
    freeze_loaded_objects()
    return is_good


def _send(dead_letters: DeadLetters, records: list[dict[str, Any]]) -> None:
    settings = dict(dead_letters.settings)
    try:
        try:
            _send_together(producer_for(settings), dead_letters.topic, records)
        except RecordTooLarge:
            forget_producer(settings)
            _send_one_by_one(producer_for(settings), dead_letters.topic, records)
    except ClientError:
        forget_producer(settings)  # its unsent records must not be sent beside those of the next task
        raise


def _send_together(producer: Producer, topic: str, records: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(records, SCHEMA)
    sent = producer.send_arrow(batch, topic, value="value", key="key", headers="headers")
    sent.result(timeout=DELIVERY_TIMEOUT_S)


def _send_one_by_one(producer: Producer, topic: str, records: list[dict[str, Any]]) -> None:
    """The slow way, if some records are too large now that they have our headers too."""
    for record in records:
        try:
            _send_together(producer, topic, [record])
        except RecordTooLarge:
            _send_together(producer, topic, [_coordinates_of(record)])


def _coordinates_of(record: dict[str, Any]) -> dict[str, Any]:
    """The dead-letter record with our headers only: without key, value and the original's headers."""
    headers = [header for header in record["headers"] if is_ours(header["key"]) or header["key"] == PLACE]
    for header in headers:
        if header["key"] == CONTENT and header["value"] == IS_RECORD.encode():
            header["value"] = IS_ELSEWHERE.encode()
    return {"key": None, "value": None, "headers": headers}


def _record(
    dead_letters: DeadLetters, node: str, explain: Explain | None, row: dict[str, Any]
) -> dict[str, Any]:
    """The dead-letter record of one row, which is JSON with bytes as base64 and without nulls."""
    is_record = "row" not in row
    value = _bytes(row.get("_value")) if is_record else row["row"].encode()
    error = row.get("error")
    if row["rule"] == DECODE_RULE and explain is not None and is_record and value is not None:
        error = explain(value) or error
    named = {
        RULE: row["rule"],
        ERROR: error,
        PIPELINE: dead_letters.pipeline,
        EPOCH: dead_letters.epoch,
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
    """True if dead-letter records and redriven records get a header of this name. klamm.redriven is not among
    them: it stays with its record."""
    return header in _OURS


def make_topic(project: Project) -> None:
    """Create the dead-letter topic if it does not exist. Runs on the driver, before the first batch."""
    settings: Mapping[str, str] = project.client_settings("admin")
    try:
        with Admin(project.bootstrap, config=settings) as admin:
            if project.dead_letters not in admin.list_topics():
                admin.create_topic(project.dead_letters)
    except TopicExists:
        return  # created by another client meanwhile
    except ClientError as error:
        # The topic may exist without being visible to us, or be created by the first write.
        logger.warning("could not create the dead-letter topic %s: %s", project.dead_letters, error)
