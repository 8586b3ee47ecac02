"""What the planning side of a query asks brokers: which partitions there are, and their offsets.

Every answer is about partitions that exist now: one that is deleted between two questions is left out, and
the planner finds that it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from klamm.client.errors import BrokerError
from klamm.client.results import OffsetAndTime, TopicPartition
from klamm.model.errors import ErrorCode
from pyspark_klamm.connections import Connection
from pyspark_klamm.errors import OptionError, TopicMissing
from pyspark_klamm.offsets import EARLIEST, LATEST, NO_RECORD, Bound, Offsets, listed
from pyspark_klamm.options import Subscription

T = TypeVar("T")

_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class ClusterLookup:
    """Questions about what one query subscribes to. Coroutines run on the connection's loop."""

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        self._connection = connection
        self._subscription = subscription
        self._partitions: list[TopicPartition] = []
        self._asked_at = float("-inf")

    async def partitions(self, max_age_seconds: float = 0.0) -> list[TopicPartition]:
        """The partitions that there are of what the query reads, asked for anew when that is long ago."""
        now = asyncio.get_running_loop().time()
        if now - self._asked_at > max_age_seconds:
            self._partitions = await self._retrying("looking for partitions", self._ask_partitions)
            self._asked_at = now
        return self._partitions

    async def all_partitions(self) -> list[TopicPartition]:
        """As `partitions`, for a query that starts: what it names must be there."""
        found = await self.partitions()
        missing: Iterable[object] = ()
        if self._subscription.topics is not None:
            missing = set(self._subscription.topics) - {each.topic for each in found}
        elif self._subscription.partitions is not None:
            missing = set(self._subscription.partitions) - set(found)
        if missing:
            names = ", ".join(sorted(map(str, missing)))
            brokers = ",".join(self._connection.config.list_("bootstrap.servers"))
            raise TopicMissing(
                f"{names} is not there on {brokers}. Create the topic, or put the option right"
            )
        return found

    async def latest(self, max_age_seconds: float) -> Offsets:
        """Where the logs end that there are."""
        return await self._offsets(LATEST, max_age_seconds)

    async def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Where these logs begin; those that are gone are left out."""
        wanted = set(partitions)
        if not wanted:
            return {}

        async def attempt() -> Offsets:
            there = wanted & set(await self._ask_partitions())
            return _offsets(await self._list(dict.fromkeys(there, EARLIEST)))

        return await self._retrying(f"looking for the beginnings of {listed(wanted)}", attempt)

    async def resolve(
        self, bound: Bound, partitions: list[TopicPartition], no_record_is_latest: bool
    ) -> Offsets:
        """The offsets that a bound stands for."""
        bound.check_named(partitions)
        questions = bound.questions(partitions)
        found = await self._retrying(
            f"looking for the offsets of {bound.option}", lambda: self._list(questions)
        )
        unmatched = [each for each, answer in found.items() if answer.offset == NO_RECORD]
        if unmatched and not no_record_is_latest:
            raise OptionError(
                f"{bound.option}: there is no record at or after the time in {listed(unmatched)}. Give an "
                "earlier time, or set startingOffsetsByTimestampStrategy to latest"
            )
        ends = await self._retrying(
            "looking for the ends of logs", lambda: self._list(dict.fromkeys(unmatched, LATEST))
        )
        given = bound.offsets or {}
        return {
            each: given[each] if each not in found else {**found, **ends}[each].offset for each in partitions
        }

    # ---- inside

    async def _offsets(self, question: int, max_age_seconds: float) -> Offsets:
        ages = iter([max_age_seconds])

        async def attempt() -> Offsets:
            # An attempt that failed may have met a partition that is gone: only the first trusts the memory.
            partitions = await self.partitions(next(ages, 0.0))
            return _offsets(await self._list(dict.fromkeys(partitions, question)))

        return await self._retrying("looking for the ends of logs", attempt)

    async def _list(self, questions: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime]:
        if not questions:
            return {}
        answer = await self._connection.lookup.try_list_offsets(questions)
        if answer.failures:
            # One that no retry can heal ends it.
            raise min(answer.failures.values(), key=lambda error: error.retriable)
        return answer.found

    async def _ask_partitions(self) -> list[TopicPartition]:
        subscription = self._subscription
        names = None if subscription.pattern is not None else subscription.named_topics
        found: list[TopicPartition] = []
        for topic in (await self._connection.calls.metadata(names)).topics:
            if topic.error_code in _UNKNOWN:
                continue
            name = topic.name or ""
            if not subscription.selects(name, topic.is_internal):
                continue
            if topic.error_code != ErrorCode.NONE:
                raise BrokerError.of(topic.error_code, f"looking for topic {name!r}")
            found.extend(TopicPartition(name, each.partition_index) for each in topic.partitions)
        if subscription.partitions is not None:
            found = sorted(set(found) & set(subscription.partitions))
        return sorted(found)

    async def _retrying(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        connection = self._connection
        return await connection.network.retrying(what, connection.timeout_seconds, attempt)


def _offsets(answers: Mapping[TopicPartition, OffsetAndTime]) -> Offsets:
    return {partition: answer.offset for partition, answer in answers.items()}
