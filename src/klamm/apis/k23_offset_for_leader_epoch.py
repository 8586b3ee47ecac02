"""OffsetForLeaderEpoch (key 23), versions 2 to 4.

Where a leader epoch ended: the largest epoch that is not above the one asked for, and the offset at which
the next one began. Consumers use it to notice that the log was cut behind their position. An epoch that this
log never had is answered with -1, -1. A partition that is named more than once is answered once.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, lazily
from klamm.model.errors import KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@api(ApiKey.OFFSET_FOR_LEADER_EPOCH)
def handle(
    broker: Broker, request: Request[OffsetForLeaderEpochRequest]
) -> Steps[OffsetForLeaderEpochResponse]:
    asked_of: dict[str, dict[int, OffsetForLeaderPartition]] = {}
    for topic in request.message.topics:
        asked_of.setdefault(topic.topic, {}).update((each.partition, each) for each in topic.partitions)
        yield

    def answer(name: str) -> OffsetForLeaderTopicResult:
        partitions = lazily(list(asked_of[name].values()), lambda asked: _end_of_epoch(broker, name, asked))
        return OffsetForLeaderTopicResult(topic=name, partitions=partitions)

    return OffsetForLeaderEpochResponse(topics=lazily(list(asked_of), answer))


def _end_of_epoch(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    result = EpochEndOffset(partition=asked.partition)
    try:
        partition = broker.partitions.led(topic, asked.partition)
        partition.check_leader_epoch(asked.current_leader_epoch)
        if asked.leader_epoch == partition.leader_epoch:
            result.leader_epoch, result.end_offset = asked.leader_epoch, partition.log.log_end_offset
        else:
            result.leader_epoch, result.end_offset = partition.log.epoch_end_offset(asked.leader_epoch)
    except KafkaError as error:
        result.error_code = error.code
    return result
