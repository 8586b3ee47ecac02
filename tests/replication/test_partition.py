from __future__ import annotations

from pathlib import Path

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.partition import Partition
from tests.replication.partitions import BROKER_EPOCH, append, led_by, open_partition


class Listener:
    def __init__(self) -> None:
        self.heard: list[int] = []
        self.rises = 0

    def on_high_watermark(self) -> None:
        self.rises += 1

    def on_progress(self, byte_count: int) -> None:
        self.heard.append(byte_count)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return open_partition(tmp_path)


def read(partition: Partition, offset: int) -> bytes | None:
    piece = partition.read(offset, 1_000_000, must_return_one=True, may_block=True)
    return None if piece is None else bytes(piece.read())


def test_with_one_replica_the_high_watermark_follows_the_log(partition: Partition) -> None:
    assert partition.high_watermark == 0
    append(partition, b"a", b"b", b"c")
    assert partition.high_watermark == partition.last_stable_offset == 3


def test_nothing_is_read_at_or_above_the_high_watermark(partition: Partition) -> None:
    append(partition, b"visible")
    append(partition, b"hidden")
    partition.high_watermark = 1
    content = read(partition, 0)
    assert content is not None and b"visible" in content and b"hidden" not in content
    assert read(partition, 1) is None
    assert read(partition, 2) is None


@pytest.mark.parametrize("offset", [-1, 3, 2**62])
def test_offsets_outside_the_log(partition: Partition, offset: int) -> None:
    append(partition, b"a", b"b")
    with pytest.raises(KafkaError) as raised:
        read(partition, offset)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_leader_epochs_of_peers(partition: Partition) -> None:
    partition.leader_epoch = 5
    partition.check_leader_epoch(-1)
    partition.check_leader_epoch(5)
    with pytest.raises(KafkaError) as older:
        partition.check_leader_epoch(4)
    assert older.value.code == ErrorCode.FENCED_LEADER_EPOCH
    with pytest.raises(KafkaError) as newer:
        partition.check_leader_epoch(6)
    assert newer.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_records_carry_the_leader_epoch(partition: Partition) -> None:
    partition.leader_epoch = 7
    append(partition, b"a")
    content = read(partition, 0)
    assert content is not None and content[12:16] == (7).to_bytes(4, "big")


def test_acks_all_needs_enough_replicas_in_sync(partition: Partition) -> None:
    partition.set_min_insync_replicas(2)
    partition.take_over(led_by(1, 1, 2, 3, epoch=1, isr=(1,)))
    with pytest.raises(KafkaError) as raised:
        partition.check_enough_replicas()
    assert raised.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    partition.take_over(led_by(1, 1, 2, 3, epoch=2, isr=(1, 3)))
    partition.check_enough_replicas()
    partition.take_over(led_by(1, 1, epoch=3))
    partition.check_enough_replicas()


def test_watchers_hear_of_appends_but_not_of_duplicates(partition: Partition) -> None:
    listener = Listener()
    partition.watch(listener)
    options = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 0}
    first = append(partition, b"a", **options)
    assert len(listener.heard) == 1 and listener.heard[0] > 0
    partition.watch(listener)
    again = append(partition, b"a", **options)
    assert again.is_duplicate and again.base_offset == first.base_offset
    assert len(listener.heard) == 1
    partition.unwatch(listener)
    append(partition, b"b")
    assert len(listener.heard) == 1


def test_watchers_hear_of_the_next_append_only(partition: Partition) -> None:
    """Of many appends only the first costs something; to hear more they watch again."""
    listener = Listener()
    partition.watch(listener)
    for _ in range(10):
        append(partition, b"a")
    assert len(listener.heard) == 1
    partition.watch(listener)
    append(partition, b"a")
    assert listener.heard == [listener.heard[0]] * 2


def test_followers_hear_of_the_log_end_and_consumers_of_the_high_watermark(partition: Partition) -> None:
    consumer, follower = Listener(), Listener()
    partition.take_over(led_by(1, 1, 2, epoch=1))
    partition.watch(consumer)
    partition.watch(follower, to_log_end=True)
    append(partition, b"a")
    assert not consumer.heard and len(follower.heard) == 1
    partition.watch(follower, to_log_end=True)
    partition.on_follower_fetch(2, BROKER_EPOCH, 1, 0)
    assert len(consumer.heard) == len(follower.heard) == 1
    assert (consumer.rises, follower.rises) == (0, 1), "who watches the log end is told of the rise beside it"
    partition.notify_changed()
    assert len(follower.heard) == 2 and follower.heard[1] == 0


def test_with_replicas_the_high_watermark_waits_for_them(partition: Partition) -> None:
    listener = Listener()
    partition.watch(listener)
    partition.take_over(led_by(1, 1, 2, epoch=1))
    assert listener.heard == [0], "it has changed"
    partition.watch(listener)
    for _ in range(3):
        append(partition, b"a")
    assert (partition.high_watermark, listener.heard) == (0, [0])
    assert read(partition, 0) is None
    partition.on_follower_fetch(2, BROKER_EPOCH, 2, 0)
    assert partition.high_watermark == 2
    assert len(listener.heard) == 2 and listener.heard[1] > 0
    partition.on_follower_fetch(2, BROKER_EPOCH, 1, 0)
    assert partition.high_watermark == 2, "it never goes back"


def test_an_offline_partition_says_so_and_wakes_those_who_wait(partition: Partition) -> None:
    listener = Listener()
    partition.watch(listener)
    partition.take_offline()
    assert listener.heard == [0]
    for call in (
        lambda: append(partition, b"a"),
        lambda: read(partition, 0),
        lambda: partition.delete_records_before(0),
    ):
        with pytest.raises(KafkaError) as raised:
            call()
        assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_deleting_records_moves_the_log_start(partition: Partition) -> None:
    append(partition, b"a", b"b", b"c")
    assert partition.delete_records_before(2) == 2
    assert partition.delete_records_before(1) == 1 and partition.low_watermark == 2
    with pytest.raises(KafkaError) as raised:
        partition.delete_records_before(4)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.delete_records_before(-1) == 3
    assert read(partition, 3) is None
