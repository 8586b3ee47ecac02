from __future__ import annotations

from collections import Counter

import pytest

from klamm.client.errors import (
    BufferFull,
    ClientClosed,
    ClientMisused,
    ConnectionFailed,
    LocalRecordTooLarge,
    NotSerializable,
    TimedOut,
    UnknownTopic,
)
from klamm.client.producer.batches import RECORD_MEMORY_BYTES, RECORD_OVERHEAD_BYTES, Batch
from klamm.client.producer.partitioners import murmur2_partition
from klamm.records.reader import iter_records
from tests.client.producer.cores import NOW_MS, Cores


def values(batches: list[Batch]) -> list[bytes | None]:
    return [record.value for batch in batches for record in iter_records(batch.data or b"")]


# ---- batching


def test_records_of_a_partition_gather_in_a_batch() -> None:
    cores = Cores(1)
    deliveries = [cores.send(b"%d" % number) for number in range(5)]
    (batch,) = cores.drain()
    assert values([batch]) == [b"0", b"1", b"2", b"3", b"4"]
    cores.answer(batch, base_offset=100)
    assert [one.sent().offset for one in deliveries] == [100, 101, 102, 103, 104]
    assert deliveries[0].sent() == (0, 100, NOW_MS, "t")


def test_a_batch_that_is_taken_takes_no_more() -> None:
    cores = Cores(1)
    cores.send(b"first")
    cores.drain()
    cores.send(b"second")
    assert values(cores.drain()) == [b"second"]


def test_a_full_batch_is_followed_by_another() -> None:
    cores = Cores(1, batch_bytes=500)
    for number in range(10):
        cores.send(bytes([number]) * 100)
    batches = cores.drain_all()
    assert [batch.count for batch in batches] == [3, 3, 3, 1]
    assert max(batch.size for batch in batches) <= 500


def test_a_batch_never_exceeds_its_size_on_the_wire() -> None:
    cores = Cores(1, batch_bytes=1000, max_in_flight=100)
    for number in range(200):
        cores.send(bytes(number % 90), key=b"k" * (number % 7), headers=[("h", b"v")] * (number % 3))
    sizes = [len(batch.data or b"") for batch in cores.drain_all()]
    assert max(sizes) <= 1000 and len(sizes) > 10


def test_a_record_larger_than_a_batch_has_one_of_its_own() -> None:
    cores = Cores(1, batch_bytes=100, linger=10.0)
    cores.send(b"small")
    cores.send(bytes(1000))
    cores.send(b"small")
    assert [batch.count for batch in cores.drain_all()] == [1, 1], "the last one lingers"


def test_batch_size_zero_sends_one_by_one() -> None:
    cores = Cores(1, batch_bytes=0)
    for _ in range(3):
        cores.send()
    assert [batch.count for batch in cores.drain_all()] == [1, 1, 1]


def test_a_batch_lingers() -> None:
    cores = Cores(1, linger=0.5)
    cores.send(b"first")
    assert cores.drain() == []
    assert cores.schedule.next_due() == cores.now + 0.5
    cores.now += 0.4
    cores.send(b"second")
    assert cores.drain() == []
    cores.now += 0.1
    assert values(cores.drain()) == [b"first", b"second"]


def test_a_full_batch_does_not_linger() -> None:
    cores = Cores(1, linger=10.0, batch_bytes=400)
    for _ in range(5):
        cores.send(bytes(100))
    assert [batch.count for batch in cores.drain_all()] == [2, 2], "the last one is not full"


def test_flush_ends_lingering_for_what_is_there() -> None:
    cores = Cores(1, linger=10.0)
    cores.send(b"first")
    ticket = cores.accumulator.flush()
    assert not cores.ledger.is_flushed(ticket)
    (batch,) = cores.drain()
    cores.send(b"later")
    assert cores.drain() == [], "what comes after a flush lingers"
    cores.answer(batch)
    assert cores.ledger.is_flushed(ticket)


