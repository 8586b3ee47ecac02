"""What must hold in a cluster at all times: the ledger that everything observed is compared with.

The ledger learns what is committed from the high watermarks of leaders and compares every later observation
with that: one record per partition and offset, on every replica below its high watermark, for every consumer
and every acknowledged produce; every new leader has all that is committed; one leader in each epoch; epochs
and watermarks that do not go back for their observer.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NoReturn

from klamm.replication.leader import Leader
from klamm.testing.simulation.disk import SimulatedBatch, SimulatedLog
from klamm.testing.simulation.group_checks import GroupLedger
from klamm.testing.simulation.loop import VirtualLoop

_TRACE_EVENTS = 60


class Violation(AssertionError):
    """An invariant does not hold."""


class Ledger:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.committed: dict[int, list[SimulatedBatch]] = {}
        self._commit_epochs: dict[int, list[int]] = {}
        """Partition → for each committed record, the epoch of the leader that committed it."""
        self.acknowledged_count = 0
        self.read_count = 0
        self.election_count = 0
        self.check_count = 0
        self.faults: Counter[str] = Counter()
        self.groups = GroupLedger(self.fail)
        self._leaders: dict[tuple[int, int], int] = {}
        self._watermarks: dict[tuple[str, int], tuple[int, int]] = {}
        self.errors: list[str] = []
        """Violations, and what failed unexpectedly inside of brokers."""
        self._trace: deque[str] = deque(maxlen=_TRACE_EVENTS)

    def note(self, text: str) -> None:
        self._trace.append(f"{self._loop.time():10.3f}  {text}")

    @property
    def trace(self) -> str:
        return "\n".join(self._trace)

    def fail(self, text: str) -> NoReturn:
        """Ends the run, also if a task of a broker comes upon it, which asyncio would let pass."""
        self.note(f"VIOLATION: {text}")
        self.errors.append(text)
        self._loop.stop()
        raise Violation(text)

    def on_fault(self, kind: str, text: str) -> None:
        self.faults[kind] += 1
        self.note(text)

    def on_error(self, text: str, error: BaseException | None) -> None:
        """A part of a broker failed in a way that nobody has foreseen."""
        if not isinstance(error, Violation):
            self.note(f"{text}: {error!r}")
            self.errors.append(f"{text}: {error!r}")

    # ---- replicas

    def on_leader(self, index: int, leader_epoch: int, broker_id: int, log: SimulatedLog) -> None:
        """A broker starts to lead: in its epoch it is the only one, and it has what earlier epochs have
        committed.

        It may hear of its election late, when others lead already in later epochs.
        """
        self.check_count += 1
        self.election_count += 1
        other = self._leaders.setdefault((index, leader_epoch), broker_id)
        if other != broker_id:
            self.fail(f"partition {index}: brokers {other} and {broker_id} lead in epoch {leader_epoch}")
        committed = self.committed.setdefault(index, [])
        commit_epochs = self._commit_epochs.setdefault(index, [])
        count = len(committed)
        while count and commit_epochs[count - 1] >= leader_epoch:
            count -= 1
        committed = committed[:count]
        if log.records[:count] != committed:
            offset = next(
                offset
                for offset, record in enumerate(committed)
                if offset >= len(log.records) or log.records[offset] != record
            )
            self.fail(
                f"partition {index}: broker {broker_id} leads epoch {leader_epoch} without the committed "
                f"record {committed[offset]} at {offset}; its log ends at {len(log.records)}, "
                f"{len(committed)} were committed"
            )

    def on_leader_high_watermark(self, index: int, leader: Leader, log: SimulatedLog) -> None:
        """A leader raises its high watermark: records below it are committed from now on."""
        self.check_count += 1
        committed = self.committed.setdefault(index, [])
        self.on_replica(index, leader.broker_id, log, log.high_watermark, leader.high_watermark)
        added = log.records[len(committed) : leader.high_watermark]
        committed.extend(added)
        self._commit_epochs[index] += [leader.leader_epoch] * len(added)
        for record in added:
            self.groups.on_committed(record)

    def on_replica(self, index: int, broker_id: int, log: SimulatedLog, start: int, end: int) -> None:
        """A replica takes the records from `start` to `end` for committed."""
        self.check_count += 1
        committed = self.committed.setdefault(index, [])
        end = min(end, len(committed))
        if log.records[start:end] != committed[start:end]:
            self.fail(
                f"partition {index}: broker {broker_id} has {log.records[start:end]} at {start}, "
                f"committed is {committed[start:end]}"
            )

    def on_epoch(self, index: int, broker_id: int, before: int, after: int) -> None:
        self.check_count += 1
        if after < before:
            self.fail(f"partition {index}: broker {broker_id} goes back from epoch {before} to {after}")

    # ---- clients

    def on_acknowledged(self, index: int, offset: int, producer_id: int, sequence: int) -> None:
        """A produce with acks=all was acknowledged."""
        self.check_count += 1
        self.acknowledged_count += 1
        committed = self.committed.get(index, [])
        if offset >= len(committed) or committed[offset][1:3] != (producer_id, sequence):
            found = committed[offset] if offset < len(committed) else None
            self.fail(
                f"partition {index}: record {sequence} of producer {producer_id} was acknowledged at "
                f"{offset}; committed there is {found}"
            )

    def on_read(self, index: int, offset: int, records: list[SimulatedBatch]) -> None:
        """A consumer was given records."""
        self.check_count += 1
        self.read_count += len(records)
        committed = self.committed.get(index, [])
        if committed[offset : offset + len(records)] != records:
            self.fail(
                f"partition {index}: a consumer read {records} at {offset}; "
                f"committed is {committed[offset : offset + len(records)]}"
            )

    def on_latest_offset(self, observer: str, index: int, leader_epoch: int, offset: int) -> None:
        """An observer was told the latest offset, and the leader epoch with it."""
        self.check_count += 1
        epoch_before, offset_before = self._watermarks.get((observer, index), (-1, -1))
        if leader_epoch >= epoch_before and offset < offset_before:
            self.fail(
                f"partition {index}: {observer} was told the latest offset {offset} in epoch {leader_epoch}, "
                f"after {offset_before} in epoch {epoch_before}"
            )
        self._watermarks[(observer, index)] = (leader_epoch, offset)

    def check_no_duplicates(self, idempotent_producers: range) -> None:
        for index, committed in self.committed.items():
            keys = [
                record[1:3]
                for record in committed
                if record.producer_id in idempotent_producers and not record.group_records
            ]
            if len(set(keys)) != len(keys):
                double = next(key for key in keys if keys.count(key) > 1)
                self.fail(f"partition {index}: the record {double} of an idempotent producer is there twice")
