"""The checks: each is a function from facts to findings. A core.

A finding says what is wrong, where, and what to do. Everything that a check needs to know is in `Facts`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from klamm.client.admin.types import PartitionDescription
from klamm.client.results import TopicPartition
from klamm.operating.brokers import Disk
from klamm.operating.checkup.facts import Facts, GroupFacts

ERROR, WARNING = "error", "warning"

FULL_SHARE = 0.95
"""A disk that is fuller than this stops its broker soon: it is an error."""

MOST_FUTURE_MS = 60_000
"""How far a record's time may be ahead of our clock: clocks differ by seconds where nobody cares."""

MOST_NAMED = 3
"""Partitions that a finding names, of many."""

OFFSETS_TOPIC = "__consumer_offsets"

REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
LOCAL_HOSTS = ("localhost:", "127.", "[::1]:", "0.0.0.0:")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: with what (`where`), what it is, and what to do."""

    check: str
    severity: str
    where: str
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on a check complains."""

    disk_share: float = 0.85


Check = Callable[[Facts, Limits], Iterator[Finding]]


def findings(facts: Facts, limits: Limits) -> list[Finding]:
    """What is wrong, errors first."""
    found = [finding for check in CHECKS for finding in check(facts, limits)]
    return sorted(found, key=lambda each: each.severity != ERROR)


# ---- reaching the cluster


def check_bootstrap(facts: Facts, limits: Limits) -> Iterator[Finding]:
    for each in facts.bootstrap:
        if each.problem:
            yield Finding(
                "bootstrap",
                WARNING if facts.is_answered else ERROR,
                each.address,
                f"no broker answers at {each.address}: {each.problem}",
                "Start a broker there, or give another address: --bootstrap",
            )


def check_advertised_listeners(facts: Facts, limits: Limits) -> Iterator[Finding]:
    holders: dict[str, list[int]] = defaultdict(list)
    for each in facts.brokers:
        broker, contact = each.broker_id, each.contact
        holders[contact.address].append(broker)
        where = f"broker {broker}"
        if contact.problem:
            is_local = contact.address.startswith(LOCAL_HOSTS) and not any(
                one.address.startswith(LOCAL_HOSTS) for one in facts.bootstrap
            )
            hint = ", which each client takes for its own machine" if is_local else ""
            yield Finding(
                "advertised listener",
                ERROR,
                where,
                f"broker {broker} advertises {contact.address}{hint}, and does not answer there: "
                f"{contact.problem}",
                f"If broker {broker} runs, set its advertised.listeners to an address that clients reach; if "
                "not, start it",
            )
        elif contact.cluster_id != facts.cluster_id:
            yield Finding(
                "advertised listener",
                ERROR,
                where,
                f"broker {broker} advertises {contact.address}, where another cluster answers: "
                f"{contact.cluster_id}",
                f"Set advertised.listeners of broker {broker} to an address of its own",
            )
    for address, brokers in holders.items():
        if len(brokers) > 1:
            named = _enumerated(brokers, "and")
            yield Finding(
                "advertised listener",
                ERROR,
                f"brokers {named}",
                f"brokers {named} all advertise {address}: clients reach only one of them",
                "Set advertised.listeners of each to an address of its own",
            )


def check_controller(facts: Facts, limits: Limits) -> Iterator[Finding]:
    if not facts.is_answered:
        return
    if facts.controller_id is None:
        yield Finding(
            "controller",
            ERROR,
            "cluster",
            "there is no controller: topics cannot be changed, and no leader is elected",
            "Look whether brokers reach the coordination store (klamm.coordination.url), and at their logs",
        )
        return
    reached = {each.broker_id: each.contact for each in facts.brokers}
    contact = reached.get(facts.controller_id)
    if contact is None or contact.problem:
        yield Finding(
            "controller",
            ERROR,
            f"broker {facts.controller_id}",
            f"the controller, broker {facts.controller_id}, does not answer",
            "Another broker takes over when its session ends; if none does, start it again",
        )


# ---- partitions


def check_offline_partitions(facts: Facts, limits: Limits) -> Iterator[Finding]:
    offline: dict[tuple[int, ...], list[TopicPartition]] = defaultdict(list)
    for partition, each in _partitions(facts):
        if each.leader is None:
            offline[tuple(sorted(each.replicas))].append(partition)
    for replicas, partitions in offline.items():
        gone = [each for each in replicas if each not in {one.broker_id for one in facts.brokers}]
        start = f"Start broker {_enumerated(gone or replicas)}"
        yield Finding(
            "offline partition",
            ERROR,
            _named(partitions),
            f"{_count(partitions)} without a leader: nobody reads or writes {_them(partitions)}. Replicas "
            f"are on broker {_enumerated(replicas)}",
            f"{start}. If its data is lost, elect another replica at the price of records: "
            "klamm cluster elect unclean --topic …",
        )


