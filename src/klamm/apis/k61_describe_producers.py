"""DescribeProducers (key 61), version 0.

The idempotent producers that a partition remembers, with the last sequence and time of each. There are no
transactions yet, so none is ever in one.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, distinct, in_steps, lazily
from klamm.model.errors import KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from klamm.storage.producers.state import ProducerEntry


@api(ApiKey.DESCRIBE_PRODUCERS)
def handle(broker: Broker, request: Request[DescribeProducersRequest]) -> Steps[DescribeProducersResponse]:
    indexes_of: dict[str, list[int]] = {}
    for topic in request.message.topics:
        indexes_of.setdefault(topic.name, []).extend(topic.partition_indexes)

    def answer(name: str) -> TopicResponse:
        indexes = distinct(indexes_of[name])
        return TopicResponse(
            name=name, partitions=lazily(indexes, lambda index: _describe(broker, name, index))
        )

    return in_steps(DescribeProducersResponse(topics=lazily(list(indexes_of), answer)))


def _describe(broker: Broker, topic: str, index: int) -> PartitionResponse:
    response = PartitionResponse(partition_index=index)
    try:
        partition = broker.partitions.led(topic, index)
        entries = partition.log.producers.copy().entries  # some may expire before they are encoded
        response.active_producers = lazily(list(entries), lambda each: _state(each, entries[each]))
    except KafkaError as error:
        response.error_code = error.code
        response.error_message = error.message
    return response


def _state(producer_id: int, entry: ProducerEntry) -> ProducerState:
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.timestamp,
        coordinator_epoch=-1,
    )
