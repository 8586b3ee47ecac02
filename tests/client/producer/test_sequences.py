from __future__ import annotations

from klamm.client.errors import BrokerError, ConnectionFailed, DeliveryTimedOut
from klamm.client.producer.batches import Batch
from klamm.client.producer.sequences import MAX_EPOCH
from klamm.model.errors import ErrorCode
from klamm.records.batch import MAX_SEQUENCE, parse_header
from tests.client.producer.cores import Cores, PartitionLog

CUT = ConnectionFailed("the connection was cut")
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def stamps(batches: list[Batch]) -> list[tuple[int, int, int]]:
    """What the bytes on the wire say: producer id, epoch and sequence."""
    headers = [parse_header(batch.data or b"") for batch in batches]
    return [(head.producer_id, head.producer_epoch, head.base_sequence) for head in headers]


def one_by_one(**settings: object) -> Cores:
    return Cores(1, batch_bytes=0, **settings)


def test_sequences_follow_each_other() -> None:
    cores = Cores(1, batch_bytes=300)
    for _ in range(5):
        cores.send(bytes(80))
    assert stamps(cores.drain_all()) == [(7, 0, 0), (7, 0, 2), (7, 0, 4)]


def test_each_partition_counts_for_itself() -> None:
    cores = Cores(2)
    for partition in (0, 1, 1):
        cores.send(partition=partition)
    assert stamps(cores.drain()) == [(7, 0, 0), (7, 0, 0)]
    cores.send(partition=0)
    cores.send(partition=1)
    assert stamps(cores.drain()) == [(7, 0, 1), (7, 0, 2)]


def test_sequences_wrap() -> None:
    cores = one_by_one()
    sequences = cores.accumulator.topics["t"].queues[0].sequences
    assert sequences is not None
    cores.send()
    cores.drain()
    sequences.next_sequence = MAX_SEQUENCE
    for _ in range(2):
        cores.send()
    assert stamps(cores.drain_all()) == [(7, 0, MAX_SEQUENCE), (7, 0, 0)]


def test_nothing_is_sent_without_an_id() -> None:
    cores = Cores(1, producer_id=-1)
    cores.send()
    assert cores.drain() == [] and cores.schedule.lacks_id
    cores.accumulator.identity.producer_id = 12
    cores.schedule.id_arrived(cores.now)
    assert stamps(cores.drain()) == [(12, 0, 0)] and not cores.schedule.lacks_id


def test_a_batch_sent_again_has_the_same_sequence() -> None:
    cores = one_by_one()
    cores.send()
    cores.send()
    first, second = cores.drain_all()
    cores.lose(first, CUT)
    cores.lose(second, CUT)
    assert stamps(cores.drain()) == [(7, 0, 0)]
    assert cores.drain() == [], "one at a time, until all is settled"
    cores.answer(first)
    assert stamps(cores.drain()) == [(7, 0, 1)]


def test_out_of_order_behind_another_only_waits() -> None:
    """The first one was refused for now, so the second could not follow it."""
    cores = one_by_one()
    cores.send()
    cores.send()
    first, second = cores.drain_all()
    cores.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    cores.answer(second, OUT_OF_ORDER)
    assert stamps(cores.drain()) == [(7, 0, 0)]
    cores.answer(first)
    assert stamps(cores.drain()) == [(7, 0, 1)], "the same epoch: nothing was lost"
    cores.answer(second)


def test_out_of_order_of_the_oldest_raises_the_epoch() -> None:
    """The broker lost what was acknowledged before, so our count is ahead of its count."""
    cores = one_by_one()
    cores.send()
    (first,) = cores.drain()
    cores.answer(first)
    deliveries = [cores.send(), cores.send()]
    second, third = cores.drain_all()
    cores.answer(second, OUT_OF_ORDER)
    assert cores.drain() == [], "not while another is under way"
    cores.answer(third, OUT_OF_ORDER)
    assert stamps(cores.drain()) == [(7, 1, 0)]
    cores.answer(second)
    assert stamps(cores.drain()) == [(7, 1, 1)]
    cores.answer(third)
    cores.send()
    assert stamps(cores.drain()) == [(7, 1, 2)]
    assert all(one.done() for one in deliveries)


