"""Sends the rows of a file to a topic, as fast as possible or at a pace. Needs klamm[arrow]."""

from __future__ import annotations

import codecs
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from klamm.client.errors import ClientError
from klamm.client.plain.producer import Producer, RangesDelivery
from klamm.client.producer import columns as columns  # compiled now, and not at the first row
from klamm.config.client_config import Bootstrap, ConfigGiven
from klamm.config.rows import ConfigError
from klamm.ingest.errors import IngestError
from klamm.ingest.formats import MOST_LINE_BYTES, Read, Row, csv_rows, json_rows
from klamm.ingest.pacing import Pace, unpaced
from klamm.ingest.progress import Progress
from klamm.records.kernels import pyarrow as pa

STANDARD_INPUT = "-"

BATCH_ROWS = 5000
"""Up to this many rows are sent together, if they are due."""

BATCH_BYTES = 1024 * 1024

BATCH_S = 0.1
"""With a pace, a row waits at most this long for others, even if all are late."""

_READ_BYTES = MOST_LINE_BYTES + 3  # a newline more, to tell a line that is too long from one that fits

REPORTED_BAD_LINES = 10
"""So many bad lines are reported one by one; all are counted."""

_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv"}
_PACKED_SUFFIXES = (".gz", ".zst", ".bz2", ".lz4")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What to send, and how."""

    path: str
    format: str | None = None
    """"jsonl" or "csv"; None means by the file's name."""
    key: str | None = None
    time: str | None = None
    """The field with a record's time; without it records get the present time."""
    pace: Pace = unpaced
    limit: int | None = None
    skips_bad_lines: bool = False
    infers_types: bool = False
    delimiter: str | None = None


