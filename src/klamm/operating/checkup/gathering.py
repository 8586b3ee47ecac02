"""Gathers the facts for the checks: what brokers answer at each address, and the state of the project here.

Brokers that do not answer are what is looked for: an error is a fact, and each question has a short time
limit (ANSWER_LIMIT_S), which the caller gives to the admins that it makes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from klamm.client.admin.types import ClusterDescription, ConfigResource, GroupDescription, TopicDescription
from klamm.client.errors import BatchFailed, ClientError
from klamm.client.network.addresses import BrokerAddress
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.operating.brokers import disks_of
from klamm.operating.checkup.facts import BrokerFacts, Contact, Facts, GroupFacts, GroupLook, PipelineFacts
from klamm.operating.offsets import last_offsets, led_partitions
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import Project, nearest_project
from klamm.pipelines.status import read_status

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin

Item = TypeVar("Item")
Value = TypeVar("Value")

ANSWER_LIMIT_S = 5.0
"""How long a broker may take for an answer before it counts as not answering: the default time-out of the
admins that are passed."""

MOST_TIMES = 2_000
"""The most partitions whose newest timestamps are asked for: brokers look them up one by one."""

DEFAULT_PAUSE_S = 10.0
"""The time between the two looks at groups: consumers commit every 5 s unless told otherwise."""

Connect = Callable[[str], "Admin"]
"""Makes an admin that begins at one address."""


async def gather(
    connect: Connect,
    bootstrap: Sequence[str],
    *,
    pause_s: float = DEFAULT_PAUSE_S,
    folder: Path | None = None,
    on_pause: Callable[[], None] = lambda: None,
) -> Facts:
    """The facts of the cluster at these addresses, and of the project in `folder` or above. `on_pause` is
    called before the pause between the two looks at groups."""
    pipelines = _pipelines(folder)
    tried = await asyncio.gather(*(_contact(connect, each) for each in bootstrap))
    contacts = tuple(contact for contact, _ in tried)
    cluster = next((each for _, each in tried if each is not None), None)
    if cluster is None:
        return Facts(contacts, pipelines=pipelines)
    reached = next(contact.address for contact, each in tried if each is not None)
    addresses = [BrokerAddress(each.broker_id, each.host, each.port).endpoint for each in cluster.brokers]
    answers = await asyncio.gather(*(_contact(connect, each) for each in addresses))
    brokers = tuple(
        BrokerFacts(each.broker_id, contact)
        for each, (contact, _) in zip(cluster.brokers, answers, strict=True)
    )
    async with connect(reached) as admin:
        # Each waits for the brokers that do not answer: all of them at the same time.
        topics, directories, (before, unanswered) = await asyncio.gather(
            _or_nothing(admin.describe_topics(None)),
            _or_nothing(admin.describe_log_dirs()),
            _groups(admin),
        )
        ends_before = await last_offsets(admin, _partitions_of(before))
        newest = await _newest(admin, topics)
        least = await _least_in_sync(admin, topics)
        after: dict[str, GroupLook] = {}
        ends_after: dict[TopicPartition, int] = {}
        if before:
            on_pause()
            await asyncio.sleep(pause_s)
            after, _ = await _look(admin, sorted(before))
            ends_after = await last_offsets(admin, _partitions_of(before))
    return Facts(
        contacts,
        cluster.cluster_id,
        cluster.controller_id,
        brokers,
        topics,
        least,
        {broker: disks_of(each) for broker, each in directories.items()},
        {name: GroupFacts(each, after.get(name), ends_before, ends_after) for name, each in before.items()},
        unanswered,
        newest,
        int(time.time() * 1000),
        pause_s,
        pipelines,
    )


async def _contact(connect: Connect, address: str) -> tuple[Contact, ClusterDescription | None]:
    """Ask for the cluster at one address."""
    try:
        async with connect(address) as admin:
            cluster = await admin.describe_cluster()
    except ClientError as error:
        return Contact(address, _cause(error)), None
    return Contact(address, "", cluster.cluster_id), cluster


def _cause(error: ClientError) -> str:
    """The innermost cause: that the address was asked for a while is no news."""
    while (cause := getattr(error, "cause", None)) is not None and isinstance(cause, ClientError):
        error = cause
    return str(error)


async def _or_nothing(call: Awaitable[dict[Item, Value]]) -> dict[Item, Value]:
    """What a call found in time. Whoever did not answer is found by other checks."""
    try:
        return await call
    except BatchFailed as failed:
        return failed.results
    except ClientError:
        return {}


# ---- groups


async def _groups(admin: Admin) -> tuple[dict[str, GroupLook], dict[str, str]]:
    return await _look(admin, await _group_names(admin))


async def _group_names(admin: Admin) -> list[str]:
    try:
        return [each.group for each in await admin.list_groups()]
    except BatchFailed as failed:
        return sorted({each.group for listed in failed.results.values() for each in listed})
    except ClientError:
        return []


async def _look(admin: Admin, names: Sequence[str]) -> tuple[dict[str, GroupLook], dict[str, str]]:
    """The groups, and the errors of those whose coordinators did not answer."""
    described, no_description = await _partly(admin.describe_groups(names), names)
    offsets, no_offsets = await _partly(admin.list_groups_offsets(names), names)
    looks = {
        name: _as_look(described[name], offsets[name])
        for name in names
        if name in described and name in offsets
    }
    errors = {
        name: str(error) for name, error in (no_description | no_offsets).items() if error.retriable
    }  # others: a group that has just been deleted, or that this user may not see
    return looks, errors


async def _partly(
    call: Awaitable[dict[str, Value]], names: Iterable[str]
) -> tuple[dict[str, Value], dict[str, ClientError]]:
    try:
        return await call, {}
    except BatchFailed as failed:
        return failed.results, failed.errors
    except ClientError as error:
        return {}, dict.fromkeys(names, error)


def _as_look(group: GroupDescription, committed: Mapping[TopicPartition, CommittedOffset]) -> GroupLook:
    return GroupLook(
        group.state,
        len(group.members),
        {partition: each.offset for partition, each in committed.items()},
        frozenset(partition for member in group.members for partition in member.partitions),
    )


def _partitions_of(looks: Mapping[str, GroupLook]) -> set[TopicPartition]:
    return {partition for each in looks.values() for partition in (*each.committed, *each.owned)}


# ---- partitions


async def _newest(admin: Admin, topics: Mapping[str, TopicDescription]) -> dict[TopicPartition, int]:
    """The largest timestamp of partitions, until there are too many."""
    wanted = [
        TopicPartition(topic.name, each.partition)
        for topic in sorted(topics.values(), key=lambda one: not one.internal)
        for each in topic.partitions
        if each.leader is not None
    ]
    led = await led_partitions(admin, wanted[:MOST_TIMES])
    found = await _or_nothing(admin.list_offsets(dict.fromkeys(led, "max_timestamp")))
    return {partition: each.timestamp for partition, each in found.items() if each is not None}


async def _least_in_sync(admin: Admin, topics: Mapping[str, TopicDescription]) -> dict[str, int]:
    lacking = [
        topic.name
        for topic in topics.values()
        if any(len(each.in_sync_replicas) < len(each.replicas) for each in topic.partitions)
    ]
    key = "min.insync.replicas"
    found = await _or_nothing(admin.describe_configs([ConfigResource.topic(each) for each in lacking], [key]))
    values = {resource.name: entries[key].value for resource, entries in found.items() if key in entries}
    return {name: int(value) for name, value in values.items() if value is not None}


# ---- pipelines


def _pipelines(folder: Path | None) -> tuple[PipelineFacts, ...]:
    root = None if folder is None else nearest_project(folder)
    if root is None:
        return ()
    try:
        statuses = read_status(Project.load(root))
    except PipelineError as error:
        return (PipelineFacts(root.name, "failed", str(error)),)
    return tuple(PipelineFacts(each.pipeline, each.state, each.error, each.dead_letters) for each in statuses)
