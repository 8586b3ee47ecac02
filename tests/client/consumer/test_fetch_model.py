"""A consumer's cores against fake brokers, whatever happens in whatever order.

Every record is handed out once, in order, and both sides of a fetch session agree.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from klamm.client.consumer.fetch_requests import FetchPlan
from klamm.client.consumer.partition_state import Need
from klamm.client.results import Record, TopicPartition
from klamm.model.errors import ErrorCode
from tests.client.consumer.fake_cluster import FakeCluster, FakeConsumer

NODES = 3
TOPICS = {"a": 2, "b": 3}
PARTITIONS = [TopicPartition(topic, index) for topic, count in TOPICS.items() for index in range(count)]
MAX_BATCH_BYTES = 1_000
PARTITION_BYTES = 600

partitions = st.sampled_from(PARTITIONS)
nodes = st.sampled_from(range(1, NODES + 1))
moments = st.sampled_from([0.0, 0.05, 2.0])


class ConsumerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = FakeCluster(NODES)
        for topic, count in TOPICS.items():
            self.cluster.create(topic, count)
        self.consumer = FakeConsumer(
            self.cluster, partition_max_bytes=PARTITION_BYTES, prefetch_max_bytes=50_000
        )
        self.expected: dict[TopicPartition, int] = {}
        """Where the next record of each assigned partition is to be found, as the user sees it."""
        self.under_way: list[FetchPlan] = []
        self.written = 0

    @initialize()
    def start(self) -> None:
        self.assign(set(PARTITIONS[:3]))

    # ---- what users do

    @rule(chosen=st.sets(partitions, min_size=1))
    def assign(self, chosen: set[TopicPartition]) -> None:
        self.consumer.assign(*sorted(chosen))
        starts = {partition: self.cluster.logs[partition].start for partition in chosen}
        self.expected = {partition: self.expected.get(partition, starts[partition]) for partition in chosen}

    @rule(partition=partitions, share=st.floats(0, 1))
    def seek(self, partition: TopicPartition, share: float) -> None:
        if partition in self.expected:
            log = self.cluster.logs[partition]
            offset = log.start + int(share * (log.end - log.start))
            self.consumer.positions.seek(partition, offset)
            self.expected[partition] = offset

    @rule(partition=partitions, pauses=st.booleans())
    def pause(self, partition: TopicPartition, pauses: bool) -> None:
        if partition in self.expected:
            (self.consumer.positions.pause if pauses else self.consumer.positions.resume)([partition])

    @rule(limit=st.integers(1, 20))
    def poll(self, limit: int) -> None:
        paused = self.consumer.positions.paused()
        records = self.consumer.poll(limit)
        assert len(records) <= limit
        for record in records:
            assert TopicPartition(record.topic, record.partition) not in paused
            self.check(record)

    @rule(limit=st.integers(1, 20), drawn=st.integers(0, 20))
    def iterate(self, limit: int, drawn: int) -> None:
        """A loop that is left after some records."""
        self.consumer.records.begin_poll()
        lease = self.consumer.records.lease_next(limit)
        if lease is None:
            return
        for _ in range(min(drawn, len(lease.records))):
            self.check(next(lease.iterator))
        self.consumer.records.leave(lease)

    def check(self, record: Record) -> None:
        partition = TopicPartition(record.topic, record.partition)
        log = self.cluster.logs[partition]
        assert record.offset >= self.expected[partition], "handed out again, or out of order"
        missed = [offset for offset in log.records if self.expected[partition] <= offset < record.offset]
        assert not [offset for offset in missed if offset >= log.start], "left out"
        assert record.value == log.records[record.offset]
        self.expected[partition] = record.offset + 1

    # ---- what brokers do

    @rule(partition=partitions, count=st.integers(1, 6), size=st.integers(0, 150), gap=st.integers(0, 3))
    def write(self, partition: TopicPartition, count: int, size: int, gap: int) -> None:
        values = [b"%d." % (self.written + index) + b"x" * size for index in range(count)]
        self.written += count
        self.cluster.logs[partition].append(values, gap=gap)

    @rule(partition=partitions)
    def write_marker(self, partition: TopicPartition) -> None:
        self.cluster.logs[partition].append_control()

    @rule(partition=partitions, node=nodes)
    def move(self, partition: TopicPartition, node: int) -> None:
        self.cluster.move(partition, node)
        self.cluster.logs[partition].replicas = (node,)
        self.cluster.logs[partition].preferred_replica = -1

    @rule(partition=partitions, node=nodes)
    def prefer(self, partition: TopicPartition, node: int) -> None:
        """The leader knows a nearer replica, or not any more."""
        log = self.cluster.logs[partition]
        log.replicas = (log.leader, node)
        log.preferred_replica = -1 if node == log.leader else node

    @rule(partition=partitions, share=st.floats(0, 1))
    def delete_records(self, partition: TopicPartition, share: float) -> None:
        log = self.cluster.logs[partition]
        log.delete_before(log.start + int(share * (log.end - log.start)))

    @rule(node=nodes)
    def lose_sessions(self, node: int) -> None:
        for key in [key for key in self.cluster.sessions if key[0] == node]:
            del self.cluster.sessions[key]

    @rule(grants=st.booleans())
    def grant_sessions(self, grants: bool) -> None:
        self.cluster.grants_sessions = grants

    @rule(partition=partitions, error=st.sampled_from([ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]))
    def trouble(self, partition: TopicPartition, error: ErrorCode) -> None:
        self.cluster.logs[partition].error = error

    # ---- what goes between them

    @rule(newest=st.sampled_from([7, 12, 17]))
    def speak(self, newest: int) -> None:
        """The broker is up- or downgraded."""
        self.consumer.version = newest

    @rule()
    def refresh(self) -> None:
        self.cluster.refresh()

    @rule(seconds=moments)
    def look_up(self, seconds: float) -> None:
        self.consumer.now += seconds
        self.consumer.look_up()

    @rule(node=nodes, is_express=st.booleans())
    def ask(self, node: int, is_express: bool) -> None:
        survey = self.consumer.planner.survey(self.consumer.now)
        if node not in (survey.express_nodes if is_express else survey.nodes):
            return
        plan = self.consumer.planner.plan(
            node, self.consumer.now, self.consumer.version, is_express=is_express
        )
        assert plan is not None, "the survey said that there is something to fetch"
        self.under_way.append(plan)

    @precondition(lambda self: self.under_way)
    @rule(index=st.integers(0, 10))
    def answer(self, index: int) -> None:
        plan = self.under_way.pop(index % len(self.under_way))
        response = self.cluster.fetch(plan.node_id, plan.request, plan.version)
        session = self.cluster.sessions.get((plan.node_id, response.session_id))
        if session is not None and not response.error_code:
            remembered = {key: asked.fetch_offset for key, asked in session.partitions.items()}
            assert remembered == {key: part[2] for key, part in plan.parts.items()}, "both sides agree"
        self.consumer.planner.answered(plan, response, self.consumer.now, 0.5)

    @precondition(lambda self: self.under_way)
    @rule(index=st.integers(0, 10), was_heard=st.booleans())
    def lose_answer(self, index: int, was_heard: bool) -> None:
        plan = self.under_way.pop(index % len(self.under_way))
        if was_heard:
            self.cluster.fetch(plan.node_id, plan.request, plan.version)
        self.consumer.planner.failed(plan, self.consumer.now, 0.5)

    # ---- what always holds

    @invariant()
    def places_are_in_order(self) -> None:
        for state in self.consumer.positions.states.values():
            if state.need is not Need.RESET and state.need is not Need.COMMITTED:
                finished = self.consumer.positions.finished(state.partition)
                assert finished is None or finished.offset <= state.position <= state.fetch_offset

    @invariant()
    def memory_is_bounded(self) -> None:
        positions = self.consumer.positions
        states = positions.states.values()
        assert positions.buffered_bytes == sum(state.buffered_bytes for state in states)
        for state in states:
            waiting = sum(fetch.size for fetch in state.queue if not fetch.is_done)
            assert state.buffered_bytes == waiting
            assert waiting <= 2 * max(PARTITION_BYTES, MAX_BATCH_BYTES) + MAX_BATCH_BYTES

    def teardown(self) -> None:
        """When everything works again, whatever is left comes."""
        for plan in self.under_way:
            self.consumer.planner.failed(plan, self.consumer.now, 0.5)
        for log in self.cluster.logs.values():
            log.error = ErrorCode.NONE
        self.cluster.refresh()
        self.consumer.positions.resume(list(self.consumer.positions.states))
        for _ in range(200):
            self.consumer.now += 10.0
            self.consumer.fetch_all()
            records = self.consumer.poll(1000)
            for record in records:
                self.check(record)
        for partition, offset in self.expected.items():
            assert not self.cluster.logs[partition].from_offset(offset), f"not all of {partition} came"
            position = self.consumer.positions.position(partition)
            assert position is not None and position.offset == self.cluster.logs[partition].end


ConsumerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=60)
test_a_consumer_against_fake_brokers = ConsumerMachine.TestCase
