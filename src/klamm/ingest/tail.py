"""Follows files into a topic: the loop around the other modules. Needs klamm[arrow].

    listing.py → files.py (identifies files) → reading.py, lines.py (records) → positions.py (blocks noted)
    → sending.py (blocks sent) → positions.py (blocks marked as done)

The loop runs in one thread. Reading waits while the producer's buffer is full, so memory is bounded by one
pending send and `buffer.memory`. Delivery guarantees and crashes are described in docs/adr/0015.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from klamm.client.errors import ClientError
from klamm.ingest.columns import record_batch
from klamm.ingest.errors import IngestError
from klamm.ingest.files import FileTable, Look, TailedFile
from klamm.ingest.lines import LineRules, binary_array
from klamm.ingest.listing import Listing
from klamm.ingest.positions import Positions, Target
from klamm.ingest.progress import Progress
from klamm.ingest.reading import Chunk, OpenFile
from klamm.ingest.recovery import Block, Recovered, Unwritten, compare
from klamm.ingest.sending import TopicWriter
from klamm.lineformats.format import LineFormat
from klamm.records.kernels import numpy as np
from klamm.records.kernels import pyarrow as pa

PENDING_SEND_BYTES = 4 * 1024 * 1024
"""Blocks up to this size are noted and sent together: many small files cost one transaction and one call."""

REPORTED_UNPARSED_LINES = 3
"""So many lines that do not fit their format are reported one by one; all are counted."""

ONCE_QUIET_S = 1.0
"""With `once`, a last line without a newline, or an open group of lines, is complete after this time."""


@dataclass(frozen=True, slots=True)
class TailOptions:
    """What to follow, and how."""

    patterns: Sequence[str]
    rules: LineRules = field(default_factory=LineRules)
    starts_at_end: bool = False
    """Files that exist at the first start are followed from their end."""
    once: bool = False
    keyed: bool = False
    """The file's path is the key of its records, so that its lines go to one partition, in order."""
    with_origin: bool = False
    parses: LineFormat | None = None
    """Records are JSON objects with the fields of the lines. Lines that do not fit are sent as they are."""
    flush_after_s: float = 5.0
    """A group of lines is complete when its file has not grown for this long."""
    flush_partial_after_s: float | None = None
    """The same for a line without its newline; None waits for the newline for ever."""
    release_after_s: float = 10.0
    """A file whose name no longer matches is closed when it has not grown for this long: after a rotation the
    writer goes on with the old file for a moment."""
    poll_interval_s: float = 0.25
    """Time between two checks for new lines."""
    scan_interval_s: float = 1.0
    """Time between two searches for new files and renamed ones."""


