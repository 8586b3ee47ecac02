"""Moving partitions between brokers, and electing their leaders.

layout = await layout_of(admin)
changes = drain(layout, layout.replicas, [2])             # or spread, change_factor, explicit: placing.py
await begin(admin, changes, throttle_bytes=10_000_000)    # the rate of copying, in bytes a second
moves = await moves_under_way(admin)                      # until there are none; how much is copied
await unthrottle(admin, {each.partition.topic for each in changes}, layout.racks)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.client.admin.types import ConfigChange, ConfigResource
from klamm.client.errors import BatchFailed
from klamm.client.results import TopicPartition
from klamm.operating.brokers import log_directories
from klamm.operating.errors import CannotDo
from klamm.operating.placing import Change, Layout
from klamm.operating.seeking import TopicChoice, is_chosen

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin
    from klamm.client.admin.types import PartitionReassignment

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Settings of brokers: bytes a second that throttled replicas are sent, and fetch."""

THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Settings of topics: the replicas that are throttled, as partition:broker."""


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition on its way to other brokers. `copied_bytes` of `total_bytes` are on the new brokers; None
    if the brokers do not say."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    copied_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Election:
    """A partition that can get another leader. `leader` is None if it has none, `preferred` its first
    replica."""

    partition: TopicPartition
    leader: int | None
    preferred: int


# ---- moving


async def layout_of(admin: Admin) -> Layout:
    """The living brokers with their racks, and the replicas of all partitions."""
    cluster = await admin.describe_cluster()
    topics = await admin.describe_topics(None)
    replicas = {
        TopicPartition(topic.name, each.partition): each.replicas
        for topic in topics.values()
        for each in topic.partitions
    }
    return Layout({each.broker_id: each.rack for each in cluster.brokers if not each.fenced}, replicas)


async def sizes_of(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The size of the largest replica of each partition, which is what a new replica copies at most."""
    wanted = set(partitions)
    directories, _ = await log_directories(admin)
    sizes: dict[TopicPartition, int] = {}
    for each in directories.values():
        for directory in each:
            for partition, replica in directory.replicas.items():
                if partition in wanted:
                    sizes[partition] = max(sizes.get(partition, 0), replica.size_bytes)
    return sizes


async def begin(admin: Admin, changes: Sequence[Change], throttle_bytes: int | None = None) -> None:
    """Begin to move partitions, and return when all moves have begun. Copying goes on in the brokers.

    `throttle_bytes` limits what each broker sends and fetches for it, in bytes a second, until `unthrottle`.
    BatchFailed names the partitions that cannot move.
    """
    if throttle_bytes is not None:
        await _throttle(admin, changes, throttle_bytes)
    await admin.alter_partition_reassignments({each.partition: each.new for each in changes})


async def moves_under_way(
    admin: Admin, partitions: Iterable[TopicPartition] | None = None
) -> list[PartitionMove]:
    """The partitions that are on their way, by name, with what is copied. None means all."""
    found = await admin.list_partition_reassignments(partitions)
    if not found:
        return []
    directories, _ = await log_directories(admin)
    sizes: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
    for broker, each in directories.items():
        for directory in each:
            for partition, replica in directory.replicas.items():
                if partition in found and not replica.future:
                    sizes[partition][broker] = replica.size_bytes
    return [_move(partition, found[partition], sizes[partition]) for partition in sorted(found)]


def _move(partition: TopicPartition, move: PartitionReassignment, sizes: Mapping[int, int]) -> PartitionMove:
    adding = move.adding_replicas
    whole = max((size for broker, size in sizes.items() if broker not in adding), default=None)
    copied = None if whole is None else sum(min(sizes.get(broker, 0), whole) for broker in adding)
    total = None if whole is None else whole * len(adding)
    return PartitionMove(partition, move.replicas, adding, move.removing_replicas, copied, total)


async def cancel(admin: Admin, partitions: Iterable[TopicPartition]) -> None:
    """Have the partitions stay where they were. BatchFailed names those that do not move any more."""
    await admin.alter_partition_reassignments(dict.fromkeys(partitions, None))


async def _throttle(admin: Admin, changes: Sequence[Change], bytes_per_second: int) -> None:
    lists: dict[str, dict[str, list[str]]] = defaultdict(lambda: {key: [] for key in THROTTLED})
    brokers: set[int] = set()
    for each in changes:
        if not each.adding:
            continue
        brokers.update((*each.old, *each.adding))
        leaders, followers = (lists[each.partition.topic][key] for key in THROTTLED)
        leaders += [f"{each.partition.partition}:{broker}" for broker in each.old]
        followers += [f"{each.partition.partition}:{broker}" for broker in each.adding]
    rates = ConfigChange(set=dict.fromkeys(RATES, bytes_per_second))
    wanted = {ConfigResource.broker(each): rates for each in sorted(brokers)}
    wanted |= {ConfigResource.topic(topic): ConfigChange(append=keys) for topic, keys in lists.items()}
    if wanted:
        await admin.alter_configs(wanted)


async def unthrottle(admin: Admin, topics: Iterable[str], brokers: Iterable[int]) -> None:
    """Take back the limits of `begin`: of these topics, and of these brokers, which must be alive."""
    wanted = {ConfigResource.broker(each): ConfigChange(delete=RATES) for each in brokers}
    wanted |= {ConfigResource.topic(each): ConfigChange(delete=THROTTLED) for each in topics}
    if wanted:
        await admin.alter_configs(wanted)


async def throttled(admin: Admin) -> tuple[list[str], list[int]]:
    """The topics and the living brokers whose replication is limited."""
    layout = await layout_of(admin)
    topics = sorted({each.topic for each in layout.replicas})
    resources = [ConfigResource.topic(each) for each in topics]
    resources += [ConfigResource.broker(each) for each in layout.racks]
    try:
        found = await admin.describe_configs(resources, [*RATES, *THROTTLED])
    except BatchFailed as failed:  # a topic or a broker that has just gone
        found = failed.results
    limited = {
        resource
        for resource, entries in found.items()
        for each in entries.values()
        if each.value and not each.is_default
    }
    return (
        [each for each in topics if ConfigResource.topic(each) in limited],
        [each for each in sorted(layout.racks) if ConfigResource.broker(each) in limited],
    )


# ---- leaders


async def plan_election(
    admin: Admin, topics: Sequence[TopicChoice] = (), *, unclean: bool = False
) -> list[Election]:
    """The partitions that need an election: those that another than their preferred replica leads, or with
    `unclean` those without a leader. `topics` limits them.

    Raises CannotDo for a partition that is not there, UnknownTopic in BatchFailed for a topic.
    """
    names = sorted({each.topic for each in topics}) or None
    described = await admin.describe_topics(names)
    for choice in topics:
        there = {each.partition for each in described[choice.topic].partitions}
        if unknown := sorted((choice.partitions or frozenset()) - there):
            raise CannotDo(f"{choice.topic} has no partition {unknown[0]}: it has 0 to {max(there)}")
    found = []
    for topic in described.values():
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition)
            needed = each.leader is None if unclean else each.leader != each.replicas[0]
            if needed and (not topics or is_chosen(partition, topics)):
                found.append(Election(partition, each.leader, each.replicas[0]))
    return found


async def elect(
    admin: Admin, elections: Collection[Election], *, unclean: bool = False
) -> dict[TopicPartition, bool]:
    """Hold the elections. True for partitions that have a new leader. An unclean election makes a replica the
    leader that may lack records: they are lost. BatchFailed names the partitions that got no leader."""
    return await admin.elect_leaders([each.partition for each in elections], unclean=unclean)
