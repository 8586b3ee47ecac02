from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from klamm.client.errors import ConnectionFailed
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionTopicResult,
)
from klamm.replication import isr_requests
from klamm.replication.isr import IsrChange, IsrMember, Outcome
from klamm.replication.isr_requests import IsrRequests, Key
from tests.waiting import until

CHANGE = IsrChange(3, 5, (IsrMember(1, 11), IsrMember(2, 22)))
SHRUNK = IsrChange(3, 6, (IsrMember(1, 11),))


class Led:
    """Notes the outcomes; sends again what it is told to."""

    def __init__(self, index: int, next_change: Callable[[Outcome], IsrChange | None]) -> None:
        self.key: Key = (b"t" * 16, index)
        self.outcomes: list[tuple[Outcome, tuple[int, ...], int]] = []
        self._next_change = next_change

    def on_isr_outcome(
        self, change: IsrChange, outcome: Outcome, isr: tuple[int, ...], partition_epoch: int
    ) -> IsrChange | None:
        self.outcomes.append((outcome, isr, partition_epoch))
        return self._next_change(outcome)


class Controller:
    """Answers requests as the test says, when it says so."""

    def __init__(self) -> None:
        self.requests: list[AlterPartitionRequest] = []
        self.answers: asyncio.Queue[AlterPartitionResponse | Exception] = asyncio.Queue()

    async def ask(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.requests.append(request)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, *errors: int) -> None:
        """One code for each partition, in the order of their indexes."""
        results = [
            AlterPartitionResult(
                partition_index=index,
                error_code=error,
                leader_id=1,
                leader_epoch=3,
                isr=[1, 2],
                partition_epoch=6,
            )
            for index, error in enumerate(errors)
        ]
        topic = AlterPartitionTopicResult(topic_id=b"t" * 16, partitions=results)
        self.answers.put_nowait(AlterPartitionResponse(topics=[topic]))


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def requests(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> IsrRequests:
    monkeypatch.setattr(isr_requests, "RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(isr_requests, "LONGEST_RETRY_PAUSE_S", 0.002)
    return IsrRequests(1, lambda: 11, controller.ask)


def again_while_unknown(outcome: Outcome) -> IsrChange | None:
    return CHANGE if outcome is Outcome.UNKNOWN else None


async def test_what_is_proposed_together_travels_together(
    requests: IsrRequests, controller: Controller
) -> None:
    first, second = Led(0, again_while_unknown), Led(1, again_while_unknown)
    requests.propose(first, CHANGE)
    requests.propose(second, SHRUNK)
    controller.answer(ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA)
    await until(lambda: first.outcomes and second.outcomes)
    assert first.outcomes == [(Outcome.APPLIED, (1, 2), 6)]
    assert second.outcomes[0][0] is Outcome.NOT_APPLIED
    (request,) = controller.requests
    assert (request.broker_id, request.broker_epoch) == (1, 11)
    (topic,) = request.topics
    assert topic.topic_id == b"t" * 16
    asked, shrunk = topic.partitions
    assert (asked.partition_index, asked.leader_epoch, asked.partition_epoch) == (0, 3, 5)
    assert [(each.broker_id, each.broker_epoch) for each in asked.new_isr_with_epochs] == [(1, 11), (2, 22)]
    assert [each.broker_id for each in shrunk.new_isr_with_epochs] == [1]


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionFailed("no controller"),
        ValueError("of a kind that nobody expects"),
        AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER),
        AlterPartitionResponse(error_code=12345),
        AlterPartitionResponse(topics=[]),
    ],
    ids=["no connection", "unexpected", "not the controller", "unknown error", "left out"],
)
async def test_an_unknown_outcome_is_asked_for_again(
    requests: IsrRequests, controller: Controller, failure: AlterPartitionResponse | Exception
) -> None:
    led = Led(0, again_while_unknown)
    requests.propose(led, CHANGE)
    controller.answers.put_nowait(failure)
    controller.answers.put_nowait(failure)
    controller.answer(ErrorCode.NONE)
    await until(lambda: len(led.outcomes) == 3)
    assert [outcome for outcome, _, _ in led.outcomes] == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.APPLIED]
    assert controller.requests[0] == controller.requests[1] == controller.requests[2]


