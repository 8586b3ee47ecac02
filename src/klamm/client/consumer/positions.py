"""The positions of a consumer in each of its partitions.

A core. Per partition there are three places in the log, never out of this order:

    finished ≤ position ≤ fetch offset

`position` is the next offset to hand out. Records between `finished` and `position` are leased (`lease.py`);
automatic commits commit finished records only. Records between `position` and `fetch offset` are buffered.
`hand_out.py` moves the first two, the fetch planner the third.

Every partition has a version. Seeks, resets and new assignments change it, and an answer to a request of an
older version is dropped. One lock guards all state, because the plain client polls in the user's thread while
its loop fetches; records are decoded without holding the lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Protocol

from klamm.client.consumer.lease import Lease, Place
from klamm.client.consumer.partition_state import UNKNOWN, BufferedFetch, Need, PartitionState
from klamm.client.consumer.start import StartPolicy
from klamm.client.errors import ClientError, ClientMisused
from klamm.client.network.backoff import Backoff
from klamm.client.results import CommittedOffset, TopicPartition

EARLIEST = StartPolicy("earliest")


class Lock(Protocol):
    """A lock of the threading module. The caller makes it, so that the core does not import threading."""

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
        """A partition is fetched while fewer bytes than this are buffered of it."""
        self.on_change: Callable[[], None] = _nothing
        """Called, without the lock, when there may be something new to fetch or to look up."""
        self._is_changed = False
        self._versions = 0
        self.ready: OrderedDict[PartitionState, None] = OrderedDict()
        """Partitions with records to hand out, the next in turn first. Paused ones are left out."""
        self.failed: set[PartitionState] = set()
        """Partitions with an error that a poll has to raise."""
        self.unreadable: set[PartitionState] = set()
        """Partitions whose records cannot be decoded, as the last poll raised; not fetched until the next
        poll."""
        self.leases: dict[PartitionState, Lease] = {}
        """The leases that are neither finished nor put back."""

    # ---- which partitions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; those that were assigned before keep their position and buffer."""
        wanted = dict.fromkeys(partitions)
        with self.lock:
            for partition in [each for each in self.states if each not in wanted]:
                self._forget(self.states.pop(partition))
            for partition in wanted:
                if partition not in self.states:
                    self.states[partition] = PartitionState(partition, self._next_version())
        self.on_change()

    def park(self, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        """Remove partitions, and return those that may be assigned again as they are (see `unpark`), with
        their buffers: they have no lease, and their position is the group's committed offset."""
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
        """Add those parked partitions that are assigned again; drop the others."""
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
        """True if an answer to a request of this version is still valid."""
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
        """Start at an offset that has been looked up."""
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
        """Start again as `policy` says; None is the consumer's own. The offset is looked up later."""
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
        """The log was cut at `end_offset`, which is before the fetch offset: continue from there."""
        with self.lock:
            if self.is_current(state, version):
                lease, finished = self.leases.get(state), self._finished(state)
                # Leased records that the user was not given are fetched again, as far as the log has them.
                self._place(state, min(self._given(state).offset, end_offset), UNKNOWN)
                if lease is not None and finished.offset < state.position:
                    # The user still has records: they stay leased.
                    lease.give_no_more()
                    self.leases[state] = lease
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
        """All known positions: those that `commit()` commits."""
        with self.lock:
            known = {state.partition: self._position(state) for state in self.states.values()}
        return {partition: position for partition, position in known.items() if position is not None}

    # ---- pausing

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        with self.lock:
            for state in [self.get(partition) for partition in partitions]:
                state.is_paused = True
                self.ready.pop(state, None)
                if (lease := self.leases.get(state)) is not None:
                    lease.is_interrupted = True

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
        """Buffer a fetch. The caller holds the lock and has checked that the fetch is current."""
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
        """A look-up for a partition failed: do not repeat it before the back-off is over."""
        with self.lock:
            if self.is_current(state, version):
                state.failures += 1
                state.retry_at = now + backoff.pause(state.failures, chance)

    def set_error(self, state: PartitionState, error: ClientError) -> None:
        """As `fail`; the caller holds the lock and has checked that the version is current."""
        state.error = error
        self.failed.add(state)

    def restart(
        self, state: PartitionState, policy: StartPolicy | None, *, out_of_range_offset: int = UNKNOWN
    ) -> None:
        """As `reset`; the caller holds the lock."""
        self._reset(state, policy)
        state.out_of_range_offset = out_of_range_offset

    def raise_error(self, partition: TopicPartition) -> None:
        """Raise the error of a partition, if it has one; the next poll then does not raise it."""
        with self.lock:
            state = self.get(partition)
            error = state.error
            if error is not None:
                self.acknowledge(state)
        if error is not None:
            self.on_change()
            raise error

    def acknowledge(self, state: PartitionState) -> None:
        """The error of a partition is being raised; under the lock. Records that cannot be decoded may have
        been damaged on the network, so they are fetched again at the next poll."""
        state.error = None
        if state.head() is None:
            self.failed.discard(state)
        else:
            self.fetch_from(state, state.place)
            self.unreadable.add(state)

    def fetch_unreadable_again(self) -> None:
        """The user polls again: fetch again the records that could not be decoded. Under the lock."""
        self.unreadable.clear()
        self._is_changed = True

    # ---- commits

    def committable(self) -> dict[TopicPartition, CommittedOffset]:
        """Finished positions that are not known to be committed.

        If the user has committed records that are still leased, an automatic commit does not go back before
        them.
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

    def finished(self, partition: TopicPartition) -> CommittedOffset | None:
        """Where the finished part of a partition ends; None while its position is looked up."""
        with self.lock:
            offset, epoch = self._finished(self.get(partition))
        return CommittedOffset(offset, leader_epoch=epoch) if offset >= 0 else None

    def was_committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        with self.lock:
            for partition, committed in offsets.items():
                if partition in self.states:
                    self.states[partition].committed = committed.offset

    # ---- handing out

    def interrupt(self) -> None:
        """Stop iterations before their next record, because a rebalance or an error comes first."""
        with self.lock:
            for lease in self.leases.values():
                lease.is_interrupted = True

    def end(self, lease: Lease) -> None:
        """A lease is finished or put back, or the partition moved. Under the lock."""
        lease.is_interrupted = True
        del self.leases[lease.state]
        if lease.state.is_drained_first:
            self._is_changed = True  # fetching may have waited for that

    def is_open(self, lease: Lease) -> bool:
        return self.leases.get(lease.state) is lease

    def fetch_from(self, state: PartitionState, place: Place) -> None:
        """Drop the buffer, and fetch again from `place` on. A lease stays open. Under the lock."""
        self._drop(state)
        state.position, state.epoch = state.fetch_offset, state.fetch_epoch = place
        state.is_drained_first = False

    def release(self, state: PartitionState, size: int) -> None:
        """Count `size` bytes as no longer buffered; a negative `size` as buffered again. Under the lock."""
        before = state.buffered_bytes
        state.buffered_bytes -= size
        self.buffered_bytes -= size
        if state.buffered_bytes < self.room_below_bytes <= before or state.is_drained_first:
            self._is_changed = True

    def owe_change(self) -> None:
        """Make the next hand-out call `on_change` in any case: fetching rests until then."""
        self._is_changed = True

    def tell_change(self) -> None:
        """Without the lock: call `on_change`, if there is room to fetch more now."""
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
            and state.position == state.committed
            and state not in self.leases
            and state not in self.failed
            and not state.is_paused
        )

    def _forget(self, state: PartitionState) -> None:
        """Drop the buffer, the lease, and the answers that are still to come."""
        if (lease := self.leases.get(state)) is not None:
            self.end(lease)
        self._drop(state)

    def _drop(self, state: PartitionState) -> None:
        state.version = self._next_version()
        self.buffered_bytes -= state.drop_buffer()
        self.ready.pop(state, None)
        self.failed.discard(state)
        self.unreadable.discard(state)
        state.error = None
        state.fetching = None
        state.hurried_beside = None

    def _place(self, state: PartitionState, offset: int, epoch: int) -> None:
        self._forget(state)
        state.need = Need.NOTHING
        state.position = state.fetch_offset = offset
        state.epoch = state.fetch_epoch = epoch
        state.is_drained_first = False
        state.failures = 0
        state.retry_at = 0.0

    def _reset(self, state: PartitionState, policy: StartPolicy | None) -> None:
        self._forget(state)
        state.need = Need.RESET
        state.reset_to = policy
        state.out_of_range_offset = UNKNOWN
        state.position = state.fetch_offset = UNKNOWN
        state.epoch = state.fetch_epoch = UNKNOWN
        state.is_drained_first = False
        state.retry_at = 0.0

    def _position(self, state: PartitionState) -> CommittedOffset | None:
        """The offset after the last record that the user was given."""
        offset, epoch = self._given(state)
        return CommittedOffset(offset, leader_epoch=epoch) if offset >= 0 else None

    def _given(self, state: PartitionState) -> Place:
        lease = self.leases.get(state)
        return state.place if lease is None else lease.given_place(state.place)

    def _finished(self, state: PartitionState) -> Place:
        lease = self.leases.get(state)
        return state.place if lease is None else lease.finished_place(state.place)


def _nothing() -> None:
    pass
