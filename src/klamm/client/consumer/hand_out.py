"""Hands out what was fetched, by leases: as lists, one by one, or undecoded for columns.

A core, and the only place that makes and ends leases (`lease.py`), and so moves the position and the finished
offset of a partition. Partitions take turns. A batch is decoded when its first record is needed, without
holding the lock: if the partition was given up or moved meanwhile, it has another version, its lease has
ended, and the decoded records are dropped.

A position is exact at any time: when the last record of a fetch is handed out, the position is where the
fetch ended, that is after gaps, transaction markers and aborted records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from klamm.client.consumer.lease import Lease, Place
from klamm.client.consumer.partition_state import UNKNOWN, BufferedFetch, PartitionState
from klamm.client.consumer.positions import Positions
from klamm.client.errors import ClientError
from klamm.client.results import Record, TopicPartition
from klamm.model.errors import KafkaError
from klamm.records.decoding import decode_batch


class HandOut:
    """Hands out the records of `positions`, to one reader at a time. Methods take its lock."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions

    def begin_poll(self) -> None:
        """A poll begins: everything that the user was given before counts as finished.

        Raises the error of a partition that has nothing left to hand out.
        """
        positions = self._positions
        with positions.lock:
            if positions.leases:
                self._finish_all()
            if positions.unreadable:
                positions.fetch_unreadable_again()
            error = self._next_failure() if positions.failed else None
        positions.tell_change()
        if error is not None:
            positions.on_change()
            raise error

    def has_news(self) -> bool:
        """True if a poll would return records or raise an error at once."""
        positions = self._positions
        if positions.ready:
            return True
        if not positions.failed:
            return False
        with positions.lock:
            return any(not state.is_paused and state.failure() is not None for state in positions.failed)

    def has_news_of(self, partition: TopicPartition) -> bool:
        """True if a request for records of this partition would return records or raise an error at once."""
        positions = self._positions
        with positions.lock:
            state = positions.get(partition)
            return state in positions.ready or (not state.is_paused and state.failure() is not None)

    # ---- leasing

    def take(self, limit: int) -> list[Record]:
        """At most `limit` records, of the partitions in turn; a lease for each."""
        positions = self._positions
        taken: list[Record] = []
        with positions.lock:
            for _ in range(len(positions.ready)):
                if len(taken) >= limit or not positions.ready:
                    break
                state = next(iter(positions.ready))
                if state in positions.leases:
                    break  # this partition had its turn, and no other has records left
                piece = self._lease_all(state, limit - len(taken))
                if taken:
                    taken += piece
                else:
                    taken = piece
        positions.tell_change()
        return taken

    def take_from(self, partition: TopicPartition, limit: int) -> tuple[list[Record], Lease | None]:
        """At most `limit` records of one partition, and their lease. Raises its error."""
        positions = self._positions
        records: list[Record] = []
        with positions.lock:
            state, error = self._ask_for_more(partition)
            while state in positions.ready and not records:
                records = self._lease_all(state, limit)
            lease = positions.leases.get(state)
        self._tell(error)
        return records, lease

    def lease_next(self, limit: int) -> Lease | None:
        """Records of the partition in turn, to be given one by one; None if there are none."""
        positions = self._positions
        lease = None
        with positions.lock:
            while positions.ready and lease is None:
                lease = self._lease_one_by_one(next(iter(positions.ready)), limit)
        positions.tell_change()
        return lease

    def lease_from(self, partition: TopicPartition, limit: int) -> Lease | None:
        """Records of one partition, to be given one by one; None if there are none. Raises its error."""
        positions = self._positions
        lease = None
        with positions.lock:
            state, error = self._ask_for_more(partition)
            while state in positions.ready and lease is None:
                lease = self._lease_one_by_one(state, limit)
        self._tell(error)
        return lease

    def lease_bytes(self, max_bytes: int) -> list[Lease]:
        """Lease buffered fetches, undecoded: at least one fetch if there is any, then up to `max_bytes`.

        The caller makes columns of them and calls `columns_made`; until then nothing counts as handed out.
        """
        positions = self._positions
        leases: list[Lease] = []
        with positions.lock:
            for state in list(positions.ready):
                lease, size = self._lease_bytes(state, max_bytes)
                leases.append(lease)
                max_bytes -= size
                if max_bytes <= 0:
                    break
        return leases

    def lease_bytes_from(self, partition: TopicPartition, max_bytes: int) -> list[Lease]:
        """As `lease_bytes`, of one partition: one lease, or none. Raises its error."""
        positions = self._positions
        leases: list[Lease] = []
        with positions.lock:
            state, error = self._ask_for_more(partition)
            if state in positions.ready:
                leases.append(self._lease_bytes(state, max_bytes)[0])
        self._tell(error)
        return leases

    def columns_made(self, leases: Iterable[Lease], next_offsets: Mapping[TopicPartition, int]) -> None:
        """Columns were made of leased bytes, up to these offsets: the records before them are handed out
        now."""
        positions = self._positions
        with positions.lock:
            for lease in leases:
                if not positions.is_open(lease):
                    continue  # the partition moved, or the poll was cancelled
                offset = next_offsets.get(lease.state.partition)
                if offset is None:
                    positions.end(lease)
                else:
                    self._advance(lease.state, offset)
        positions.tell_change()

    def columns_failed(self, lease: Lease, failure: KafkaError) -> None:
        """The first batch of leased bytes cannot be decoded; the next poll raises `failure`."""
        positions = self._positions
        with positions.lock:
            if not positions.is_open(lease):
                return
            positions.end(lease)
            state = lease.state
            head = state.head()
            if head is not None:
                head.rewind(state.position)
                head.failure = failure
                positions.failed.add(state)
                self._set_ready(state)

    # ---- the end of leases

    def finish(self, lease: Lease) -> None:
        """Finish what the user was given and put back the rest. Does nothing if the lease has ended."""
        positions = self._positions
        with positions.lock:
            if positions.is_open(lease):
                self._finish(lease)
        positions.tell_change()

    def finish_all(self) -> None:
        """Finish everything that the user was given."""
        with self._positions.lock:
            self._finish_all()
        self._positions.tell_change()

    def put_back(self, *leases: Lease) -> None:
        """Put back what is not finished, to be handed out again. Does nothing to leases that have ended."""
        positions = self._positions
        with positions.lock:
            for lease in leases:
                if positions.is_open(lease):
                    finished = lease.finished_place(lease.state.place)
                    positions.end(lease)
                    self._put_back(lease, finished)
        positions.tell_change()

    def put_back_all(self) -> None:
        """Put back all leases: the user does not get what a poll has leased."""
        self.put_back(*list(self._positions.leases.values()))

    def leave(self, lease: Lease) -> None:
        """The user leaves an iteration at a record: put back the records after it; it is not finished yet."""
        positions = self._positions
        with positions.lock:
            if positions.is_open(lease):
                finished, given = (
                    lease.finished_place(lease.state.place),
                    lease.given_place(lease.state.place),
                )
                positions.end(lease)
                self._put_back(lease, given)
                if finished != given:
                    positions.leases[lease.state] = Lease(lease.state, finished)
        positions.tell_change()

    # ---- inside, under the lock

    def _ask_for_more(self, partition: TopicPartition) -> tuple[PartitionState, ClientError | None]:
        """Finish what was given of the partition; returns its error, if it has one."""
        positions = self._positions
        state = positions.get(partition)
        if (lease := positions.leases.get(state)) is not None:
            self._finish(lease)
        if state in positions.unreadable:
            positions.fetch_unreadable_again()
        error = state.failure() if state in positions.failed and not state.is_paused else None
        if error is not None:
            positions.acknowledge(state)
        return state, error

    def _tell(self, error: ClientError | None) -> None:
        """Tell of the change and raise `error`, if there is one. To be called without the lock."""
        self._positions.tell_change()
        if error is not None:
            self._positions.on_change()
            raise error

    def _lease_all(self, state: PartitionState, limit: int) -> list[Record]:
        """Lease records of a partition that is ready. If there are none, the partition is no longer ready."""
        return self._fill(state, limit)[1]

    def _lease_one_by_one(self, state: PartitionState, limit: int) -> Lease | None:
        fetch = state.head()
        lease, records = self._fill(state, limit, one_fetch=True)
        if not records:
            return None
        lease.give_one_by_one(records, fetch)
        return lease

    def _fill(self, state: PartitionState, limit: int, one_fetch: bool = False) -> tuple[Lease, list[Record]]:
        """Begin a lease, and decode records for it. Without records the lease has ended.

        The lease begins first: otherwise a commit while a batch is decoded, without the lock, would count the
        batches before it as finished.
        """
        positions = self._positions
        lease = positions.leases[state] = Lease(state, state.place)
        lease.is_being_filled = True
        try:
            records = self._take_from(state, limit, one_fetch)
        except BaseException:
            # Ctrl-C, anywhere in between: nobody gets the records, and the buffer may be half moved on.
            if positions.is_open(lease):
                positions.end(lease)
                positions.fetch_from(state, lease.start)
                positions.owe_change()
            raise
        if not positions.is_open(lease):
            return lease, []  # the partition was given up or moved meanwhile
        if not records:
            positions.end(lease)
        lease.is_being_filled = False
        return lease, records

    def _lease_bytes(self, state: PartitionState, max_bytes: int) -> tuple[Lease, int]:
        positions = self._positions
        fetched = []
        size = 0
        state.sweep()
        for fetch in state.queue:
            if fetch.is_done:
                continue
            if fetch.failure is not None or size >= max_bytes:
                break
            first = max(fetch.fetched.from_offset, state.position)
            fetched.append(fetch.fetched._replace(from_offset=first))
            size += fetch.size
        positions.ready.move_to_end(state)
        lease = positions.leases[state] = Lease(state, state.place, fetched=fetched)
        return lease, size

    def _finish_all(self) -> None:
        # One that is being filled belongs to a poll of another thread, which has not returned it yet.
        for lease in [each for each in self._positions.leases.values() if not each.is_being_filled]:
            self._finish(lease)

    def _finish(self, lease: Lease) -> None:
        self._positions.end(lease)
        state = lease.state
        if lease.records:  # given one by one; otherwise the user was given all of it, and nothing is put back
            self._put_back(lease, lease.given_place(state.place))
        if (queue := state.queue) and queue[0].is_done:
            state.sweep()

    def _put_back(self, lease: Lease, place: Place) -> None:
        """Hand out the partition from `place` on, before the others. The lease has ended, or is shortened."""
        positions = self._positions
        state = lease.state
        if place.offset >= state.position:
            return
        queue = state.queue
        if not queue or queue[0].fetched.from_offset > place.offset:
            positions.fetch_from(state, place)  # the records are not buffered any more
            positions.owe_change()
            return
        for fetch in queue:
            if fetch.end_offset <= place.offset:
                continue
            if fetch.is_done:
                positions.release(state, -fetch.size)
            if fetch is lease.fetch:
                kept = _count_before(lease.records, place.offset)
                fetch.put_back(lease.records[kept:])
            else:
                fetch.rewind(place.offset)
        state.position, state.epoch = place
        self._set_ready(state)
        if state in positions.ready:
            positions.ready.move_to_end(state, last=False)

    def _take_from(self, state: PartitionState, room: int, one_fetch: bool = False) -> list[Record]:
        state.sweep()
        taken: list[Record] = []
        version = state.version
        while room > 0 and (head := state.head()) is not None:
            if head.at == len(head.decoded) and not self._open_batch(state, head):
                if state.version != version or head.failure is not None or one_fetch:
                    break
                continue
            if state.version != version:
                break
            if head.at == 0 and len(head.decoded) <= room:
                piece, head.decoded = head.decoded, []
            else:
                piece = head.decoded[head.at : head.at + room]
                head.at += len(piece)
            room -= len(piece)
            if taken:
                taken += piece
            else:
                taken = piece
            state.position = piece[-1].offset + 1
            state.epoch = piece[-1].leader_epoch
            if head.at == len(head.decoded):
                self._look_ahead(state, head)
            if one_fetch and head.is_done:
                break
        self._set_ready(state)
        return taken

    def _open_batch(self, state: PartitionState, head: BufferedFetch) -> bool:
        """Decode the next batch, without the lock. Returns True if there are records now."""
        positions = self._positions
        if not head.is_started():
            self._look_ahead(state, head)
        batch = head.batch
        if batch is None:
            return False
        version = state.version
        topic, partition = state.partition
        position = state.position
        failure = None
        records: list[Record] = []
        positions.lock.release()
        try:
            records = decode_batch(batch, Record, topic, partition, position)
        except KafkaError as error:
            failure = error
        finally:
            positions.lock.acquire()
        if state.version != version:
            return False
        head.at = 0
        head.decoded = records
        if failure is not None:
            head.failure = failure
            positions.failed.add(state)
        else:
            head.batch = None
            if not records:
                self._look_ahead(state, head)
        return bool(records)

    def _look_ahead(self, state: PartitionState, head: BufferedFetch) -> None:
        positions = self._positions
        head.decoded = []
        head.at = 0
        # After records of the batch before it were put back, the next one is known already.
        if head.batch is None and head.failure is None:
            head.look_ahead()
        if head.failure is not None:
            positions.failed.add(state)
        elif head.is_done:
            # Gaps, transaction markers and aborted records at the end of the fetch are passed as well.
            state.position = max(state.position, head.end_offset)
            state.epoch = head.end_epoch
            positions.release(state, head.size)

    def _set_ready(self, state: PartitionState) -> None:
        """After records were taken: move the partition to the end of `ready`, or remove it if it has no
        more."""
        positions = self._positions
        head = state.head() if not state.is_paused else None
        if head is None or (head.failure is not None and head.at == len(head.decoded)):
            positions.ready.pop(state, None)
        elif positions.states.get(state.partition) is state:
            positions.ready[state] = None
            positions.ready.move_to_end(state)

    def _next_failure(self) -> ClientError | None:
        positions = self._positions
        for state in positions.failed:
            error = None if state.is_paused else state.failure()
            if error is not None:
                positions.acknowledge(state)
                return error
        return None

    def _advance(self, state: PartitionState, offset: int) -> None:
        positions = self._positions
        while (head := state.head()) is not None and head.end_offset <= offset:
            state.epoch = head.end_epoch
            head.skip()
            positions.release(state, head.size)
        if head is not None and offset > state.position:
            head.rewind(offset)
            state.epoch = UNKNOWN
        state.position = offset
        self._set_ready(state)


def _count_before(records: Sequence[Record], offset: int) -> int:
    return bisect_left(records, offset, key=lambda record: record.offset)
