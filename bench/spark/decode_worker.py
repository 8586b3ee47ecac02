"""Fetched bytes into the columns that Spark gets, by one thread: a worker of the bench.

The bytes are answers that a broker gave to the fetches of the source itself; they are decoded again and
again by the source's own decoder, and nothing else happens meanwhile.
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
    """The first `rows` of partition 0, for so long."""
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
    """Answers, each with the offset that it reaches to."""
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