def test_flush_waiters_are_told_once_all_before_them_are_settled() -> None:
    cores = Cores(2, linger=10.0)
    told: list[str] = []
    cores.send(partition=0)
    cores.send(partition=1)
    cores.ledger.add_flush_waiter(cores.accumulator.flush(), lambda: told.append("flushed"))
    first, second = cores.drain()
    cores.answer(second)
    assert cores.call_finished() == 0
    cores.answer(first)
    assert cores.call_finished() == 1 and told == ["flushed"]
    cores.ledger.add_flush_waiter(cores.accumulator.flush(), lambda: told.append("nothing to do"))
    assert cores.call_finished() == 1


def test_a_request_has_one_batch_per_partition_and_a_largest_size() -> None:
    cores = Cores(3, batch_bytes=200)
    for index in (0, 0, 1, 1, 2):
        cores.send(bytes(100), partition=index)
    first = cores.drain()
    assert [batch.partition for batch in first] == [0, 1, 2]
    assert [batch.partition for batch in cores.drain(max_bytes=250)] == [0]
    assert [batch.partition for batch in cores.drain(max_bytes=10)] == [1], "one always fits"
    assert cores.drain() == []


def test_a_broker_that_takes_nothing_gets_nothing() -> None:
    cores = Cores(1)
    cores.send()
    assert cores.drain(may_take=False) == []
    assert len(cores.drain()) == 1


# ---- partitions


def test_keys_choose_as_java_does() -> None:
    cores = Cores(7)
    chosen = []
    for number in range(50):
        cores.send(b"v", key=b"%d" % number)
    for batch in cores.drain_all():
        chosen += [(record.key, batch.partition) for record in iter_records(batch.data or b"")]
    assert len(chosen) == 50
    assert all(partition == murmur2_partition(key or b"", 7) for key, partition in chosen)


def test_an_empty_key_sticks_with_crc32() -> None:
    crc32 = Cores(7, partitioner="crc32", batch_bytes=200)
    for _ in range(10):
        crc32.send(bytes(100), key=b"")
    assert len({batch.partition for batch in crc32.drain_all()}) > 2, "as if there were no key"
    murmur2 = Cores(7, batch_bytes=200, max_in_flight=10)
    for _ in range(10):
        murmur2.send(bytes(100), key=b"")
    assert {batch.partition for batch in murmur2.drain_all()} == {murmur2_partition(b"", 7)}


def test_without_a_key_batches_go_round() -> None:
    cores = Cores(3, batch_bytes=1000, linger=100.0)
    for _ in range(300):
        cores.send(bytes(79))
    drained = cores.drain_all()
    spread = Counter(batch.partition for batch in drained)
    assert set(spread) == {0, 1, 2} and max(spread.values()) - min(spread.values()) <= 1
    assert min(batch.count for batch in drained) >= 8, "batches are full, not torn apart"


def test_small_batches_stick_until_a_batch_of_bytes_was_sent() -> None:
    cores = Cores(3, batch_bytes=1000)
    partitions = []
    for _ in range(40):
        cores.send(bytes(79))  # 100 bytes with what a record needs
        (batch,) = cores.drain()
        partitions.append(batch.partition)
        cores.answer(batch)
    assert partitions == [0] * 10 + [1] * 10 + [2] * 10 + [0] * 10


def test_partitions_without_a_leader_get_no_records_that_may_go_elsewhere() -> None:
    cores = Cores(0, batch_bytes=200)
    cores.leaderless = {0, 2}
    cores.know(3)
    for _ in range(10):
        cores.send(bytes(100))
    assert {batch.partition for batch in cores.drain_all()} == {1}


def test_a_leaderless_partition_waits() -> None:
    cores = Cores(2)
    cores.leaderless = {1}
    cores.send(b"waits", partition=1)
    cores.send(b"goes", partition=0)
    assert values(cores.drain()) == [b"goes"]
    assert cores.schedule.leaderless == {cores.topic}
    cores.leaderless = set()
    assert values(cores.drain()) == [b"waits"]


