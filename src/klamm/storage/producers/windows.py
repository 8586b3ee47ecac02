"""Filling up the windows of producers when a log is opened.

A snapshot holds, in Kafka's format, only the last batch of each producer. But one whose answers were lost
with the broker sends up to five batches again, and each of them must be recognised. So the last headers of
the log are read once more, where somebody has written lately; idle logs cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from klamm.storage.producers.state import WINDOW_BATCHES, ProducerEntry, ProducerStates
from klamm.storage.segments.scanning import BrokenChain, iter_headers
from klamm.storage.segments.segment import Segment

LATELY_MS = 10 * 60 * 1000
"""A producer that wrote nothing for longer sends no batch again: clients give up after minutes."""

TAIL_BYTES = (256 * 1024, 2 * 1024 * 1024, 8 * 1024 * 1024)
"""How far back to look, step by step, until every window is full."""


def fill_windows(producers: ProducerStates, segments: Sequence[Segment], since_ms: int) -> None:
    """Complete the windows of producers that wrote at or after `since_ms`."""
    wanted = {
        producer_id
        for producer_id, entry in producers.entries.items()
        if entry.timestamp >= since_ms and entry.batches and not _is_full(entry)
    }
    for tail_bytes in TAIL_BYTES:
        if not wanted:
            return
        replayed = _replay_tail(segments, tail_bytes)
        for producer_id in tuple(wanted):
            entry, found = producers.entries[producer_id], replayed.entries.get(producer_id)
            if found is None or not found.batches or found.batches[-1][:3] != entry.batches[-1][:3]:
                continue
            producers.entries[producer_id] = entry._replace(batches=found.batches)
            if _is_full(found):
                wanted.discard(producer_id)
        if tail_bytes >= sum(segment.size for segment in segments):
            return


def _is_full(entry: ProducerEntry) -> bool:
    return len(entry.batches) == WINDOW_BATCHES or entry.batches[0].base_sequence == 0


def _replay_tail(segments: Sequence[Segment], tail_bytes: int) -> ProducerStates:
    """What the last batches of the log, at least `tail_bytes` of them, say of producers."""
    pieces: list[tuple[Segment, int]] = []
    for segment in reversed(segments):
        start = 0
        if segment.size > tail_bytes:
            segment.load_index()
            start = segment.offset_index.floor_position(segment.size - tail_bytes)
        pieces.append((segment, start))
        tail_bytes -= segment.size - start
        if tail_bytes <= 0:
            break
    replayed = ProducerStates()
    for segment, start in reversed(pieces):
        handle = segment.handle or segment.open_handle()
        try:
            for _, header in iter_headers(handle.fd, start, segment.size):
                if header.producer_id >= 0:
                    replayed.record(header, header.last_offset, header.max_timestamp)
        except BrokenChain:
            # Reading the damaged part reports the damage; here older batches are merely not known.
            return replayed
    return replayed
