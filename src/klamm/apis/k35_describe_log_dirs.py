"""DescribeLogDirs (key 35), versions 1 to 5.

Every log directory with its disk's size and free space (version 4) and the size of each partition asked for;
null asks for all. A partition that is being moved to another directory is in that one, too, marked as a
future replica, with how many records it lacks. A directory that failed, or whose disk does not answer, has
KAFKA_STORAGE_ERROR. No directory is ever cordoned.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, in_steps, with_pauses
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k35_describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

logger = logging.getLogger("klamm.apis")

Sizes = dict[str, list[DescribeLogDirsPartition]]


@api(ApiKey.DESCRIBE_LOG_DIRS)
async def handle(broker: Broker, request: Request[DescribeLogDirsRequest]) -> Steps[DescribeLogDirsResponse]:
    wanted = None
    if request.message.topics is not None:
        named = ((topic.topic, index) for topic in request.message.topics for index in topic.partitions)
        wanted = {each async for each in with_pauses(named)}
    sizes: dict[str, Sizes] = defaultdict(lambda: defaultdict(list))
    pauses = Pauses()
    for partition in list(broker.partitions):
        await pauses.pause()
        if wanted is None or (partition.topic, partition.index) in wanted:
            sizes[os.path.dirname(partition.log.directory)][partition.topic].append(
                DescribeLogDirsPartition(
                    partition_index=partition.index, partition_size=partition.log.size_bytes
                )
            )
    for topic_partition, (log_dir, copy) in broker.log_dirs.futures.items():
        moving = broker.partitions.find(*topic_partition)
        if moving is not None and (wanted is None or topic_partition in wanted):
            sizes[str(log_dir.path)][topic_partition.topic].append(
                DescribeLogDirsPartition(
                    partition_index=topic_partition.partition,
                    partition_size=copy.size_bytes,
                    offset_lag=max(moving.log.log_end_offset - copy.log_end_offset, 0),
                    is_future_key=True,
                )
            )
    results = await broker.partitions.run_in_thread(_describe, broker, sizes)
    return in_steps(DescribeLogDirsResponse(results=results))


def _describe(broker: Broker, sizes: dict[str, Sizes]) -> list[DescribeLogDirsResult]:
    results = []
    for log_dir in broker.log_dirs.directories:
        result = DescribeLogDirsResult(log_dir=str(log_dir.path))
        results.append(result)
        if log_dir.is_offline:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            continue
        try:
            result.total_bytes, result.usable_bytes = log_dir.disk_space()
        except OSError as error:
            logger.error("the disk of log directory %s does not answer: %s", log_dir.path, error)
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            continue
        result.topics = [
            DescribeLogDirsTopic(name=topic, partitions=partitions)
            for topic, partitions in sorted(sizes[str(log_dir.path)].items())
        ]
    return results
