"""A partition that leads, follows, and does neither, as the controller says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from klamm.cluster.image import NO_LEADER, PartitionImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.k01_fetch import EpochEndOffset, PartitionData
from klamm.replication.closest_replica import NO_PREFERENCE
from klamm.replication.context import ReplicationContext
from klamm.replication.follower import Action, Do, FetchPosition
from klamm.replication.isr import IsrChange, Outcome, outcome_of
from klamm.replication.newest_batches import NewestBatches
from klamm.replication.partition import Partition
from klamm.storage.log_config import LogConfig
from tests.replication.partitions import (
    BROKER_EPOCH,
    NOW_MS,
    TOPIC_ID,
    append,
    commit,
    led_by,
    open_log,
)

OWN, OTHER, THIRD = 1, 2, 3


class Scene:
    """A partition of broker 1 with three replicas, and what it proposes and cuts."""

    def __init__(self, directory: Path) -> None:
        self.proposals: list[IsrChange] = []
        self.context = ReplicationContext(
            OWN, lambda: NOW_MS, broker_epoch=11, propose=lambda _, change: self.proposals.append(change)
        )
        self.log = open_log(directory)
        self.partition = Partition("orders", 0, TOPIC_ID, self.log, self.context)
        self.context.truncate = self._truncate
        self.context.start_at = self._start_at

    def _truncate(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.log.truncate_to(offsets[self.partition.topic_partition], NOW_MS)

    def _start_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.log.start_at(offsets[self.partition.topic_partition], NOW_MS)

    def take(self, leader: int, epoch: int, isr: tuple[int, ...] | None = None) -> None:
        self.partition.take_over(led_by(leader, OWN, OTHER, THIRD, epoch=epoch, isr=isr))

    def fetched(self, data: PartitionData) -> Action:
        """The leader's answer to what the partition asks now."""
        asked = self.partition.next_fetch()
        assert asked is not None
        action = self.partition.on_fetched(asked, data)
        if action.do in (Do.APPEND, Do.TRUNCATE, Do.START_AT):
            self.partition.write_fetched(action, data)
            self.partition.settle_fetched(action, data)
        return action


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def partition(scene: Scene) -> Partition:
    return scene.partition


def batches(directory: Path, *values: bytes, leader_epoch: int = 1) -> bytes:
    """As a leader has them, one batch for each value, from offset 0 on."""
    log = open_log(directory, "copied")
    leader = Partition("copied", 0, TOPIC_ID, log, ReplicationContext(9, lambda: NOW_MS))
    leader.take_over(PartitionImage((9,), (9,), 9, leader_epoch, 1))
    for value in values:
        append(leader, value)
    records = leader.read(0, 1_000_000, must_return_one=True, may_block=True)
    assert records is not None
    return bytes(records.read())


def refusal(partition: Partition) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        append(partition, b"value")
    return raised.value.code


def test_without_a_role_a_partition_does_nothing(partition: Partition) -> None:
    assert refusal(partition) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.next_fetch() is None
    with pytest.raises(KafkaError):
        partition.check_led()
    with pytest.raises(KafkaError):
        partition.on_follower_fetch(OTHER, BROKER_EPOCH, 0, 0)


def test_leader_follower_leader(scene: Scene, partition: Partition) -> None:
    scene.take(OWN, 1)
    append(partition, b"a")
    commit(partition, 1)
    append(partition, b"b")
    scene.take(OTHER, 2)
    assert refusal(partition) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.next_fetch() == FetchPosition(2, 1, 2, 0)
    assert (partition.high_watermark, partition.leader_id) == (1, OTHER)
    scene.take(OWN, 3)
    assert partition.next_fetch() is None
    assert scene.log.epochs.entries == ((1, 0), (3, 2)), "noted before anything is appended"
    append(partition, b"c")
    assert scene.log.epochs.entries == ((1, 0), (3, 2))
    commit(partition, 3)
    assert partition.high_watermark == 3
    scene.take(NO_LEADER, 4)
    assert partition.leader is None and partition.next_fetch() is None


