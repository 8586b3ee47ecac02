"""Functions that send common requests over a bare connection."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from klamm.protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from klamm.records.batch import HEADER_SIZE, parse_header
from klamm.records.builder import build_batch, number_records
from klamm.records.reader import StoredRecord, iter_records
from klamm.testing.wire import WireConnection

NAMES_PRODUCE_VERSION = 12
"""The newest Produce that names topics; 13 uses ids."""
NAMES_FETCH_VERSION = 12


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch_of(*values: bytes | None, key: bytes | None = b"key", **options: int) -> bytearray:
    return build_batch(number_records([(key, value) for value in values], now_ms()), **options)


def create_topic(
    connection: WireConnection,
    name: str,
    *,
    partitions: int = 1,
    configs: Mapping[str, str | int] | None = None,
) -> bytes:
    """Create a topic, which must not exist, and return its id."""
    settings = [CreatableTopicConfig(name=key, value=str(value)) for key, value in (configs or {}).items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
    result = connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000)).topics[0]
    assert result.error_code == ErrorCode.NONE, f"{ErrorCode(result.error_code).name}: {result.error_message}"
    topic_id: bytes = result.topic_id
    return topic_id


def produce_request(
    topic: str | bytes, batch: object, *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    """To a topic by name (versions below 13) or by id (13)."""
    data = [PartitionProduceData(index=partition, records=batch)]
    named = (
        TopicProduceData(name=topic, partition_data=data)
        if isinstance(topic, str)
        else TopicProduceData(topic_id=topic, partition_data=data)
    )
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[named])


def produce(
    connection: WireConnection,
    topic: str | bytes,
    batch: object,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int | None = None,
) -> PartitionProduceResponse:
    if version is None:
        version = NAMES_PRODUCE_VERSION if isinstance(topic, str) else NAMES_PRODUCE_VERSION + 1
    response = connection.call(produce_request(topic, batch, partition=partition, acks=acks), version)
    answer: PartitionProduceResponse = response.responses[0].partition_responses[0]
    return answer


def fetch_request(
    topic: str | bytes,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 10_000_000,
    leader_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
) -> FetchRequest:
    asked = FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=leader_epoch,
    )
    named = (
        FetchTopic(topic=topic, partitions=[asked])
        if isinstance(topic, str)
        else FetchTopic(topic_id=topic, partitions=[asked])
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[named],
    )


def fetch(
    connection: WireConnection,
    topic: str | bytes,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    leader_epoch: int = -1,
    max_bytes: int = 10_000_000,
) -> PartitionData:
    request = fetch_request(
        topic,
        offset,
        partition=partition,
        max_wait_ms=max_wait_ms,
        leader_epoch=leader_epoch,
        max_bytes=max_bytes,
    )
    version = NAMES_FETCH_VERSION if isinstance(topic, str) else None
    response = connection.call(request, version)
    assert response.error_code == ErrorCode.NONE, ErrorCode(response.error_code).name
    data: PartitionData = response.responses[0].partitions[0]
    return data


def batches_of(data: memoryview | bytes) -> Iterator[memoryview]:
    """The whole batches at the head of `data`; a fetch may end in the middle of one."""
    view = memoryview(data)
    while len(view) >= HEADER_SIZE:
        size = parse_header(view).size
        if size > len(view):
            return
        yield view[:size]
        view = view[size:]


def read_all(
    connection: WireConnection, topic: str | bytes, *, partition: int = 0, offset: int = 0
) -> list[StoredRecord]:
    """Every record from `offset` to the high watermark of now, in the order they are served."""
    records: list[StoredRecord] = []
    end = None
    while True:
        data = fetch(connection, topic, offset, partition=partition)
        assert data.error_code == ErrorCode.NONE, ErrorCode(data.error_code).name
        for batch in batches_of(data.records or b""):
            records += [record for record in iter_records(batch) if record.offset >= offset]
            offset = max(offset, parse_header(batch).last_offset + 1)
        if end is None:
            end = data.high_watermark
        if offset >= end:
            return records


def end_offset(connection: WireConnection, topic: str, *, partition: int = 0) -> int:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    answer = connection.call(request).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    offset: int = answer.offset
    return offset


def values_of(records: Sequence[StoredRecord]) -> list[bytes | None]:
    return [record.value for record in records]
