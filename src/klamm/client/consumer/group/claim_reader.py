"""How a claim reads its partition: by one lease after the other (`lease.py`). A core.

A lease is finished when the worker comes back for more. When the claim is over, what the worker has not
finished, the record in work included, is put back: the next owner of the partition, or the next session, gets
it again.

A reader has one worker. Ending it (`end`) may come from anywhere, and holds from the next record on. Another
thread may end it while the worker's thread decodes records: it sees a worker that has nothing, and does not
wait for it. So the worker looks once more after it has leased records, and puts them back if the claim is
over.
"""

from __future__ import annotations

from klamm.client.consumer.hand_out import HandOut
from klamm.client.consumer.lease import Lease
from klamm.client.results import Record, TopicPartition


class ClaimReader:
    """Reads one partition, by leases of at most `limit` records."""

    __slots__ = ("_lease", "_limit", "_records", "is_ended", "partition")

    def __init__(self, records: HandOut, partition: TopicPartition, limit: int) -> None:
        self.partition = partition
        self.is_ended = False
        """Nothing more is handed out; the record in work may be finished."""
        self._records = records
        self._limit = limit
        self._lease: Lease | None = None

    @property
    def is_busy(self) -> bool:
        """Whether something that was handed out is not finished."""
        return self._lease is not None

    @property
    def in_work(self) -> tuple[Lease, int] | None:
        """What is being worked on; another value as soon as the worker comes back for more."""
        lease = self._lease
        return None if lease is None else (lease, lease.given())

    def has_news(self) -> bool:
        """Whether asking would bring something: records, an error, or the end."""
        return self.is_ended or self._records.has_news_of(self.partition)

    # ---- asking for more: what was handed out before is finished

    def next_at_hand(self) -> Record | None:
        """The next record of the lease at hand; None when there is none, or the claim is over."""
        lease = self._lease
        return None if lease is None or lease.is_interrupted else next(lease.iterator, None)

    def read(self) -> int:
        """Have records at hand, to be given one by one: how many; 0 when nothing is there.

        Raises the error of the partition, if it has one.
        """
        self.finish()
        if not self.is_ended:
            self._lease = self._records.lease_from(self.partition, self._limit)
            self._put_back_if_ended()
        return 0 if self._lease is None else len(self._lease.records)

    def take(self, limit: int | None) -> list[Record]:
        """Several records at once. Raises the error of the partition, if it has one."""
        self.finish()
        if self.is_ended:
            return []
        records, self._lease = self._records.take_from(self.partition, limit or self._limit)
        return [] if self._put_back_if_ended() else records

    def lease_bytes(self, max_bytes: int) -> list[Lease]:
        """Bytes to make columns of. Raises the error of the partition, if it has one."""
        self.finish()
        if self.is_ended:
            return []
        leases = self._records.lease_bytes_from(self.partition, max_bytes)
        self._lease = leases[0] if leases else None
        return [] if self._put_back_if_ended() else leases

    # ---- what becomes of it

    def done(self, record: Record) -> None:
        """This record, and all before it, are finished although the next was not asked for."""
        if self._lease is not None:
            self._lease.done(record)

    def end(self) -> None:
        """Hand out nothing more."""
        self.is_ended = True
        if (lease := self._lease) is not None:
            lease.is_interrupted = True

    def finish(self) -> None:
        """The worker came back: what it was given is finished, what it has not seen is put back."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self._records.finish(lease)

    def put_back(self) -> None:
        """The worker will not come back: what it has not finished is put back."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self._records.put_back(lease)

    def _put_back_if_ended(self) -> bool:
        """After leasing: True if the claim ended meanwhile. If it ends later, the worker is seen to be
        busy."""
        if not self.is_ended:
            return False
        self.put_back()
        return True
