"""Topics and partitions: create, delete, list, describe, add partitions.

Calls that change topics return when a broker's metadata shows the change, with leaders. So a user can send to
a topic right after creating it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from klamm.client.admin.calls import AdminCalls, Again, Outcome
from klamm.client.admin.configs import config_source, setting_text
from klamm.client.admin.types import (
    ConfigEntry,
    CreatedTopic,
    NewTopic,
    PartitionDescription,
    TopicDescription,
)
from klamm.client.arguments import as_name
from klamm.client.errors import BrokerError, ClientError, ClientMisused, UnsupportedRequest
from klamm.client.network.network import Versioned
from klamm.model.errors import ErrorCode
from klamm.model.ids import topic_id_text
from klamm.protocol.messages.k03_metadata import MetadataResponsePartition, MetadataResponseTopic
from klamm.protocol.messages.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.k37_create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from klamm.protocol.messages.k75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponsePartition,
    TopicRequest,
)

_BY_DEFAULT = -1
_FIRST_DELETE_BY_STATE = 6

MetadataCheck = Callable[[str, MetadataResponseTopic], bool]


# ---- create


async def create_topics(
    calls: AdminCalls, topics: Sequence[NewTopic], validate_only: bool, timeout: float | None
) -> dict[str, CreatedTopic]:
    for topic in topics:
        _check(topic)
    wanted = {topic.name: topic for topic in topics}
    if len(wanted) < len(topics):
        raise ClientMisused("a topic is named twice", advice="Give each topic once")
    before = await _ids(calls, wanted, timeout)
    answers_lost = False

    async def ask(names: list[str]) -> dict[str, Outcome[CreatedTopic]]:
        nonlocal answers_lost
        request = CreateTopicsRequest(
            topics=[_creatable(wanted[name]) for name in names],
            timeout_ms=round(calls.limit(timeout) * 1000),
            validate_only=validate_only,
        )
        try:
            response = await calls.call_controller(request)
        except ClientError:
            answers_lost = True
            raise
        return {
            one.name: _created(calls, one, may_be_ours=answers_lost and one.name not in before)
            for one in response.topics
        }

    created, failed = await calls.ask_about_partly("creating topics", wanted, ask, timeout)
    if not validate_only:
        await _wait(calls, "waiting for new topics", created, lambda _, one: _has_leaders(one), timeout)
    if failed is not None:
        raise failed
    return created


def _check(topic: NewTopic) -> None:
    """Raise ClientMisused for values that the request cannot carry."""
    if not isinstance(topic, NewTopic):
        raise ClientMisused(
            f"{topic!r} is not a NewTopic", advice='Give one: NewTopic("orders", partitions=3)'
        )
    as_name(topic.name, "topic")
    for what, number in (("partitions", topic.partitions), ("replication_factor", topic.replication_factor)):
        if number is not None and not isinstance(number, int):
            raise ClientMisused(
                f"{what}={number!r} of topic {topic.name!r} is not a number", advice="Give a whole number"
            )


def _creatable(topic: NewTopic) -> CreatableTopic:
    if topic.assignments is not None and (topic.partitions or topic.replication_factor):
        raise ClientMisused(
            f"topic {topic.name!r} has assignments, and a number of partitions or replicas as well",
            advice="Give either the brokers of each partition, or the numbers",
        )
    return CreatableTopic(
        name=topic.name,
        num_partitions=_BY_DEFAULT if topic.partitions is None else topic.partitions,
        replication_factor=_BY_DEFAULT if topic.replication_factor is None else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in (topic.assignments or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=name, value=setting_text(name, value))
            for name, value in topic.configs.items()
        ],
    )


def _created(calls: AdminCalls, topic: CreatableTopicResult, *, may_be_ours: bool) -> Outcome[CreatedTopic]:
    code = topic.error_code
    if code == ErrorCode.TOPIC_ALREADY_EXISTS and may_be_ours:
        code = ErrorCode.NONE  # an earlier attempt, whose answer was lost, has created it
    if code != ErrorCode.NONE:
        return calls.failure(code, f"creating topic {topic.name!r}", topic.error_message)
    configs = {
        one.name: ConfigEntry(
            one.name, one.value, config_source(one.config_source), one.read_only, one.is_sensitive
        )
        for one in topic.configs or ()
    }
    topic_id = topic_id_text(topic.topic_id) if any(topic.topic_id) else ""
    return CreatedTopic(topic.name, topic_id, topic.num_partitions, topic.replication_factor, configs)


async def create_partitions(
    calls: AdminCalls,
    topic: str,
    total: int,
    assignments: Sequence[Sequence[int]] | None,
    validate_only: bool,
    timeout: float | None,
) -> None:
    what = f"growing topic {topic!r} to {total} partitions"

    async def ask(names: list[str]) -> dict[str, Outcome[str]]:
        placed = None
        if assignments is not None:
            placed = [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments]
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=total, assignments=placed)],
            timeout_ms=round(calls.limit(timeout) * 1000),
            validate_only=validate_only,
        )
        return {
            one.name: calls.failure(one.error_code, what, one.error_message)
            if one.error_code != ErrorCode.NONE
            else one.name
            for one in (await calls.call_controller(request)).results
        }

    await calls.ask_about_one(what, topic, ask, timeout)
    if not validate_only:
        await _wait(
            calls,
            f"waiting for the new partitions of topic {topic!r}",
            [topic],
            lambda _, found: len(found.partitions) >= total and _has_leaders(found),
            timeout,
        )


# ---- delete


async def delete_topics(calls: AdminCalls, topics: Sequence[str], timeout: float | None) -> None:
    before = await _ids(calls, topics, timeout)
    answers_lost = False

    async def ask(names: list[str]) -> dict[str, Outcome[str]]:
        nonlocal answers_lost
        try:
            response = await calls.call_controller(_deletion(names, calls.limit(timeout)))
        except ClientError:
            answers_lost = True
            raise
        outcomes: dict[str, Outcome[str]] = {}
        for one in response.responses:
            # An earlier attempt, whose answer was lost, may have deleted it.
            missing = one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            gone = missing and answers_lost and one.name in before
            if one.error_code == ErrorCode.NONE or gone:
                outcomes[one.name] = one.name
            else:
                what = f"deleting topic {one.name!r}"
                outcomes[one.name] = calls.failure(one.error_code, what, one.error_message)
        return outcomes

    deleted, failed = await calls.ask_about_partly("deleting topics", topics, ask, timeout)
    await _wait(
        calls,
        "waiting until deleted topics are gone",
        deleted,
        lambda name, topic: topic.error_code != ErrorCode.NONE or topic.topic_id != before.get(name),
        timeout,
    )
    if failed is not None:
        raise failed


def _deletion(names: list[str], seconds: float) -> Versioned:
    def build(version: int) -> DeleteTopicsRequest:
        timeout_ms = round(seconds * 1000)
        if version < _FIRST_DELETE_BY_STATE:
            return DeleteTopicsRequest(topic_names=names, timeout_ms=timeout_ms)
        return DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names], timeout_ms=timeout_ms
        )

    return Versioned(DeleteTopicsRequest, build)


# ---- look


async def list_topics(calls: AdminCalls, include_internal: bool, timeout: float | None) -> list[str]:
    found = await calls.network.retrying("listing topics", calls.limit(timeout), lambda: calls.metadata(None))
    return sorted(topic.name or "" for topic in found.topics if include_internal or not topic.is_internal)


async def describe_topics(
    calls: AdminCalls, topics: Sequence[str] | None, timeout: float | None
) -> dict[str, TopicDescription]:
    if topics is None:
        return await calls.network.retrying(
            "describing all topics", calls.limit(timeout), lambda: _describe_all(calls)
        )
    return await calls.ask_about("describing topics", topics, lambda names: _describe(calls, names), timeout)


async def _describe_all(calls: AdminCalls) -> dict[str, TopicDescription]:
    outcomes = await _describe(calls, [])
    # A topic that was deleted between two pages is not an error.
    return {name: one for name, one in sorted(outcomes.items()) if isinstance(one, TopicDescription)}


async def _describe(calls: AdminCalls, names: list[str]) -> dict[str, Outcome[TopicDescription]]:
    """Describe these topics, page by page; no names mean all. Brokers older than Kafka 3.8 only have
    Metadata."""
    outcomes: dict[str, Outcome[TopicDescription]] = {}
    cursor: Cursor | None = None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in sorted(names)], cursor=cursor
        )
        try:
            page = await calls.call_any(request)
        except UnsupportedRequest:
            return await _describe_by_metadata(calls, names)
        for topic in page.topics:
            name = topic.name or ""
            if topic.error_code != ErrorCode.NONE:
                outcomes[name] = calls.failure(topic.error_code, f"describing topic {name!r}")
                continue
            before = outcomes.get(name)
            earlier = before.partitions if isinstance(before, TopicDescription) else ()
            described = tuple(_described(partition) for partition in topic.partitions)
            outcomes[name] = TopicDescription(
                name, topic_id_text(topic.topic_id), topic.is_internal, earlier + described
            )
        behind, cursor = cursor, page.next_cursor
        if cursor is None:
            return outcomes
        if behind is not None and _place(cursor) <= _place(behind):
            raise BrokerError.of(
                ErrorCode.UNKNOWN_SERVER_ERROR, "describing topics", "the broker repeats pages of its answer"
            )


def _place(cursor: Cursor) -> tuple[str, int]:
    return cursor.topic_name, cursor.partition_index


async def _describe_by_metadata(calls: AdminCalls, names: list[str]) -> dict[str, Outcome[TopicDescription]]:
    outcomes: dict[str, Outcome[TopicDescription]] = {}
    for topic in (await calls.metadata(names or None)).topics:
        name = topic.name or ""
        if topic.error_code != ErrorCode.NONE:
            outcomes[name] = calls.failure(topic.error_code, f"describing topic {name!r}")
            continue
        partitions = sorted(topic.partitions, key=lambda one: one.partition_index)
        outcomes[name] = TopicDescription(
            name,
            topic_id_text(topic.topic_id),
            topic.is_internal,
            tuple(_described(partition) for partition in partitions),
        )
    return outcomes


def _described(
    partition: DescribeTopicPartitionsResponsePartition | MetadataResponsePartition,
) -> PartitionDescription:
    return PartitionDescription(
        partition.partition_index,
        partition.leader_id if partition.leader_id >= 0 else None,
        partition.leader_epoch,
        tuple(partition.replica_nodes),
        tuple(partition.isr_nodes),
        tuple(partition.offline_replicas),
        tuple(getattr(partition, "eligible_leader_replicas", None) or ()),
        tuple(getattr(partition, "last_known_elr", None) or ()),
    )


# ---- before and after


async def _ids(calls: AdminCalls, topics: Iterable[str], timeout: float | None) -> dict[str, bytes]:
    """The ids of those of the topics that exist."""
    names = list(topics)
    found = await calls.network.retrying(
        "looking for topics", calls.limit(timeout), lambda: calls.metadata(names)
    )
    return {one.name or "": one.topic_id for one in found.topics if one.error_code == ErrorCode.NONE}


def _has_leaders(topic: MetadataResponseTopic) -> bool:
    return bool(topic.partitions) and all(one.leader_id >= 0 for one in topic.partitions)


async def _wait(
    calls: AdminCalls, what: str, topics: Iterable[str], is_done: MetadataCheck, timeout: float | None
) -> None:
    """Wait until `is_done` is true for the metadata of each topic."""

    async def ask(names: list[str]) -> dict[str, Outcome[str]]:
        outcomes: dict[str, Outcome[str]] = {}
        for topic in (await calls.metadata(names)).topics:
            name = topic.name or ""
            code = topic.error_code or ErrorCode.LEADER_NOT_AVAILABLE
            outcomes[name] = name if is_done(name, topic) else Again(calls.failure(code, f"{what}: {name!r}"))
        return outcomes

    await calls.ask_about(what, topics, ask, timeout)
