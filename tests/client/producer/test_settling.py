from __future__ import annotations

import pytest

from klamm.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    DeliveryTimedOut,
    RecordRefused,
    RecordTooLarge,
)
from klamm.client.network.backoff import Backoff
from klamm.client.producer.batches import Batch
from klamm.model.errors import ErrorCode
from klamm.records.reader import iter_records
from tests.client.producer.cores import NOW_MS, Cores

CUT = ConnectionFailed("the connection was cut")


def values(batches: list[Batch]) -> list[bytes | None]:
    return [record.value for batch in batches for record in iter_records(batch.data or b"")]


def test_an_error_that_may_pass_has_the_batch_sent_again() -> None:
    cores = Cores(1)
    delivery = cores.send(b"v")
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not delivery.done()
    assert cores.drain() == [batch]
    cores.answer(batch, base_offset=5)
    assert delivery.sent().offset == 5
    assert cores.accumulator.counters.retries == 1


def test_retries_wait_longer_each_time() -> None:
    cores = Cores(1, backoff=Backoff(0.1, 1.0))
    cores.send()
    pauses = []
    for _ in range(6):
        (batch,) = cores.drain()
        cores.answer(batch, ErrorCode.NOT_ENOUGH_REPLICAS)
        assert cores.drain() == []
        pauses.append(round(cores.schedule.next_due() - cores.now, 3))
        cores.now = cores.schedule.next_due()
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_no_pause_when_the_answer_names_the_new_leader() -> None:
    cores = Cores(1, backoff=Backoff(10.0, 10.0))
    cores.send()
    (batch,) = cores.drain()
    from klamm.client.producer.settling import Answer

    cores.settling.answered(
        batch, Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER), "broker 1", cores.now, chance=0.5, moved=True
    )
    assert cores.drain() == [batch]


def test_retries_are_bounded() -> None:
    cores = Cores(1, retries=2, idempotent=False)
    delivery = cores.send()
    for _ in range(3):
        (batch,) = cores.drain()
        cores.answer(batch, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert cores.drain() == []
    error = delivery.error()
    assert isinstance(error, BrokerError) and error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "t-0" in str(error) and "broker 1" in str(error)


def test_an_error_that_stays_is_told_at_once() -> None:
    cores = Cores(1)
    deliveries = [cores.send(), cores.send()]
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.TOPIC_AUTHORIZATION_FAILED, message="not you")
    assert all("not you" in str(one.error()) for one in deliveries)
    assert cores.accumulator.counters.send_errors == 2
    with pytest.raises(BrokerError):
        deliveries[0].sent()


def test_the_broker_may_name_the_records_that_it_refuses() -> None:
    cores = Cores(1)
    deliveries = [cores.send(b"%d" % number) for number in range(3)]
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.INVALID_RECORD, record_errors={1: "it has no key"})
    assert "it has no key" in str(deliveries[1].error())
    assert "one batch with a record" in str(deliveries[0].error())
    assert all(isinstance(one.error(), RecordRefused) for one in deliveries)


def test_duplicate_sequence_is_a_success() -> None:
    cores = Cores(1)
    delivery = cores.send()
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, base_offset=-1)
    assert delivery.sent() == (0, -1, NOW_MS, "t")


def test_the_brokers_time_is_told() -> None:
    cores = Cores(1)
    delivery = cores.send(timestamp=5)
    (batch,) = cores.drain()
    cores.answer(batch, log_append_time_ms=99)
    assert delivery.sent().timestamp == 99


def test_without_an_answer_the_batch_is_sent_again() -> None:
    cores = Cores(1)
    delivery = cores.send()
    (batch,) = cores.drain()
    cores.lose(batch, CUT)
    assert cores.drain() == [batch]
    cores.lose(batch, AuthenticationFailed("no"))
    assert isinstance(delivery.error(), AuthenticationFailed)


# ---- order


def test_batches_under_way_are_bounded() -> None:
    cores = Cores(1, batch_bytes=0, max_in_flight=5)
    for _ in range(8):
        cores.send()
    under_way = cores.drain_all()
    assert len(under_way) == 5
    cores.answer(under_way[0])
    assert len(cores.drain_all()) == 1


