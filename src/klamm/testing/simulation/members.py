"""Simulated members of consumer groups: they join, share the partitions out, read, commit and heartbeat.

A member does one thing after the other. It follows the rules of clients: it looks for its coordinator again
when told so, joins again when the group rebalances or has forgotten it, and commits only in the generation
of its assignment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from klamm.groups.coordinator import JoinRequest, abs_java_hash
from klamm.groups.events import JoinResult, Subscription, Sync
from klamm.groups.offsets import CommittedOffset
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.testing.simulation.checks import Ledger
from klamm.testing.simulation.group_checks import Token
from klamm.testing.simulation.groups import (
    Commit,
    FetchOffsets,
    GroupAnswer,
    GroupRequest,
    Heartbeat,
    Leave,
    SyncRequest,
)
from klamm.testing.simulation.network import Answer, Network, Node
from klamm.testing.simulation.offsets_log import PARTITION_COUNT, place_of
from klamm.testing.simulation.peers import broker_name
from klamm.testing.simulation.topics import INDEXES, PLACES, RECORD_PARTITIONS

_SESSION_TIMEOUT_MS = 10_000
_REBALANCE_TIMEOUT_MS = 12_000
_JOIN_TIMEOUT_S = 20.0
_REQUEST_TIMEOUT_S = 5.0
_RETRY_S = 0.5
_LEAVE_CHANCE = 0.004
"""At each turn."""
_PROTOCOL = "range"
_NO_ANSWER = GroupAnswer(ErrorCode.REQUEST_TIMED_OUT)
_LOOK_AGAIN = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
)

SHARED = tuple(PLACES[index] for index in RECORD_PARTITIONS)
"""What each group reads."""


class SimulatedMember(Node):
    def __init__(
        self,
        name: str,
        group_id: str,
        network: Network,
        ledger: Ledger,
        broker_ids: range,
        chance: random.Random,
        pause_s: float,
    ) -> None:
        super().__init__(name, network)
        self.group_id = group_id
        self.generation = -1
        self.positions: dict[TopicPartition, int] = {}
        """Of the partitions that it owns."""
        self.is_settled = False
        """It has its assignment, and the offsets to go on from."""
        self._ledger = ledger
        self._groups = ledger.groups
        self._broker_ids = broker_ids
        self._chance = chance
        self._pause_s = pause_s
        self._member_id = ""
        self._coordinator = -1
        self._leaders = {place: chance.choice(broker_ids) for place in SHARED}
        self._place_of_group = place_of(abs_java_hash(group_id) % PARTITION_COUNT)
        self._commit_count = 0
        self._committed: dict[TopicPartition, int] = {}
        self.may_leave = True
        self.is_up = True
        self.later(chance.random(), self._join)

    def handle(self, kind: str, payload: Any, answer: Answer) -> None:
        raise AssertionError(f"nobody sends {kind} to a member")

    # ---- the coordinator

    def _ask(
        self,
        request: GroupRequest,
        then: Callable[[GroupAnswer], None],
        again: Callable[[], None],
        timeout_s: float = _REQUEST_TIMEOUT_S,
    ) -> None:
        """Ask the coordinator; `again` is what to do when there is another, or when this one is loaded."""
        if self._coordinator < 0:
            self._look_up(again)
            return

        def answered(answer: GroupAnswer | None) -> None:
            answer = answer or _NO_ANSWER
            if answer.error in _LOOK_AGAIN:
                self._coordinator = -1
                self.later(_RETRY_S * self._chance.random(), again)
            elif answer.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self.later(_RETRY_S, again)
            else:
                then(answer)

        self.network.request(self, broker_name(self._coordinator), "group", request, answered, timeout_s)

    def _look_up(self, then: Callable[[], None]) -> None:
        def answered(leader_id: int | None) -> None:
            self._coordinator = -1 if leader_id is None else leader_id
            self.later(0.0 if self._coordinator >= 0 else _RETRY_S, then)

        target = broker_name(self._chance.choice(self._broker_ids))
        self.network.request(self, target, "coordinator", self._place_of_group, answered, _REQUEST_TIMEOUT_S)

    # ---- joining

    def _rejoin(self) -> None:
        self.is_settled = False
        self.positions = {}
        self.later(_RETRY_S * self._chance.random(), self._join)

    def _join(self) -> None:
        self.is_settled = False
        self.positions = {}
        request = JoinRequest(
            group_id=self.group_id,
            member_id=self._member_id,
            instance_id=None,
            client_id=self.name,
            client_host="simulated",
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
            protocol_type="consumer",
            protocols=(Subscription(_PROTOCOL, b""),),
            requires_known_member_id=True,
            can_skip_assignment=True,
        )
        self._ask(request, self._on_joined, self._join, _JOIN_TIMEOUT_S)

    def _on_joined(self, answer: GroupAnswer) -> None:
        if answer.error is ErrorCode.NONE:
            self._sync(answer.result)
        else:
            self._on_refused(answer)

    def _on_refused(self, answer: GroupAnswer) -> None:
        """The group does not take this member as it is: join again."""
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.result.member_id
        elif answer.error is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
            self._groups.fenced_count += 1
        elif answer.error is ErrorCode.ILLEGAL_GENERATION:
            self._groups.fenced_count += 1
        elif answer.error is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._ledger.fail(f"{self.name} was refused with {answer.error.name}")
        self._rejoin()

    def _sync(self, joined: JoinResult) -> None:
        assignments: dict[str, bytes] = {}
        if joined.leader_id == joined.member_id:
            members = sorted(member.member_id for member in joined.members)
            for number, place in enumerate(SHARED):
                owner = members[number % len(members)]
                assignments[owner] = assignments.get(owner, b"") + bytes([INDEXES[place]])
        sync = Sync(
            member_id=self._member_id,
            instance_id=None,
            generation=joined.generation,
            protocol_type="consumer",
            protocol_name=_PROTOCOL,
            assignments=assignments,
        )

        def synced(answer: GroupAnswer) -> None:
            if answer.error is not ErrorCode.NONE:
                self._on_refused(answer)
                return
            places = [PLACES[index] for index in answer.result.assignment]
            self.generation = joined.generation
            self._groups.on_assignment(self.group_id, self._member_id, self.generation, places)
            self._fetch_offsets(tuple(places))

        self._ask(SyncRequest(self.group_id, sync), synced, lambda: self._sync(joined), _JOIN_TIMEOUT_S)

    def _fetch_offsets(self, places: tuple[TopicPartition, ...]) -> None:
        asked_at = {place: self._groups.version_count(self.group_id, place) for place in places}

        def told(answer: GroupAnswer) -> None:
            if answer.error is not ErrorCode.NONE:
                self._on_refused(answer)
                return
            for place, committed in answer.result.items():
                self._groups.on_offset_told(self.group_id, place, asked_at[place], committed)
                self.positions[place] = 0 if committed is None else committed.offset
            self._committed = dict(self.positions)
            self.is_settled = True
            self._turn()

        self._ask(FetchOffsets(self.group_id, places), told, lambda: self._fetch_offsets(places))

    # ---- reading

    def _turn(self) -> None:
        """Heartbeat, then read and commit; again after a pause."""
        if self.may_leave and self._chance.random() < _LEAVE_CHANCE:
            self._leave()
            return
        heartbeat = Heartbeat(self.group_id, self._member_id, self.generation)

        def beaten(answer: GroupAnswer) -> None:
            if answer.error is ErrorCode.REBALANCE_IN_PROGRESS:
                self._commit(self._rejoin)
            elif answer.error is not ErrorCode.NONE:
                self._on_refused(answer)
            else:
                self._read(list(self.positions))

        self._ask(heartbeat, beaten, self._turn)

    def _leave(self) -> None:
        leave = Leave(self.group_id, self._member_id)
        self._member_id = ""
        self._ask(leave, lambda _: self._rejoin(), self._rejoin)

    def _read(self, places: list[TopicPartition]) -> None:
        if not places:
            self._commit(lambda: self.later(self._pause_s * (0.5 + self._chance.random()), self._turn))
            return
        place = places.pop()
        position = self.positions[place]

        def answered(answer: Any) -> None:
            error, records, hint, _ = answer or (ErrorCode.REQUEST_TIMED_OUT, [], -1, -1)
            if error is ErrorCode.NONE:
                self._ledger.on_read(INDEXES[place], position, records)
                self.positions[place] += len(records)
            elif hint >= 0 and hint != self._leaders[place]:
                self._leaders[place] = hint
            else:
                self._leaders[place] = self._chance.choice(self._broker_ids)
            self._read(places)

        target = broker_name(self._leaders[place])
        payload = (INDEXES[place], position, -1)
        self.network.request(self, target, "read", payload, answered, _REQUEST_TIMEOUT_S)

    def _commit(self, then: Callable[[], None]) -> None:
        moved = {place: at for place, at in self.positions.items() if at != self._committed[place]}
        if not moved:
            then()
            return
        self._commit_count += 1
        token = Token(self._member_id, self.generation, self._commit_count)
        offsets = {
            place: CommittedOffset(at, -1, token.text(), self.loop.now_ms) for place, at in moved.items()
        }

        def done(answer: GroupAnswer) -> None:
            if answer.error is not ErrorCode.NONE:
                self._on_refused(answer)
                return
            for place in moved:
                self._groups.on_commit_acknowledged(self.group_id, place, token)
            self._committed.update(moved)
            then()

        commit = Commit(self.group_id, self._member_id, self.generation, offsets)
        self._ask(commit, done, lambda: self._commit(then))
