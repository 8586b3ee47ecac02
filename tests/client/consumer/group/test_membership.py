"""A member's life, told as scenes without a socket: who says what, and what the member does about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.consumer.group.actions import (
    Assign,
    FindCoordinator,
    Heartbeat,
    Join,
    Leave,
    Lose,
    Revoke,
    Sync,
)
from klamm.client.consumer.group.membership import MemberSettings, Phase
from klamm.client.consumer.group.subscriptions import decode_subscription, read_assignment, read_member
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k14_sync_group import SyncGroupResponse
from tests.client.consumer.group.scene import (
    HEARTBEAT_SECONDS,
    ME,
    POLL_SECONDS,
    Scene,
    partitions,
    topics_of,
)

EAGER = ("range",)
COOPERATIVE = ("cooperative-sticky",)


def subscription_sent(request: Join, strategy: str) -> object:
    (metadata,) = [each.metadata for each in request.request.protocols if each.name == strategy]
    return decode_subscription(metadata)


# ---- joining


def test_a_new_member_asks_for_its_id_joins_syncs_and_reads() -> None:
    scene = Scene("range", "roundrobin")
    scene.expect_nothing()  # not before somebody polls
    assert scene.poll() == []
    scene.find_coordinator()
    first = scene.refuse_join(ErrorCode.MEMBER_ID_REQUIRED, ME)
    assert first.request.member_id == ""
    again = scene.join()
    assert again.request.member_id == ME, "it comes back at once with the id it was given"
    assert [each.name for each in again.request.protocols] == ["range", "roundrobin"]
    assert scene.sync("t-0 t-1").request.assignments == []
    assert scene.member.needs_poll
    assert scene.poll() == [Assign(partitions("t-0 t-1"), 1)]
    assert scene.member.is_at_rest


def test_a_member_says_what_it_subscribes_to_and_where_it_stands() -> None:
    scene = Scene("range", topics="b a", rack="r1")
    scene.poll()
    scene.find_coordinator()
    sent = read_member("range", "m", None, scene.join().request.protocols[0].metadata)
    assert (sent.topics, sent.rack, sent.owned) == (frozenset({"a", "b"}), "r1", ())


def test_nothing_else_is_sent_while_a_request_is_under_way() -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.expect(Join)
    scene.pass_time(10 * HEARTBEAT_SECONDS)
    scene.expect_nothing()
    assert scene.member.wake_at() is None


def test_an_empty_assignment_is_one_too() -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.join()
    scene.expect(Sync)
    scene.member.synced(SyncGroupResponse(assignment=b""), scene.now)
    assert scene.poll() == [Assign(frozenset(), 1)]
    assert scene.member.is_at_rest


# ---- leading


def test_the_leader_shares_out_over_the_topics_of_all() -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.join({ME: "t", "other-1": "t u"})
    assert scene.learn(t=3, u=1).topics == {"t", "u"}
    sync = scene.sync("t-0 t-1")
    shares = {each.member_id: read_assignment(each.assignment) for each in sync.request.assignments}
    assert shares == {ME: partitions("t-0 t-1"), "other-1": partitions("t-2 u-0")}


@pytest.mark.parametrize(
    "now", [topics_of(t=4), topics_of(t=3, u=1), topics_of()], ids=["grown", "new topic", "gone"]
)
def test_the_leader_calls_for_a_rebalance_when_topics_change(now: dict[str, list[frozenset[str]]]) -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.join({ME: "t", "other-1": "t u"})
    scene.learn(t=3)
    scene.sync("t-0")
    scene.poll()
    scene.member.topics_changed(topics_of(t=3))
    assert scene.member.is_at_rest
    scene.member.topics_changed(now)
    assert scene.poll() == [Revoke(partitions("t-0"))]
    assert scene.join().request.reason == "the topics of the group changed"


def test_those_who_do_not_lead_leave_topics_to_the_leader() -> None:
    scene = Scene.stable("t-0")
    scene.member.topics_changed(topics_of(t=99))
    assert scene.member.is_at_rest


def test_a_leader_that_need_not_share_out_still_watches() -> None:
    scene = Scene("range", instance_id="i")
    scene.poll()
    scene.find_coordinator()
    scene.join({ME: "t"}, skip_assignment=True)
    scene.learn(t=1)
    assert scene.sync("t-0").request.assignments == []
    scene.poll()
    scene.member.topics_changed(topics_of(t=2))
    assert scene.member.needs_poll


def test_a_member_whose_bytes_make_no_sense_gets_nothing() -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.join({ME: "t", "other-1": "t"})
    assert scene.member.leadership is not None
    nonsense = read_member("range", "other-2", None, b"\x7f")
    scene.member.leadership.members.append(nonsense)
    scene.learn(t=2)
    sync = scene.sync("t-0")
    assert read_assignment(sync.request.assignments[2].assignment) == frozenset()


# ---- rebalances


def test_an_eager_member_gives_up_everything_before_it_joins_again() -> None:
    scene = Scene.stable("t-0 t-1", *EAGER)
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.expect_nothing()  # the user is not there yet
    assert scene.poll() == [Revoke(partitions("t-0 t-1"))]
    sent = scene.join()
    assert subscription_sent(sent, "range").owned_partitions == []  # type: ignore[attr-defined]
    scene.sync("t-1 t-2")
    assert scene.poll() == [Assign(partitions("t-1 t-2"), 2)]


def test_a_cooperative_member_gives_up_only_what_is_taken_and_joins_again_at_once() -> None:
    scene = Scene.stable("t-0 t-1 t-2", *COOPERATIVE)
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert scene.poll() == [], "it keeps reading while it joins"
    sent = read_member("cooperative-sticky", ME, None, scene.join().request.protocols[0].metadata)
    assert (set(sent.owned), sent.generation) == (partitions("t-0 t-1 t-2"), 1)
    scene.sync("t-0 t-1")
    assert scene.poll() == [Revoke(partitions("t-2")), Assign(frozenset(), 2)]
    sent = read_member("cooperative-sticky", ME, None, scene.join().request.protocols[0].metadata)
    assert (set(sent.owned), sent.generation) == (partitions("t-0 t-1"), 2)
    scene.sync("t-0 t-1")
    assert scene.poll() == [Assign(frozenset(), 3)]
    assert scene.member.is_at_rest


def test_a_cooperative_member_reads_on_while_it_waits_for_the_others() -> None:
    for strategies, reads_on in ((COOPERATIVE, True), (EAGER, False)):
        scene = Scene.stable("t-0", *strategies)
        assert scene.member.may_read_on
        scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
        assert not scene.member.may_read_on, "first it has to join"
        scene.poll()
        assert scene.member.may_read_on == reads_on
        scene.join()
        assert scene.member.may_read_on == reads_on
        scene.sync("t-1")
        assert not scene.member.may_read_on, "something may be taken from it"
        scene.poll()


def test_a_cooperative_member_takes_what_is_added_without_another_round() -> None:
    scene = Scene.stable("t-0", *COOPERATIVE)
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.poll()
    scene.join()
    scene.sync("t-0 t-1")
    assert scene.poll() == [Assign(partitions("t-1"), 2)]
    assert scene.member.is_at_rest


@pytest.mark.parametrize(
    ("strategies", "is_cooperative"),
    [
        (("cooperative-sticky",), True),
        (("range", "cooperative-sticky"), False),
        (("cooperative-sticky", "sticky"), False),
        (("sticky",), False),
    ],
)
def test_a_member_is_cooperative_only_if_its_whole_list_is(
    strategies: tuple[str, ...], is_cooperative: bool
) -> None:
    assert MemberSettings("g", strategies, 1, 1, 1.0).is_cooperative == is_cooperative


def test_sticky_tells_what_it_had_although_it_has_given_it_up() -> None:
    scene = Scene.stable("t-0 t-1", "sticky")
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.poll()
    sent = read_member("sticky", ME, None, scene.join().request.protocols[0].metadata)
    assert (set(sent.owned), sent.generation) == (partitions("t-0 t-1"), 1)


def test_a_new_subscription_brings_a_rebalance() -> None:
    scene = Scene.stable("t-0", *COOPERATIVE)
    scene.subscribe("t u")
    assert scene.poll() == []
    sent = scene.join()
    assert sent.request.reason == "the subscription changed"
    assert subscription_sent(sent, "cooperative-sticky").topics == ["t", "u"]  # type: ignore[attr-defined]


def test_a_topic_that_is_not_wanted_any_more_is_given_up_first() -> None:
    scene = Scene(*COOPERATIVE, topics="t u")
    scene.poll()
    scene.find_coordinator()
    scene.finish_rebalance("t-0 u-0")
    scene.subscribe("t")
    assert scene.poll() == [Revoke(partitions("u-0"))]


def test_a_subscription_that_changed_during_the_join_is_joined_again() -> None:
    scene = Scene(topics="t")
    scene.poll()
    scene.find_coordinator()
    scene.join()
    scene.subscribe("u")
    scene.sync("t-0")
    assert scene.poll() == [], "what was assigned is not wanted any more"
    assert subscription_sent(scene.join(), "range").topics == ["u"]  # type: ignore[attr-defined]


def test_an_assignment_that_nobody_has_seen_is_overtaken_by_the_next_rebalance() -> None:
    scene = Scene.stable("t-0", *COOPERATIVE)
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.poll()
    scene.join()
    scene.sync("t-1")
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert scene.poll() == []
    sent = read_member("cooperative-sticky", ME, None, scene.join().request.protocols[0].metadata)
    assert set(sent.owned) == partitions("t-0")


def test_a_rebalance_that_comes_while_partitions_are_taken_over() -> None:
    scene = Scene(*COOPERATIVE)
    scene.poll()
    scene.find_coordinator()
    scene.join()
    scene.sync("t-0")
    step = scene.member.step()
    assert step is not None
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.member.step_done(step)
    assert scene.member.owned == partitions("t-0")
    assert scene.member.needs_poll
    scene.poll()
    sent = read_member("cooperative-sticky", ME, None, scene.join().request.protocols[0].metadata)
    assert (set(sent.owned), sent.generation) == (partitions("t-0"), 1)


# ---- heartbeats and polls


def test_heartbeats_go_on_whatever_the_user_does() -> None:
    scene = Scene.stable("t-0")
    for _ in range(5):
        assert scene.heartbeat().request.generation_id == 1
        scene.expect_nothing()
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)  # also while the rebalance waits for the user
    assert scene.member.wake_at() == scene.now + HEARTBEAT_SECONDS


def test_a_member_that_does_not_poll_leaves_and_loses_everything() -> None:
    scene = Scene.stable("t-0")
    scene.pass_time(POLL_SECONDS - 1)
    scene.expect(Heartbeat)
    scene.member.heartbeat_answered(ErrorCode.NONE, scene.now)
    assert scene.member.wake_at() == scene.now + 1, "it wakes when the time is up"
    scene.pass_time(1)
    assert scene.expect(Leave).member_id == ME
    assert scene.member.overdue_seconds == POLL_SECONDS
    scene.expect_nothing()
    assert scene.poll() == [Lose(partitions("t-0"))]
    assert scene.join().request.member_id == ""


def test_a_static_member_that_does_not_poll_falls_silent() -> None:
    scene = Scene.stable("t-0", instance_id="i")
    scene.pass_time(POLL_SECONDS)
    scene.expect_nothing()
    assert scene.member.overdue_seconds == POLL_SECONDS
    assert scene.poll() == [Lose(partitions("t-0"))]


def test_a_poll_in_time_keeps_the_membership() -> None:
    scene = Scene.stable("t-0")
    for _ in range(3):
        scene.pass_time(POLL_SECONDS - 1)
        scene.poll()
        scene.expect(Heartbeat)
        scene.member.heartbeat_answered(ErrorCode.NONE, scene.now)
    assert scene.member.overdue_seconds is None


# ---- leaving


def test_leaving_tells_the_coordinator() -> None:
    scene = Scene.stable("t-0")
    assert scene.member.leave("done") == Leave(ME, "done")
    assert scene.member.phase is Phase.OUT
    assert scene.member.owned == frozenset()
    scene.pass_time(1_000)
    scene.expect_nothing()


def test_a_static_member_leaves_without_a_word() -> None:
    assert Scene.stable("t-0", instance_id="i").member.leave("done") is None


def test_who_has_no_id_yet_has_nothing_to_say() -> None:
    assert Scene().member.leave("done") is None


def test_one_that_left_may_come_back() -> None:
    scene = Scene.stable("t-0")
    scene.member.leave("done")
    scene.subscribe("t")
    scene.finish_rebalance("t-1")


# ---- whatever happens


@given(st.data())
def test_no_partition_is_read_that_was_not_assigned_or_was_taken(data: st.DataObject) -> None:
    """Any order of answers, polls and pauses: what is owned was assigned, and is told to the owner once."""
    scene = Scene(data.draw(st.sampled_from(["range", "sticky", "cooperative-sticky"])))
    codes = st.sampled_from(
        [ErrorCode.NONE] * 4
        + [
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ]
    )
    told: set[object] = set()
    allowed: frozenset[object] = frozenset()
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["poll", "time", "request", "request"]))
        if what == "poll":
            for step in scene.poll():
                if isinstance(step, Assign):
                    assert not told & step.partitions
                    told |= step.partitions
                    assert told <= allowed
                else:
                    assert step.partitions <= told
                    told -= step.partitions
            assert told == set(scene.member.owned)
            scene.member.take_failure()
        elif what == "time":
            scene.pass_time(data.draw(st.sampled_from([0.1, 1.0, HEARTBEAT_SECONDS])))
        else:
            match request := scene.member.due(scene.now):
                case FindCoordinator():
                    scene.member.coordinator_found()
                case Join():
                    scene.member._under_way = None  # the scene asks for it again
                    code = data.draw(codes)
                    if code is ErrorCode.NONE:
                        scene.join()
                    else:
                        scene.refuse_join(code)
                case Sync():
                    scene.member._under_way = None
                    code = data.draw(codes)
                    if code is ErrorCode.NONE:
                        numbers = data.draw(st.sets(st.integers(0, 3)))
                        allowed = partitions(" ".join(f"t-{number}" for number in numbers))
                        scene.sync(" ".join(f"t-{number}" for number in numbers))
                    else:
                        scene.refuse_sync(code)
                case Heartbeat():
                    scene.member.heartbeat_answered(data.draw(codes), scene.now)
                case _:
                    assert request is None or isinstance(request, Leave)
        assert (scene.member.wake_at() or scene.now) > 0
