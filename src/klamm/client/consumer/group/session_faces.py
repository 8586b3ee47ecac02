"""What sessions and claims have in common, whether tasks work on them or threads."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from klamm.client.consumer.group.claim_reader import ClaimReader
from klamm.client.consumer.group.session_life import SessionLife
from klamm.client.results import CommittedOffset, Record, TopicPartition

if TYPE_CHECKING:
    from klamm.client.consumer.engine import ConsumerEngine


class ClaimFace:
    """One partition within a session."""

    def __init__(self, reader: ClaimReader) -> None:
        self.topic: str = reader.partition.topic
        self.partition: int = reader.partition.partition
        self._reader = reader

    def __repr__(self) -> str:
        return f"<Claim {self._reader.partition}{' ended' if self.ended else ''}>"

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition, of which `topic` and `partition` are the parts."""
        return self._reader.partition

    @property
    def ended(self) -> bool:
        """Whether nothing more is handed out, because a rebalance is due or the session was left."""
        return self._reader.is_ended

    def done(self, record: Record) -> None:
        """Count `record`, and all before it, as finished without asking for the next."""
        self._reader.done(record)


class SessionFace:
    """One round of a group's life."""

    claims: Collection[ClaimFace]

    def __init__(self, engine: ConsumerEngine, life: SessionLife) -> None:
        self._engine = engine
        self._life = life

    def __repr__(self) -> str:
        names = ", ".join(str(claim.topic_partition) for claim in self.claims)
        return f"<Session of generation {self.generation}: {names or 'no partitions'}>"

    @property
    def generation(self) -> int:
        """The number of the group's rebalance that this session follows."""
        return self._life.generation

    @property
    def ended(self) -> bool:
        """Whether a rebalance is due, or the session was left: its claims hand out nothing more."""
        return self._life.is_over

    def _count(self, records: int) -> None:
        self._engine.counters.records_received += records

    async def _commit(self, claims: Collection[ClaimFace]) -> None:
        """On the loop: commit what is finished of these."""
        _, commits = self._engine.need_group("commit() without a group")
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for claim in claims:
            finished = claim._reader.finished()
            if finished is not None:
                offsets[claim.topic_partition] = finished
        await commits.commit(offsets)
