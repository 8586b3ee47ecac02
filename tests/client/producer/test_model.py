"""Anything that may happen to a producer's batches, in any order, against logs that check like brokers.

Whatever happens: memory stays within its bound, no more batches are under way than may be, what is in a log
is there once and in the order of `send` (with idempotence), what was acknowledged is at its offset, and in
the end everything is settled.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from klamm.client.errors import BufferFull, ConnectionFailed
from klamm.client.producer.batches import Batch
from klamm.model.errors import ErrorCode
from tests.client.producer.cores import Cores, Delivery, PartitionLog

PARTITIONS = 2
BUFFER_BYTES = 6000
MAX_IN_FLIGHT = 5
DELIVERY_TIMEOUT_S = 20.0
CUT = ConnectionFailed("the connection was cut")

PASSING = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]
STAYING = [ErrorCode.INVALID_RECORD, ErrorCode.TOPIC_AUTHORIZATION_FAILED]


class IdempotentProducer(RuleBasedStateMachine):
    idempotent = True
    max_in_flight = MAX_IN_FLIGHT

    @initialize(is_known=st.booleans(), linger=st.sampled_from([0.0, 0.0, 1.0]), is_begun=st.booleans())
    def start(self, is_known: bool, linger: float, is_begun: bool) -> None:
        self.cores = Cores(
            PARTITIONS if is_known else 0,
            batch_bytes=200,
            buffer_bytes=BUFFER_BYTES,
            delivery_timeout=DELIVERY_TIMEOUT_S,
            linger=linger,
            idempotent=self.idempotent,
            is_begun=False,
            max_in_flight=self.max_in_flight,
        )
        self.logs = [PartitionLog() for _ in range(PARTITIONS)]
        self.sent: list[tuple[bytes, Delivery]] = []
        self.wire: list[list[Batch]] = [[] for _ in range(PARTITIONS)]
        self.stragglers: list[tuple[int, bytes]] = []
        if is_begun:
            # Each log has a record, so that batches are under way side by side from now on.
            self.topic_known()
            for index in range(PARTITIONS):
                self.send_many(index, [0])
            self.flush()
            self.settle()

    # ---- the user

    @rule(
        partition=st.sampled_from([0, 0, 1, None]),
        sizes=st.lists(st.integers(0, 150), min_size=1, max_size=6),
    )
    def send_many(self, partition: int | None, sizes: list[int]) -> None:
        for size in sizes:
            value = b"%d " % len(self.sent) + bytes(size)
            try:
                self.sent.append((value, self.cores.send(value, partition=partition)))
            except BufferFull:
                assert self.cores.ledger.memory_used + len(value) + 200 > BUFFER_BYTES

    @rule()
    def flush(self) -> None:
        self.cores.accumulator.flush()

    # ---- the cluster

    @rule()
    def topic_known(self) -> None:
        self.cores.know(PARTITIONS, looked_up=True)

    @rule(index=st.integers(0, PARTITIONS - 1))
    def leader_lost_or_found(self, index: int) -> None:
        self.cores.leaderless ^= {index}

    @rule(requests=st.integers(1, MAX_IN_FLIGHT + 1))
    def drain(self, requests: int) -> None:
        for _ in range(requests):
            for batch in self.cores.drain():
                self.wire[batch.partition].append(batch)

    @rule(index=st.integers(0, PARTITIONS - 1), count=st.integers(1, MAX_IN_FLIGHT))
    def write_and_answer(self, index: int, count: int) -> None:
        for batch in self.wire[index][:count]:
            self.wire[index].remove(batch)
            answer = self.logs[index].append(batch.data or b"")
            self.cores.answer(batch, answer.error_code, base_offset=answer.base_offset)

    @rule(index=st.integers(0, PARTITIONS - 1), code=st.sampled_from(PASSING + STAYING))
    def refuse(self, index: int, code: ErrorCode) -> None:
        if self.wire[index]:
            self.cores.answer(self.wire[index].pop(0), code)

    @rule(index=st.integers(0, PARTITIONS - 1))
    def find_too_large(self, index: int) -> None:
        if self.wire[index]:
            self.cores.answer(self.wire[index].pop(0), ErrorCode.MESSAGE_TOO_LARGE)

    @rule(index=st.integers(0, PARTITIONS - 1), written=st.integers(0, MAX_IN_FLIGHT), late=st.booleans())
    def cut_the_connection(self, index: int, written: int, late: bool) -> None:
        """The first `written` requests reached the log; the others may do so later, or never."""
        batches, self.wire[index] = self.wire[index], []
        for place, batch in enumerate(batches):
            data = bytes(batch.data or b"")
            if place < written:
                self.logs[index].append(data)
            elif late and self.idempotent:
                self.stragglers.append((index, data))
        for batch in batches:
            self.cores.lose(batch, CUT)

    @precondition(lambda self: self.stragglers)
    @rule()
    def straggler_arrives(self) -> None:
        index, data = self.stragglers.pop(0)
        self.logs[index].append(data)

    @rule(seconds=st.floats(0.1, 8.0))
    def time_goes_by(self, seconds: float) -> None:
        self.cores.now += seconds
        self.cores.settling.expire(self.cores.now)

    # ---- what must hold

    @invariant()
    def memory_is_bounded(self) -> None:
        if hasattr(self, "cores"):
            assert 0 <= self.cores.ledger.memory_used <= BUFFER_BYTES

    @invariant()
    def no_more_under_way_than_may_be(self) -> None:
        if hasattr(self, "cores"):
            for buffer in self.cores.accumulator.topics.values():
                for queue in buffer.queues:
                    assert queue.on_wire == len(self.wire[queue.index]) <= self.max_in_flight

    @invariant()
    def logs_are_in_order(self) -> None:
        if hasattr(self, "cores"):
            for log in self.logs:
                self.check_order([int(value.split()[0]) for value in log.values if value is not None])

    def check_order(self, numbers: list[int]) -> None:
        assert numbers == sorted(set(numbers)), "twice, or out of order"

    @invariant()
    def what_is_acknowledged_is_there(self) -> None:
        for value, delivery in getattr(self, "sent", ()):
            if delivery.done() and delivery.error() is None:
                sent = delivery.sent()
                assert self.logs[sent.partition].records[sent.offset].value == value

    def teardown(self) -> None:
        """The cluster is well again: all is settled before time runs out."""
        if not hasattr(self, "cores"):
            return
        cores = self.cores
        cores.leaderless = set()
        cores.know(PARTITIONS, looked_up=True)
        ticket = cores.accumulator.flush()
        self.settle()
        assert all(delivery.done() for _, delivery in self.sent)
        assert cores.ledger.is_flushed(ticket) and cores.ledger.memory_used == 0
        self.logs_are_in_order()
        self.what_is_acknowledged_is_there()

    def settle(self) -> None:
        """Send and answer until nothing is left, in as many turns as that may take."""
        for _ in range(10 * len(self.sent) + 20):
            self.drain(1)
            for index in range(PARTITIONS):
                self.write_and_answer(index, MAX_IN_FLIGHT)
            if not self.cores.ledger.memory_used:
                return


class OneInFlight(IdempotentProducer):
    """Without idempotence records may be there twice, but with one batch under way never out of order."""

    idempotent = False
    max_in_flight = 1

    def check_order(self, numbers: list[int]) -> None:
        seen: set[int] = set()
        firsts = [number for number in numbers if not (number in seen or seen.add(number))]  # type: ignore[func-returns-value]
        assert firsts == sorted(firsts), "out of order"


FEW = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestIdempotentProducer = IdempotentProducer.TestCase
TestIdempotentProducer.settings = FEW
TestOneInFlight = OneInFlight.TestCase
TestOneInFlight.settings = FEW


@pytest.mark.long
@pytest.mark.parametrize("model", [IdempotentProducer, OneInFlight])
def test_many_examples(model: type[IdempotentProducer]) -> None:
    run_state_machine_as_test(model, settings=settings(FEW, max_examples=400))
