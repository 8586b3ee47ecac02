"""A group's committed offsets: written to and read from its coordinator, in every version that brokers know.

From version 10 on topics are named by their ids, so that a commit cannot land in a topic made anew under an
old name. A topic whose id is not known keeps the whole request on the version before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from klamm.client.errors import BrokerError, ClientError
from klamm.client.network.metadata import MetadataCache
from klamm.client.network.network import Network, Versioned
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.model.errors import RETRIABLE, ErrorCode
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from klamm.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from klamm.protocol.schema import Message

LAST_VERSION_WITH_NAMES = 9
FIRST_BATCHED_FETCH = 8
FIRST_REQUIRE_STABLE = 7

ASK_AGAIN = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT}
)
"""Errors after which the client looks for the group's coordinator again."""

_MOST_NAMED = 8
"""Partitions in a text; with more it would be no help."""


class Identity(NamedTuple):
    """Who commits: a member in a generation."""

    generation: int
    member_id: str
    instance_id: str | None


class CommittedFound(NamedTuple):
    """Partitions that have no committed offset are in neither."""

    found: dict[TopicPartition, CommittedOffset]
    failures: dict[TopicPartition, ClientError]


NO_MEMBER = Identity(-1, "", None)
"""A consumer with a group and without a membership: it chose its partitions itself."""


class GroupOffsets:
    """Reads and writes a group's offsets at its coordinator, and tries again what may pass."""

    def __init__(
        self,
        network: Network,
        group_id: str,
        *,
        require_stable: bool,
        on_refused: Callable[[int, Identity], None],
    ) -> None:
        """`on_refused` hears the codes that commits were refused with, and as whom they were sent."""
        self._network = network
        self._group_id = group_id
        self._require_stable = require_stable
        self._on_refused = on_refused

    async def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], identity: Identity, timeout: float
    ) -> None:
        if not offsets:
            return
        what = f"committing {listed(offsets)} of group {self._group_id!r}"
        counters = self._network.counters
        try:
            # One that was thrown out has the same numbers as one that never wanted to be a member.
            if identity.generation < 0 and identity is not NO_MEMBER:
                raise BrokerError.of(ErrorCode.UNKNOWN_MEMBER_ID, what, "this consumer is not a member now")
            await self._network.retrying(what, timeout, lambda: self._commit_once(offsets, identity, timeout))
        except ClientError:
            counters.commit_errors += 1
            raise
        counters.commits += 1

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, CommittedOffset]:
        if not partitions:
            return {}
        return await self._network.retrying(
            f"reading the committed offsets of {listed(partitions)} of group {self._group_id!r}",
            timeout,
            lambda: self._fetch_once(partitions, timeout),
        )

    async def _commit_once(
        self, offsets: Mapping[TopicPartition, CommittedOffset], identity: Identity, timeout: float
    ) -> None:
        metadata = self._network.metadata
        request = commit_request(metadata, self._group_id, identity, offsets)
        answer = await self._ask(request, timeout, max_version(metadata, offsets.keys()))
        errors = commit_errors(metadata, answer)
        # One that passes may hide one that does not: the latter is to be told.
        for partition, code in sorted(errors.items(), key=lambda item: item[1] in RETRIABLE):
            self._on_refused(code, identity)
            self._forget_stale_metadata(code)
            error = BrokerError.of(code, f"committing {partition} of group {self._group_id!r}")
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                # The topic was deleted. The others of the request are committed, and a rebalance waits for
                # this: trying until the time is over would hold up the whole group.
                error.retriable = False
            raise error

    async def try_committed(self, partitions: Collection[TopicPartition], timeout: float) -> CommittedFound:
        """One attempt: what is found, and why the rest is not. One partition holds up no other."""
        metadata = self._network.metadata
        request = fetch_request(metadata, self._group_id, partitions, self._require_stable)
        try:
            answer = await self._ask(request, timeout, max_version(metadata, partitions))
        except ClientError as error:
            return CommittedFound({}, dict.fromkeys(partitions, error))
        found, codes = fetched_offsets(metadata, answer)
        failures: dict[TopicPartition, ClientError] = {}
        for partition, code in codes.items():
            self._forget_stale_metadata(code)
            of_what = "" if partition is None else f" of {partition}"
            refusal = BrokerError.of(code, f"reading committed offsets{of_what} of group {self._group_id!r}")
            failures.update(dict.fromkeys(partitions if partition is None else [partition], refusal))
        return CommittedFound(found, failures)

    async def _fetch_once(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, CommittedOffset]:
        answer = await self.try_committed(partitions, timeout)
        if answer.failures:
            # One that no retry can heal ends it.
            raise min(answer.failures.values(), key=lambda error: error.retriable)
        return answer.found

    async def _ask(self, request: Message | Versioned, timeout: float, max_version: int | None) -> Any:
        node_id = await self._network.coordinator(self._group_id, timeout)
        try:
            return await self._network.call(node_id, request, max_version=max_version)
        except ClientError as error:
            if error.retriable:
                self._network.forget_coordinator(self._group_id)
            raise

    def _forget_stale_metadata(self, code: int) -> None:
        """Forget the coordinator, or ask for the topics anew, if `code` says that ours are out of date."""
        if code in ASK_AGAIN:
            self._network.forget_coordinator(self._group_id)
        elif code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._network.request_refresh()


