"""Decodes fetched bytes into the columns that Spark gets, in one thread: a worker of the bench.

The bytes are a broker's answers to fetches of the data source. The data source's own decoder decodes them
again and again; nothing else runs meanwhile.
"""

from __future__ import annotations

import json
import sys
import time

from klamm.records.fetched import FetchedRecords
from pyspark_klamm.connections import Connection
from pyspark_klamm.fetching import RangeFetcher
from pyspark_klamm.planning import OffsetRange
from pyspark_klamm.rows import RowDecoder
from pyspark_klamm.source import KlammSource

PATIENCE_SECONDS = 30.0


def decode(bootstrap: str, topic: str, rows: int, seconds: float) -> dict[str, float]:
    """Decode the first `rows` of partition 0 again and again, for `seconds`."""
    pieces = fetch(bootstrap, topic, rows)
    decoder = RowDecoder(KlammSource({}).schema())
    decode_all(decoder, pieces)
    decoded, started, cpu_started = 0, time.perf_counter(), time.process_time()
    while not decoded or time.perf_counter() - started < seconds:
        decoded += decode_all(decoder, pieces)
    return {
        "rows": decoded,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
    }


def fetch(bootstrap: str, topic: str, rows: int) -> list[tuple[FetchedRecords, int]]:
    """The answers, each with the offset after its last record."""
    connection = Connection({"bootstrap.servers": bootstrap})
    wanted = OffsetRange(topic, 0, 0, rows)
    fetcher = RangeFetcher(connection, wanted, fails_on_loss=True, patience_seconds=PATIENCE_SECONDS)
    pieces, offset = [], 0
    while offset < rows:
        answer = connection.run(fetcher.fetch(offset))
        offset = answer.next_offset
        if answer.records is not None:
            pieces.append((answer.records, min(offset, rows)))
    connection.close()
    return pieces


def decode_all(decoder: RowDecoder, pieces: list[tuple[FetchedRecords, int]]) -> int:
    return sum(batch.num_rows for records, end in pieces for batch in decoder(records, end))


if __name__ == "__main__":
    print(json.dumps(decode(**json.loads(sys.argv[2]))), flush=True)
