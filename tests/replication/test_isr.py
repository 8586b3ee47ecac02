from __future__ import annotations

import pytest

from klamm.model.errors import ErrorCode
from klamm.replication.isr import Isr, IsrChange, IsrMember, Outcome, outcome_of


def members(*broker_ids: int) -> tuple[IsrMember, ...]:
    return tuple(IsrMember(broker_id, broker_id * 10) for broker_id in broker_ids)


def isr_of(*broker_ids: int) -> Isr:
    return Isr(leader_epoch=5, committed=broker_ids, partition_epoch=7)


def test_a_change_names_the_epochs_that_the_controller_compares() -> None:
    change = isr_of(1, 2).propose(members(1, 2, 3))
    assert change == IsrChange(5, 7, (IsrMember(1, 10), IsrMember(2, 20), IsrMember(3, 30)))
    assert change.isr == (1, 2, 3)


def test_a_pending_addition_counts_at_once_or_the_leader_acknowledges_what_the_next_isr_lacks() -> None:
    isr = isr_of(1, 2)
    isr.propose(members(1, 2, 3))
    assert (isr.committed, isr.maximal) == ((1, 2), (1, 2, 3))


def test_a_pending_removal_counts_no_sooner_than_it_is_confirmed() -> None:
    isr = isr_of(1, 2, 3)
    change = isr.propose(members(1, 2))
    assert isr.maximal == (1, 2, 3)
    assert isr.settle(change, Outcome.APPLIED, (1, 2), 8) is None
    assert (isr.committed, isr.maximal, isr.partition_epoch) == ((1, 2), (1, 2), 8)
    assert isr.pending is None


def test_one_change_is_in_flight_at_a_time() -> None:
    isr = isr_of(1, 2)
    isr.propose(members(1))
    with pytest.raises(AssertionError):
        isr.propose(members(1, 2, 3))


def test_a_change_that_was_explicitly_not_applied_is_reverted() -> None:
    isr = isr_of(1, 2)
    change = isr.propose(members(1, 2, 3))
    assert isr.settle(change, Outcome.NOT_APPLIED) is None
    assert (isr.committed, isr.maximal, isr.partition_epoch, isr.pending) == ((1, 2), (1, 2), 7, None)


def test_a_change_with_an_unknown_outcome_stays_pending_or_leader_and_controller_see_two_isrs() -> None:
    isr = isr_of(1, 2)
    change = isr.propose(members(1, 2, 3))
    assert isr.settle(change, Outcome.UNKNOWN) == change, "asked again"
    assert isr.maximal == (1, 2, 3)


def test_a_refusal_does_not_revert_an_earlier_attempt_that_may_still_be_applied() -> None:
    isr = isr_of(1, 2)
    change = isr.propose(members(1, 2, 3))
    isr.settle(change, Outcome.UNKNOWN)
    withdrawal = isr.settle(change, Outcome.NOT_APPLIED)
    assert withdrawal is not None
    assert (withdrawal.isr, withdrawal.partition_epoch) == ((1, 2), 7), "raises the partition epoch"
    assert isr.maximal == (1, 2, 3)
    assert isr.settle(withdrawal, Outcome.NOT_APPLIED) == withdrawal, (
        "it is asked for until it has an outcome"
    )
    assert isr.settle(withdrawal, Outcome.APPLIED, (1, 2), 8) is None
    assert (isr.committed, isr.maximal, isr.partition_epoch) == ((1, 2), (1, 2), 8)


def test_a_late_answer_that_a_withdrawn_change_was_applied_is_believed() -> None:
    isr = isr_of(1, 2)
    change = isr.propose(members(1, 2, 3))
    isr.settle(change, Outcome.UNKNOWN)
    isr.settle(change, Outcome.NOT_APPLIED)
    assert isr.settle(change, Outcome.APPLIED, (1, 2, 3), 8) is None
    assert (isr.committed, isr.partition_epoch, isr.pending) == ((1, 2, 3), 8, None)


def test_a_superseded_change_waits_for_what_the_controller_says() -> None:
    isr = isr_of(1, 2)
    change = isr.propose(members(1, 2, 3))
    assert isr.settle(change, Outcome.SUPERSEDED) is None
    assert isr.pending is not None
    assert isr.maximal == (1, 2, 3)
    assert isr.take_over((1,), 9)
    assert (isr.committed, isr.maximal, isr.partition_epoch, isr.pending) == ((1,), (1,), 9, None)


@pytest.mark.parametrize("partition_epoch", [6, 7])
def test_a_state_that_is_not_newer_changes_nothing(partition_epoch: int) -> None:
    isr = isr_of(1, 2)
    assert not isr.take_over((1,), partition_epoch)
    assert (isr.committed, isr.partition_epoch) == ((1, 2), 7)


@pytest.mark.parametrize("outcome", Outcome)
def test_an_answer_to_a_change_that_is_over_does_not_touch_the_next_one(outcome: Outcome) -> None:
    isr = isr_of(1, 2)
    old = isr.propose(members(1, 2, 3))
    isr.take_over((1, 2), 9)
    new = isr.propose(members(1))
    assert isr.settle(old, outcome, (1, 2, 3), 8) is None
    assert (isr.committed, isr.partition_epoch, isr.pending) == ((1, 2), 9, new)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ErrorCode.NONE, Outcome.APPLIED),
        (ErrorCode.INELIGIBLE_REPLICA, Outcome.NOT_APPLIED),
        (ErrorCode.INVALID_REQUEST, Outcome.NOT_APPLIED),
        (ErrorCode.INVALID_UPDATE_VERSION, Outcome.SUPERSEDED),
        (ErrorCode.FENCED_LEADER_EPOCH, Outcome.SUPERSEDED),
        (ErrorCode.NOT_CONTROLLER, Outcome.UNKNOWN),
        (ErrorCode.REQUEST_TIMED_OUT, Outcome.UNKNOWN),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Outcome.UNKNOWN),
    ],
)
def test_an_error_that_does_not_say_what_happened_leaves_the_outcome_open(
    error: ErrorCode, outcome: Outcome
) -> None:
    assert outcome_of(error) is outcome
