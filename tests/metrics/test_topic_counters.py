"""What partitions count of their topic, without a broker."""

from __future__ import annotations

import gc
from pathlib import Path

from klamm.metrics.topic_counters import CountersByTopic, IsrCounters
from klamm.model.errors import ErrorCode
from klamm.replication.partition import Partition
from tests.replication.partitions import alone, append, led_by, open_partition


def messages(partition: Partition) -> int:
    led_now = 0 if partition.leader is None else partition.log.log_end_offset
    return partition.counters.messages_before + led_now


def test_messages_and_bytes_in_are_those_of_leaderships_here(tmp_path: Path) -> None:
    partition = open_partition(tmp_path)
    append(partition, b"a", b"b")
    in_first = partition.counters.bytes_in
    assert messages(partition) == 2 and in_first > 0
    partition.take_over(led_by(2, 1, 2, epoch=1))
    assert messages(partition) == 2
    partition.take_over(led_by(1, 1, epoch=2))
    append(partition, b"c")
    assert messages(partition) == 3
    assert partition.counters.bytes_in > in_first and partition.counters.produces == 2
    partition.take_offline()
    assert messages(partition) == 3


def test_partitions_of_a_topic_count_together_and_the_counters_end_with_the_last(tmp_path: Path) -> None:
    context = alone()
    partitions = [open_partition(tmp_path, index=index, context=context) for index in range(2)]
    for partition in partitions:
        append(partition, b"a")
    counters = partitions.pop().counters
    assert counters is partitions[0].counters and counters.produces == 2
    del partition
    assert len(context.counters) == 1
    del counters
    partitions.clear()
    gc.collect()
    assert len(context.counters) == 0


def test_a_client_that_is_sent_to_another_leader_has_not_failed() -> None:
    counters = CountersByTopic().of(bytes(16))
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE):
        counters.note_failed_fetch(code)
        counters.note_failed_produce(code)
    assert (counters.failed_fetches, counters.failed_produces) == (1, 1)


def test_isr_changes() -> None:
    counters = IsrCounters()
    for before, after in ((3, 2), (2, 1), (1, 3), (3, 3)):
        counters.note(before, after)
    assert (counters.shrinks, counters.expands) == (2, 1)
