"""A stage for one membership: a clock that the test moves, and a coordinator that says what the test says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from klamm.client.consumer.group.actions import (
    Assign,
    FindCoordinator,
    Heartbeat,
    Join,
    LearnTopics,
    Request,
    Step,
    Sync,
)
from klamm.client.consumer.group.assignors import Topics
from klamm.client.consumer.group.membership import MemberSettings, Membership, Phase
from klamm.client.consumer.group.subscriptions import Ownership, write_assignment, write_subscription
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.k11_join_group import JoinGroupResponse, JoinGroupResponseMember
from klamm.protocol.messages.k14_sync_group import SyncGroupResponse

HEARTBEAT_SECONDS = 3.0
POLL_SECONDS = 300.0
BACKOFF_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
ME = "me-1"

RequestT = TypeVar("RequestT", bound=Request)


def partitions(text: str) -> frozenset[TopicPartition]:
    """ "t-0 t-1" as partitions."""
    return frozenset(
        TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2])) for name in text.split()
    )


def topics_of(**counts: int) -> Topics:
    return {name: [frozenset()] * count for name, count in counts.items()}


class Scene:
    def __init__(
        self,
        *strategies: str,
        instance_id: str | None = None,
        topics: str = "t",
        rack: str | None = None,
        backoff_seconds: float = BACKOFF_SECONDS,
    ) -> None:
        self.now = 1_000.0
        self.member = Membership(
            MemberSettings(
                "group",
                strategies or ("range",),
                45_000,
                int(POLL_SECONDS * 1000),
                HEARTBEAT_SECONDS,
                instance_id,
                rack,
                PATIENCE_SECONDS,
            ),
            lambda failures: backoff_seconds,
        )
        self.generation = 0
        self.steps: list[Step] = []
        self.subscribe(topics)

    # ---- the user

    def subscribe(self, topics: str) -> None:
        self.member.subscribe(frozenset(topics.split()))

    def poll(self) -> list[Step]:
        """Take all steps that are due, and say which they were."""
        self.member.polled(self.now)
        taken = []
        while (step := self.member.step()) is not None:
            taken.append(step)
            self.member.step_done(step)
        return taken

    # ---- requests

    def expect(self, kind: type[RequestT]) -> RequestT:
        """The next request, which must be of this kind."""
        request = self.member.due(self.now)
        assert isinstance(request, kind), f"{kind.__name__} was expected, and not {request}"
        return request

    def expect_nothing(self) -> None:
        request = self.member.due(self.now)
        assert request is None, f"nothing was expected, and not {request}"

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    # ---- the coordinator

    def find_coordinator(self) -> None:
        self.expect(FindCoordinator)
        self.member.coordinator_found()

    def join(
        self,
        members: Mapping[str, str] | None = None,
        *,
        owned: Mapping[str, str] | None = None,
        strategy: str | None = None,
        skip_assignment: bool = False,
    ) -> Join:
        """Let it join. With `members` (topics by member id) it leads the group."""
        request = self.expect(Join)
        self.generation += 1
        chosen = strategy or self.member.settings.strategies[0]
        held = {name: partitions(text) for name, text in (owned or {}).items()}
        self.member.joined(
            JoinGroupResponse(
                generation_id=self.generation,
                protocol_type="consumer",
                protocol_name=chosen,
                leader=ME if members else "other-1",
                member_id=ME,
                skip_assignment=skip_assignment,
                members=[
                    JoinGroupResponseMember(
                        member_id=name,
                        metadata=write_subscription(
                            chosen,
                            topics.split(),
                            Ownership(held.get(name, ()), self.generation - 1),
                            None,
                            None,
                        ),
                    )
                    for name, topics in (members or {}).items()
                ],
            ),
            self.now,
        )
        return request

    def refuse_join(self, code: ErrorCode, member_id: str = "") -> Join:
        request = self.expect(Join)
        self.member.joined(JoinGroupResponse(error_code=code, member_id=member_id), self.now)
        return request

    def learn(self, **counts: int) -> LearnTopics:
        request = self.expect(LearnTopics)
        self.member.topics_learned(topics_of(**counts), self.now)
        return request

    def sync(self, assigned: str) -> Sync:
        request = self.expect(Sync)
        self.member.synced(SyncGroupResponse(assignment=write_assignment(partitions(assigned))), self.now)
        return request

    def refuse_sync(self, code: ErrorCode) -> None:
        self.expect(Sync)
        self.member.synced(SyncGroupResponse(error_code=code), self.now)

    def heartbeat(self, code: ErrorCode = ErrorCode.NONE) -> Heartbeat:
        self.pass_time(HEARTBEAT_SECONDS)
        request = self.expect(Heartbeat)
        self.member.heartbeat_answered(code, self.now)
        return request

    # ---- ways there

    def finish_rebalance(self, assigned: str) -> Sequence[Step]:
        """From wherever a poll leads to a join, until the member is stable with this assignment."""
        steps = self.poll()
        self.join()
        self.sync(assigned)
        steps += self.poll()
        assert self.member.phase is Phase.STABLE
        assert self.member.owned == partitions(assigned)
        return steps

    @classmethod
    def stable(cls, assigned: str, *strategies: str, instance_id: str | None = None) -> Scene:
        """A member that has joined and holds these."""
        scene = cls(*strategies, instance_id=instance_id)
        scene.poll()
        scene.find_coordinator()
        assert scene.finish_rebalance(assigned) == [Assign(partitions(assigned), 1)]
        return scene
