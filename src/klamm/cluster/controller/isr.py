"""AlterPartition: a leader asks for another ISR, and the controller grants it by compare-and-set.

A proposal holds if it was made in the current leader epoch and partition epoch, by the leader, and if every
broker that it names is alive in the broker epoch that the leader knows. None that is shutting down may join;
but a leader that is shutting down may have another join, which can then take over. The checks and their codes
are those of Kafka, in Kafka's order.

A proposal of the ISR that is there raises the partition epoch too: then an earlier proposal of the leader
that is still on its way is refused, and the leader knows that it never comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from klamm.cluster.changes import Change
from klamm.cluster.controller.brokers import check_broker_epoch
from klamm.cluster.controller.partitions import PartitionChanges
from klamm.cluster.controller.reassignment import complete_if_in_sync
from klamm.cluster.image import BrokerImage, ClusterImage, PartitionImage
from klamm.config.loading import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError

ANY_BROKER_EPOCH = -1


class IsrProposal(NamedTuple):
    """`isr` has each broker's id and broker epoch; ANY_BROKER_EPOCH from leaders that do not know it."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


IsrResult: TypeAlias = PartitionImage | KafkaError
"""The partition as it is after the proposal, or why the proposal was refused."""


class IsrAlterations(NamedTuple):
    change: Change
    results: list[IsrResult]
    """One for each proposal, in order."""


def alter_isrs(
    image: ClusterImage,
    config: BrokerConfig,
    broker_id: int,
    broker_epoch: int,
    proposals: Iterable[IsrProposal],
    *,
    controller_epoch: int,
) -> IsrAlterations:
    """Each proposal stands for itself. STALE_BROKER_EPOCH is raised for all of them together."""
    check_broker_epoch(image, broker_id, broker_epoch)
    changes = PartitionChanges(image, config, controller_epoch)
    results: list[IsrResult] = []
    for proposal in proposals:
        try:
            topic, before = _find(image, proposal)
            isr = tuple(member for member, _ in proposal.isr)
            if _is_applied(before, broker_id, proposal, isr):
                results.append(before)
                continue
            _check_members(image.brokers, before, proposal)
            after = before if set(isr) == set(before.isr) else before._replace(isr=isr)
            after = complete_if_in_sync(image.brokers, after)
            after = changes.put(topic, proposal.partition, after, raises_epoch=True)
            results.append(after if after.leader == broker_id else _new_leader(after))
        except KafkaError as error:
            results.append(error.as_result())
    return IsrAlterations(changes.change(), results)


def _find(image: ClusterImage, proposal: IsrProposal) -> tuple[str, PartitionImage]:
    name = image.topic_names_by_id.get(proposal.topic_id)
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this topic id; it may have been deleted")
    partitions = image.topics[name].partitions
    if not 0 <= proposal.partition < len(partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has no partition {proposal.partition}"
        )
    return name, partitions[proposal.partition]


def _is_applied(
    partition: PartitionImage, broker_id: int, proposal: IsrProposal, isr: tuple[int, ...]
) -> bool:
    """True if the leader asks again for an ISR that the partition has: the answer was lost on its way.

    The leader gets the state as the answer. Where the controller does not reach the leader, nothing else
    would tell it. Raises a KafkaError if the epochs say that the proposal is out of date.
    """
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        raise KafkaError(
            ErrorCode.NOT_CONTROLLER, "the leader knows a later epoch: another broker may be the controller"
        )
    if proposal.leader_epoch < partition.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH, f"the partition is in leader epoch {partition.leader_epoch}"
        )
    if partition.leader != broker_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"broker {partition.leader} leads, not {broker_id}")
    if proposal.partition_epoch == partition.partition_epoch:
        return False
    if set(isr) == set(partition.isr):
        return True
    raise KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, f"the partition is in partition epoch {partition.partition_epoch}"
    )


def _check_members(
    brokers: Mapping[int, BrokerImage], partition: PartitionImage, proposal: IsrProposal
) -> None:
    members = [member for member, _ in proposal.isr]
    if len(set(members)) != len(members) or not set(members) <= set(partition.replicas):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{members} is not a valid ISR: expected each broker once, out of {list(partition.replicas)}",
        )
    if partition.leader not in members:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the ISR {members} lacks the leader {partition.leader}")
    for member, epoch in proposal.isr:
        broker = brokers.get(member)
        if broker is None:
            problem = "is not alive"
        elif broker.is_shutting_down and member not in partition.isr:
            problem = "is shutting down"
        elif member in partition.offline_replicas:
            problem = "cannot use its log"
        elif epoch not in (ANY_BROKER_EPOCH, broker.epoch):
            problem = f"has the broker epoch {broker.epoch}, not {epoch}"
        else:
            continue
        raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {member} {problem}")


def _new_leader(partition: PartitionImage) -> KafkaError:
    return KafkaError(
        ErrorCode.NEW_LEADER_ELECTED,
        f"the reassignment is complete, and broker {partition.leader} leads now",
    )