async def test_an_unknown_error_of_one_partition_leaves_its_outcome_open(
    requests: IsrRequests, controller: Controller
) -> None:
    led = Led(0, again_while_unknown)
    requests.propose(led, CHANGE)
    controller.answer(12345)
    controller.answer(ErrorCode.NONE)
    await until(lambda: len(led.outcomes) == 2)
    assert [outcome for outcome, _, _ in led.outcomes] == [Outcome.UNKNOWN, Outcome.APPLIED]


async def test_one_request_is_under_way_at_a_time(requests: IsrRequests, controller: Controller) -> None:
    first, second = Led(0, again_while_unknown), Led(1, again_while_unknown)
    requests.propose(first, CHANGE)
    await until(lambda: controller.requests)
    requests.propose(second, CHANGE)
    requests.propose(second, SHRUNK)
    await asyncio.sleep(0)
    assert len(controller.requests) == 1
    controller.answer(ErrorCode.NONE)
    controller.answer(ErrorCode.NONE, ErrorCode.NONE)
    await until(lambda: second.outcomes)
    (topic,) = controller.requests[1].topics
    (asked,) = topic.partitions
    assert (asked.partition_index, asked.partition_epoch) == (1, 6), "the later change has taken its place"


async def test_what_follows_from_an_applied_change_is_sent_at_once(
    requests: IsrRequests, controller: Controller
) -> None:
    changes = [SHRUNK, None]
    led = Led(0, lambda outcome: changes.pop(0))
    requests.propose(led, CHANGE)
    controller.answer(ErrorCode.NONE)
    controller.answer(ErrorCode.NONE)
    await until(lambda: len(led.outcomes) == 2)
    assert controller.requests[1].topics[0].partitions[0].partition_epoch == 6


async def test_after_the_end_nothing_is_sent(requests: IsrRequests, controller: Controller) -> None:
    led = Led(0, again_while_unknown)
    requests.propose(led, CHANGE)
    await until(lambda: controller.requests)
    await requests.shut_down()
    requests.propose(led, SHRUNK)
    await asyncio.sleep(0)
    assert len(controller.requests) == 1 and not led.outcomes


async def test_a_new_controller_is_asked_at_once_though_the_one_before_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Be it that a request waits for the old one, or that a pause is under way."""
    monkeypatch.setattr(isr_requests, "RETRY_PAUSE_S", 3600.0)
    monkeypatch.setattr(isr_requests, "LONGEST_RETRY_PAUSE_S", 3600.0)
    controller = Controller()
    requests = IsrRequests(1, lambda: 11, controller.ask)
    led = Led(0, lambda outcome: CHANGE if outcome is Outcome.UNKNOWN else None)
    requests.propose(led, CHANGE)
    await until(lambda: len(controller.requests) == 1)
    requests.on_new_controller()
    await until(lambda: len(controller.requests) == 2, "the new controller is asked")
    assert [outcome for outcome, _, _ in led.outcomes] == [Outcome.UNKNOWN]
    controller.answers.put_nowait(ConnectionFailed("gone"))
    await until(lambda: len(led.outcomes) == 2)
    requests.on_new_controller()
    await until(lambda: len(controller.requests) == 3, "the pause is cut short")
    controller.answer(ErrorCode.NONE)
    await until(lambda: len(led.outcomes) == 3)
    assert led.outcomes[-1][0] is Outcome.APPLIED
    await requests.shut_down()


async def test_a_broker_epoch_that_the_controller_does_not_know_is_told(
    controller: Controller, requests: IsrRequests
) -> None:
    disowned: list[int] = []
    requests = IsrRequests(1, lambda: 11, controller.ask, disowned.append)
    led = Led(0, lambda outcome: None)
    for code in (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH):
        controller.answers.put_nowait(AlterPartitionResponse(error_code=code))
        requests.propose(led, CHANGE)
        await until(lambda: not controller.answers.qsize() and len(led.outcomes) == len(controller.requests))
    assert disowned == [11] and [outcome for outcome, _, _ in led.outcomes] == [Outcome.UNKNOWN] * 2
    await requests.shut_down()
