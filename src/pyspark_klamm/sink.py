"""The sink of batch and streaming queries: writes rows to topics.

Spark passes the rows of a task as Arrow batches. They are joined, so that record batches become large, and
sent as columns: no Python object is made per row. The rows of a partition keep their order. A task succeeds
if the brokers have acknowledged all of its rows, and fails otherwise; Spark then runs it again, so a record
may be written twice, but none is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from pyspark_klamm.client_options import client_config, client_settings
from pyspark_klamm.errors import OptionError
from pyspark_klamm.kept import KeptClients
from pyspark_klamm.options import parse_topic
from pyspark_klamm.worker_memory import freeze_loaded_objects, keep_freed_memory

if TYPE_CHECKING:
    import pyarrow

    from klamm.client.plain.producer import Producer, RangesDelivery

GATHERED_BYTES = 8 * 1024 * 1024
"""Rows are sent when this much was gathered, so that batches are large even with many partitions."""

MOST_DELIVERIES = 256
"""The most sends in flight per task. buffer.memory limits their bytes; this limits the number of small sends
when rows go to many topics."""

MOST_PRODUCERS = 4
"""How many producers a process keeps, one per set of settings."""


# ---- writing


@dataclass(frozen=True)
class TopicSink:
    """The topic of rows and the columns that are written, as plain values that are pickled to workers."""

    settings: Mapping[str, str]
    topic: str | None
    """The topic of all rows; without it the column `topic` has the topic of each row."""
    has_key: bool
    has_headers: bool
    has_partition: bool

    def write(self, batches: Iterator[pyarrow.RecordBatch]) -> Written:
        """Send all rows of a task, and wait until they are acknowledged."""
        keep_freed_memory()
        producer = producer_for(self.settings)
        deliveries: deque[RangesDelivery] = deque()
        rows = 0
        try:
            for table in gathered(batches):
                rows += table.num_rows
                for topic, part in self._by_topic(table):
                    deliveries.append(self._send(producer, topic, part))
                    while len(deliveries) > MOST_DELIVERIES or (deliveries and deliveries[0].done()):
                        deliveries.popleft().result()
            while deliveries:
                deliveries.popleft().result()
        except BaseException:
            # Unsent rows must not be sent after the task has failed.
            forget_producer(self.settings)
            raise
        freeze_loaded_objects()
        return Written(rows)

    def _send(self, producer: Producer, topic: str, rows: pyarrow.Table) -> RangesDelivery:
        return producer.send_arrow(
            rows,
            topic,
            value="value",
            key="key" if self.has_key else None,
            headers="headers" if self.has_headers else None,
            partition="partition" if self.has_partition else None,
        )

    def _by_topic(self, table: pyarrow.Table) -> Iterator[tuple[str, pyarrow.Table]]:
        if self.topic is not None:
            yield self.topic, table
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        column = table.column("topic")
        if column.null_count:
            raise OptionError(
                "null topic present in the data: every row needs a topic; give the column topic a value, or "
                "set the option topic for all rows"
            )
        codes = pc.dictionary_encode(column.combine_chunks())
        topics = codes.dictionary.to_pylist()
        if len(topics) == 1:
            yield topics[0], table
            return
        order = pc.sort_indices(codes.indices)  # a stable sort: rows of one topic keep their order
        sorted_rows = table.drop_columns(["topic"]).take(order)
        counts = pc.value_counts(codes.indices.take(order))
        start = 0
        for count in counts.to_pylist():
            yield topics[count["values"]], sorted_rows.slice(start, count["counts"])
            start += count["counts"]
        assert start == table.num_rows and isinstance(sorted_rows, pa.Table)


def gathered(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.Table]:
    """The rows in tables of about GATHERED_BYTES."""
    import pyarrow as pa

    held: list[Any] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= GATHERED_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The commit message of a task: how many rows were acknowledged."""

    rows: int


# ---- Spark's writers


class KlammWriter(DataSourceArrowWriter):
    """The sink of one batch query."""

    def __init__(self, sink: TopicSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)


class KlammStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query, for all of its batches."""

    def __init__(self, sink: TopicSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)


def make_sink(options: Mapping[str, str], schema: StructType) -> TopicSink:
    """The sink for rows of this schema. Raises OptionError, before anything is written."""
    topic = parse_topic(options)
    client_config(options, "producer")
    types = {column.name: column.dataType for column in schema.fields}
    if topic is None and "topic" not in types:
        raise OptionError(
            "topic option required when no 'topic' attribute is present: set the option topic, or give the "
            f"rows a column topic (they have {', '.join(types)})"
        )
    if "value" not in types:
        raise OptionError(
            f"required attribute 'value' not found: the rows have {', '.join(types)}; give them a column "
            "value, string or binary"
        )
    for name, allowed in _COLUMN_TYPES.items():
        if name in types and not any(_fits(types[name], each) for each in allowed):
            words = " or ".join(each.simpleString() for each in allowed)
            raise OptionError(
                f"{name} attribute type must be {words}, not {types[name].simpleString()}: cast or encode it"
            )
    return TopicSink(
        client_settings(options, "producer"), topic, "key" in types, "headers" in types, "partition" in types
    )


_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
_COLUMN_TYPES: Mapping[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
}


def _fits(given: DataType, wanted: DataType) -> bool:
    """True if two types are the same, apart from nullability."""
    return given.simpleString() == wanted.simpleString()


# ---- producers, kept for the next task


def _make_producer(settings: Mapping[str, str]) -> Producer:
    from klamm.client.plain.producer import Producer

    return Producer(config=settings)


_producers: KeptClients[Producer] = KeptClients(MOST_PRODUCERS, _make_producer, lambda kept: kept.close())


def producer_for(settings: Mapping[str, str]) -> Producer:
    """This process's producer with these settings."""
    return _producers.get(settings)


def close_producers() -> None:
    """Close the producers that this process keeps."""
    _producers.close_all()


def forget_producer(settings: Mapping[str, str]) -> None:
    producer = _producers.take(settings)
    if producer is not None:
        producer.close(timeout=0)
