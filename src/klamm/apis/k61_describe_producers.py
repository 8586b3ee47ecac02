"""DescribeProducers (key 61), version 0.

The idempotent producers that a partition remembers, with the last sequence and time of each. There are no
transactions yet, so none is ever in one.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.model.errors import KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


@api(ApiKey.DESCRIBE_PRODUCERS)
def handle(broker: Broker, request: Request[DescribeProducersRequest]) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_describe(broker, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.message.topics
        ]
    )


def _describe(broker: Broker, topic: str, index: int) -> PartitionResponse:
    response = PartitionResponse(partition_index=index)
    try:
        partition = broker.partitions.get(topic, index)
        response.active_producers = [
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=-1,
            )
            for producer in partition.log.producers
        ]
    except KafkaError as error:
        response.error_code = error.code
        response.error_message = error.message
    return response
