from __future__ import annotations

import pytest

from klamm.client.consumer.partition_state import Need
from klamm.client.errors import AuthorizationFailed, ConnectionFailed, CorruptRecords, OffsetOutOfRange
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k01_fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tests.client.consumer.fake_cluster import FakeCluster, FakeConsumer

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster(nodes=2)
    cluster.create("a", 2)
    return cluster


@pytest.fixture
def consumer(cluster: FakeCluster) -> FakeConsumer:
    return FakeConsumer(cluster)


def values(records: list[object]) -> list[bytes]:
    return [record.value for record in records]  # type: ignore[attr-defined]


# ---- whom to ask


def test_every_leader_is_asked_for_its_own(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    consumer.assign(A0, A1)
    assert consumer.planner.survey(0.0).nodes == {1, 2}
    plan = consumer.planner.plan(2, 0.0, 17)
    assert plan is not None and [part[0].partition for part in plan.parts.values()] == [A1]
    assert consumer.planner.survey(0.0).nodes == {1}, "one fetch per broker at a time"


def test_without_a_leader_there_is_nothing_to_ask(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    consumer.positions.assign([TopicPartition("nobody", 0)])
    consumer.positions.seek(TopicPartition("nobody", 0), 0)
    survey = consumer.planner.survey(0.0)
    assert survey.lacks_leaders and not survey.nodes


def test_a_partition_without_a_position_is_looked_up_first(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    consumer.positions.assign([A0])
    survey = consumer.planner.survey(0.0)
    assert survey.needs and not survey.nodes


def test_topic_ids_are_used_when_both_sides_know_them(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    consumer.assign(A0)
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None and plan.version == 17
    assert plan.request.topics[0].topic_id == cluster.ids["a"]
    consumer.planner.abandoned(plan)
    plan = consumer.planner.plan(1, 0.0, 12)
    assert plan is not None and plan.version == 12 and plan.request.topics[0].topic == "a"


def test_names_are_used_while_a_topic_has_no_id() -> None:
    cluster = FakeCluster(nodes=1)
    cluster.knows_topic_ids = False
    cluster.create("a", 1)
    consumer = FakeConsumer(cluster)
    cluster.logs[A0].append([b"x"])
    consumer.assign(A0)
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None and plan.version == 12
    consumer.planner.abandoned(plan)
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"x"]
    # Then the broker is upgraded: another way to name topics needs another session.
    cluster.knows_topic_ids = True
    cluster.refresh()
    cluster.logs[A0].append([b"y"])
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"y"]
    assert cluster.requests[-1][1].topics == [] or cluster.requests[-1][1].topics[0].topic_id


# ---- sessions


def test_later_requests_name_only_what_changed(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.create("b", 4)
    partitions = [TopicPartition("b", 0), TopicPartition("b", 2)]
    consumer.assign(*partitions)
    cluster.logs[partitions[0]].append([b"x"])
    consumer.fetch(1)
    consumer.fetch(1)
    first, second = (request for _, request in cluster.requests)
    assert first.session_epoch == 0 and len(first.topics[0].partitions) == 2
    assert second.session_epoch == 1 and second.session_id >= 100
    assert [partition.partition for partition in second.topics[0].partitions] == [0]
    consumer.positions.pause(partitions[:1])
    consumer.fetch(1)
    assert [each.partitions for each in cluster.requests[-1][1].forgotten_topics_data] == [[0]]
    consumer.positions.resume(partitions[:1])
    consumer.fetch(1)
    assert [partition.partition for partition in cluster.requests[-1][1].topics[0].partitions] == [0]


@pytest.mark.parametrize("error", [70, 71, 106])
def test_a_lost_session_is_begun_again(cluster: FakeCluster, consumer: FakeConsumer, error: int) -> None:
    consumer.assign(A0)
    consumer.fetch(1)
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None and plan.request.session_epoch == 1
    outcome = consumer.planner.answered(plan, FetchResponse(error_code=error), 0.0, 0.5)
    assert outcome.errors == 1
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None and plan.request.session_epoch == 0, "the next request is a full one, at once"
    assert len(plan.request.topics) == 1


def test_a_broker_without_sessions(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.grants_sessions = False
    consumer.assign(A0)
    for number in range(3):
        cluster.logs[A0].append([b"%d" % number])
        assert consumer.fetch(1) > 0
    assert {request.session_id for _, request in cluster.requests} == {0}
    assert values(consumer.poll()) == [b"0", b"1", b"2"]


def test_a_fetch_without_an_answer_ends_the_session(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    consumer.assign(A0)
    consumer.fetch(1)
    session_id = cluster.requests[-1][1].session_id or next(iter(cluster.sessions))[1]
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None
    consumer.planner.failed(plan, 0.0, 0.5)
    assert consumer.planner.plan(1, 0.0, 17) is None, "the broker is left alone for a moment"
    plan = consumer.planner.plan(1, 1.0, 17)
    assert plan is not None
    assert (plan.request.session_id, plan.request.session_epoch) == (session_id, 0), "in place of the old one"


# ---- how much


def test_a_full_buffer_is_not_fetched_into(cluster: FakeCluster) -> None:
    cluster.create("b", 4)
    full, idle = TopicPartition("b", 0), TopicPartition("b", 2)
    consumer = FakeConsumer(cluster, partition_max_bytes=1000, prefetch_max_bytes=100_000)
    consumer.assign(full, idle)
    for _ in range(10):
        cluster.logs[full].append([b"x" * 600])
    assert [consumer.fetch(1) > 0 for _ in range(4)] == [True, True, False, False]
    assert consumer.positions.states[full].buffered_bytes <= 2000
    request = cluster.requests[-1][1]
    assert request.max_wait_ms == 20, "as soon as there is room, the full one must not wait for the idle one"
    changes = []
    consumer.positions.on_change = lambda: changes.append(1)
    consumer.poll(1)
    consumer.poll(1)
    assert changes, "room is told, so that fetching goes on"
    assert consumer.fetch(1) > 0


def test_many_partitions_share_the_memory(cluster: FakeCluster) -> None:
    cluster.create("b", 100)
    partitions = [TopicPartition("b", index) for index in range(100)]
    consumer = FakeConsumer(cluster, prefetch_max_bytes=10_000_000)
    consumer.assign(*partitions)
    for partition in partitions:
        for _ in range(30):
            cluster.logs[partition].append([b"x" * 20_000])
    while any(consumer.fetch(node) > 0 for node in cluster.nodes):
        pass
    assert consumer.positions.buffered_bytes <= 10_000_000
    assert all(state.buffered_bytes for state in consumer.positions.states.values()), "each has its share"


def test_very_many_partitions_stay_within_the_bound(cluster: FakeCluster) -> None:
    cluster.create("b", 40)
    partitions = [TopicPartition("b", index) for index in range(40)]
    consumer = FakeConsumer(cluster, prefetch_max_bytes=400_000)  # less than two fetches of each
    consumer.assign(*partitions)
    for partition in partitions:
        for _ in range(10):
            cluster.logs[partition].append([b"x" * 10_000])
    got: list[bytes] = []
    for _ in range(200):
        for node in cluster.nodes:
            consumer.fetch(node)
            assert consumer.positions.buffered_bytes <= 400_000 + 10_100, "the first batch comes anyway"
        got += values(consumer.poll(7))
    assert len(got) == 400


def test_what_is_paused_does_not_keep_the_others_from_fetching(cluster: FakeCluster) -> None:
    cluster.create("b", 4)
    paused, other = TopicPartition("b", 0), TopicPartition("b", 2)
    consumer = FakeConsumer(cluster, prefetch_max_bytes=1, partition_max_bytes=1000)
    consumer.assign(paused, other)
    cluster.logs[paused].append([b"x" * 900])
    consumer.fetch(1)
    consumer.positions.pause([paused])
    cluster.logs[other].append([b"y" * 900])
    assert consumer.fetch(1) > 0
    assert values(consumer.poll()) == [b"y" * 900]


# ---- express


def test_a_seek_does_not_wait_for_a_fetch_that_waits(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.logs[A0].append([b"x"])
    consumer.assign(A0)
    consumer.fetch_all()
    consumer.poll()
    waiting = consumer.planner.plan(1, 0.0, 17)
    assert waiting is not None and waiting.request.max_wait_ms == 500
    assert not consumer.planner.survey(0.0).express_nodes
    consumer.positions.seek(A0, 0)
    assert consumer.planner.survey(0.0).express_nodes == {1}
    assert consumer.fetch(1, is_express=True) > 0
    express = cluster.requests[-1][1]
    assert (express.session_epoch, express.max_wait_ms) == (-1, 0)
    assert values(consumer.poll()) == [b"x"]
    assert consumer.fetch(1, is_express=True) == 0
    assert not consumer.planner.survey(0.0).express_nodes, "nothing is there: no busy loop"
    stale = cluster.fetch(1, waiting.request, waiting.version)
    assert consumer.planner.answered(waiting, stale, 0.0, 0.5).size == 0, "the old answer is for nobody"
    cluster.logs[A0].append([b"y"])
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"y"]


# ---- stale answers


@pytest.mark.parametrize("how", ["seek", "unassign", "assign again", "reset"])
def test_answers_to_old_questions_are_dropped(cluster: FakeCluster, consumer: FakeConsumer, how: str) -> None:
    cluster.logs[A0].append([b"x", b"y", b"z"])
    consumer.assign(A0)
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None
    if how == "seek":
        consumer.positions.seek(A0, 2)
    elif how == "reset":
        consumer.positions.reset(A0, None)
    else:
        consumer.positions.assign([])
        if how == "assign again":
            consumer.positions.assign([A0])
    response = cluster.fetch(1, plan.request, plan.version)
    assert consumer.planner.answered(plan, response, 0.0, 0.5).size == 0
    assert consumer.poll() == []
    if how == "seek":
        consumer.fetch_all()
        assert values(consumer.poll()) == [b"z"]


# ---- errors


def test_a_moved_leader_is_followed(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.logs[A0].append([b"x"])
    consumer.assign(A0)
    consumer.fetch_all()
    cluster.move(A0, 2)
    consumer.planner.survey(0.0)
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None
    outcome = consumer.planner.answered(plan, cluster.fetch(1, plan.request, plan.version), 0.0, 0.5)
    assert outcome.needs_metadata and outcome.errors == 1
    assert consumer.planner.survey(0.0).wake_at is not None, "tried again even if no metadata comes"
    cluster.refresh()
    assert consumer.planner.survey(0.0).needs, "does the new leader have what was read?"
    assert consumer.positions.states[A0].need is Need.VALIDATION
    consumer.look_up()
    assert consumer.planner.survey(0.0).nodes == {2}


def test_an_answer_that_names_the_leader_saves_the_question(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    consumer.assign(A0)
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic_id=cluster.ids["a"],
                partitions=[
                    PartitionData(
                        partition_index=0,
                        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                        high_watermark=-1,
                        current_leader=LeaderIdAndEpoch(leader_id=3, leader_epoch=7),
                    )
                ],
            )
        ],
        node_endpoints=[NodeEndpoint(node_id=3, host="new", port=9092)],
    )
    outcome = consumer.planner.answered(plan, response, 0.0, 0.5)
    assert not outcome.needs_metadata
    assert consumer.planner.survey(0.0).nodes == {3}
    assert cluster.metadata.brokers[3].host == "new"


def test_a_log_that_was_cut_is_read_again_from_there(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.logs[A0].append([b"0", b"1", b"2", b"3"])
    consumer.assign(A0)
    consumer.fetch_all()
    consumer.poll(3)
    state = consumer.positions.states[A0]
    consumer.positions.truncated(state, state.version, 2)
    assert (state.position, state.fetch_offset) == (2, 2)
    finished = consumer.positions.finished(A0)
    assert finished is not None and finished.offset == 0, "three records are in work"


def test_out_of_range_starts_anew_after_what_is_buffered(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    log = cluster.logs[A0]
    log.append([b"old"])
    consumer.assign(A0)
    consumer.fetch(1)
    for number in range(5):
        log.append([b"%d" % number])
    log.delete_before(4)
    assert consumer.fetch(1) == 0
    assert consumer.positions.states[A0].need is Need.NOTHING, "what is buffered is handed out first"
    assert consumer.fetch(1) == -1, "and meanwhile the broker is not asked in vain"
    assert values(consumer.poll()) == [b"old"]
    assert consumer.fetch(1) == -1, "nor while the user works on it"
    consumer.records.begin_poll()
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"3", b"4"]


def test_out_of_range_waits_for_the_records_of_an_iteration(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    log = cluster.logs[A0]
    log.append([b"0", b"1", b"2"])
    consumer.assign(A0)
    consumer.fetch_all()
    consumer.records.begin_poll()
    lease = consumer.records.lease_next(10)
    assert lease is not None and next(lease.iterator).value == b"0"
    for number in range(3, 6):
        log.append([b"%d" % number])
    log.delete_before(5)
    assert consumer.fetch(1) == 0, "the broker does not have offset 3"
    assert consumer.fetch(1) == -1, "it is not asked in vain"
    assert not lease.is_interrupted and values(list(lease.iterator)) == [b"1", b"2"]
    changes: list[bool] = []
    consumer.positions.on_change = lambda: changes.append(True)
    consumer.records.finish(lease)
    assert changes, "fetching goes on"
    consumer.fetch(1)
    assert consumer.positions.states[A0].out_of_range_offset == 3
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"5"]


def test_out_of_range_is_told_when_guessing_is_not_allowed(cluster: FakeCluster) -> None:
    consumer = FakeConsumer(cluster, may_guess_offsets=False)
    consumer.assign(A0)
    consumer.positions.seek(A0, 99)
    consumer.fetch(1)
    with pytest.raises(OffsetOutOfRange, match=r"a-0.*99"):
        consumer.poll()
    consumer.positions.seek(A0, 0)
    cluster.logs[A0].append([b"x"])
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"x"]


def test_what_is_forbidden_is_told_and_tried_again_later(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    log = cluster.logs[A0]
    log.append([b"x"])
    log.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    consumer.assign(A0)
    consumer.fetch(1)
    assert consumer.fetch(1) == -1
    with pytest.raises(AuthorizationFailed, match="a-0"):
        consumer.poll()
    assert consumer.poll() == [], "told once for each time it is asked"
    log.error = ErrorCode.NONE
    consumer.now = 5.0
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"x"]


def test_an_error_waits_for_what_is_buffered(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    log = cluster.logs[A0]
    log.append([b"x", b"y"])
    consumer.assign(A0)
    consumer.fetch(1)
    log.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    consumer.fetch(1)
    assert values(consumer.poll(1)) == [b"x"]
    assert values(consumer.poll(1)) == [b"y"]
    with pytest.raises(AuthorizationFailed):
        consumer.poll()


def test_a_broker_that_cannot_be_reached(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    consumer.assign(A0, A1)
    consumer.planner.survey(0.0)
    consumer.planner.unreachable(1, ConnectionFailed("gone"), 0.0, 0.5)
    assert consumer.planner.survey(0.0).nodes == {2}
    assert consumer.planner.survey(1.0).nodes == {1, 2}
    refused = ConnectionFailed("wrong password")
    refused.retriable = False
    consumer.planner.unreachable(1, refused, 1.0, 0.5)
    with pytest.raises(ConnectionFailed, match="wrong password"):
        consumer.poll()


def test_a_topic_made_anew_is_read_from_its_beginning(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.logs[A0].append([b"old", b"older"])
    consumer.assign(A0)
    consumer.fetch_all()
    consumer.poll()
    cluster.create("a", 2)
    cluster.logs[A0].append([b"new"])
    consumer.planner.survey(0.0)
    assert consumer.positions.states[A0].need is Need.RESET
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"new"]


def test_broken_bytes_do_not_hide_what_came_before(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    log = cluster.logs[A0]
    log.append([b"whole"])
    log.append([b"broken"])
    log.append([b"behind"])
    base, last, data = log.batches[1]
    log.batches[1] = (base, last, data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    consumer.assign(A0)
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"whole"]
    with pytest.raises(CorruptRecords, match=r"a-0.*offset 1.*seek\(.*, 2\)"):
        consumer.poll()
    assert consumer.positions.position(A0) == (1, "", 0)
    consumer.positions.seek(A0, 2)
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"behind"]


# ---- the nearest replica


def test_the_replica_that_the_leader_names(cluster: FakeCluster) -> None:
    consumer = FakeConsumer(cluster, rack="here", preferred_replica_seconds=100.0)
    log = cluster.logs[A0]
    log.replicas = (1, 2)
    log.preferred_replica = 2
    log.append([b"x"])
    consumer.assign(A0)
    assert consumer.fetch(1) == 0
    assert cluster.requests[-1][1].rack_id == "here"
    assert consumer.planner.survey(0.0).nodes == {2}
    assert consumer.fetch(2) > 0
    assert values(consumer.poll()) == [b"x"]
    assert consumer.planner.survey(99.0).nodes == {2}
    assert consumer.planner.survey(101.0).nodes == {1}, "the lease is over: ask the leader again"


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE]
)
def test_a_replica_that_cannot_serve_sends_back_to_the_leader(cluster: FakeCluster, error: ErrorCode) -> None:
    consumer = FakeConsumer(cluster, rack="here")
    log = cluster.logs[A0]
    log.replicas = (1, 2)
    log.preferred_replica = 2
    log.append([b"x"])
    consumer.assign(A0)
    consumer.fetch(1)
    log.error = error
    consumer.fetch(2)
    log.error = ErrorCode.NONE
    log.preferred_replica = -1
    assert consumer.positions.states[A0].need is Need.NOTHING, "a lagging replica is no reason to reset"
    assert consumer.planner.survey(5.0).nodes == {1}
    consumer.now = 5.0
    consumer.fetch_all()
    assert values(consumer.poll()) == [b"x"]


def test_a_replica_that_goes_away_sends_back_to_the_leader(cluster: FakeCluster) -> None:
    consumer = FakeConsumer(cluster, rack="here")
    log = cluster.logs[A0]
    log.replicas = (1, 2)
    log.preferred_replica = 2
    consumer.assign(A0)
    consumer.fetch(1)
    plan = consumer.planner.plan(2, 0.0, 17)
    assert plan is not None
    consumer.planner.failed(plan, 0.0, 0.5)
    assert consumer.planner.survey(0.0).nodes == {1}, "at once"


def test_a_fetch_that_is_refused_as_a_whole_is_not_repeated_at_once(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    consumer.assign(A0)
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None
    refused = FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, responses=[])
    consumer.planner.answered(plan, refused, 0.0, 0.5)
    survey = consumer.planner.survey(0.0)
    assert not survey.nodes and survey.wake_at is not None
    assert consumer.planner.survey(survey.wake_at).nodes == {1}


def test_a_lost_session_is_begun_anew_at_once(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    consumer.assign(A0)
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None
    lost = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    consumer.planner.answered(plan, lost, 0.0, 0.5)
    assert consumer.planner.survey(0.0).nodes == {1}


def test_a_slow_partition_does_not_hold_the_whole_answer(cluster: FakeCluster) -> None:
    consumer = FakeConsumer(cluster)
    consumer.assign(A0)
    cluster.logs[A0].append([b"small"])
    plan = consumer.planner.plan(1, 0.0, 17)
    assert plan is not None
    response = cluster.fetch(1, plan.request, plan.version)
    data = response.responses[0].partitions[0]
    frame = bytearray(bytes(data.records or b"") + bytes(100_000))
    data.records = memoryview(frame)[: len(data.records or b"")]
    consumer.planner.answered(plan, response, 0.0, 0.5)
    assert consumer.positions.states[A0].queue[0].fetched.data.obj is not frame
    assert values(consumer.poll()) == [b"small"]
