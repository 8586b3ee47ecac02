"""klamm: the plain client with columns, `send_arrow` and `poll_arrow`; no Python object per record."""

from __future__ import annotations

import pyarrow

from bench.client_workers import driving
from bench.client_workers.klamm_plain import KlammPlain


class KlammColumns(KlammPlain):
    batch_bytes = None  # as large as a request, which is its default

    def open_producer(self, value: bytes, linger_ms: float, buffer_bytes: int) -> None:
        super().open_producer(value, linger_ms, buffer_bytes)
        column = pyarrow.array([value] * driving.CHUNK_RECORDS, pyarrow.binary())
        self._batch = pyarrow.RecordBatch.from_arrays([column], ["value"])

    def send_many(self, count: int) -> None:
        assert self._producer is not None
        batch = self._batch if count == self._batch.num_rows else self._batch.slice(0, count)
        before, self._sent = self._sent, [self._producer.send_arrow(batch, self._topic, value="value")]
        for delivery in before:
            delivery.result(driving.QUIET_SECONDS)

    def read_some(self, most: int) -> int:
        batch = self._consumer.poll_arrow(driving.QUIET_SECONDS)
        if batch.num_rows and batch.column("value").null_count:
            raise SystemExit("records without their values")
        return int(batch.num_rows)


if __name__ == "__main__":
    driving.main(KlammColumns)