def test_a_partitioner_of_the_users() -> None:
    cores = Cores(3, chooser=lambda topic, key, count: None if key is None else key[0] % count)
    for key in (b"\0", b"\1", b"\2", None):
        cores.send(key=key)
    assert sorted(batch.partition for batch in cores.drain_all()) == [0, 1, 2]
    bad = Cores(3, chooser=lambda topic, key, count: 99)
    with pytest.raises(ClientMisused, match="99"):
        bad.send(key=b"k")
    assert bad.ledger.memory_used == 0 and bad.drain() == []


# ---- what is refused


@pytest.mark.parametrize("more", [{"value": "text"}, {"key": 7}, {"headers": [("h", "text")]}])
def test_what_is_not_bytes(more: dict[str, object]) -> None:
    cores = Cores(1)
    with pytest.raises(NotSerializable):
        cores.send(**more)  # type: ignore[arg-type]
    assert cores.ledger.memory_used == 0 and cores.drain() == []


@pytest.mark.parametrize("partition", [-1, "0", 1.5, True, 2**31])
def test_what_is_no_partition(partition: object) -> None:
    with pytest.raises(ClientMisused):
        Cores(1).send(partition=partition)


def test_what_is_too_large() -> None:
    cores = Cores(1, max_request_bytes=1000)
    cores.send(bytes(1000 - 61 - RECORD_OVERHEAD_BYTES))
    with pytest.raises(LocalRecordTooLarge, match="max_request_size"):
        cores.send(bytes(1000 - 61 - RECORD_OVERHEAD_BYTES + 1))
    (batch,) = cores.drain()
    assert len(batch.data or b"") <= 1000
    small = Cores(1, buffer_bytes=500)
    with pytest.raises(LocalRecordTooLarge, match="buffer_memory"):
        small.send(bytes(500))


def test_no_topic_but_a_text() -> None:
    for topic in (None, 7, b"t"):
        with pytest.raises(ClientMisused):
            Cores(1).send(topic=topic)


def test_nothing_is_taken_after_the_end() -> None:
    cores = Cores(1)
    cores.accumulator.close(ClientClosed("it is over"))
    with pytest.raises(ClientClosed):
        cores.send()
    with pytest.raises(ClientClosed):
        cores.accumulator.append_encoded("t", 0, memoryview(bytearray(63)), 1, 0, 0)


# ---- memory


def test_memory_counts_until_the_answer() -> None:
    size = 100 + RECORD_OVERHEAD_BYTES + RECORD_MEMORY_BYTES
    cores = Cores(1, buffer_bytes=10 * size)
    for _ in range(10):
        cores.send(bytes(100))
    assert cores.ledger.memory_used == 10 * size
    with pytest.raises(BufferFull) as full:
        cores.send(bytes(100))
    assert full.value.retriable
    (batch,) = cores.drain()
    with pytest.raises(BufferFull):
        cores.send(b"under way is not gone")
    cores.answer(batch)
    assert cores.ledger.memory_used == 0
    cores.send(bytes(100))


