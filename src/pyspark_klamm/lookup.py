"""Asks brokers for the partitions of a query and their offsets, to plan what it reads.

Answers are about partitions that exist now. A partition that is deleted between two requests is left out, and
the planner notices that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from klamm.client.errors import BrokerError, ClientError
from klamm.client.results import OffsetAndTime, TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from pyspark_klamm.connections import Connection
from pyspark_klamm.errors import OptionError, TopicMissing, report_losses
from pyspark_klamm.offsets import EARLIEST, LATEST, NO_RECORD, Bound, Offsets, listed
from pyspark_klamm.options import ReadOptions, Subscription
from pyspark_klamm.planning import within_logs

T = TypeVar("T")

logger = logging.getLogger("pyspark_klamm")

LAST_FETCH_BY_NAME = 12
"""The newest version of Fetch with topic names; later ones have topic ids."""

_PARKED_LANE = "parked"

_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class ClusterLookup:
    """Looks up the topics that one query reads. Coroutines run on the connection's loop."""

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        self._connection = connection
        self._subscription = subscription
        self._partitions: list[TopicPartition] = []
        self._asked_at = float("-inf")

    async def partitions(self, max_age_seconds: float = 0.0) -> list[TopicPartition]:
        """The partitions that the query reads. Asks brokers if the last answer is older than
        `max_age_seconds`."""
        now = asyncio.get_running_loop().time()
        if now - self._asked_at > max_age_seconds:
            self._partitions = await self._retrying("looking up partitions", self._ask_partitions)
            self._asked_at = now
        return self._partitions

    async def all_partitions(self) -> list[TopicPartition]:
        """As `partitions`, for the start of a query. Raises TopicMissing if a named topic does not exist."""
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
                f"{names} does not exist on {brokers}. Create the topic, or correct the option"
            )
        return found

    async def latest(self, max_age_seconds: float) -> Offsets:
        """The ends of all logs."""
        return await self._offsets(LATEST, max_age_seconds)

    async def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The beginnings of these logs, without those that no longer exist."""
        wanted = set(partitions)
        if not wanted:
            return {}

        async def attempt() -> Offsets:
            there = wanted & set(await self._ask_partitions())
            return _offsets(await self._list(dict.fromkeys(there, EARLIEST)))

        return await self._retrying(f"looking up the earliest offsets of {listed(wanted)}", attempt)

    async def wait_for_records(self, ends: Mapping[TopicPartition, int], seconds: float) -> None:
        """Wait until a log has records after these ends, for `seconds` at most.

        Sends fetches, which brokers park until there are records, so that nothing is polled.
        """
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in ends:
            leader = self._connection.network.metadata.leader(*partition)
            if leader is not None:
                by_leader.setdefault(leader[0], []).append(partition)
        waits = [
            asyncio.ensure_future(self._park_fetch(node, {each: ends[each] for each in led}, seconds))
            for node, led in by_leader.items()
        ]
        if not waits:
            await asyncio.sleep(seconds)
            return
        # Fetches that are still parked are answered soon; their answers are ignored.
        _, pending = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()

    async def _park_fetch(self, node: int, ends: Mapping[TopicPartition, int], seconds: float) -> None:
        topics: dict[str, FetchTopic] = {}
        for (topic, partition), end in ends.items():
            one = topics.setdefault(topic, FetchTopic(topic=topic))
            one.partitions.append(
                FetchPartition(partition=partition, fetch_offset=end, partition_max_bytes=1)
            )
        request = FetchRequest(
            max_wait_ms=round(seconds * 1000),
            min_bytes=1,
            max_bytes=1,
            isolation_level=1 if self._connection.fetch_settings.is_read_committed else 0,
            topics=list(topics.values()),
        )
        try:
            await self._connection.network.call(
                node, request, lane=_PARKED_LANE, max_version=LAST_FETCH_BY_NAME
            )
        except ClientError as error:
            # The next request for offsets meets the same error, and is retried.
            logger.debug("waiting for records on broker %s ended: %s", node, error)
            await asyncio.sleep(seconds)

    async def starts(self, options: ReadOptions) -> Offsets:
        """The start of a query without a checkpoint."""
        return await self._resolve(options.starting, options, options.latest_if_no_record)

    async def ends(self, options: ReadOptions) -> Offsets:
        """The end of a batch query: the end of the log if a given time is after all records."""
        return await self._resolve(options.ending, options, True)

    async def _resolve(self, bound: Bound, options: ReadOptions, no_record_is_latest: bool) -> Offsets:
        """The offsets of a bound, in all partitions. A retry topic begins at its oldest record, unless the
        bound names it: it may have been created since."""
        there, named = await self.all_partitions(), bound.named or ()
        whole = {
            each: EARLIEST
            for each in there
            if each.topic == self._subscription.retry_topic and each not in named
        }
        partitions = [each for each in there if each not in whole]
        bound.check_named(partitions)
        found = _offsets(await self._list_patiently({**bound.questions(partitions), **whole}))
        unmatched = [each for each, offset in found.items() if offset == NO_RECORD]
        if unmatched and not no_record_is_latest:
            raise OptionError(
                f"{bound.option}: there is no record at or after the time in {listed(unmatched)}. Give an "
                "earlier time, or set startingOffsetsByTimestampStrategy to latest"
            )
        found.update(_offsets(await self._list_patiently(dict.fromkeys(unmatched, LATEST))))
        written = bound.offsets or {}
        given = {each: written[each] for each in partitions if each not in found}
        return {**found, **await self._checked(bound, given, options.fail_on_data_loss)}

    async def _checked(self, bound: Bound, given: Offsets, fails_on_loss: bool) -> Offsets:
        """The user's offsets, checked against the logs: their records may be deleted."""
        earliest = _offsets(await self._list_patiently(dict.fromkeys(given, EARLIEST)))
        latest = _offsets(await self._list_patiently(dict.fromkeys(given, LATEST)))
        offsets, losses = within_logs(given, earliest, latest)
        if losses:
            report_losses([f"{bound.option}: {each}" for each in losses], fails_on_loss)
        return offsets

    # ---- inside

    async def _offsets(self, question: int, max_age_seconds: float) -> Offsets:
        ages = iter([max_age_seconds])

        async def attempt() -> Offsets:
            # A failed attempt may be due to a deleted partition: only the first uses known partitions.
            partitions = await self.partitions(next(ages, 0.0))
            return _offsets(await self._list(dict.fromkeys(partitions, question)))

        return await self._retrying("looking up the latest offsets", attempt)

    async def _list_patiently(
        self, questions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTime]:
        what = f"looking up offsets of {listed(questions)}"
        return await self._retrying(what, lambda: self._list(questions))

    async def _list(self, questions: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime]:
        if not questions:
            return {}
        answer = await self._connection.lookup.try_list_offsets(questions)
        if answer.failures:
            # An error that is not retriable comes first.
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
            is_hidden = topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if is_hidden and name == subscription.retry_topic:
                continue  # brokers say so of topics that do not exist, too
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
