"""Hands out what was fetched: as lists, one by one, or undecoded for columns.

A core, and the only place that moves a partition's position and what is finished of it. Partitions take
turns. A batch is decoded when its first record is wanted, without holding the lock: a partition that was
given up or moved meanwhile has another version, and the decoded records are dropped.

A position is exact at any time: behind the last record of a fetch it is where the fetch ended, behind gaps,
markers of transactions and what was aborted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import length_hint
from typing import NamedTuple

from klamm.client.consumer.partition_state import UNKNOWN, BufferedFetch, PartitionState, Reading
from klamm.client.consumer.positions import Positions
from klamm.client.errors import ClientError
from klamm.client.results import Record, TopicPartition
from klamm.model.errors import KafkaError
from klamm.records.decoding import decode_batch
from klamm.records.fetched import FetchedRecords


class Chunk(NamedTuple):
    """Something buffered that is handed out undecoded, for columns."""

    state: PartitionState
    version: int
    fetched: FetchedRecords


class HandOut:
    """Hands out the records of `positions`, to one reader at a time. Methods take its lock."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions

    def begin_poll(self) -> None:
        """A poll begins: everything that was handed out before counts as finished.

        Raises the error of a partition that has nothing left to hand out.
        """
        positions = self._positions
        with positions.lock:
            self._end_readings()
            for state in positions.handed:
                state.finished, state.finished_epoch = state.position, state.epoch
            positions.handed.clear()
            if positions.held:
                positions.let_go()
            error = self._next_failure() if positions.failed else None
        positions.tell_change()
        if error is not None:
            positions.on_change()
            raise error

    def has_news(self) -> bool:
        """Whether a poll would return at once: records or an error."""
        positions = self._positions
        if positions.ready:
            return True
        if not positions.failed:
            return False
        with positions.lock:
            return any(not state.is_paused and state.failure() is not None for state in positions.failed)

    def take(self, limit: int) -> list[Record]:
        """At most `limit` records, of the partitions in turn."""
        positions = self._positions
        taken: list[Record] = []
        with positions.lock:
            for _ in range(len(positions.ready)):
                if len(taken) >= limit or not positions.ready:
                    break
                state = next(iter(positions.ready))
                piece = self._take_from(state, limit - len(taken))
                if taken:
                    taken += piece
                else:
                    taken = piece
        positions.tell_change()
        return taken

    # ---- one by one

    def read(self, limit: int) -> Reading | None:
        """Records of the partition in turn, to be iterated over; None if there are none."""
        positions = self._positions
        reading = None
        with positions.lock:
            while positions.ready and reading is None:
                reading = self._read(next(iter(positions.ready)), limit)
        positions.tell_change()
        return reading

    def read_from(self, partition: TopicPartition, limit: int) -> Reading | None:
        """Records of one partition, to be iterated over; None if there are none. Raises its error."""
        positions = self._positions
        reading = None
        with positions.lock:
            state = positions.get(partition)
            if state in positions.held:
                positions.let_go()
            error = state.failure() if state in positions.failed and not state.is_paused else None
            if error is not None:
                positions.acknowledge(state)
            while state in positions.ready and reading is None:
                reading = self._read(state, limit)
        positions.tell_change()
        if error is not None:
            positions.on_change()
            raise error
        return reading

    def has_news_of(self, partition: TopicPartition) -> bool:
        """Whether reading from a partition would bring something at once: records or an error."""
        positions = self._positions
        with positions.lock:
            state = positions.get(partition)
            return state in positions.ready or (not state.is_paused and state.failure() is not None)

    def end_reading(self, reading: Reading) -> None:
        """The iteration is left: put back what it has not come to. The record in work is not finished."""
        positions = self._positions
        with positions.lock:
            if positions.readings.get(reading.state) is reading:
                self._end_reading(reading)

    def release(self, reading: Reading, finished: int) -> None:
        """End a reading whose first `finished` records are worked off, and put back all the others."""
        positions = self._positions
        with positions.lock:
            state = reading.state
            if positions.readings.get(state) is reading:
                del positions.readings[state]
                reading.is_interrupted = True
                if positions.is_current(state, reading.version):
                    self._put_back(reading, finished)
                    self._finish(state)
        positions.tell_change()

    # ---- columns

    def chunks(self, max_bytes: int) -> list[Chunk]:
        """What is buffered, undecoded: at least one fetch if there is any, and not many more bytes."""
        positions = self._positions
        chosen: list[Chunk] = []
        size = 0
        with positions.lock:
            self._end_readings()
            for state in list(positions.ready):
                state.sweep()
                position = state.position
                for fetch in state.queue:
                    if fetch.is_done:
                        continue
                    if fetch.failure is not None:
                        break
                    fetched = fetch.fetched
                    if fetched.from_offset < position:
                        fetched = fetched._replace(from_offset=position)
                    chosen.append(Chunk(state, state.version, fetched))
                    size += fetch.size
                    if size >= max_bytes:
                        break
                positions.ready.move_to_end(state)
                if size >= max_bytes:
                    break
        return chosen

    def advance(self, chunks: Collection[Chunk], next_offsets: Mapping[TopicPartition, int]) -> None:
        """Chunks were handed out as columns, up to these offsets."""
        positions = self._positions
        with positions.lock:
            for state, version in {(chunk.state, chunk.version) for chunk in chunks}:
                offset = next_offsets.get(state.partition)
                if offset is not None and positions.is_current(state, version):
                    self._advance(state, offset)
        positions.tell_change()

    def broken(self, chunk: Chunk, failure: KafkaError) -> None:
        """A chunk turned out to begin with something unreadable; the next poll says so."""
        positions = self._positions
        with positions.lock:
            state = chunk.state
            head = state.head()
            if head is not None and positions.is_current(state, chunk.version):
                head.rewind(state.position)
                head.failure = failure
                positions.failed.add(state)
                self._set_ready(state)

    # ---- inside, under the lock

    def _take_from(self, state: PartitionState, room: int, one_fetch: bool = False) -> list[Record]:
        positions = self._positions
        if state in positions.readings:
            self._end_reading(positions.readings[state])
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
        if taken:
            positions.handed.add(state)
        return taken

    def _open_batch(self, state: PartitionState, head: BufferedFetch) -> bool:
        """Decode the next batch, without the lock: whether there are records now."""
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
            # Gaps, markers of transactions and aborted records at the end are behind us as well.
            state.position = max(state.position, head.end_offset)
            state.epoch = head.end_epoch
            positions.release(state, head.size)
            positions.handed.add(state)

    def _set_ready(self, state: PartitionState) -> None:
        """After something was taken: to the end of the line, or out of it."""
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

    def _finish(self, state: PartitionState) -> None:
        positions = self._positions
        state.finished, state.finished_epoch = state.position, state.epoch
        positions.handed.discard(state)

    def _read(self, state: PartitionState, limit: int) -> Reading | None:
        """Some records of a partition that is ready; it is not ready any more when there are none."""
        fetch = state.head()
        start = (state.position, state.epoch)
        records = self._take_from(state, limit, one_fetch=True)
        if not records:
            return None
        assert fetch is not None
        reading = self._positions.readings[state] = Reading(state, fetch, records, start)
        return reading

    def _end_readings(self) -> None:
        for reading in list(self._positions.readings.values()):
            self._end_reading(reading)

    def _end_reading(self, reading: Reading) -> None:
        """Put back what was not handed out; the record that was handed out last is still being worked on."""
        state = reading.state
        del self._positions.readings[state]
        reading.is_interrupted = True
        if not self._positions.is_current(state, reading.version):
            return
        if reading.cursor is not None and reading.cursor is not reading.records[0]:
            state.finished, state.finished_epoch = reading.cursor.offset, reading.cursor.leader_epoch
        self._put_back(reading, len(reading.records) - length_hint(reading.iterator))

    def _put_back(self, reading: Reading, kept: int) -> None:
        """Have all records but the first `kept` handed out again, before anything else of the partition."""
        positions = self._positions
        state, fetch, records = reading.state, reading.fetch, reading.records
        if kept == len(records):
            return
        if fetch.is_done:
            fetch.is_done = False
            positions.release(state, -fetch.size)
        fetch.decoded = records[kept:] + fetch.decoded[fetch.at :]
        fetch.at = 0
        if kept:
            state.position, state.epoch = records[kept - 1].offset + 1, records[kept - 1].leader_epoch
        else:
            state.position, state.epoch = reading.start
        self._set_ready(state)
        if state in positions.ready:
            positions.ready.move_to_end(state, last=False)

    def _advance(self, state: PartitionState, offset: int) -> None:
        positions = self._positions
        state.sweep()
        while (head := state.head()) is not None and head.end_offset <= offset:
            state.epoch = head.end_epoch
            positions.release(state, head.size)
            state.queue.popleft()
        if head is not None and offset > state.position:
            head.rewind(offset)
            state.epoch = UNKNOWN
        state.position = offset
        positions.handed.add(state)
        self._set_ready(state)
