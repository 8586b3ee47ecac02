"""Records that come as Arrow columns: cut into slices, encoded slice by slice, sent as whole batches.

Needs klamm[arrow]; this module is imported when columns are sent first. No Python object is made per row,
unless the user gave a partitioner, which is called for every key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from klamm.client.errors import ClientMisused, LocalRecordTooLarge
from klamm.client.producer.partitioners import Partitioner, ask_user
from klamm.client.producer.settings import ProducerSettings
from klamm.records.arrow_encoding import ColumnError, EncodedRecords, encode_columns
from klamm.records.kernels import pyarrow as pa

SLICE_BYTES = 4 * 1024 * 1024
"""About how much is encoded at a time: this takes a millisecond, during which the loop stands still."""

SLICE_SHARE = 4
"""A slice has at most one part in so many of buffer.memory, so that its encoded rows find room."""

LEAST_PIECE_BYTES = 512 * 1024
"""The chunks of a table are encoded one by one if they have at least this size on average and their rows may
go to any partition: batches need not be larger. Smaller chunks are joined."""

_CHOSEN = "the partitioner's choice"


class ColumnNames(NamedTuple):
    """The names of the columns; None for a field that no row has."""

    value: str | None
    key: str | None
    headers: str | None
    timestamp: str | None
    partition: str | None


class ColumnFeed:
    """Encodes the rows of a RecordBatch or Table into batches, slice by slice."""

    def __init__(
        self,
        batch: Any,
        names: ColumnNames,
        settings: ProducerSettings,
        partitioner: Partitioner | None,
        topic: str,
    ) -> None:
        """Raises ClientMisused for columns that do not exist or cannot be sent."""
        if not isinstance(batch, pa.RecordBatch | pa.Table):
            raise ClientMisused(
                f"{type(batch).__name__} is neither a pyarrow RecordBatch nor a Table",
                advice="Make one with pyarrow.RecordBatch.from_pydict or pyarrow.Table.from_pandas",
            )
        self.topic = topic
        self._batch = batch
        self._names = names
        self._settings = settings
        self._partitioner = partitioner
        self._slices = self._cut()
        # A column of a wrong type fails with its first row, here, where the caller gets the error.
        self._encode(batch.slice(0, 1), names._replace(partition=None), 1, None, 0)

    def next_batches(
        self, partitions: int, rotation: Sequence[int], now_ms: int
    ) -> list[EncodedRecords] | None:
        """The batches of the next slice; None when there are no more slices."""
        rows = next(self._slices, None)
        if rows is None:
            return None
        names = self._names
        if self._partitioner is not None:
            rows, names = self._ask(self._partitioner, rows, partitions)
        encoded = self._encode(rows, names, partitions, rotation, now_ms)
        limit = self._settings.max_request_bytes
        for batch in encoded:
            if batch.count == 1 and len(batch.batch) > limit:
                raise LocalRecordTooLarge(
                    f"a row for {self.topic} needs {len(batch.batch)} bytes, more than "
                    "max_request_size allows",
                    advice="Send less at once, or raise max_request_size",
                )
        return encoded

    def _cut(self) -> Iterator[Any]:
        """The slices, each of which is encoded at once."""
        batch, size = self._batch, self._batch.nbytes
        row_bytes = max(size // max(batch.num_rows, 1), 1)
        rows = max(min(SLICE_BYTES, self._settings.buffer_bytes // SLICE_SHARE) // row_bytes, 1)
        may_go_anywhere = self._names.key is None and self._names.partition is None
        if isinstance(batch, pa.Table) and may_go_anywhere and self._partitioner is None:
            pieces = batch.to_batches(max_chunksize=rows)
            if size >= LEAST_PIECE_BYTES * len(pieces):
                return iter(pieces)
        return (batch.slice(row, rows) for row in range(0, batch.num_rows, rows))

    def _encode(
        self, rows: Any, names: ColumnNames, partitions: int, rotation: Sequence[int] | None, now_ms: int
    ) -> list[EncodedRecords]:
        try:
            return encode_columns(
                rows,
                **names._asdict(),
                partitions_count=partitions,
                batch_size=self._settings.column_batch_bytes,
                now_ms=now_ms,
                partitioner=self._settings.partitioner,
                rotation=rotation,
            )
        except ColumnError as error:
            raise ClientMisused(f"columns for {self.topic}: {error}") from error

    def _ask(self, partitioner: Partitioner, rows: Any, partitions: int) -> tuple[Any, ColumnNames]:
        """The rows with a column of partitions that the user's function chose."""
        count = rows.num_rows
        keys = [None] * count if self._names.key is None else rows.column(self._names.key).to_pylist()
        given = self._names.partition
        chosen = [None] * count if given is None else rows.column(given).to_pylist()
        for row, key in enumerate(keys):
            if chosen[row] is None:
                key = key.encode() if isinstance(key, str) else key
                chosen[row] = ask_user(partitioner, self.topic, key, partitions)
        return (
            rows.append_column(_CHOSEN, pa.array(chosen, pa.int32())),
            self._names._replace(partition=_CHOSEN),
        )
