"""What goes wrong in a member's life, code by code, told as scenes without a socket."""

from __future__ import annotations

import pytest

from klamm.client.consumer.group.actions import (
    Assign,
    FindCoordinator,
    Heartbeat,
    Join,
    Lose,
    Revoke,
    Sync,
)
from klamm.client.consumer.group.subscriptions import read_member
from klamm.client.errors import AuthorizationFailed, ConnectionFailed, FencedMember, GroupError, TimedOut
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k11_join_group import JoinGroupResponse
from klamm.protocol.messages.k14_sync_group import SyncGroupResponse
from tests.client.consumer.group.scene import (
    BACKOFF_SECONDS,
    HEARTBEAT_SECONDS,
    ME,
    PATIENCE_SECONDS,
    Scene,
    partitions,
)

EAGER = ("range",)
COOPERATIVE = ("cooperative-sticky",)


# ---- the group went on without us


@pytest.mark.parametrize("strategies", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
@pytest.mark.parametrize(
    ("code", "member_id"), [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, ME)]
)
def test_what_a_member_had_is_lost_when_the_coordinator_does_not_know_it(
    strategies: tuple[str, ...], code: ErrorCode, member_id: str
) -> None:
    scene = Scene.stable("t-0", *strategies)
    scene.heartbeat(code)
    scene.pass_time(10)
    scene.expect_nothing()  # heartbeats of a member that is none make no sense
    assert scene.poll() == [Lose(partitions("t-0"))]
    sent = scene.join()
    assert sent.request.member_id == member_id
    held = read_member(strategies[0], ME, None, sent.request.protocols[0].metadata)
    assert held.owned == ()


def test_a_commit_shows_as_well_that_the_group_went_on() -> None:
    scene = Scene.stable("t-0")
    scene.member.commit_refused(ErrorCode.ILLEGAL_GENERATION, 1, ME)
    assert scene.poll() == [Lose(partitions("t-0"))]


def test_a_commit_during_a_rebalance_calls_the_user_to_poll() -> None:
    scene = Scene.stable("t-0")
    scene.member.commit_refused(ErrorCode.REBALANCE_IN_PROGRESS, 1, ME)
    assert scene.poll() == [Revoke(partitions("t-0"))]


@pytest.mark.parametrize(
    ("code", "generation", "member_id"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, 0, ME),
        (ErrorCode.UNKNOWN_MEMBER_ID, 1, "earlier"),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, 1, ME),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1, ME),
    ],
)
def test_a_commit_of_another_time_or_about_something_else_changes_nothing(
    code: ErrorCode, generation: int, member_id: str
) -> None:
    scene = Scene.stable("t-0")
    scene.member.commit_refused(code, generation, member_id)
    assert scene.member.is_at_rest


def test_a_join_under_a_forgotten_id_is_tried_as_a_new_member() -> None:
    scene = Scene.stable("t-0")
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.poll()
    scene.refuse_join(ErrorCode.UNKNOWN_MEMBER_ID)
    assert scene.expect(Join).request.member_id == ""


def test_a_cooperative_member_whose_id_is_forgotten_during_the_join_loses_first() -> None:
    scene = Scene.stable("t-0", *COOPERATIVE)
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.poll()
    scene.refuse_join(ErrorCode.UNKNOWN_MEMBER_ID)
    scene.expect_nothing()
    assert scene.poll() == [Lose(partitions("t-0"))]
    assert scene.expect(Join).request.member_id == ""


def test_a_new_member_that_is_not_known_pauses_before_it_tries_again() -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.refuse_join(ErrorCode.UNKNOWN_MEMBER_ID)
    scene.expect_nothing()
    assert scene.member.wake_at() == scene.now + BACKOFF_SECONDS


# ---- the assignment does not come


