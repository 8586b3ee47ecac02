"""Makes Produce requests from batches, and reads from the answers what happened to each batch. A core.

From version 13 on, requests name topics by id. If the id of a topic is not known, as with old brokers, the
whole request is sent in an older version, which names topics by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from klamm.client.errors import BrokerError
from klamm.client.network.addresses import BrokerAddress
from klamm.client.network.metadata import MetadataCache
from klamm.client.producer.batches import Batch
from klamm.client.producer.settings import ProducerSettings
from klamm.client.producer.settling import STALE_METADATA, Answer
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_TOPIC_ID, TopicPartition
from klamm.protocol.messages.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from klamm.records.compression import Codec

LAST_VERSION_WITH_NAMES = 12
_FIRST_VERSION_WITH_ZSTD = 7


class ProduceCall:
    """One request: its batches, and the topic ids that it names."""

    __slots__ = ("_topic_ids", "batches")

    def __init__(self, batches: list[Batch], topic_ids: dict[str, bytes]) -> None:
        self.batches = batches
        self._topic_ids = topic_ids

    @property
    def max_version(self) -> int | None:
        """The newest version that can name all topics of the request; None if every version can."""
        return LAST_VERSION_WITH_NAMES if ZERO_TOPIC_ID in self._topic_ids.values() else None

    def request(self, settings: ProducerSettings) -> ProduceRequest:
        """The request message. Encodes the batches, which may take milliseconds."""
        topics = {
            name: TopicProduceData(name=name, topic_id=topic_id, partition_data=[])
            for name, topic_id in self._topic_ids.items()
        }
        for batch in self.batches:
            records = batch.encode(settings.codec, settings.level)
            data = PartitionProduceData(index=batch.partition, records=records)
            topics[batch.topic].partition_data.append(data)
        return ProduceRequest(
            transactional_id=None,
            acks=settings.acks,
            timeout_ms=int(settings.request_timeout * 1000),
            topic_data=list(topics.values()),
        )

    def answers(self, response: ProduceResponse, version: int, learn: LearnLeader) -> Iterator[BatchAnswer]:
        """The answer for each batch that the response names."""
        with_names = version <= LAST_VERSION_WITH_NAMES
        by_place: dict[tuple[str | bytes, int], Batch] = {
            (batch.topic if with_names else self._topic_ids[batch.topic], batch.partition): batch
            for batch in self.batches
        }
        for topic in response.responses:
            for said in topic.partition_responses:
                # Each batch once: a damaged answer may name a partition twice.
                batch = by_place.pop((topic.name if with_names else topic.topic_id, said.index), None)
                if batch is None:
                    continue
                moved = bool(said.error_code) and _learn(batch, said, response, learn)
                yield BatchAnswer(batch, _answer(said), moved, said.error_code in STALE_METADATA)


def call_for(batches: list[Batch], metadata: MetadataCache) -> ProduceCall:
    """A request for these batches, with the topic ids of the latest metadata."""
    topic_ids = {}
    for batch in batches:
        known = metadata.topics.get(batch.topic)
        topic_ids[batch.topic] = ZERO_TOPIC_ID if known is None else known.topic_id
    return ProduceCall(batches, topic_ids)


def check_version(version: int, codec: int, address: BrokerAddress) -> None:
    """Raise if the broker is too old for the compression of the batches."""
    if version < _FIRST_VERSION_WITH_ZSTD and codec == Codec.ZSTD:
        raise BrokerError.of(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"producing to {address}", "it does not know zstd"
        )


LearnLeader = Callable[[TopicPartition, int, int, BrokerAddress | None], bool]


class BatchAnswer(NamedTuple):
    batch: Batch
    answer: Answer
    has_moved: bool
    """The answer named another leader than the one we knew."""
    is_stale: bool
    """The answer shows that our metadata are out of date."""


def _answer(said: PartitionProduceResponse) -> Answer:
    if not said.error_code:
        return Answer(0, said.base_offset, said.log_append_time_ms)
    errors = {each.batch_index: each.batch_index_error_message or "" for each in said.record_errors}
    return Answer(said.error_code, said.base_offset, -1, said.error_message, errors or None)


def _learn(
    batch: Batch, said: PartitionProduceResponse, response: ProduceResponse, learn: LearnLeader
) -> bool:
    """Take over the leader that an answer names; returns whether it is a new one."""
    leader = said.current_leader
    if leader is None or leader.leader_id < 0:
        return False
    endpoint = next(
        (
            BrokerAddress(each.node_id, each.host, each.port, each.rack)
            for each in response.node_endpoints
            if each.node_id == leader.leader_id
        ),
        None,
    )
    place = TopicPartition(batch.topic, batch.partition)
    return learn(place, leader.leader_id, leader.leader_epoch, endpoint)