def test_a_refused_batch_leaves_a_hole_that_the_next_epoch_closes() -> None:
    cores = one_by_one()
    bad, good = cores.send(), cores.send()
    first, second = cores.drain_all()
    cores.answer(first, ErrorCode.INVALID_RECORD)
    assert isinstance(bad.error(), BrokerError)
    cores.send()
    assert cores.drain() == [], "what is new waits until it is clear whether there is a hole"
    cores.answer(second, OUT_OF_ORDER)
    assert stamps(cores.drain()) == [(7, 1, 0)]
    cores.answer(second)
    assert good.sent()
    assert stamps(cores.drain()) == [(7, 1, 1)]


def test_a_batch_that_failed_with_nothing_behind_it_raises_the_epoch_for_the_next() -> None:
    cores = one_by_one()
    cores.send()
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.INVALID_RECORD)
    cores.send()
    assert stamps(cores.drain()) == [(7, 1, 0)]


def test_a_later_success_shows_that_there_was_no_hole() -> None:
    """The batch was given up without an answer, and the broker had it after all."""
    cores = one_by_one(delivery_timeout=10.0)
    lost = cores.send()
    (first,) = cores.drain()
    cores.now += 5.0
    cores.send()
    (second,) = cores.drain()
    cores.lose(first, CUT)
    cores.lose(second, CUT)
    cores.now += 5.0
    cores.settling.expire(cores.now)
    assert isinstance(lost.error(), DeliveryTimedOut)
    assert stamps(cores.drain()) == [(7, 0, 1)], "it is tried with its old number first"
    cores.answer(second)
    cores.send()
    assert stamps(cores.drain()) == [(7, 0, 2)]


def test_a_batch_given_up_under_way_counts_when_its_answer_comes() -> None:
    cores = one_by_one(delivery_timeout=10.0)
    cores.send()
    (first,) = cores.drain()
    cores.now += 10.0
    cores.settling.expire(cores.now)
    cores.send()
    assert cores.drain() == [], "it may still be written"
    cores.answer(first)
    assert stamps(cores.drain()) == [(7, 0, 1)]


def test_a_batch_given_up_and_lost_raises_the_epoch() -> None:
    cores = one_by_one(delivery_timeout=10.0)
    cores.send()
    (first,) = cores.drain()
    cores.now += 10.0
    cores.settling.expire(cores.now)
    cores.send()
    cores.lose(first, CUT)
    assert stamps(cores.drain()) == [(7, 1, 0)]


def test_a_broker_that_forgot_us_gets_a_new_epoch() -> None:
    cores = one_by_one()
    delivery = cores.send()
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.UNKNOWN_PRODUCER_ID)
    assert stamps(cores.drain()) == [(7, 1, 0)]
    cores.answer(batch)
    assert delivery.sent()


def test_a_batch_that_may_be_written_gets_no_new_numbers_when_the_broker_forgot_the_old_ones() -> None:
    cores = one_by_one()
    delivery, later = cores.send(), cores.send()
    (batch,) = cores.drain()
    cores.lose(batch, CUT)
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.UNKNOWN_PRODUCER_ID)
    error = delivery.error()
    assert isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_PRODUCER_ID
    assert "may have written" in str(error)
    (behind,) = cores.drain()
    assert stamps([behind]) == [(7, 1, 0)], "the next batch begins a new epoch"
    cores.answer(behind)
    assert later.sent() and not cores.ledger.has_unsettled


def test_a_batch_that_may_be_written_gets_no_new_numbers_because_of_another_batch() -> None:
    for is_answered_first in (True, False):
        cores = one_by_one()
        delivery, later = cores.send(), cores.send()
        first, second = cores.drain_all()
        if is_answered_first:
            cores.answer(first, ErrorCode.REQUEST_TIMED_OUT)
        cores.answer(second, ErrorCode.UNKNOWN_PRODUCER_ID)
        if not is_answered_first:
            cores.lose(first, CUT)
        assert isinstance(delivery.error(), BrokerError)
        assert stamps(cores.drain()) == [(7, 1, 0)]
        cores.answer(second)
        assert later.sent() and not cores.ledger.has_unsettled