def test_a_rebalance_during_the_sync_is_joined_at_once_and_nothing_is_lost() -> None:
    scene = Scene.stable("t-0", *COOPERATIVE)
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.poll()
    scene.join()
    scene.refuse_sync(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.join()
    scene.sync("t-0")
    assert scene.poll() == [Assign(frozenset(), 3)]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_who_is_dropped_during_the_sync_loses_what_it_kept(code: ErrorCode) -> None:
    scene = Scene.stable("t-0", *COOPERATIVE)
    scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    scene.poll()
    scene.join()
    scene.refuse_sync(code)
    assert scene.poll() == [Lose(partitions("t-0"))]
    scene.join()


def test_an_assignment_that_cannot_be_read_is_joined_again_after_a_pause() -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.join()
    scene.expect(Sync)
    scene.member.synced(SyncGroupResponse(assignment=b"\x00"), scene.now)
    scene.poll()
    scene.expect_nothing()
    scene.pass_time(BACKOFF_SECONDS)
    assert "cannot be read" in (scene.join().request.reason or "")


# ---- the coordinator is elsewhere, or busy, or away


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
def test_a_coordinator_that_moved_is_looked_for(code: ErrorCode) -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.refuse_join(code)
    scene.expect_nothing()
    scene.pass_time(BACKOFF_SECONDS)
    scene.find_coordinator()
    scene.join()
    scene.refuse_sync(code)
    scene.pass_time(BACKOFF_SECONDS)
    scene.find_coordinator()
    scene.finish_rebalance("t-0")
    scene.heartbeat(code)
    scene.pass_time(HEARTBEAT_SECONDS)
    scene.find_coordinator()
    assert scene.expect(Heartbeat).request.generation_id == scene.generation, "it is a member still"


def test_a_coordinator_that_is_loading_is_asked_again() -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.refuse_join(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    scene.expect_nothing()
    scene.pass_time(BACKOFF_SECONDS)
    scene.join()


@pytest.mark.parametrize("moment", ["find", "join", "sync", "heartbeat"])
def test_no_answer_means_another_look_for_the_coordinator(moment: str) -> None:
    scene = Scene(*COOPERATIVE)
    scene.poll()
    if moment == "find":
        scene.expect(FindCoordinator)
    else:
        scene.find_coordinator()
    if moment == "join":
        scene.expect(Join)
    if moment == "sync":
        scene.join()
        scene.expect(Sync)
    if moment == "heartbeat":
        scene.finish_rebalance("t-0")
        scene.pass_time(HEARTBEAT_SECONDS)
        scene.expect(Heartbeat)
    scene.member.request_failed(scene.now, ConnectionFailed("broker 1 went away"))
    assert scene.member.take_failure() is None
    scene.expect_nothing()
    scene.pass_time(HEARTBEAT_SECONDS)
    scene.find_coordinator()
    if moment == "heartbeat":
        scene.expect(Heartbeat)
    else:
        scene.finish_rebalance("t-0")


# ---- what joining again does not heal


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, GroupError),
        (ErrorCode.INVALID_GROUP_ID, GroupError),
        (ErrorCode.INVALID_SESSION_TIMEOUT, GroupError),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, GroupError),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, AuthorizationFailed),
    ],
)
def test_errors_for_the_user_are_raised_once_and_the_next_poll_tries_again(
    code: ErrorCode, kind: type[Exception]
) -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    scene.refuse_join(code)
    assert scene.member.needs_poll
    scene.expect_nothing()
    assert scene.poll() == []
    failure = scene.member.take_failure()
    assert isinstance(failure, kind)
    assert failure.code == code and "'group'" in str(failure)
    assert scene.member.take_failure() is None
    scene.poll()
    scene.join()