def test_an_older_state_changes_nothing(scene: Scene, partition: Partition) -> None:
    scene.take(OWN, 5, (OWN, OTHER))
    for older in (
        led_by(OTHER, OWN, OTHER, epoch=4),
        PartitionImage((OWN, OTHER), (OWN,), OWN, 5, 4),
        PartitionImage((OWN, OTHER), (OWN,), OTHER, 4, 9),
        PartitionImage((OWN, OTHER, THIRD), (OWN,), OWN, 5, 5),
    ):
        leader = partition.leader
        partition.take_over(older)
        assert partition.leader is leader
        assert (partition.isr, partition.leader_epoch, partition.partition_epoch) == ((OWN, OTHER), 5, 5)


def test_a_newer_state_of_the_same_epoch_changes_the_isr_only(scene: Scene, partition: Partition) -> None:
    scene.take(OWN, 1)
    append(partition, b"a")
    leader = partition.leader
    partition.take_over(PartitionImage((OWN, OTHER, THIRD), (OWN, OTHER), OWN, 1, 2))
    assert partition.leader is leader and partition.isr == (OWN, OTHER)
    partition.on_follower_fetch(OTHER, BROKER_EPOCH, 1, 0)
    assert partition.high_watermark == 1, "it does not wait for the third"


def test_a_resigned_partition_takes_its_role_again_in_the_same_epoch(
    scene: Scene, partition: Partition
) -> None:
    """A follower's leader epoch does not rise because its broker was away."""
    scene.take(OTHER, 5)
    partition.resign()
    assert partition.next_fetch() is None
    state = led_by(OTHER, OWN, OTHER, THIRD, epoch=5)
    assert partition.needs_other_role(state)
    partition.take_over(state)
    assert partition.next_fetch() is not None
    assert not partition.needs_other_role(state), "once is enough"
    partition.resign()
    assert not partition.needs_other_role(led_by(OTHER, OWN, OTHER, THIRD, epoch=4))
    partition.take_over(led_by(OTHER, OWN, OTHER, THIRD, epoch=4))
    assert partition.next_fetch() is None


def test_an_offline_partition_takes_no_role(scene: Scene, partition: Partition) -> None:
    scene.take(OWN, 1)
    partition.take_offline()
    scene.take(OWN, 2)
    assert partition.leader is None and refusal(partition) is ErrorCode.KAFKA_STORAGE_ERROR
    scene.take(OTHER, 3)
    assert partition.next_fetch() is None


def test_the_high_watermark_is_that_of_the_checkpoint(scene: Scene, partition: Partition) -> None:
    scene.take(OWN, 1)
    for _ in range(3):
        append(partition, b"a")
    again = Partition("orders", 0, TOPIC_ID, scene.log, scene.context, high_watermark=2)
    assert again.high_watermark == 2
    again.take_over(led_by(OWN, OWN, OTHER, THIRD, epoch=2))
    assert again.high_watermark == 2
    assert Partition("orders", 0, TOPIC_ID, scene.log, scene.context, 9).high_watermark == 3


def test_too_few_in_sync_commit_nothing(scene: Scene, partition: Partition) -> None:
    partition.set_min_insync_replicas(2)
    scene.take(OWN, 1, (OWN,))
    with pytest.raises(KafkaError) as raised:
        partition.check_enough_replicas()
    assert raised.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    append(partition, b"a")
    assert partition.high_watermark == 0
    partition.set_min_insync_replicas(1)
    partition.check_enough_replicas()
    assert partition.high_watermark == 1


def test_the_latest_offset_is_not_told_before_it_is_known(scene: Scene, partition: Partition) -> None:
    """The leader before may have told a higher one (KIP-207)."""
    scene.take(OWN, 1)
    append(partition, b"a")
    partition.check_high_watermark_known()
    scene.take(OWN, 2)
    with pytest.raises(KafkaError) as raised:
        partition.check_high_watermark_known()
    assert raised.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    commit(partition, 1)
    partition.check_high_watermark_known()


def test_a_follower_that_has_caught_up_is_proposed_and_counts_from_then_on(
    scene: Scene, partition: Partition
) -> None:
    scene.take(OWN, 1, (OWN,))
    append(partition, b"a")
    assert partition.high_watermark == 1
    partition.on_follower_fetch(OTHER, BROKER_EPOCH, 0, 0)
    assert not scene.proposals
    partition.on_follower_fetch(OTHER, BROKER_EPOCH, 1, 0)
    (change,) = scene.proposals
    assert change.members == ((OWN, 11), (OTHER, BROKER_EPOCH))
    append(partition, b"b")
    assert partition.high_watermark == 1, "it may be in the ISR already"
    assert partition.on_isr_outcome(change, Outcome.APPLIED, (OWN, OTHER), 2) is None
    assert (partition.isr, partition.partition_epoch) == ((OWN, OTHER), 2)
    partition.on_follower_fetch(OTHER, BROKER_EPOCH, 2, 0)
    assert partition.high_watermark == 2