def test_an_epoch_that_the_broker_finds_too_old_is_raised() -> None:
    cores = one_by_one()
    delivery = cores.send()
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert stamps(cores.drain()) == [(7, 1, 0)]
    cores.lose(batch, CUT)
    cores.drain()
    cores.answer(batch, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert isinstance(delivery.error(), BrokerError), "it may be written by now, so it must not go again"


def test_a_batch_that_may_be_written_is_not_split() -> None:
    """The topic's limit was lowered after the first attempt, whose answer was lost."""
    cores = Cores(1)
    deliveries = [cores.send(), cores.send()]
    (batch,) = cores.drain()
    cores.lose(batch, CUT)
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.MESSAGE_TOO_LARGE)
    assert all(isinstance(one.error(), BrokerError) for one in deliveries)


def test_used_up_epochs_take_a_new_id_and_leave_other_partitions_alone() -> None:
    cores = Cores(2, batch_bytes=0)
    queues = cores.accumulator.topics["t"].queues
    cores.send(partition=1)
    cores.answer(cores.drain()[0])
    sequences = queues[0].sequences
    assert sequences is not None
    cores.send(partition=0)
    (batch,) = cores.drain()
    sequences.epoch = MAX_EPOCH
    cores.answer(batch, ErrorCode.UNKNOWN_PRODUCER_ID)
    cores.send(partition=1)
    assert stamps(cores.drain()) == [(7, 0, 1)], "the other partition goes on"
    assert cores.schedule.lacks_id and cores.accumulator.identity.is_wanted
    cores.accumulator.identity.producer_id = 8
    cores.schedule.id_arrived(cores.now)
    assert stamps(cores.drain()) == [(8, 0, 0)]


def test_parts_share_the_numbers_of_the_whole() -> None:
    cores = Cores(1, batch_bytes=1000)
    for _ in range(5):
        cores.send(bytes(50))
    (batch,) = cores.drain()
    cores.send(bytes(50))
    (behind,) = cores.drain()
    cores.answer(batch, ErrorCode.MESSAGE_TOO_LARGE)
    cores.answer(behind, OUT_OF_ORDER)
    found = []
    while batches := cores.drain():
        found += stamps(batches)
        cores.answer(batches[0])
    assert found == [(7, 0, 0), (7, 0, 2), (7, 0, 5)]


def test_the_first_batch_of_an_epoch_goes_alone() -> None:
    """A broker without any memory of the producer would take the second one before the first."""
    cores, log = Cores(1, batch_bytes=0, is_begun=False), PartitionLog()
    for number in range(4):
        cores.send(b"%d" % number)
    (first,) = cores.drain_all()
    cores.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    (first,) = cores.drain_all()
    cores.answer(first, log.append(first.data or b"").error_code)
    rest = cores.drain_all()
    assert len(rest) == 3, "and then the others, without waiting for each other"
    for batch in rest:
        cores.answer(batch, log.append(batch.data or b"").error_code)
    assert log.values == [b"0", b"1", b"2", b"3"]


def test_a_whole_life_against_a_log_that_checks() -> None:
    """The broker forgets its last batches, as after an unclean change of the leader."""
    cores, log = one_by_one(), PartitionLog()
    for number in range(10):
        cores.send(b"%d" % number)
        for batch in cores.drain_all():
            answer = log.append(batch.data or b"")
            cores.answer(batch, answer.error_code, base_offset=answer.base_offset)
    forgetful = PartitionLog()
    forgetful.records = log.records[:6]
    forgetful.producers = log.producers.copy()
    entry = forgetful.producers.entries[7]
    forgetful.producers.entries[7] = entry._replace(batches=entry.batches[:1])
    for number in range(10, 20):
        cores.send(b"%d" % number)
        for _ in range(3):
            for batch in cores.drain_all():
                answer = forgetful.append(batch.data or b"")
                cores.answer(batch, answer.error_code, base_offset=answer.base_offset)
    assert forgetful.values == [b"%d" % number for number in [*range(6), *range(10, 20)]]
