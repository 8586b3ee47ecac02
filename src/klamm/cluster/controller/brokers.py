"""Brokers that come, go, restart, shut down, and are forgotten.

A broker epoch that has changed is a failure and a start, however quickly one followed the other. The last
epoch of each broker that a controller has dealt with is stored, so that the next controller also notices a
restart that nobody saw.

A broker that fails leaves the ISRs that have other members. When all members of an ISR have failed, the ISR
stays as it is and waits for them. A broker that returns without having stopped cleanly may have lost records
that it had acknowledged. So it leaves even such an ISR, if another member, or an eligible replica outside the
ISR (eligible.py), has not restarted like that. An eligible replica that is alive leads if no member can; if
none is alive, the partition waits. If all have restarted like that, the last member of the ISR leads again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from klamm.cluster import layout
from klamm.cluster.changes import Change, Unit
from klamm.cluster.controller.elections import choose_leader, elect, is_unclean_allowed
from klamm.cluster.controller.partitions import PartitionChanges, led_by
from klamm.cluster.controller.topics import confirm_deletions
from klamm.cluster.image import NO_LEADER, BrokerDelta, BrokerImage, ClusterImage, ImageDelta, PartitionImage
from klamm.cluster.layout import Registration
from klamm.config.loading import BrokerConfig
from klamm.coordination.store import Create, Delete, Set
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition


class _Restarted(NamedTuple):
    """Brokers in another epoch than the one that was dealt with."""

    all: Collection[int]
    unclean: Collection[int]


def brokers_changed(
    image: ClusterImage,
    config: BrokerConfig,
    registered: Mapping[int, Registration],
    *,
    controller_epoch: int,
) -> Change:
    """What follows from the brokers that are registered now. Also what a new controller does first."""
    restarted = _restarted(image, registered)
    brokers: dict[int, BrokerImage] = {}
    for broker_id, registration in sorted(registered.items()):
        known = image.brokers.get(broker_id)
        if known is None or known.epoch != registration.broker.epoch:
            brokers[broker_id] = registration.broker
        elif known.endpoints != registration.broker.endpoints:
            brokers[broker_id] = replace(known, endpoints=registration.broker.endpoints)
        else:
            brokers[broker_id] = known
    changes = PartitionChanges(image, config, controller_epoch)
    for name in sorted(image.topics):
        topic = image.topics[name]
        may_be_unclean: bool | None = None
        for index, partition in enumerate(topic.partitions):
            after = _without_failed(partition, brokers, restarted)
            if not _has_steady_leader(after, brokers, restarted.all):
                if may_be_unclean is None:
                    may_be_unclean = is_unclean_allowed(config, topic)
                after = elect(brokers, after, is_unclean_allowed=may_be_unclean)
            if after is not partition:
                changes.put(name, index, after, untrusted=restarted.unclean)
    epochs = {broker_id: brokers[broker_id].epoch for broker_id in sorted(restarted.all)}
    return changes.change(
        (_known_epoch_unit(image, broker_id, epoch) for broker_id, epoch in epochs.items()),
        ImageDelta(brokers=_broker_deltas(image.brokers, brokers), known_epochs=epochs),
    )


def _restarted(image: ClusterImage, registered: Mapping[int, Registration]) -> _Restarted:
    restarted = {
        broker_id
        for broker_id, registration in registered.items()
        if image.known_epochs.get(broker_id) != registration.broker.epoch
    }
    unclean = {
        broker_id
        for broker_id in restarted
        if not _is_intact_since(registered[broker_id], image.known_epochs.get(broker_id))
    }
    return _Restarted(restarted, unclean)


def _is_intact_since(registration: Registration, known_epoch: int | None) -> bool:
    """Not above the last epoch either: a broker with the files of an earlier time lacks what came after."""
    first, last = registration.intact_epochs
    return known_epoch is not None and first <= known_epoch <= last


def _without_failed(
    partition: PartitionImage, brokers: Mapping[int, BrokerImage], restarted: _Restarted
) -> PartitionImage:
    """With the ISR that is left after brokers have failed and returned."""
    isr = partition.isr
    if partition.offline_replicas:
        # A broker that registers anew may have got a new disk: it is asked again.
        offline = partition.offline_replicas
        offline = tuple(each for each in offline if each in brokers and each not in restarted.all)
        partition = partition._replace(offline_replicas=offline)
    trusted = tuple(each for each in isr if each not in restarted.unclean)
    eligible = tuple(each for each in partition.eligible_replicas if each not in restarted.unclean)
    steady = (each for each in trusted if each in brokers and each not in restarted.all)
    left = (
        tuple(each for each in steady if each not in partition.offline_replicas)
        or tuple(each for each in trusted if each in brokers and each not in partition.offline_replicas)
        or trusted
        or eligible
        or (partition.leader if partition.leader in isr else isr[0],)
    )
    if left == isr and eligible == partition.eligible_replicas:
        return partition
    return partition._replace(isr=left, eligible_replicas=eligible)


def _has_steady_leader(
    partition: PartitionImage, brokers: Mapping[int, BrokerImage], restarted: Collection[int]
) -> bool:
    leader = partition.leader
    return (
        leader in brokers
        and leader not in restarted
        and leader in partition.isr
        and leader not in partition.offline_replicas
    )


def _broker_deltas(
    before: Mapping[int, BrokerImage], after: Mapping[int, BrokerImage]
) -> dict[int, BrokerDelta]:
    return {
        broker_id: BrokerDelta(before.get(broker_id), after.get(broker_id))
        for broker_id in sorted(before.keys() | after.keys())
        if before.get(broker_id) is not after.get(broker_id)
    }


def _known_epoch_unit(image: ClusterImage, broker_id: int, epoch: int) -> Unit:
    path, value = layout.broker_epoch_path(broker_id), layout.encode(epoch)
    return (Set(path, value) if broker_id in image.known_epochs else Create(path, value),)


def check_broker_epoch(image: ClusterImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker that sent a request, or STALE_BROKER_EPOCH if it is not, or no longer, the one it was."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} is not registered with the broker epoch {broker_epoch}",
        )
    return broker


class ControlledShutdown(NamedTuple):
    change: Change
    remaining: list[TopicPartition]
    """Partitions of several replicas that the broker still leads, as no other replica can."""


def shut_down_broker(
    image: ClusterImage,
    config: BrokerConfig,
    broker_id: int,
    broker_epoch: int,
    *,
    controller_epoch: int,
) -> ControlledShutdown:
    """Move leadership off a broker that is about to stop, and take it out of the ISRs that have others."""
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    stopping = replace(broker, is_shutting_down=True)
    brokers = {**image.brokers, broker_id: stopping}
    changes = PartitionChanges(image, config, controller_epoch)
    remaining: list[TopicPartition] = []
    for name in sorted(image.topics):
        for index, partition in enumerate(image.topics[name].partitions):
            if broker_id not in partition.isr:
                continue
            without = partition._replace(isr=tuple(each for each in partition.isr if each != broker_id))
            if partition.leader != broker_id:
                if without.isr:
                    changes.put(name, index, without)
                continue
            leader = choose_leader(brokers, without)
            if leader != NO_LEADER:
                changes.put(name, index, led_by(without, leader))
            elif len(partition.replicas) > 1:
                remaining.append(TopicPartition(name, index))
    deltas = {} if broker.is_shutting_down else {broker_id: BrokerDelta(broker, stopping)}
    return ControlledShutdown(changes.change(further=ImageDelta(brokers=deltas)), remaining)


def unregister_broker(image: ClusterImage, broker_id: int) -> Change:
    """Forget a broker that will not come back: nobody waits for it to delete files any more."""
    if broker_id in image.brokers:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"broker {broker_id} is alive: stop it before it is unregistered"
        )
    if broker_id not in image.known_epochs:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {broker_id}")
    confirmed = confirm_deletions(image, broker_id, sorted(image.deleted_topics))
    forgotten = (Delete(layout.broker_epoch_path(broker_id)),)
    delta = replace(confirmed.delta, known_epochs={broker_id: None})
    return Change.of(image, (*confirmed.units, forgotten), delta)