def test_a_step_of_the_wall_clock_says_nothing_of_lags_and_pauses(scene: Scene, partition: Partition) -> None:
    def wall_clock() -> int:
        raise AssertionError("a lag is measured on the wall clock")

    scene.context.now_ms = wall_clock
    scene.context.monotonic_ms = lambda: 1
    scene.take(OWN, 1, (OWN,))
    partition.on_follower_fetch(OTHER, BROKER_EPOCH, 0, 0)
    (change,) = scene.proposals
    assert partition.on_isr_outcome(change, Outcome.NOT_APPLIED, (), -1) is None
    partition.take_over(led_by(OWN, OWN, OTHER, epoch=1)._replace(partition_epoch=2))
    assert scene.context.lag_watch.check(scene.context.monotonic_ms()) == []


def test_the_replicas_after_a_reassignment_are_taken_though_the_isr_was_told_before(
    scene: Scene, partition: Partition
) -> None:
    """Else the leader proposes the replica that was moved away, and waits for what it never fetches."""
    scene.take(OWN, 1, (OWN, OTHER))
    append(partition, b"a")
    commit(partition, 1)
    (joins,) = scene.proposals
    assert joins.isr == (OWN, OTHER, THIRD)
    # The third is the target of a reassignment: the second leaves with its answer.
    refused = partition.on_isr_outcome(joins, Outcome.APPLIED, (OWN, THIRD), 2)
    assert refused is not None and refused.isr == (OWN, THIRD, OTHER)
    partition.take_over(led_by(OWN, OWN, THIRD, epoch=1)._replace(partition_epoch=2))
    assert partition.replicas == (OWN, THIRD)
    append(partition, b"b")
    partition.on_follower_fetch(THIRD, BROKER_EPOCH, 2, 0)
    assert partition.high_watermark == 2, "the second is waited for no more"
    with pytest.raises(KafkaError, match="has no replica"):
        partition.on_follower_fetch(OTHER, BROKER_EPOCH, 2, 0)
    outcome = outcome_of(ErrorCode.INVALID_REQUEST)
    assert partition.on_isr_outcome(refused, outcome, (), -1) is None
    assert partition.leader is not None and partition.leader.isr.pending is None
    assert partition.isr == (OWN, THIRD)


def test_the_outcome_of_an_earlier_leadership_says_nothing(scene: Scene, partition: Partition) -> None:
    scene.take(OWN, 1, (OWN,))
    partition.on_follower_fetch(OTHER, BROKER_EPOCH, 0, 0)
    (change,) = scene.proposals
    for leader_id, epoch in ((OTHER, 2), (OWN, 3)):
        scene.take(leader_id, epoch, (OWN, THIRD))
        assert partition.on_isr_outcome(change, Outcome.UNKNOWN, (), -1) is None
        assert partition.on_isr_outcome(change, Outcome.APPLIED, (OWN, OTHER), 2) is None
        assert partition.isr == (OWN, THIRD)


def test_consumers_are_sent_to_a_replica_in_their_rack(scene: Scene, partition: Partition) -> None:
    racks: dict[int, str | None] = {OWN: "east", OTHER: "west", THIRD: "south"}
    scene.context.racks = lambda: racks
    scene.take(OWN, 1, (OWN, OTHER))
    append(partition, b"a")
    assert partition.closest_replica("west", 0) == NO_PREFERENCE, "nothing is known of it yet"
    commit(partition, 1)
    assert partition.closest_replica("west", 0) == OTHER
    assert partition.closest_replica("east", 0) == NO_PREFERENCE
    assert partition.closest_replica("south", 0) == NO_PREFERENCE, "it is not in sync"
    del racks[OTHER]
    assert partition.closest_replica("west", 0) == NO_PREFERENCE, "it is not alive"
    scene.take(OTHER, 2)
    assert partition.closest_replica("south", 0) == NO_PREFERENCE, "only a leader knows"