class Tail:
    """Follows files until `stop` is set; with `once`, reads them to their end."""

    def __init__(
        self,
        options: TailOptions,
        writer: TopicWriter,
        positions: Positions,
        *,
        report: Callable[[str], None] = lambda text: None,
        progress: Progress | None = None,
    ) -> None:
        self._options = options
        self._writer = writer
        self._positions = positions
        self._report = report
        self.progress = progress or Progress()
        self._table = FileTable(positions.files(), release_after_s=options.release_after_s)
        self._listing = Listing(options.patterns, self._table.is_followed, report)
        self._open: dict[int, OpenFile] = {}
        self._pending = _PendingSend()
        self._waiting: dict[int, int] = {}
        """The number of records of each block that is sent and not acknowledged yet."""
        self._done: list[int] = []
        self._next_block = 1
        self._scan_at = 0.0

    def run(self, stop: threading.Event) -> Progress:
        """Raises IngestError if it cannot go on. Blocks that are not acknowledged are sent by the next
        run."""
        try:
            self._begin(stop)
            while not stop.is_set():
                if not self._turn():
                    if self._options.once and not self.progress.behind_bytes:
                        break
                    stop.wait(self._options.poll_interval_s)
            self._finish()
        except ClientError as error:
            raise IngestError(f"{self._writer.topic} cannot be written: {error}") from error
        finally:
            for each in self._open.values():
                each.close()
            self._open.clear()
        return self.progress

    @property
    def unreadable(self) -> Sequence[str]:
        """Files that match the patterns and cannot be read."""
        return sorted(self._listing.unreadable)

    # ---- begin and end

    def _begin(self, stop: threading.Event) -> None:
        is_first_start = self._positions.target() is None
        blocks = self._positions.blocks()
        self._next_block = max((block.block_id for block in blocks), default=0) + 1
        self._scan(starts_at_end=self._options.starts_at_end and is_first_start)
        if not self._open and not self._listing.unreadable:
            self._report(f"no file matches {' '.join(self._options.patterns)}")
        strays = list(self._listing.strays(self._table.closed_files))
        self._take(self._table.listed(strays, time.monotonic(), is_listed=False))
        if blocks:
            self._gather_again(self._recovered(blocks, stop))
        # In one transaction: the old blocks are done, and what is left of them is noted as new blocks.
        self._done += [block.block_id for block in blocks]
        self._send(target=self._writer.target)

    def _finish(self) -> None:
        """Wait until all blocks are acknowledged, and note that."""
        while True:
            self._take_acknowledged()
            if not self._waiting:
                break
            self._writer.wait(1.0)
        self._note()

    # ---- after a crash

    def _recovered(self, blocks: list[Block], stop: threading.Event) -> Recovered:
        if self._positions.target() != self._writer.target:
            self._report(f"{self._writer.topic} is another topic than before; lines in flight are sent again")
            return Recovered([Unwritten(block, 0) for block in blocks], [])
        remembered = self._writer.remembered({(one.partition, one.producer_id) for one in blocks}, stop)
        if remembered is None:
            recovered = Recovered([Unwritten(block, 0) for block in blocks], blocks)
        else:
            recovered = compare(blocks, remembered)
        if recovered.doubtful:
            count = sum(block.records for block in recovered.doubtful)
            self._report(f"the broker cannot tell whether it has {count:,} lines; they are sent again")
        return recovered

    def _gather_again(self, recovered: Recovered) -> None:
        """Read the lines again that the last run has sent and the topic does not have, in their order."""
        for left in recovered.unwritten:
            block = left.block
            reader = self._open.get(block.file_id)
            chunk = None if reader is None else reader.read_again(block, self._options.rules)
            if reader is None or chunk is None:
                self.progress.lost_records += block.records - left.written
                self._report(
                    f"{block.path}: {block.records - left.written:,} lines at byte {block.first_byte} are "
                    "lost: the last run got no acknowledgement, and the file no longer has them"
                )
                continue
            written = left.written
            if chunk.split.count != block.records and written:
                self._report(
                    f"{block.path}: the options for lines have changed; some lines may be sent twice"
                )
                written = 0
            self.progress.resent_records += chunk.split.count - written
            self._add(reader.file, chunk, skipped=written, moves=False)

    # ---- turns

    def _turn(self) -> bool:
        """Read up to a chunk of every file. Returns whether there was anything to read."""
        now = time.monotonic()
        if now >= self._scan_at and not self._options.once:
            self._scan()
        was_busy = False
        behind = 0
        for reader in list(self._open.values()):
            was_busy |= self._look(reader, now)
            behind += max(self._end_of(reader) - reader.file.position, 0)
            if self._pending.bytes >= PENDING_SEND_BYTES:
                self._send()
        self.progress.behind_bytes = behind
        self.progress.files = len(self._open)
        self._send()
        self._take_acknowledged()
        if not was_busy and self._done:
            self._note()
        return was_busy

    def _end_of(self, reader: OpenFile) -> int:
        """The end to read a file to: its size; with `once`, its size at the start."""
        size = reader.file.size
        return min(size, reader.size_at_start) if self._options.once else size

    def _look(self, reader: OpenFile, now: float) -> bool:
        """Check one file, and read, restart or close it. Returns whether something was read."""
        file = reader.file
        if self._options.once and file.position >= reader.size_at_start:
            return False
        size, links, has_changed = reader.status()
        look = self._table.look(file, size, reader.head() if has_changed else None, now)
        if look is Look.READ:
            return self._read(reader, has_changed, now - file.grew_at, is_deleted=links == 0)
        if look is Look.RESTART:
            self._restart(reader, now)
            return True
        if look is Look.RELEASE:
            self._release(reader, is_deleted=links == 0)
        return False

    def _read(self, reader: OpenFile, has_changed: bool, quiet_s: float, *, is_deleted: bool) -> bool:
        file, options = reader.file, self._options
        is_left = not file.is_listed and quiet_s >= options.release_after_s
        partial_after_s = ONCE_QUIET_S if options.once else options.flush_partial_after_s
        takes_partial = is_left or (partial_after_s is not None and quiet_s >= partial_after_s)
        has_groups = options.rules.multiline_start is not None
        closes_group = takes_partial or (has_groups and quiet_s >= options.flush_after_s)
        if reader.is_exhausted and not (has_changed or closes_group):
            return False
        chunk = reader.read(options.rules, closes_group=closes_group, takes_partial=takes_partial)
        reader.is_exhausted = chunk is None
        if chunk is not None:
            self._add(file, chunk)
        elif is_left:
            self._release(reader, is_deleted=is_deleted)
        return chunk is not None

    def _scan(self, *, starts_at_end: bool = False) -> None:
        """Search for new files and for new names of followed ones."""
        self._take(self._table.listed(self._listing.seen(), time.monotonic()), starts_at_end=starts_at_end)
        self._scan_at = time.monotonic() + self._options.scan_interval_s

    def _take(self, files: list[TailedFile], *, starts_at_end: bool = False) -> None:
        """Open files, and note them before any of their lines is sent."""
        opened = []
        for file in files:
            try:
                reader = OpenFile.open(file)
            except OSError as error:
                raise IngestError(
                    f"{file.path} cannot be opened: {error.strerror}",
                    advice="If too many files are open, raise the limit (ulimit -n) or follow fewer",
                ) from error
            if reader is None:
                self._table.released(file, is_deleted=file.position == 0)
                continue
            if starts_at_end and file.position == 0:
                file.position = reader.last_line_end()
            self._open[file.file_id] = reader
            opened.append(file)
        if opened:
            self._note(files=opened)

    def _restart(self, reader: OpenFile, now: float) -> None:
        old = reader.file
        successor = self._table.restarted(old, now)
        reader.restart(successor)
        del self._open[old.file_id]
        self._open[successor.file_id] = reader
        self.progress.truncated_files += 1
        self._report(f"{old.path} was truncated; reading it from the beginning")
        self._send()
        self._note(files=[successor], gone=[old.file_id])

    def _release(self, reader: OpenFile, *, is_deleted: bool) -> None:
        file = reader.file
        self._send()
        self._table.released(file, is_deleted=is_deleted)
        del self._open[file.file_id]
        reader.close()
        gone = [each.file_id for each in self._table.forget_oldest()]
        if is_deleted:
            gone.append(file.file_id)
        if gone:
            self._note(gone=gone)

    # ---- sending

    def _add(self, file: TailedFile, chunk: Chunk, *, skipped: int = 0, moves: bool = True) -> None:
        """Add the records of a chunk, except the first `skipped`, to the pending send."""
        if moves:
            file.position = chunk.end_byte
            self._pending.files[file.file_id] = file
            self.progress.bytes += chunk.split.consumed
            self.progress.cut_lines += chunk.split.cut_lines
        if skipped:
            chunk = chunk.without(skipped)
        if not chunk.split.count:
            return
        key = file.path.encode(errors="surrogateescape") if self._options.keyed else None
        partitions = np.empty(chunk.split.count, np.int32)
        for first, end, first_byte, end_byte in chunk.cuts():
            partition = self._writer.partition_for(key)
            partitions[first:end] = partition
            records = end - first
            self._pending.blocks.append(
                Block(
                    self._next_block,
                    file.file_id,
                    file.path,
                    first_byte,
                    end_byte,
                    records,
                    self._writer.producer_id,
                    partition,
                    self._writer.number(partition, records),
                )
            )
            self._next_block += 1
        origin = (file.path, chunk.first_byte) if self._options.with_origin else None
        parsed = self._parsed(file.path, chunk) if self._options.parses is not None else None
        rows = record_batch(chunk.data, chunk.split, partitions, key=key, origin=origin, parsed=parsed)
        self._pending.rows.append(rows)
        self._pending.bytes += len(chunk.data)

    def _parsed(self, path: str, chunk: Chunk) -> tuple[Any, Any]:
        """What the lines of a chunk become. Counts those that do not fit, and reports the first ones."""
        from klamm.ingest.parsing import json_records  # takes a while, and most tails need no format

        options = self._options
        assert options.parses is not None
        lines = binary_array(chunk.data, chunk.split.starts, chunk.split.ends)
        values, reasons = json_records(options.parses, lines, options.rules.max_bytes)
        count = len(reasons) - reasons.null_count
        shown = min(count, REPORTED_UNPARSED_LINES - self.progress.unparsed_lines)
        for reason in reasons.drop_null()[: max(shown, 0)].to_pylist():
            self._report(f"{path}: a line is sent as it is: {reason}")
        self.progress.unparsed_lines += count
        return values, reasons

    def _send(self, target: Target | None = None) -> None:
        """Note the blocks of the pending send in the positions, then send them."""
        pending, self._pending = self._pending, _PendingSend()
        if pending.files or pending.blocks or target is not None:
            self._note(files=list(pending.files.values()), blocks=pending.blocks, target=target)
        if pending.blocks:
            self._waiting.update((block.block_id, block.records) for block in pending.blocks)
            self.progress.records += sum(block.records for block in pending.blocks)
            rows = pending.rows[0] if len(pending.rows) == 1 else pa.Table.from_batches(pending.rows)
            self._writer.send(rows, [block.block_id for block in pending.blocks])

    def _take_acknowledged(self) -> None:
        for block_id in self._writer.acknowledged():
            self.progress.acknowledged += self._waiting.pop(block_id)
            self._done.append(block_id)

    def _note(
        self,
        files: Sequence[TailedFile] = (),
        blocks: Sequence[Block] = (),
        gone: Sequence[int] = (),
        target: Target | None = None,
    ) -> None:
        done, self._done = self._done, []
        self._positions.note(files, blocks=blocks, done=done, gone=gone, target=target)


@dataclass(slots=True)
class _PendingSend:
    """Blocks that are noted and sent together."""

    rows: list[Any] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    files: dict[int, TailedFile] = field(default_factory=dict)
    bytes: int = 0