def test_what_comes_back_keeps_its_place() -> None:
    cores = Cores(1, batch_bytes=0)
    for number in range(7):
        cores.send(b"%d" % number)
    under_way = cores.drain_all()
    for batch in reversed(under_way):
        cores.lose(batch, CUT)
    order = []
    while batches := cores.drain():
        order += values(batches)
        cores.answer(batches[0])
    assert order == [b"%d" % number for number in range(7)]


def test_with_one_in_flight_the_next_waits_for_the_retry() -> None:
    """Without idempotence, this is what keeps the order."""
    cores = Cores(1, batch_bytes=0, max_in_flight=1, idempotent=False, backoff=Backoff(1.0, 1.0))
    for number in range(3):
        cores.send(b"%d" % number)
    (first,) = cores.drain()
    assert cores.drain() == []
    cores.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert cores.drain() == [], "while the first one pauses nobody overtakes it"
    cores.now += 1.1
    assert cores.drain() == [first]


def test_without_idempotence_a_batch_has_no_sequence() -> None:
    cores = Cores(1, idempotent=False, producer_id=-1)
    cores.send()
    (batch,) = cores.drain()
    assert (batch.producer_id, batch.producer_epoch, batch.sequence) == (-1, -1, -1)


# ---- time


def test_a_record_that_waited_too_long_fails_with_the_last_cause() -> None:
    cores = Cores(1, delivery_timeout=10.0)
    delivery = cores.send()
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert cores.settling.next_deadline() == cores.now + 10.0
    cores.now += 11.25
    cores.settling.expire(cores.now)
    error = delivery.error()
    assert isinstance(error, DeliveryTimedOut) and error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert error.seconds == 11.25 and "timed out after 11.2 s" in str(error), (
        "what passed, not what was allowed"
    )
    assert cores.drain() == [] and cores.ledger.memory_used == 0


def test_time_runs_out_for_what_was_never_sent() -> None:
    cores = Cores(1, delivery_timeout=10.0)
    cores.leaderless = {0}
    early = cores.send(partition=0)
    cores.now += 5.0
    cores.accumulator.flush()
    late = cores.send(partition=0)
    cores.now += 5.0
    cores.settling.expire(cores.now)
    assert "leader" in str(early.error()) and not late.done()


def test_a_batch_under_way_is_given_up_but_keeps_its_memory_until_it_is_back() -> None:
    cores = Cores(1, delivery_timeout=10.0)
    delivery = cores.send()
    (batch,) = cores.drain()
    cores.now += 10.0
    cores.settling.expire(cores.now)
    assert isinstance(delivery.error(), DeliveryTimedOut)
    assert cores.ledger.memory_used > 0
    cores.answer(batch)
    assert cores.ledger.memory_used == 0
    assert isinstance(delivery.error(), DeliveryTimedOut), "what was said stays said"


def test_no_retry_after_the_deadline() -> None:
    cores = Cores(1, delivery_timeout=10.0)
    delivery = cores.send()
    (batch,) = cores.drain()
    cores.now += 10.0
    cores.lose(batch, CUT)
    error = delivery.error()
    assert isinstance(error, DeliveryTimedOut) and "10 s; the last cause was: the connection was cut" in str(
        error
    )


def test_the_end_settles_everything() -> None:
    cores = Cores(2, batch_bytes=0)
    deliveries = [cores.send(partition=0), cores.send(partition=1), cores.send(topic="unknown")]
    under_way = cores.drain()
    deliveries.append(cores.send(partition=0))
    closed = ClientClosed("closed")
    cores.accumulator.close(closed)
    cores.settling.fail_all(closed)
    assert all(one.error() is closed for one in deliveries)
    for batch in under_way:
        cores.lose(batch, CUT)
    assert cores.ledger.memory_used == 0


# ---- too large