def check_replicas(facts: Facts, limits: Limits) -> Iterator[Finding]:
    lagging: dict[int, list[TopicPartition]] = defaultdict(list)
    refusing: list[TopicPartition] = []
    for partition, each in _partitions(facts):
        for broker in set(each.replicas) - set(each.in_sync_replicas):
            lagging[broker].append(partition)
        least = facts.least_in_sync.get(partition.topic, 1)
        if each.leader is not None and len(each.in_sync_replicas) < least <= len(each.replicas):
            refusing.append(partition)
    alive = {each.broker_id for each in facts.brokers}
    for broker, partitions in sorted(lagging.items()):
        if broker in alive:
            is_what, advice = "is behind", f"Look at the log, the disk and the network of broker {broker}"
        else:
            is_what, move = "is gone, and out of sync", f"klamm cluster reassign --from-broker {broker}"
            advice = f"Start broker {broker}, or move its replicas: {move}"
        what = f"broker {broker} {is_what} in {_count(partitions)}: {_named(partitions)}"
        yield Finding("replica", WARNING, f"broker {broker}", what, advice)
    if refusing:
        yield Finding(
            "replica",
            ERROR,
            _named(refusing),
            f"{_count(refusing)} with fewer replicas in sync than min.insync.replicas: producers with "
            "acks=all are refused",
            "Bring the missing replicas back, or lower min.insync.replicas of the topic: klamm config set",
        )


def check_disks(facts: Facts, limits: Limits) -> Iterator[Finding]:
    for broker, disks in sorted(facts.disks.items()):
        for disk in disks:
            yield from _check_disk(broker, disk, limits.disk_share)


def _check_disk(broker: int, disk: Disk, most_share: float) -> Iterator[Finding]:
    where = f"broker {broker}, {disk.path}"
    if disk.error:
        yield Finding(
            "disk",
            ERROR,
            where,
            f"broker {broker} cannot use its log directory {disk.path}: {disk.error}",
            "Repair the disk and restart the broker; other replicas lead meanwhile",
        )
    elif disk.used_share is not None and disk.used_share >= most_share:
        yield Finding(
            "disk",
            ERROR if disk.used_share >= FULL_SHARE else WARNING,
            where,
            f"the disk of {disk.path} on broker {broker} is {disk.used_share:.0%} full; replicas have "
            f"{disk.replica_bytes / 1e9:,.1f} GB of it",
            "Lower retention.ms or retention.bytes of large topics, move replicas to other brokers (klamm "
            "cluster reassign), or give the broker a larger disk",
        )


def check_clocks(facts: Facts, limits: Limits) -> Iterator[Finding]:
    ahead = {
        partition: (newest - facts.now_ms) / 1000
        for partition, newest in facts.newest_ms.items()
        if newest > facts.now_ms + MOST_FUTURE_MS
    }
    if not ahead:
        return
    by_brokers = any(each.topic == OFFSETS_TOPIC for each in ahead)
    whose = "a broker or this machine" if by_brokers else "a producer or this machine"
    yield Finding(
        "clock",
        WARNING,
        _named(list(ahead)),
        f"{_count(list(ahead))} with records from the future, up to {_duration(max(ahead.values()))} ahead "
        "of this machine's clock: retention by time keeps them until then",
        f"Compare clocks: that of {whose} is wrong",
    )


# ---- groups


def check_coordinators(facts: Facts, limits: Limits) -> Iterator[Finding]:
    topic = facts.topics.get(OFFSETS_TOPIC)
    partitions = () if topic is None else topic.partitions
    dead = [each for each in partitions if each.leader is None]
    if dead:
        replicas = sorted({broker for each in dead for broker in each.replicas})
        yield Finding(
            "coordinator",
            ERROR,
            OFFSETS_TOPIC,
            f"{len(dead)} of {len(partitions)} partitions of {OFFSETS_TOPIC} have no leader: the groups that "
            "they keep have no coordinator, and neither commit nor rebalance",
            f"Start broker {_enumerated(replicas)}, and give {OFFSETS_TOPIC} more replicas: klamm cluster "
            f"reassign --topic {OFFSETS_TOPIC} --replicas 3",
        )
    by_error: dict[str, list[str]] = defaultdict(list)
    for group, error in facts.unanswered.items():
        by_error[error].append(group)
    for error, groups in by_error.items():
        yield Finding(
            "coordinator",
            ERROR,
            _some(groups),
            f"the coordinator of {_some(groups)} does not answer: {error}",
            "Look at the broker that coordinates it: klamm cluster status",
        )


