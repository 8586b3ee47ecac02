"""What the checks look at, gathered at one moment, and a second time for what must move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from klamm.client.admin.types import TopicDescription
from klamm.client.results import TopicPartition
from klamm.operating.brokers import Disk


@dataclass(frozen=True, slots=True)
class Contact:
    """An address that was tried. `problem` says why it is of no use, "" if it answered; `cluster_id` is the
    cluster that answered."""

    address: str
    problem: str = ""
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker that the cluster takes for alive, at the address that it advertises."""

    broker_id: int
    contact: Contact


@dataclass(frozen=True, slots=True)
class GroupLook:
    """A group at one moment. `owned` are the partitions of its members."""

    state: str
    members: int
    committed: Mapping[TopicPartition, int]
    owned: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group at two moments, with the ends of its partitions at both. None for a group that was gone at the
    second one."""

    before: GroupLook
    after: GroupLook | None
    ends_before: Mapping[TopicPartition, int]
    ends_after: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """A pipeline of the project here, as its status says."""

    pipeline: str
    state: str
    error: str = ""
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks look at. Without any answer only `bootstrap` and `pipelines` are there."""

    bootstrap: tuple[Contact, ...]
    cluster_id: str = ""
    controller_id: int | None = None
    brokers: tuple[BrokerFacts, ...] = ()
    topics: Mapping[str, TopicDescription] = field(default_factory=dict)
    least_in_sync: Mapping[str, int] = field(default_factory=dict)
    """min.insync.replicas of the topics that have replicas out of sync."""
    disks: Mapping[int, tuple[Disk, ...]] = field(default_factory=dict)
    """By broker; brokers that do not say are left out."""
    groups: Mapping[str, GroupFacts] = field(default_factory=dict)
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """By group whose coordinator did not answer: the error."""
    newest_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The largest timestamp of each partition; those without records are left out."""
    now_ms: int = 0
    pause_s: float = 0.0
    """The time between the two looks at groups."""
    pipelines: tuple[PipelineFacts, ...] = ()

    @property
    def is_answered(self) -> bool:
        """True if any address led to a cluster."""
        return any(not each.problem for each in self.bootstrap)
