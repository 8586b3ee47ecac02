"""The cluster's metadata as one immutable value: what every handler reads, at one moment.

A change makes a new image that shares everything unchanged with the old one, so `old.topics[name] is
new.topics[name]` says that a topic is the same. An image never changes: its holder may read it
for as long as it likes, and sees the state of that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from klamm.cluster.topic_names import SimilarNames, with_name, without_name
from klamm.config.listeners import advertised_addresses
from klamm.config.loading import BrokerConfig
from klamm.model.ids import TopicId

NO_LEADER = -1

ALL_BROKERS = ""
"""The name under which broker configurations hold the settings of all brokers."""

OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state", "__share_group_state"})


class Endpoint(NamedTuple):
    host: str
    port: int


class PartitionImage(NamedTuple):
    """One partition. `partition_epoch` rises with every change of the other fields but `replicas`."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A broker that is alive; `endpoints` by listener name are the addresses clients are told."""

    id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `config` holds its own settings only, as text."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    config: Mapping[str, str]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class ClusterImage:
    cluster_id: str
    controller_id: int
    brokers: Mapping[int, BrokerImage]
    topics: Mapping[str, TopicImage]
    topic_names_by_id: Mapping[bytes, str]
    similar_topic_names: SimilarNames
    broker_configs: Mapping[str, Mapping[str, str]]
    """Run-time settings by broker id as text; `ALL_BROKERS` has those of all."""
    group_configs: Mapping[str, Mapping[str, str]]

    def brokers_at(self, listener_name: str) -> Iterator[tuple[BrokerImage, Endpoint]]:
        """The brokers that have a listener of this name, each with its address there."""
        for broker in self.brokers.values():
            endpoint = broker.endpoints.get(listener_name)
            if endpoint is not None:
                yield broker, endpoint

    def with_topic(self, topic: TopicImage) -> ClusterImage:
        """With this topic added, or in place of the one of its name."""
        return replace(
            self,
            topics={**self.topics, topic.name: topic},
            topic_names_by_id={**self.topic_names_by_id, topic.topic_id: topic.name},
            similar_topic_names=with_name(self.similar_topic_names, topic.name),
        )

    def without_topic(self, name: str) -> ClusterImage:
        topics = dict(self.topics)
        names_by_id = dict(self.topic_names_by_id)
        del names_by_id[topics.pop(name).topic_id]
        similar = without_name(self.similar_topic_names, name)
        return replace(self, topics=topics, topic_names_by_id=names_by_id, similar_topic_names=similar)

    def with_broker(self, broker: BrokerImage) -> ClusterImage:
        return replace(self, brokers={**self.brokers, broker.id: broker})

    def with_broker_config(self, name: str, config: Mapping[str, str]) -> ClusterImage:
        """With the run-time settings of a broker replaced; none at all forgets the broker."""
        return replace(self, broker_configs=_replaced(self.broker_configs, name, config))

    def with_group_config(self, name: str, config: Mapping[str, str]) -> ClusterImage:
        return replace(self, group_configs=_replaced(self.group_configs, name, config))


def _replaced(
    configs: Mapping[str, Mapping[str, str]], name: str, config: Mapping[str, str]
) -> Mapping[str, Mapping[str, str]]:
    others = {other: each for other, each in configs.items() if other != name}
    return {**others, name: config} if config else others


def broker_image(config: BrokerConfig, bound_ports: Mapping[str, int]) -> BrokerImage:
    """This broker as the cluster shall see it; `bound_ports` by listener name resolve port 0."""
    told = advertised_addresses(config.listeners, config.advertised_listeners, bound_ports)
    return BrokerImage(
        id=config.int_("node.id"),
        endpoints={name: Endpoint(address.host, address.port) for name, address in told.items()},
        rack=config.optional_str("broker.rack"),
    )