# ---- requests and answers


def max_version(metadata: MetadataCache, partitions: Collection[TopicPartition]) -> int | None:
    """The version to stay below because of a topic without a known id; None when all have one."""
    known = all(_topic_id(metadata, topic) != ZERO_TOPIC_ID for topic in {each.topic for each in partitions})
    return None if known else LAST_VERSION_WITH_NAMES


def commit_request(
    metadata: MetadataCache,
    group_id: str,
    identity: Identity,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=_topic_id(metadata, topic),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=each.partition,
                        committed_offset=offsets[each].offset,
                        committed_leader_epoch=offsets[each].leader_epoch,
                        committed_metadata=offsets[each].metadata,
                    )
                    for each in of_topic
                ],
            )
            for topic, of_topic in _by_topic(offsets)
        ],
    )


def commit_errors(metadata: MetadataCache, answer: OffsetCommitResponse) -> dict[TopicPartition, int]:
    """The partitions that were not committed, with their codes."""
    return {
        TopicPartition(_name(metadata, topic.name, topic.topic_id), each.partition_index): each.error_code
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code != ErrorCode.NONE
    }


def fetch_request(
    metadata: MetadataCache, group_id: str, partitions: Collection[TopicPartition], require_stable: bool
) -> Versioned:
    def build(version: int) -> OffsetFetchRequest:
        topics = [(topic, [each.partition for each in of_topic]) for topic, of_topic in _by_topic(partitions)]
        if version < FIRST_BATCHED_FETCH:
            return OffsetFetchRequest(
                group_id=group_id,
                topics=[
                    OffsetFetchRequestTopic(name=name, partition_indexes=numbers) for name, numbers in topics
                ],
                require_stable=require_stable and version >= FIRST_REQUIRE_STABLE,
            )
        group = OffsetFetchRequestGroup(
            group_id=group_id,
            topics=[
                OffsetFetchRequestTopics(
                    name=name, topic_id=_topic_id(metadata, name), partition_indexes=numbers
                )
                for name, numbers in topics
            ],
        )
        return OffsetFetchRequest(groups=[group], require_stable=require_stable)

    return Versioned(OffsetFetchRequest, build)


def fetched_offsets(
    metadata: MetadataCache, answer: OffsetFetchResponse
) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition | None, int]]:
    """What is committed, and the codes of what could not be told; None stands for the whole group."""
    group = answer.groups[0] if answer.groups else answer
    found: dict[TopicPartition, CommittedOffset] = {}
    errors: dict[TopicPartition | None, int] = {}
    if group.error_code != ErrorCode.NONE:
        errors[None] = group.error_code
    for topic in group.topics:
        name = _name(metadata, topic.name, getattr(topic, "topic_id", ZERO_TOPIC_ID))
        for each in topic.partitions:
            partition = TopicPartition(name, each.partition_index)
            if each.error_code != ErrorCode.NONE:
                errors[partition] = each.error_code
            elif each.committed_offset >= 0:
                found[partition] = CommittedOffset(
                    each.committed_offset, each.metadata or "", each.committed_leader_epoch
                )
    return found, errors


def _by_topic(
    partitions: Collection[TopicPartition] | Mapping[TopicPartition, object],
) -> Iterator[tuple[str, Iterator[TopicPartition]]]:
    return groupby(sorted(partitions), key=lambda each: each.topic)


def _topic_id(metadata: MetadataCache, topic: str) -> bytes:
    known = metadata.topics.get(topic)
    return ZERO_TOPIC_ID if known is None else known.topic_id


def _name(metadata: MetadataCache, name: str, topic_id: bytes) -> str:
    return name or metadata.name_of(topic_id) or "a topic that is gone"


def listed(partitions: Collection[TopicPartition] | Mapping[TopicPartition, object]) -> str:
    """The first few partitions, for texts."""
    names = [str(each) for each in sorted(partitions)]
    shown = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown or "nothing"