# ---- as follower


def test_what_is_fetched_is_stored_as_it_is(scene: Scene, partition: Partition, tmp_path: Path) -> None:
    scene.take(OTHER, 2)
    records = batches(tmp_path, b"a", b"b", b"c")
    data = PartitionData(records=records, high_watermark=2, log_start_offset=0)
    assert scene.fetched(data).do is Do.APPEND
    assert (scene.log.log_end_offset, partition.high_watermark) == (3, 2)
    stored = partition.read(0, 1_000_000, to_log_end=True, must_return_one=True, may_block=True)
    assert stored is not None and bytes(stored.read()) == records
    assert scene.fetched(PartitionData(records=b"", high_watermark=9, log_start_offset=1)).do is Do.APPEND
    assert (partition.high_watermark, scene.log.log_start_offset) == (3, 1)


def test_a_follower_flushes_as_its_topic_asks_before_it_fetches_on(
    scene: Scene, partition: Partition, tmp_path: Path
) -> None:
    assert not partition.writes_slowly
    scene.log.config = LogConfig(flush_messages=1)
    assert partition.writes_slowly
    scene.take(OTHER, 2)
    scene.fetched(PartitionData(records=batches(tmp_path, b"a", b"b")))
    assert scene.log.recovery_point == 2


def test_damaged_records_are_refused(scene: Scene, tmp_path: Path) -> None:
    scene.take(OTHER, 2)
    records = bytearray(batches(tmp_path, b"a"))
    records[-1] ^= 1
    with pytest.raises(KafkaError) as raised:
        scene.fetched(PartitionData(records=bytes(records)))
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert scene.log.log_end_offset == 0


def test_the_high_watermark_is_never_above_a_log_that_is_cut(
    scene: Scene, partition: Partition, tmp_path: Path
) -> None:
    scene.take(OTHER, 2)
    scene.fetched(PartitionData(records=batches(tmp_path, b"a", b"b", b"c"), high_watermark=3))
    scene.take(THIRD, 3)
    asked = partition.next_fetch()
    assert asked is not None
    data = PartitionData(diverging_epoch=EpochEndOffset(epoch=0, end_offset=1))
    action = partition.on_fetched(asked, data)
    assert action.do is Do.TRUNCATE
    assert partition.high_watermark == action.offset, "before a thread cuts the log"
    partition.write_fetched(action, data)
    partition.resign()
    partition.settle_fetched(action, data)
    assert partition.high_watermark == scene.log.log_end_offset == action.offset


def test_what_was_read_before_the_log_was_cut_is_not_read_again(
    scene: Scene, partition: Partition, tmp_path: Path
) -> None:
    newest = NewestBatches()
    scene.take(OTHER, 2)
    read: list[bytes] = []
    for name, value in (("first", b"a"), ("second", b"b")):
        (tmp_path / name).mkdir()
        scene.fetched(PartitionData(records=batches(tmp_path / name, value), high_watermark=1))
        records = newest.read(partition, 0, 1_000_000, to_log_end=False, must_return_one=True)
        assert isinstance(records, bytes | bytearray)
        read.append(bytes(records))
        scene.fetched(PartitionData(diverging_epoch=EpochEndOffset(epoch=0, end_offset=0)))
        assert scene.log.log_end_offset == 0
    assert read[0] != read[1]


def test_beginning_anew(scene: Scene, partition: Partition, tmp_path: Path) -> None:
    scene.take(OTHER, 2)
    scene.fetched(PartitionData(records=batches(tmp_path, b"a"), high_watermark=1))
    data = PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=50)
    assert scene.fetched(data).do is Do.START_AT
    assert (scene.log.log_start_offset, scene.log.log_end_offset, partition.high_watermark) == (50, 50, 50)
    assert partition.next_fetch() == FetchPosition(50, -1, 2, 50)


def test_an_answer_of_an_earlier_epoch_is_dropped(scene: Scene, partition: Partition) -> None:
    scene.take(OTHER, 2)
    asked = partition.next_fetch()
    assert asked is not None
    for leader_id, epoch in ((OTHER, 3), (OWN, 4)):
        scene.take(leader_id, epoch)
        assert partition.on_fetched(asked, PartitionData(records=b"x")).do is Do.DROP
