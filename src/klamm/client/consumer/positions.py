"""Where a consumer stands in each of its partitions.

A core. Per partition there are three places in the log, never out of this order:

    finished ≤ position ≤ fetch offset

`position` is the next offset to hand out; `finished` is what an automatic commit may commit, for records that
are being worked on are not finished; between position and fetch offset lies what is buffered. `hand_out.py`
moves the first two, the fetch planner the third.

Every partition has a version. Seeks, resets and new assignments change it, and whatever was asked for under
an older version is dropped when it arrives. All of it is guarded by one lock, because the plain client polls
in the user's thread while its loop fetches; records are decoded without holding it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import length_hint
from types import TracebackType
from typing import Protocol

from klamm.client.consumer.partition_state import UNKNOWN, BufferedFetch, Need, PartitionState, Reading
from klamm.client.consumer.start import StartPolicy
from klamm.client.errors import ClientError, ClientMisused
from klamm.client.network.backoff import Backoff
from klamm.client.results import CommittedOffset, TopicPartition

EARLIEST = StartPolicy("earliest")


class Lock(Protocol):
    """A lock of the threading module; the core does not make it, so that it can do without threads."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def acquire(self) -> bool: ...
    def release(self) -> None: ...


class Positions:
    """All assigned partitions. Methods take the lock themselves unless they say otherwise."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.states: dict[TopicPartition, PartitionState] = {}
        self.buffered_bytes = 0
        self.room_below_bytes = 0
        """While less than this is buffered of a partition, more of it is fetched."""
        self.on_change: Callable[[], None] = _nothing
        """Called, without the lock, when there may be something new to fetch or to look up."""
        self._is_changed = False
        self._versions = 0
        self.ready: OrderedDict[PartitionState, None] = OrderedDict()
        """Partitions with something to hand out, the next in turn first. Paused ones are not in it."""
        self.failed: set[PartitionState] = set()
        """Partitions with an error that some poll has to raise."""
        self.handed: set[PartitionState] = set()
        """Partitions whose records the latest poll handed out."""
        self.held: set[PartitionState] = set()
        """Partitions that are not fetched until the next poll: the last one raised that they are broken."""
        self.readings: dict[PartitionState, Reading] = {}
        """What is being iterated over: by the consumer's own loop, or by the claims of a session."""

    # ---- which partitions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Take exactly these; those that stay keep their position and what is buffered."""
        wanted = dict.fromkeys(partitions)
        with self.lock:
            for partition in [each for each in self.states if each not in wanted]:
                self._forget(self.states.pop(partition))
            for partition in wanted:
                if partition not in self.states:
                    self.states[partition] = PartitionState(partition, self._next_version())
        self.on_change()

    def park(self, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        """Take partitions out, but keep those that could come back as they are: nothing of them is in work,
        and the group's committed offset is where they stand. They keep what is buffered; see `unpark`."""
        parked = []
        with self.lock:
            for state in [self.states.pop(each) for each in partitions if each in self.states]:
                if self._is_at_rest(state):
                    state.version = self._next_version()
                    state.fetching = None
                    self.ready.pop(state, None)
                    parked.append(state)
                else:
                    self._forget(state)
        self.on_change()
        return parked

    def unpark(self, parked: Iterable[PartitionState], wanted: Collection[TopicPartition]) -> None:
        """Have parked partitions back that are wanted again; the others are forgotten."""
        with self.lock:
            for state in parked:
                if state.partition in wanted and state.partition not in self.states:
                    self.states[state.partition] = state
                    if state.head() is not None:
                        self.ready[state] = None
                else:
                    self._forget(state)
        self.on_change()

    def assignment(self) -> set[TopicPartition]:
        return set(self.states)

    def get(self, partition: TopicPartition) -> PartitionState:
        state = self.states.get(partition)
        if state is None:
            raise ClientMisused(
                f"{partition} is not assigned to this consumer",
                advice="Look at assignment(); with a group it is known after the first poll",
            )
        return state

    def is_current(self, state: PartitionState, version: int) -> bool:
        """Whether an answer to a question of this version is still wanted."""
        return state.version == version and self.states.get(state.partition) is state

    # ---- where to read

    def seek(self, partition: TopicPartition, offset: int) -> None:
        with self.lock:
            self._place(self.get(partition), offset, UNKNOWN)
        self.on_change()

    def start_at(
        self,
        state: PartitionState,
        version: int,
        offset: int,
        epoch: int = UNKNOWN,
        *,
        is_committed: bool = False,
    ) -> None:
        """An offset to start at has been looked up."""
        with self.lock:
            if not self.is_current(state, version):
                return
            self._place(state, offset, epoch)
            if is_committed:
                state.committed = offset
                if epoch >= 0:
                    state.need = Need.VALIDATION
        self.on_change()

    def reset(self, partition: TopicPartition, policy: StartPolicy | None) -> None:
        """Start again as `policy` says; None is the consumer's own. Where that is, is looked up later."""
        with self.lock:
            self._reset(self.get(partition), policy)
        self.on_change()

    def reset_if_current(self, state: PartitionState, version: int, policy: StartPolicy | None) -> None:
        with self.lock:
            if self.is_current(state, version):
                self._reset(state, policy)
        self.on_change()

    def validated(self, state: PartitionState, version: int) -> None:
        """The leader has everything that was fetched so far."""
        with self.lock:
            if self.is_current(state, version) and state.need is Need.VALIDATION:
                state.need = Need.NOTHING
        self.on_change()

    def truncated(self, state: PartitionState, version: int, end_offset: int) -> None:
        """The log was cut at `end_offset`, before the place we fetch at: read on from there."""
        with self.lock:
            if self.is_current(state, version):
                finished = state.finished
                self._place(state, min(state.position, end_offset), UNKNOWN)
                state.finished = min(finished, end_offset)
        self.on_change()

    def needing(self, need: Need, now: float) -> list[tuple[PartitionState, int]]:
        """Partitions that wait for something and may ask for it now, with their versions."""
        with self.lock:
            return [
                (state, state.version)
                for state in self.states.values()
                if state.need is need and state.error is None and state.retry_at <= now
            ]

    def position(self, partition: TopicPartition) -> CommittedOffset | None:
        """The next offset to hand out, with the epoch before it; None while it is looked up."""
        with self.lock:
            return self._position(self.get(partition))

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """All that are known: what `commit()` commits."""
        with self.lock:
            known = {state.partition: self._position(state) for state in self.states.values()}
        return {partition: position for partition, position in known.items() if position is not None}

    # ---- pausing

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        with self.lock:
            for state in [self.get(partition) for partition in partitions]:
                state.is_paused = True
                self.ready.pop(state, None)
                self._interrupt(state)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        with self.lock:
            for state in [self.get(partition) for partition in partitions]:
                state.is_paused = False
                if state.head() is not None:
                    self.ready[state] = None
        self.on_change()

    def paused(self) -> set[TopicPartition]:
        with self.lock:
            return {partition for partition, state in self.states.items() if state.is_paused}

    # ---- what comes in

    def append(self, state: PartitionState, fetch: BufferedFetch) -> None:
        """A fetch brought something. The caller holds the lock and has seen that it is current."""
        state.queue.append(fetch)
        state.buffered_bytes += fetch.size
        self.buffered_bytes += fetch.size
        if not state.is_paused:
            self.ready[state] = None

    def fail(self, state: PartitionState, version: int, error: ClientError) -> None:
        """Have a poll raise `error` once all that is buffered of the partition is handed out."""
        with self.lock:
            if self.is_current(state, version):
                self.set_error(state, error)

    def back_off(
        self, state: PartitionState, version: int, now: float, backoff: Backoff, chance: float
    ) -> None:
        """What a partition needs could not be found out: not to be asked again before some time is over."""
        with self.lock:
            if self.is_current(state, version):
                state.failures += 1
                state.retry_at = now + backoff.pause(state.failures, chance)

    def set_error(self, state: PartitionState, error: ClientError) -> None:
        """As `fail`; the caller holds the lock and has seen that it is current."""
        state.error = error
        self.failed.add(state)

    def restart(self, state: PartitionState, policy: StartPolicy | None) -> None:
        """As `reset`; the caller holds the lock."""
        self._reset(state, policy)

    def raise_error(self, partition: TopicPartition) -> None:
        """Raise what went wrong in a partition, if something did, in place of the next poll."""
        with self.lock:
            state = self.get(partition)
            error = state.error
            if error is not None:
                self.acknowledge(state)
        if error is not None:
            self.on_change()
            raise error

    def acknowledge(self, state: PartitionState) -> None:
        """An error is raised; under the lock. It may be otherwise next time: what cannot be read may have
        been damaged on the way, and is fetched again when the user comes back for more."""
        state.error = None
        if state.head() is None:
            self.failed.discard(state)
        else:
            self._forget(state)
            state.fetch_offset, state.fetch_epoch = state.position, state.epoch
            state.is_drained_first = False
            self.held.add(state)

    def let_go(self) -> None:
        """The user comes back for more: fetch again what could not be read. Under the lock."""
        self.held.clear()
        self._is_changed = True

    # ---- commits

    def committable(self) -> dict[TopicPartition, CommittedOffset]:
        """Finished positions that are not known to be committed.

        A commit by hand of records in work says that they are finished: it is not taken back.
        """
        found = {}
        with self.lock:
            for state in self.states.values():
                offset, epoch = self._finished(state)
                position = self._position(state)
                is_ahead = position is not None and offset <= state.committed <= position.offset
                if offset >= 0 and not is_ahead:
                    found[state.partition] = CommittedOffset(offset, leader_epoch=epoch)
        return found

    def was_committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        with self.lock:
            for partition, committed in offsets.items():
                if partition in self.states:
                    self.states[partition].committed = committed.offset

    # ---- handing out

    def interrupt(self) -> None:
        """Have iterations stop before their next record, since something else must happen first."""
        with self.lock:
            for reading in self.readings.values():
                reading.is_interrupted = True

    def release(self, state: PartitionState, size: int) -> None:
        """Bytes are not buffered any more; fewer than none are buffered again. Under the lock."""
        before = state.buffered_bytes
        state.buffered_bytes -= size
        self.buffered_bytes -= size
        if state.buffered_bytes < self.room_below_bytes <= before or state.is_drained_first:
            self._is_changed = True

    def owe_change(self) -> None:
        """Have the next hand-out tell of a change, whatever it does: fetching rests until then."""
        self._is_changed = True

    def tell_change(self) -> None:
        """After the lock was let go: fetch more, if there is room for it now."""
        if self._is_changed:
            self._is_changed = False
            self.on_change()

    # ---- inside, under the lock

    def _next_version(self) -> int:
        self._versions += 1
        return self._versions

    def _is_at_rest(self, state: PartitionState) -> bool:
        return (
            state.need is Need.NOTHING
            and state.position == state.finished == state.committed
            and state not in self.readings
            and state not in self.failed
            and not state.is_paused
        )

    def _forget(self, state: PartitionState) -> None:
        """Drop what is buffered, and have answers that are on their way dropped."""
        self._interrupt(state)
        state.version = self._next_version()
        self.buffered_bytes -= state.drop_buffer()
        self.ready.pop(state, None)
        self.failed.discard(state)
        self.handed.discard(state)
        self.held.discard(state)
        state.error = None
        state.fetching = None
        state.hurried_beside = None

    def _place(self, state: PartitionState, offset: int, epoch: int) -> None:
        self._forget(state)
        state.need = Need.NOTHING
        state.position = state.finished = state.fetch_offset = offset
        state.epoch = state.finished_epoch = state.fetch_epoch = epoch
        state.is_drained_first = False
        state.failures = 0
        state.retry_at = 0.0

    def _reset(self, state: PartitionState, policy: StartPolicy | None) -> None:
        self._forget(state)
        state.need = Need.RESET
        state.reset_to = policy
        state.position = state.fetch_offset = state.finished = UNKNOWN
        state.epoch = state.fetch_epoch = state.finished_epoch = UNKNOWN
        state.is_drained_first = False
        state.retry_at = 0.0

    def _interrupt(self, state: PartitionState) -> None:
        reading = self.readings.get(state)
        if reading is not None:
            reading.is_interrupted = True

    def _position(self, state: PartitionState) -> CommittedOffset | None:
        reading = self.readings.get(state)
        if reading is not None and reading.version == state.version and length_hint(reading.iterator):
            cursor = reading.cursor
            offset, epoch = (cursor.offset + 1, cursor.leader_epoch) if cursor is not None else reading.start
        else:
            offset, epoch = state.position, state.epoch
        return CommittedOffset(offset, leader_epoch=epoch) if offset >= 0 else None

    def _finished(self, state: PartitionState) -> tuple[int, int]:
        """What is finished of a partition: of one that is iterated over, all before the cursor."""
        reading = self.readings.get(state)
        if reading is not None and reading.version == state.version:
            cursor = reading.cursor
            if cursor is not None and cursor is not reading.records[0]:
                return cursor.offset, cursor.leader_epoch
        return state.finished, state.finished_epoch


def _nothing() -> None:
    pass
