"""__consumer_offsets as the coordinator needs it, and a partition of it in one leader epoch.

What the coordinator knows of a partition holds for one leader epoch: in another one, also if the same broker
leads again, another leader may have written, and records that were not committed may be gone. So every read
and every append names the epoch, and fails when it is over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

from klamm.groups.records import KeyValue


class LogPort(Protocol):
    """Methods that name a leader epoch raise a KafkaError if the partition is not led here in it."""

    @property
    def partition_count(self) -> int:
        """0 while the topic does not exist."""

    def leader_epoch(self, partition: int) -> int | None:
        """The epoch in which this broker leads the partition now; None if it does not."""

    def append(self, partition: int, leader_epoch: int, records: list[KeyValue]) -> Awaitable[None]:
        """Append the records as one batch, as acks=all does. A KafkaError means that nothing was appended.

        What it returns must be awaited. It is done when the high watermark has passed the batch, however long
        that takes. If it raises, nobody will know here whether the batch is committed one day.
        """

    async def until_committed(self, partition: int, leader_epoch: int) -> None:
        """Wait until the high watermark has reached what is the log end now.

        Records that an earlier leader acknowledged may lie above the high watermark of a new one for a while.
        """

    def read_all(
        self, partition: int, leader_epoch: int
    ) -> AsyncIterator[Sequence[tuple[bytes | None, bytes | None]]]:
        """The keys and values of all records below the high watermark, oldest first, in pieces."""


class LedPartition:
    """A partition of __consumer_offsets in one leader epoch of this broker."""

    def __init__(self, log_port: LogPort, partition: int, leader_epoch: int) -> None:
        self._log_port = log_port
        self.partition = partition
        self.leader_epoch = leader_epoch

    @property
    def is_led(self) -> bool:
        """False once the epoch is over."""
        return self._log_port.leader_epoch(self.partition) == self.leader_epoch

    def append(self, records: list[KeyValue]) -> Awaitable[None]:
        return self._log_port.append(self.partition, self.leader_epoch, records)

    async def until_committed(self) -> None:
        await self._log_port.until_committed(self.partition, self.leader_epoch)

    def read_all(self) -> AsyncIterator[Sequence[tuple[bytes | None, bytes | None]]]:
        return self._log_port.read_all(self.partition, self.leader_epoch)