def check_groups(facts: Facts, limits: Limits) -> Iterator[Finding]:
    for group, each in sorted(facts.groups.items()):
        yield from _check_group(group, each, facts.pause_s)


def _check_group(group: str, facts: GroupFacts, pause_s: float) -> Iterator[Finding]:
    before, after = facts.before, facts.after
    if after is None:
        return
    where = f"group {group}"
    describe = f"klamm group describe {group}"
    if before.state in REBALANCING and after.state in REBALANCING:
        yield Finding(
            "group",
            ERROR,
            where,
            f"group {group} has been rebalancing for {pause_s:g} s or more: its members read nothing",
            f"A member does not answer, or members come and go. See who is in it: {describe}",
        )
        return

    def grew(partition: TopicPartition) -> bool:
        return facts.ends_after.get(partition, 0) > facts.ends_before.get(partition, 0)

    stuck = [
        partition
        for partition, offset in after.committed.items()
        if before.committed.get(partition) == offset < facts.ends_before.get(partition, 0) and grew(partition)
    ]
    silent = [each for each in after.owned if each not in after.committed and grew(each)]
    lag = sum(facts.ends_after[each] - after.committed[each] for each in stuck)
    if stuck and after.members:
        yield Finding(
            "group",
            ERROR,
            where,
            f"group {group} is stuck at {_named(stuck)}: in {pause_s:g} s it has committed nothing, and its "
            f"lag grows: {lag:,}",
            f"See which member owns {_them(stuck)}, and look at its log: {describe}",
        )
    elif stuck:
        yield Finding(
            "group",
            WARNING,
            where,
            f"group {group} has no members, and its lag grows: {lag:,} in {_named(stuck)}",
            f"Start its consumers. If it is not needed any more: klamm group delete {group}",
        )
    if silent:
        yield Finding(
            "group",
            WARNING,
            where,
            f"group {group} commits nothing of {_named(silent)}, which its members own: after a restart they "
            "begin anew",
            "Have the consumer commit (enable.auto.commit, or commit by itself)",
        )


# ---- pipelines


def check_pipelines(facts: Facts, limits: Limits) -> Iterator[Finding]:
    for each in facts.pipelines:
        if each.state in ("failed", "killed"):
            error = f": {each.error}" if each.error else ""
            yield Finding(
                "pipeline",
                ERROR,
                f"pipeline {each.pipeline}",
                f"pipeline {each.pipeline} {'has failed' if each.state == 'failed' else 'was killed'}{error}",
                "Correct the cause, and go on where it stopped: klamm pipeline run",
            )
        elif each.state == "retrying":
            yield Finding(
                "pipeline",
                WARNING,
                f"pipeline {each.pipeline}",
                f"pipeline {each.pipeline} fails and is started again and again: {each.error}",
                "Correct the cause before its retries are used up: klamm pipeline status",
            )


CHECKS: tuple[Check, ...] = (
    check_bootstrap,
    check_advertised_listeners,
    check_controller,
    check_offline_partitions,
    check_replicas,
    check_disks,
    check_coordinators,
    check_groups,
    check_pipelines,
    check_clocks,
)


# ---- words


def _partitions(facts: Facts) -> Iterator[tuple[TopicPartition, PartitionDescription]]:
    for name in sorted(facts.topics):
        for each in facts.topics[name].partitions:
            yield TopicPartition(name, each.partition), each


def _named(partitions: Iterable[TopicPartition]) -> str:
    return _some([str(each) for each in sorted(partitions)])


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _count(partitions: list[TopicPartition]) -> str:
    return f"{len(partitions):,} partition{'' if len(partitions) == 1 else 's'}"


def _them(partitions: list[TopicPartition]) -> str:
    return "it" if len(partitions) == 1 else "them"


def _enumerated(brokers: Iterable[int], last_word: str = "or") -> str:
    *first, last = [str(each) for each in sorted(brokers)]
    return f"{', '.join(first)} {last_word} {last}" if first else last


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} seconds"