def test_who_waits_for_room_is_told_when_there_is_enough() -> None:
    cores = Cores(1, batch_bytes=300, buffer_bytes=2000)
    told: list[str] = []
    while True:
        try:
            cores.send(bytes(100))
        except BufferFull:
            break
    used = cores.ledger.memory_used
    cores.ledger.add_room_waiter(used // 2, lambda: told.append("room"))
    for batch in cores.drain_all():
        assert told == [] or cores.ledger.memory_used <= used // 2
        cores.answer(batch)
        cores.call_finished()
    assert told == ["room"]


def test_encoded_records_take_room_or_wait_unless_alone() -> None:
    cores = Cores(1, buffer_bytes=1000)
    batch = cores.accumulator.append_encoded("t", 0, memoryview(bytearray(5000)), 3, NOW_MS, NOW_MS)
    assert cores.ledger.memory_used > 1000, "alone it may exceed the bound"
    with pytest.raises(BufferFull):
        cores.accumulator.append_encoded("t", 0, memoryview(bytearray(71)), 1, NOW_MS, NOW_MS)
    cores.schedule.drain(cores.now, cores.leader_of, lambda node: True, 1 << 20)
    cores.answer(batch)
    assert cores.ledger.memory_used == 0


# ---- topics that are not known yet


def test_records_of_an_unknown_topic_wait_in_order() -> None:
    cores = Cores(0)
    deliveries = [cores.send(b"%d" % number, partition=number % 2) for number in range(6)]
    assert cores.accumulator.lookups == {"t"} and cores.drain() == []
    assert not deliveries[0].done()
    cores.know(2)
    deliveries.append(cores.send(b"6", partition=0))
    first, second = cores.drain()
    assert values([first]) == [b"0", b"2", b"4", b"6"] and values([second]) == [b"1", b"3", b"5"]
    cores.answer(first, base_offset=10)
    cores.answer(second, base_offset=20)
    assert [one.sent().offset for one in deliveries] == [10, 20, 11, 21, 12, 22, 13]
    assert cores.ledger.memory_used == 0


def test_waiters_move_along_with_unplaced_records() -> None:
    cores = Cores(0)
    told: list[int] = []
    deliveries = [cores.send(b"%d" % number) for number in range(3)]
    for number, delivery in enumerate(deliveries):
        delivery.add_done_callback(lambda done, number=number: told.append(number))
    cores.know(1)
    (batch,) = cores.drain()
    cores.answer(batch)
    cores.call_finished()
    assert told == [0, 1, 2]


def test_a_flush_waits_for_unplaced_records() -> None:
    cores = Cores(0, linger=10.0)
    cores.send()
    ticket = cores.accumulator.flush()
    cores.know(1)
    (batch,) = cores.drain()
    assert not cores.ledger.is_flushed(ticket)
    cores.answer(batch)
    assert cores.ledger.is_flushed(ticket)


def test_a_topic_that_cannot_be_had_fails_its_records() -> None:
    cores = Cores(0)
    delivery = cores.send()
    cores.accumulator.topic_failed("t", TimedOut("looking", 1.0))
    assert isinstance(delivery.error(), TimedOut)
    assert cores.ledger.memory_used == 0 and not cores.accumulator.unplaced_topics


def test_only_what_waited_long_enough_fails_with_a_topic() -> None:
    cores = Cores(0, max_block=60.0)
    early = cores.send()
    cores.now += 30.0
    late = cores.send()
    cores.accumulator.topic_failed("t", TimedOut("looking", 60.0), until=cores.now - 1)
    assert early.done() and not late.done()


@pytest.mark.parametrize(("max_block", "delivery_timeout"), [(5.0, 100.0), (100.0, 5.0)])
def test_unplaced_records_run_out_of_time(max_block: float, delivery_timeout: float) -> None:
    cores = Cores(0, max_block=max_block, delivery_timeout=delivery_timeout)
    delivery = cores.send()
    assert cores.settling.next_deadline() == cores.now + 5.0
    cores.now += 4.9
    cores.settling.expire(cores.now)
    assert not delivery.done()
    cores.now += 0.1
    cores.settling.expire(cores.now)
    assert isinstance(delivery.error(), TimedOut) and cores.ledger.memory_used == 0


def test_a_partition_beyond_the_known_ones_waits_for_a_look() -> None:
    cores = Cores(2)
    there, beyond = cores.send(partition=1), cores.send(partition=2)
    assert cores.accumulator.lookups == {"t"}
    cores.know(2)
    assert not beyond.done(), "that was not the look it waits for"
    cores.know(2, looked_up=True)
    assert isinstance(beyond.error(), UnknownTopic) and "2 partitions" in str(beyond.error())
    assert not there.done()
    grown = cores.send(partition=2)
    cores.know(3, looked_up=True)
    assert {batch.partition for batch in cores.drain()} == {1, 2} and not grown.done()


def test_a_bad_partitioner_fails_an_unplaced_record_alone() -> None:
    cores = Cores(0, chooser=lambda topic, key, count: 0 if key == b"good" else -5)
    good, bad = cores.send(key=b"good"), cores.send(key=b"bad")
    cores.know(1)
    assert isinstance(bad.error(), ClientMisused)
    (batch,) = cores.drain()
    cores.answer(batch)
    assert good.sent().offset == 0 and cores.ledger.memory_used == 0


def test_a_topic_made_anew_with_fewer_partitions_fails_what_has_no_place() -> None:
    cores = Cores(3)
    stays, goes = cores.send(partition=0), cores.send(partition=2)
    cores.know(2)
    assert isinstance(goes.error(), UnknownTopic) and not stays.done()
    assert [batch.partition for batch in cores.drain()] == [0]


def test_new_partitions_get_records() -> None:
    cores = Cores(1, batch_bytes=200)
    cores.know(4)
    for _ in range(20):
        cores.send(bytes(100))
    assert {batch.partition for batch in cores.drain_all()} == {0, 1, 2, 3}


def test_what_has_a_partition_does_not_wait_with_what_has_none() -> None:
    cores = Cores(0, max_in_flight=100)
    first = [cores.send(b"1", partition=0), cores.send(b"beyond", partition=3)]
    cores.now += 5.0
    second = [cores.send(b"2", partition=0)]
    used = cores.ledger.memory_used
    cores.know(1)  # metadata that was not asked for because of them
    assert cores.ledger.memory_used == used
    third = [cores.send(b"3", partition=0)]
    batches = cores.drain_all()
    assert values(batches) == [b"1", b"2", b"3"], "in the order in which they were sent"
    for batch in batches:
        cores.answer(batch, base_offset=batches.index(batch))
    assert all(one.done() for one in [first[0], *second, *third]) and not first[1].done()
    cores.know(1, looked_up=True)
    assert isinstance(first[1].error(), UnknownTopic)
    assert cores.ledger.memory_used == 0 and not cores.accumulator.unplaced_topics


def test_one_delivery_is_asked_by_several_threads() -> None:
    """Between the looks of one thread another one may have followed the record to its place."""
    cores = Cores(0)
    deliveries = [cores.send(b"%d" % number, partition=number) for number in range(3)]
    cores.know(3)
    for batch in cores.drain_all():
        cores.answer(batch, base_offset=batch.partition * 100)
    asked = deliveries[2]
    before = asked._batch, asked._index
    assert asked.sent().offset == 200
    assert (asked._batch, asked._index) == before, "nothing that another thread could see half done"


# ---- topics that nobody sends to


def test_a_topic_that_nobody_sends_to_is_looked_up_again_and_goes_on_counting() -> None:
    cores = Cores(1, topic_idle=300.0)
    first = cores.send(b"first")
    (batch,) = cores.drain()
    assert cores.accumulator.retire_unused_topics(set()) == [], "a batch is under way"
    cores.answer(batch)
    cores.now += 299.0
    assert cores.accumulator.retire_unused_topics(set()) == []
    cores.now += 1.0
    assert cores.accumulator.retire_unused_topics(set()) == [cores.topic]
    again = cores.send(b"again")
    assert cores.accumulator.lookups == {cores.topic} and cores.drain() == []
    cores.know(2, looked_up=True)
    (batch,) = cores.drain()
    assert (batch.partition, batch.sequence) == (0, 1), "the broker has counted the first record"
    cores.answer(batch, base_offset=1)
    assert (first.sent().offset, again.sent().offset) == (0, 1)


def test_a_deleted_topic_is_retired_at_once_unless_records_wait_for_it() -> None:
    cores = Cores(1)
    cores.send(b"first")
    (batch,) = cores.drain()
    cores.answer(batch)
    cores.send(b"second")
    assert cores.accumulator.retire_unused_topics({cores.topic}) == []
    (batch,) = cores.drain()
    cores.answer(batch)
    assert cores.accumulator.retire_unused_topics({cores.topic}) == [cores.topic]


def test_a_retired_topic_that_cannot_be_found_goes_on_counting_all_the_same() -> None:
    cores = Cores(1)
    cores.send(b"first")
    (batch,) = cores.drain()
    cores.answer(batch)
    cores.accumulator.retire_unused_topics({cores.topic})
    lost = cores.send(b"lost")
    cores.accumulator.topic_failed(cores.topic, ConnectionFailed("nobody there"))
    assert isinstance(lost.error(), ConnectionFailed)
    cores.send(b"again")
    cores.know(1, looked_up=True)
    (batch,) = cores.drain()
    assert batch.sequence == 1
