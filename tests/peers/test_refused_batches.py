"""Batches that a topic refuses: Klamm names the same records, codes and log start as Apache Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from klamm.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from klamm.records.builder import build_batch
from klamm.records.reader import StoredRecord
from klamm.testing.wire import WireConnection
from tests.waiting import wait_until

LEADER_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
HOUR_MS = 3_600_000
COMPACTED = {"cleanup.policy": "compact,delete"}
LIMITED = {"message.timestamp.before.max.ms": str(HOUR_MS), "message.timestamp.after.max.ms": str(HOUR_MS)}
RECOMPRESSED = {"compression.type": "gzip", "message.timestamp.before.max.ms": str(HOUR_MS)}
OLD, NOW, NEW = -10 * HOUR_MS, 0, 10 * HOUR_MS
TimeAndKey = tuple[int, bytes | None]
"""How far a record's time is from the clock, and its key."""

CASES: dict[str, tuple[dict[str, str], Sequence[TimeAndKey]]] = {
    "three of four without a key": (COMPACTED, [(NOW, None), (NOW, b"k"), (NOW, None), (NOW, None)]),
    "one too old, one too new": (LIMITED, [(OLD, b"k"), (NOW, b"k"), (NEW, b"k"), (NOW, b"k")]),
    "only one in the middle": (LIMITED, [(NOW, b"k"), (OLD, b"k"), (NOW, b"k")]),
    "too new by default": ({}, [(NOW, b"k"), (NEW, b"k")]),
    "both": (COMPACTED | LIMITED, [(OLD, b"k"), (NOW, None), (OLD, None), (NOW, b"k")]),
    "of a topic with its own codec": (RECOMPRESSED, [(NOW, b"k"), (OLD, b"k")]),
    "none": (COMPACTED | LIMITED, [(NOW, b"k"), (NOW, b"l")]),
}


class Refusal:
    """What one broker answers to one batch."""

    def __init__(self, bootstrap: str, case: str, version: int) -> None:
        config, wanted = CASES[case]
        self.wire = WireConnection(bootstrap)
        self.topic = f"refused-{uuid.uuid4()}"
        with self.wire:
            self._create(config)
            now_ms = int(time.time() * 1000)
            assert self._produce([StoredRecord(0, now_ms, b"k", b"v")], version).error_code == ErrorCode.NONE
            self._delete_first()
            records = [
                StoredRecord(index, now_ms + distance_ms, key, b"v")
                for index, (distance_ms, key) in enumerate(wanted)
            ]
            self.answer = self._produce(records, version)

    def _create(self, config: dict[str, str]) -> None:
        configs = [CreatableTopicConfig(name=name, value=value) for name, value in config.items()]
        topic = CreatableTopic(name=self.topic, num_partitions=1, replication_factor=1, configs=configs)
        created = self.wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
        assert created.topics[0].error_code == ErrorCode.NONE

    def _produce(self, records: list[StoredRecord], version: int) -> Any:
        data = [PartitionProduceData(index=0, records=bytes(build_batch(records)))]
        topics = [TopicProduceData(name=self.topic, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)

        def settled() -> Any:
            """Apache Kafka may not know yet that it leads the new partition."""
            answer = self.wire.call(request, version).responses[0].partition_responses[0]
            return None if answer.error_code in LEADER_UNKNOWN else answer

        return wait_until(settled, "the new topic is known")

    def _delete_first(self) -> None:
        """Let the log start at 1, so that a start offset that is told is told by somebody who knows."""
        partitions = [DeleteRecordsPartition(partition_index=0, offset=1)]
        topics = [DeleteRecordsTopic(name=self.topic, partitions=partitions)]
        deleted = self.wire.call(DeleteRecordsRequest(topics=topics, timeout_ms=30_000))
        assert deleted.topics[0].partitions[0].error_code == ErrorCode.NONE

    def said(self) -> tuple[Any, ...]:
        return (
            ErrorCode(self.answer.error_code),
            self.answer.base_offset,
            self.answer.log_start_offset,
            [each.batch_index for each in self.answer.record_errors],
        )


@pytest.mark.parametrize("version", [7, 8, 11])
@pytest.mark.parametrize("case", CASES)
def test_as_apache_kafka(klamm_bootstrap: str, apache_kafka: str, case: str, version: int) -> None:
    ours = Refusal(klamm_bootstrap, case, version)
    assert ours.said() == Refusal(apache_kafka, case, version).said()
    assert all(each.batch_index_error_message for each in ours.answer.record_errors)
    if case != "none":
        assert ours.answer.error_code != ErrorCode.NONE
        assert ours.answer.log_start_offset == 1