def test_a_batch_that_is_too_large_is_sent_in_halves() -> None:
    cores = Cores(1)
    deliveries = [cores.send(b"%d" % number, headers=[("h", b"%d" % number)]) for number in range(7)]
    told: list[int] = []
    for number, delivery in enumerate(deliveries):
        delivery.add_done_callback(lambda done, number=number: told.append(number))
    memory = cores.ledger.memory_used
    (batch,) = cores.drain()
    cores.answer(batch, ErrorCode.MESSAGE_TOO_LARGE)
    assert cores.ledger.memory_used == memory
    halves = []
    offset = 0
    while batches := cores.drain():
        (half,) = batches
        halves.append(values([half]))
        cores.answer(half, base_offset=offset)
        offset += half.count
    assert halves == [[b"0", b"1", b"2"], [b"3", b"4", b"5", b"6"]]
    assert [one.sent().offset for one in deliveries] == list(range(7))
    cores.call_finished()
    assert told == list(range(7)) and cores.ledger.memory_used == 0


def test_a_single_record_that_is_too_large_fails_alone() -> None:
    cores = Cores(1)
    small, large, other = cores.send(b"small"), cores.send(bytes(1000)), cores.send(b"other")
    ticket = cores.accumulator.flush()
    for _ in range(20):
        for batch in cores.drain():
            too_large = len(batch.data or b"") > 500
            cores.answer(batch, ErrorCode.MESSAGE_TOO_LARGE if too_large else ErrorCode.NONE)
    assert isinstance(large.error(), RecordTooLarge)
    assert small.sent() and other.sent()
    assert cores.ledger.is_flushed(ticket)


def test_parts_stand_before_what_came_later() -> None:
    cores = Cores(1, batch_bytes=300, max_in_flight=1)
    for number in range(6):
        cores.send(bytes([number]) * 80)
    (first,) = cores.drain()
    assert first.count == 2
    cores.answer(first, ErrorCode.MESSAGE_TOO_LARGE)
    order = []
    while batches := cores.drain():
        order += [value and value[0] for value in values(batches)]
        cores.answer(batches[0])
    assert order == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "first",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        None,
    ],
    ids=lambda code: code.name if code else "connection lost",
)
def test_a_batch_that_may_be_written_is_not_split(first: ErrorCode | None) -> None:
    """The halves of a batch that the broker has would be written once more."""
    cores = Cores(1)
    deliveries = [cores.send(bytes([number])) for number in range(4)]
    (batch,) = cores.drain()
    if first is None:
        cores.lose(batch, CUT)
    else:
        cores.answer(batch, first)
    (again,) = cores.drain()
    assert again is batch
    cores.answer(batch, ErrorCode.MESSAGE_TOO_LARGE)
    assert cores.drain() == []
    for delivery in deliveries:
        error = delivery.error()
        assert isinstance(error, RecordTooLarge) and "an earlier attempt may have written" in str(error)
        assert "has the records before you send them again" in error.advice


# ---- whom it concerns


def test_callbacks_are_called_in_order_and_what_they_raise_hurts_nobody() -> None:
    cores = Cores(1)
    told: list[object] = []

    def fail(done: object) -> None:
        raise RuntimeError("the user's mistake")

    first, second = cores.send(), cores.send()
    first.add_done_callback(told.append)
    first.add_done_callback(fail)
    second.add_done_callback(told.append)
    (batch,) = cores.drain()
    cores.answer(batch)
    cores.call_finished()
    assert told == [first, second]
    second.add_done_callback(told.append)
    assert told == [first, second, second], "too late is not never"


def test_a_settled_batch_keeps_no_records() -> None:
    cores = Cores(1)
    delivery = cores.send(bytes(1000), key=b"k", headers=[("h", b"v")])
    (batch,) = cores.drain()
    cores.answer(batch)
    assert batch.data is None and not batch.values and batch.keys is None and batch.queue is None
    assert delivery.sent().offset == 0


def test_what_a_spoiled_answer_left_undone_has_failed() -> None:
    cores = Cores(3)
    deliveries = [cores.send(partition=index) for index in range(3)]
    settled, half_done, untouched = cores.drain()
    cores.answer(settled)
    cores.settling._off_wire(half_done)
    bug = ClientError("a bug of ours")
    cores.settling.spoiled([settled, half_done, untouched], bug, cores.now)
    assert [one.error() for one in deliveries] == [None, bug, bug]
    assert cores.ledger.memory_used == 0 and not cores.ledger.has_unsettled
    more = [cores.send(partition=index) for index in range(3)]
    for batch in cores.drain_all():
        cores.answer(batch)
    assert [one.error() for one in more] == [None] * 3, "the partitions go on"