class Replay:
    """Sends one file."""

    def __init__(
        self,
        options: ReplayOptions,
        topic: str,
        bootstrap: Bootstrap = None,
        *,
        config: ConfigGiven = None,
        producer_options: Mapping[str, object] | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Raises IngestError if an option is not valid, or the topic cannot be reached."""
        self.progress = Progress()
        self._options = options
        self._topic = topic
        self._report = report
        self._format = _format_of(options)
        self._failure: ClientError | None = None
        given: dict[str, Any] = {"client.id": "klamm-ingest", **(producer_options or {})}
        try:
            self._producer = Producer(bootstrap, config=config, **given)
        except (ConfigError, OSError) as error:
            raise IngestError(str(error)) from error
        try:
            self._producer.partitions_for(topic)
        except ClientError as error:
            self.abandon()
            raise IngestError(f"cannot send to {topic}: {error}") from error

    def abandon(self) -> None:
        """Close the producer without waiting for records in flight."""
        self._producer.close(0.0)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abandon()

    def run(self, stop: threading.Event) -> Progress:
        """Send the file until it ends or `stop` is set. Raises IngestError if the file or the topic fails."""
        started = time.monotonic()
        try:
            self._send_rows(stop, started)
        except ClientError as error:
            self._failure = self._failure or error
        if self._failure is not None:
            raise IngestError(f"sending to {self._topic} failed: {self._failure}") from self._failure
        hidden = self.progress.bad_lines - REPORTED_BAD_LINES
        if hidden > 0:
            self._report(f"{self._options.path}: and {hidden:,} more bad lines")
        return self.progress

    def _send_rows(self, stop: threading.Event, started: float) -> None:
        batch: list[Row] = []
        size = 0
        sent_at = started
        try:
            for row in islice(self._good_rows(), self._options.limit):
                due_in, now = self._due_in(row, len(batch), started)
                is_full = len(batch) >= BATCH_ROWS or size >= BATCH_BYTES or now - sent_at > BATCH_S
                if batch and (due_in > 0 or is_full):
                    self._send(batch)
                    batch, size, sent_at = [], 0, now
                if stop.is_set() or (due_in > 0 and stop.wait(due_in)):
                    break
                batch.append(row)
                size += len(row.value)
        finally:  # also what was read before a bad line
            self._send(batch)
            self._producer.flush()

    def _due_in(self, row: Row, waiting: int, started: float) -> tuple[float, float]:
        """In how many seconds a row may be sent, and the present time, which is only read with a pace."""
        due = self._options.pace(self.progress.records + waiting, row.time_ms)
        if due <= 0:
            return 0.0, started
        now = time.monotonic()
        return started + due - now, now

    def _send(self, rows: list[Row]) -> None:
        if self._failure is not None:
            raise self._failure
        if not rows:
            return
        columns: dict[str, Any] = {"value": pa.array([row.value for row in rows], pa.binary())}
        if self._options.key is not None:
            columns["key"] = pa.array([row.key for row in rows], pa.binary())
        if self._options.time is not None:
            columns["timestamp"] = pa.array([row.time_ms for row in rows], pa.int64())
        names = {name: name for name in ("key", "timestamp") if name in columns}
        delivery = self._producer.send_arrow(pa.record_batch(columns), self._topic, **names)
        self.progress.records += len(rows)
        self.progress.bytes += sum(len(row.value) + 1 for row in rows)

        def done(settled: RangesDelivery) -> None:
            error = settled.exception()
            if error is None:
                self.progress.acknowledged += len(rows)
            else:
                self._failure = self._failure or error

        delivery.add_done_callback(done)

    def _good_rows(self) -> Iterator[Row]:
        path = self._options.path
        with _opened(path) as file:
            for read in self._rows(file):
                if isinstance(read, Row):
                    yield read
                    continue
                if not self._options.skips_bad_lines:
                    raise IngestError(
                        f"{path}, line {read.line}: {read.reason}",
                        advice="Lines before it were sent. Mend it, or skip such lines with --on-error skip",
                    )
                self.progress.bad_lines += 1
                if self.progress.bad_lines <= REPORTED_BAD_LINES:
                    self._report(f"{path}, line {read.line}: {read.reason}")

    def _rows(self, file: BinaryIO) -> Read:
        options = self._options
        try:
            lines = _lines(file)
            if self._format == "jsonl":
                yield from json_rows(lines, key=options.key, time=options.time)
                return
            rows = csv_rows(
                (line.decode("utf-8", "surrogateescape") for line in lines),
                key=options.key,
                time=options.time,
                delimiter=options.delimiter or ("\t" if _bare_name(options.path).endswith(".tsv") else ","),
                infers_types=options.infers_types,
            )
            yield from rows
        except OSError as error:
            raise IngestError(f"{options.path} cannot be read to its end: {error}") from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Line by line, without a mark at the beginning. Of one that is too long comes so much that it shows."""
    line = file.readline(_READ_BYTES).removeprefix(codecs.BOM_UTF8)
    while line:
        yield line
        is_cut = len(line) >= _READ_BYTES
        while is_cut and not line.endswith(b"\n"):
            line = file.readline(_READ_BYTES)
            is_cut = bool(line)
        line = file.readline(_READ_BYTES)


def _opened(path: str) -> closing[BinaryIO]:
    """The file, unpacked."""
    if path == STANDARD_INPUT:
        return closing(cast(BinaryIO, sys.stdin.buffer))
    try:
        stream = pa.input_stream(path, compression="detect")
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise IngestError(f"{path} cannot be read: {reason}") from error
    return closing(cast(BinaryIO, io.BufferedReader(stream)))


def _bare_name(path: str) -> str:
    """The name without what says how it is packed."""
    return path.removesuffix(next((each for each in _PACKED_SUFFIXES if path.endswith(each)), ""))


def _format_of(options: ReplayOptions) -> str:
    suffix = Path(_bare_name(options.path)).suffix
    found = options.format or _FORMATS.get(suffix)
    if found is None:
        raise IngestError(
            f"the name {options.path} does not tell whether the file has JSON lines or CSV",
            advice="Give --format jsonl or --format csv",
        )
    return found
