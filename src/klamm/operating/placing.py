"""Which brokers partitions move to: to spread topics, to empty a broker, to have more or fewer replicas.

A core: it gets what is (`Layout`) and returns the new replicas of the partitions that change. A replica moves
only if it must: off a broker that is to be left, or onto one that has fewer replicas. A replica that is new
goes to a rack that has none of the partition where there is one, and there to the broker with the fewest.
The place in the list stays, so that the preferred leader, the first replica, changes only with its broker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from klamm.client.results import TopicPartition
from klamm.operating.errors import CannotDo

Replicas = tuple[int, ...]
Placement = Mapping[TopicPartition, Replicas]


@dataclass(frozen=True, slots=True)
class Layout:
    """The cluster: the racks of the living brokers, and the replicas of all partitions."""

    racks: Mapping[int, str | None]
    replicas: Placement
    loads: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if not self.loads:
            self.loads.update(broker for each in self.replicas.values() for broker in each)


@dataclass(frozen=True, slots=True)
class Change:
    """A partition's old and new replicas, the preferred leader first."""

    partition: TopicPartition
    old: Replicas
    new: Replicas

    @property
    def adding(self) -> Replicas:
        """The brokers that must copy the partition."""
        return tuple(each for each in self.new if each not in self.old)

    @property
    def removing(self) -> Replicas:
        """The brokers that delete their replica."""
        return tuple(each for each in self.old if each not in self.new)


def spread(
    layout: Layout,
    partitions: Collection[TopicPartition],
    brokers: Collection[int] | None = None,
    replication_factor: int | None = None,
) -> list[Change]:
    """Spread these partitions evenly over `brokers`, all living ones by default, with as few moves as that
    takes. Raises CannotDo if a broker is not there, or if there are too few."""
    allowed = _allowed(layout, brokers)
    placed = _placed(layout, partitions, allowed, replication_factor)
    _even_out(placed, layout.racks, allowed, layout.loads)
    _even_out_leaders(placed)
    return _changes(layout, placed)


def drain(layout: Layout, partitions: Collection[TopicPartition], leaving: Collection[int]) -> list[Change]:
    """Move the replicas of these partitions off the brokers that are to be left. Raises CannotDo if the other
    brokers are too few."""
    concerned = [each for each in partitions if not set(leaving).isdisjoint(layout.replicas[each])]
    allowed = set(layout.racks) - set(leaving)
    stays = {broker for each in concerned for broker in layout.replicas[each]} - set(leaving)
    # A replica on a broker that is down just now does not move: only what is on a leaving broker does.
    return _changes(layout, _placed(layout, concerned, allowed, None, keeps=allowed | stays))


def change_factor(
    layout: Layout, partitions: Collection[TopicPartition], replication_factor: int
) -> list[Change]:
    """Give these partitions more or fewer replicas; the others stay where they are."""
    allowed = set(layout.racks)
    keeps = allowed | {broker for each in partitions for broker in layout.replicas[each]}
    return _changes(layout, _placed(layout, partitions, allowed, replication_factor, keeps=keeps))


def explicit(layout: Layout, wanted: Placement) -> list[Change]:
    """The changes to a placement that is given whole. Raises CannotDo for partitions or brokers that are not
    there."""
    for partition, replicas in wanted.items():
        if partition not in layout.replicas:
            raise CannotDo(f"there is no partition {partition}")
        if missing := [each for each in replicas if each not in layout.racks]:
            raise CannotDo(f"{partition} cannot go to broker {missing[0]}, which is not there")
        if not replicas or len(set(replicas)) < len(replicas):
            raise CannotDo(f"{partition} needs replicas, each on another broker: not {list(replicas)}")
    return _changes(layout, dict(wanted))


# ---- the steps


def _allowed(layout: Layout, brokers: Collection[int] | None) -> set[int]:
    if brokers is None:
        return set(layout.racks)
    if missing := sorted(set(brokers) - set(layout.racks)):
        known = ", ".join(map(str, sorted(layout.racks)))
        raise CannotDo(f"there is no broker {missing[0]}: there are {known}")
    return set(brokers)