@pytest.mark.parametrize("moment", ["join", "sync", "heartbeat", "commit"])
def test_who_is_fenced_loses_everything_and_stays_out(moment: str) -> None:
    scene = Scene.stable("t-0", *COOPERATIVE, instance_id="i")
    if moment == "heartbeat":
        scene.heartbeat(ErrorCode.FENCED_INSTANCE_ID)
    elif moment == "commit":
        scene.member.commit_refused(ErrorCode.FENCED_INSTANCE_ID, 1, ME)
    else:
        scene.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
        scene.poll()
        if moment == "join":
            scene.refuse_join(ErrorCode.FENCED_INSTANCE_ID)
        else:
            scene.join()
            scene.refuse_sync(ErrorCode.FENCED_INSTANCE_ID)
    assert scene.poll() == [Lose(partitions("t-0"))]
    for _ in range(2):
        assert isinstance(scene.member.take_failure(), FencedMember)
        assert scene.poll() == []
        scene.pass_time(100)
        scene.expect_nothing()


def test_a_group_that_is_not_of_consumers_is_refused() -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    assert scene.expect(Join).request.protocol_type == "consumer"
    scene.member.joined(
        JoinGroupResponse(protocol_type="connect", protocol_name="x", member_id=ME, leader="l"), scene.now
    )
    failure = scene.member.take_failure()
    assert failure is not None and failure.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# ---- a coordinator that does not serve


def test_a_coordinator_that_cannot_be_found_is_told_after_a_while_and_again_after_as_long() -> None:
    scene = Scene()
    scene.poll()
    told = []
    while scene.now < 1_000.0 + 2.5 * PATIENCE_SECONDS:
        scene.expect(FindCoordinator)
        scene.pass_time(20)  # as long as a search tries
        scene.member.request_failed(scene.now, ConnectionFailed("nobody is there"))
        if (outage := scene.member.take_outage()) is not None:
            assert isinstance(outage, TimedOut) and "nobody is there" in str(outage)
            told.append(scene.now)
        scene.pass_time(BACKOFF_SECONDS)
    assert len(told) == 2 and told[0] < 1_000.0 + PATIENCE_SECONDS + 20


def test_a_pause_longer_than_the_patience_does_not_count_as_being_served() -> None:
    scene = Scene(backoff_seconds=2 * PATIENCE_SECONDS)
    scene.poll()
    for _ in range(2):
        scene.expect(FindCoordinator)
        scene.member.request_failed(scene.now, ConnectionFailed("nobody is there"))
        scene.pass_time(2 * PATIENCE_SECONDS)
    assert isinstance(scene.member.take_outage(), TimedOut)


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_coordinator_that_refuses_every_join_for_now_is_told(code: ErrorCode) -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    began = scene.now
    while (outage := scene.member.take_outage()) is None:
        assert scene.now < began + 2 * PATIENCE_SECONDS, "it is told in time"
        scene.refuse_join(code)
        scene.pass_time(BACKOFF_SECONDS)
        if code is ErrorCode.NOT_COORDINATOR:
            scene.find_coordinator()
    assert isinstance(outage, TimedOut) and code.name in str(outage)
    assert scene.now >= began + PATIENCE_SECONDS


def test_a_coordinator_that_cannot_store_any_assignment_is_told() -> None:
    scene = Scene()
    scene.poll()
    began = scene.now
    while scene.member.take_outage() is None:
        assert scene.now < began + 2 * PATIENCE_SECONDS, "it is told in time"
        scene.find_coordinator()
        scene.join()
        scene.refuse_sync(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        scene.pass_time(BACKOFF_SECONDS)


def test_a_rebalance_that_takes_long_is_no_outage() -> None:
    scene = Scene()
    scene.poll()
    scene.find_coordinator()
    for _ in range(5):  # each join waits for the others, and then the rebalance begins anew
        scene.expect(Join)
        scene.pass_time(2 * PATIENCE_SECONDS)
        code = ErrorCode.REBALANCE_IN_PROGRESS
        scene.member.joined(JoinGroupResponse(error_code=code, member_id=ME), scene.now)
        scene.pass_time(BACKOFF_SECONDS)
    scene.refuse_join(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    scene.pass_time(BACKOFF_SECONDS)
    scene.expect(Join)
    scene.pass_time(2 * PATIENCE_SECONDS)
    scene.member.request_failed(scene.now, ConnectionFailed("it was restarted"))
    assert scene.member.take_outage() is None
