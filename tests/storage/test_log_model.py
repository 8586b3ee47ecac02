"""A log against the simplest model of one, a list of batches, through random lives.

Appends as a leader and as a follower, rolls, flushes, clean restarts, crashes that tear the tail, deletions,
truncations, new starts. After each step every offset reads as the model says, whatever the limit, each batch
has its leader epoch, and the files agree with each other.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.storage.logs import NOW_MS, Harness, append, read, split_batches

from klamm.records.batch import parse_header, patch_offset_and_epoch
from klamm.records.builder import build_batch
from klamm.records.reader import StoredRecord
from klamm.storage.segments.segment import LOG_SUFFIX
from klamm.storage.verify import verify_log_directory

PRODUCERS = st.none() | st.integers(1, 3)


class LogLife(RuleBasedStateMachine):
    @initialize(interval=st.sampled_from([0, 100, 4096]), segment_bytes=st.sampled_from([400, 2000, 10**6]))
    def begin(self, interval: int, segment_bytes: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.harness = Harness(
            Path(self.directory.name),
            index_interval_bytes=interval,
            segment_bytes=segment_bytes,
            retention_ms=-1,
            message_timestamp_after_max_ms=2**60,
            # A leader's batches have gaps between them only where it compacts.
            cleanup_compact=True,
        )
        self.batches: list[bytes] = []
        """What the log holds, from its first segment on."""
        self.sequences: dict[int, int] = {}
        self.epoch = 0

    @rule(
        count=st.integers(1, 5),
        value=st.binary(max_size=60),
        timestamp=st.integers(0, 10**6),
        producer=PRODUCERS,
    )
    def append(self, count: int, value: bytes, timestamp: int, producer: int | None) -> None:
        identity = self._identity(producer, count)
        end = self.harness.log.log_end_offset
        result = append(
            self.harness.log,
            count,
            value=value,
            timestamp=NOW_MS + timestamp,
            epoch=self.epoch,
            **identity,
        )
        assert result[:2] == (end, end + count - 1)
        self.batches += split_batches(read(self.harness.log, end))

    def _identity(self, producer: int | None, count: int) -> dict[str, int]:
        if producer is None:
            return {}
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + count
        return {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}

    @rule(
        batches=st.lists(
            st.tuples(st.integers(1, 4), st.integers(0, 300), st.integers(0, 2), st.booleans(), PRODUCERS),
            min_size=1,
            max_size=8,
        ),
        torn=st.integers(1, 100),
    )
    def append_replicated(self, batches: list[tuple[int, int, int, bool, int | None]], torn: int) -> None:
        """Batches with gaps between them, of several leaders, the last of them cut short."""
        offset = self.harness.log.log_end_offset
        made: list[bytes] = []
        for count, size, gap, is_new_leader, producer in batches:
            self.epoch += is_new_leader
            offset += gap
            records = [StoredRecord(n, NOW_MS + n, b"k", b"v" * size) for n in range(count)]
            batch = build_batch(records, **self._identity(producer, count))
            patch_offset_and_epoch(batch, offset, self.epoch)
            made.append(bytes(batch))
            offset += count
        result = self.harness.log.append_replicated(b"".join(made) + made[0][:-torn], NOW_MS)
        assert result is not None
        first, byte_count = parse_header(made[0]).base_offset, sum(map(len, made))
        assert result == (first, offset - 1, byte_count, self.epoch)
        self.batches += made

    @rule(back=st.integers(0, 25))
    def truncate(self, back: int) -> None:
        log = self.harness.log
        offset = max(0, log.log_end_offset - back)
        spanning = [h.base_offset for b in self.batches if (h := parse_header(b)).last_offset >= offset]
        expected = min(offset, *spanning, log.log_end_offset)
        if offset < log.log_end_offset and expected < log.log_start_offset:
            expected = min(offset, log.log_start_offset)
        assert log.truncate_to(offset, NOW_MS) == expected == log.log_end_offset
        first = log.segments[0].base_offset
        self.batches = [
            batch for batch in self.batches if first <= parse_header(batch).base_offset < expected
        ]
        if log.size_bytes == 0:
            self.batches.clear()
        log.remove_deleted_files(2**62)
        self._follow_lost_batches()

    @rule(ahead=st.integers(-5, 20))
    def start_at(self, ahead: int) -> None:
        log = self.harness.log
        offset = max(0, log.log_end_offset + ahead)
        log.start_at(offset, NOW_MS)
        assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
        assert log.epochs.entries == () and not log.producers.entries
        self.batches.clear()
        log.remove_deleted_files(2**62)
        self._follow_lost_batches()

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1
        self.harness.log.begin_epoch(self.epoch)

    @rule()
    def roll(self) -> None:
        self.harness.log.maybe_roll(2**62)

    @rule()
    def flush(self) -> None:
        self.harness.log.flush()
        assert self.harness.log.recovery_point == self.harness.log.log_end_offset

    @rule()
    def restart(self) -> None:
        self.harness.log.close()
        assert verify_log_directory(self.harness.directory) == []
        self.harness.open_again(clean=True)
        assert self.harness.reports == []

    @rule(torn=st.integers(0, 300), garbage=st.binary(max_size=100))
    def crash(self, torn: int, garbage: bytes) -> None:
        """Lose up to `torn` bytes that were not flushed, and find others after them."""
        log = self.harness.log
        flushed = sum(
            len(batch) for batch in self.batches if parse_header(batch).base_offset < log.recovery_point
        )
        active = log.segments[-1]
        sealed_bytes = sum(segment.size for segment in log.segments[:-1])
        size = max(0, active.size - torn, flushed - sealed_bytes)
        log.close(clean=False)
        with open(active.path(LOG_SUFFIX), "r+b" if log.has_files else "wb") as file:
            file.truncate(size)
            file.seek(size)
            file.write(garbage)
        self.harness.open_again(clean=False)
        kept = log_bytes = 0
        for batch in self.batches:
            log_bytes += len(batch)
            kept += log_bytes <= sealed_bytes + size
        del self.batches[kept:]
        end = parse_header(self.batches[-1]).last_offset + 1 if self.batches else 0
        if (
            max(end, active.base_offset) < self.harness.log_start_offset
        ):  # what was left had been deleted: an empty log
            self.batches.clear()
        self._follow_lost_batches()

    @rule(fraction=st.floats(0, 1))
    def delete_records(self, fraction: float) -> None:
        log = self.harness.log
        offset = log.log_start_offset + int(fraction * (log.log_end_offset - log.log_start_offset))
        assert log.delete_records_before(offset) == offset
        log.delete_expired(NOW_MS)
        first = log.segments[0].base_offset
        self.batches = [batch for batch in self.batches if parse_header(batch).base_offset >= first]
        log.remove_deleted_files(2**62)

    def _follow_lost_batches(self) -> None:
        """The model's producers know only what the log still holds, or a snapshot said before."""
        entries = self.harness.log.producers.entries
        for producer in list(self.sequences):
            entry = entries.get(producer)
            expected = entry.batches[-1].last_sequence + 1 if entry and entry.batches else None
            held = [parse_header(b) for b in self.batches if parse_header(b).producer_id == producer]
            if held:
                assert expected == held[-1].last_sequence + 1
            self.sequences[producer] = expected or 0

    @invariant()
    def every_offset_reads_right(self) -> None:
        if not hasattr(self, "harness"):
            return
        log = self.harness.log
        end = parse_header(self.batches[-1]).last_offset + 1 if self.batches else 0
        assert log.log_end_offset == max(end, log.segments[-1].base_offset, log.log_start_offset)
        chance = random.Random(log.log_end_offset)
        for offset in range(log.log_start_offset, log.log_end_offset):
            self._check_read(offset, chance)
        for batch in self.batches:
            header = parse_header(batch)
            if header.base_offset >= log.log_start_offset:
                assert log.epochs.epoch_at(header.base_offset) == header.partition_leader_epoch

    def _check_read(self, offset: int, chance: random.Random) -> None:
        log = self.harness.log
        limit = chance.choice([1, 100, 500, 5000, 10**6])
        end_offset = chance.choice([log.log_end_offset, offset + chance.randint(1, 10)])
        got = split_batches(read(log, offset, limit, end_offset=end_offset))
        places = [i for i, b in enumerate(self.batches) if parse_header(b).last_offset >= offset]
        if not places:  # the log ends with a gap
            assert got == []
            return
        place = places[0]
        expected = self.batches[place : place + len(got)]
        assert got == expected
        if got:
            assert parse_header(got[-1]).last_offset < end_offset
            assert len(got) == 1 or sum(map(len, got)) <= limit
        else:
            assert parse_header(self.batches[place]).last_offset >= end_offset

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.log.close()
        assert verify_log_directory(self.harness.directory) == []
        assert not [name for name in os.listdir(self.harness.directory) if name.endswith(".deleted")]
        self.directory.cleanup()


TestLogLife = LogLife.TestCase
TestLogLife.settings = settings(max_examples=60, stateful_step_count=30)