def _placed(
    layout: Layout,
    partitions: Collection[TopicPartition],
    allowed: Collection[int],
    replication_factor: int | None,
    keeps: Collection[int] | None = None,
) -> dict[TopicPartition, Replicas]:
    """The replicas of partitions on allowed brokers. `keeps` may have brokers that get nothing new."""
    placed: dict[TopicPartition, Replicas] = {}
    loads = Counter(layout.loads)
    kept_on = allowed if keeps is None else keeps
    own: Counter[int] = Counter(
        broker for each in partitions for broker in layout.replicas[each] if broker in kept_on
    )
    for partition in sorted(partitions):
        old = layout.replicas[partition]
        count = replication_factor or len(old)
        kept = [each for each in old if each in kept_on][:count]
        replicas: list[int | None] = [each if each in kept else None for each in old][:count]
        replicas += [None] * (count - len(replicas))
        for each in kept:
            if each not in replicas:  # it stood behind the last place
                replicas[replicas.index(None)] = each
        for index, place in enumerate(replicas):
            if place is not None:
                continue
            there = [each for each in (*kept, *replicas) if each is not None]
            candidates = [each for each in allowed if each not in there]
            if not candidates:
                raise CannotDo(
                    f"{partition} needs {count} brokers, and only {len(set(allowed) | set(kept))} may have it"
                )
            racks = {layout.racks.get(each) for each in there} - {None}
            chosen = min(
                candidates,
                key=lambda each: (layout.racks[each] in racks, own[each], loads[each], each),
            )
            replicas[index] = chosen
            own[chosen] += 1
            loads[chosen] += 1
        placed[partition] = tuple(each for each in replicas if each is not None)
    return placed


def _even_out(
    placed: dict[TopicPartition, Replicas],
    racks: Mapping[int, str | None],
    allowed: Collection[int],
    loads: Counter[int],
) -> None:
    """Move replicas from brokers with many to brokers with few, until they differ by one at most. Racks stay
    apart as they are."""
    own = Counter({broker: 0 for broker in allowed})
    own.update(broker for each in placed.values() for broker in each)
    on: dict[int, list[TopicPartition]] = {broker: [] for broker in own}
    for partition, replicas in placed.items():
        for broker in replicas:
            on[broker].append(partition)

    def move_one() -> bool:
        for full in sorted(own, key=lambda each: (-own[each], -loads[each], each)):
            for empty in sorted(own, key=lambda each: (own[each], loads[each], each)):
                if own[full] - own[empty] < 2:
                    break
                for partition in on[full]:
                    old = placed[partition]
                    new = tuple(empty if each == full else each for each in old)
                    if empty not in old and _rack_count(new, racks) >= _rack_count(old, racks):
                        placed[partition] = new
                        on[full].remove(partition)
                        on[empty].append(partition)
                        own[full] -= 1
                        own[empty] += 1
                        return True
        return False

    while move_one():
        pass


def _rack_count(replicas: Replicas, racks: Mapping[int, str | None]) -> int:
    """How many racks have one; brokers without a rack count as racks of their own."""
    return len({racks.get(each) or each for each in replicas})


def _even_out_leaders(placed: dict[TopicPartition, Replicas]) -> None:
    """Put other replicas first, which copies nothing, until preferred leaders differ by one at most."""
    leads = Counter({broker: 0 for each in placed.values() for broker in each})
    leads.update(each[0] for each in placed.values() if each)

    def swap_one() -> bool:
        for partition, replicas in placed.items():
            first = replicas[0]
            best = min(replicas, key=lambda each: (leads[each], each))
            if leads[first] - leads[best] >= 2:
                placed[partition] = tuple(
                    best if each == first else first if each == best else each for each in replicas
                )
                leads[first] -= 1
                leads[best] += 1
                return True
        return False

    while swap_one():
        pass


def _changes(layout: Layout, placed: Placement) -> list[Change]:
    return [
        Change(partition, layout.replicas[partition], placed[partition])
        for partition in sorted(placed)
        if placed[partition] != layout.replicas[partition]
    ]


# ---- files, in the format of Kafka's own tool


def placement_text(placement: Placement) -> str:
    """JSON with the replicas of partitions, as kafka-reassign-partitions takes it, too."""
    listed = [
        {"topic": partition.topic, "partition": partition.partition, "replicas": list(replicas)}
        for partition, replicas in sorted(placement.items())
    ]
    return json.dumps({"version": 1, "partitions": listed}, ensure_ascii=False, indent=2) + "\n"


def parse_placement(text: str, where: str) -> dict[TopicPartition, Replicas]:
    """The replicas in such a file. `where` names the file. Raises CannotDo for anything else."""
    problem = CannotDo(
        f"{where} has no replicas of partitions",
        advice='Expected {"version": 1, "partitions": [{"topic": …, "partition": …, "replicas": [1, 2]}]}',
    )
    try:
        listed: Sequence[Mapping[str, object]] = json.loads(text)["partitions"]
        found = {
            TopicPartition(str(each["topic"]), int(str(each["partition"]))): _brokers(each["replicas"])
            for each in listed
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        raise problem from None
    if not found:
        raise problem
    return found


def _brokers(listed: object) -> Replicas:
    if not isinstance(listed, list):
        raise TypeError
    return tuple(int(each) for each in listed)
