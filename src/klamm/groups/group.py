"""The state machine of a classic consumer group, without IO.

Requests and the passing of time go in through methods; what must happen outside collects in the outbox
(`take_effects`): answers to parked requests, and snapshots to persist. Times are milliseconds of one
monotonic clock, given by the caller. The caller asks `next_deadline_ms` when to call `on_time`.

    Empty ──join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance ──leader's
    assignment persisted──► Stable;  a join, a leave or an expiry leads back to PreparingRebalance;
    a rebalance that nobody joins ends in Empty;  a deleted or resigned group is Dead.

Invariants:
* The generation rises by one each time a join phase completes, and never else.
* A member's token is answered once: on completion, on replacement (fenced), on removal, or when the same
  member asks again.
* The assignment is persisted before any Sync of its generation is answered.
* What members say to each other (subscriptions, assignments) is opaque, but for one look at the topics a
  returning static member subscribes to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from klamm.groups.events import (
    Effect,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    Join,
    JoinResult,
    Leaver,
    Sync,
    SyncResult,
    Token,
)
from klamm.groups.member import Member
from klamm.groups.outbox import AssignmentWrite, Outbox, StaticReturnWrite
from klamm.groups.roster import Roster
from klamm.groups.subscriptions import subscribed_topics
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.consumer_protocol import PROTOCOL_TYPE as CONSUMER_PROTOCOL_TYPE

_MIN_POSTPONEMENT_MS = 1_000
"""How long a join phase waits before it looks again, while only absent static members have not joined."""


class Group:
    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.settings = settings
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.members = Roster()
        self.pending_member_deadlines_ms: dict[str, int] = {}
        """Ids given out with MEMBER_ID_REQUIRED whose owners have not joined with them yet."""
        self._join_deadline_ms: int | None = None
        self._initial_wait_left_ms: int | None = None
        """During the first rebalance of an empty group: how far the wait may still be extended."""
        self._newcomer_during_initial_wait = False
        self._sync_deadline_ms: int | None = None
        self._unsynced_member_ids: set[str] = set()
        self._outbox = Outbox()

    @classmethod
    def restore(cls, snapshot: GroupSnapshot, settings: GroupSettings, now_ms: int) -> Group:
        """The group of a snapshot. The session of every member starts again."""
        group = cls(snapshot.group_id, settings)
        group.generation = snapshot.generation
        group.protocol_type = snapshot.protocol_type or None
        group.protocol_name = snapshot.protocol_name
        for member_snapshot in snapshot.members:
            member = Member.restored(member_snapshot, snapshot.protocol_name or "")
            member.restart_session(now_ms)
            group.members.add(member)
        if group.members:
            if snapshot.leader_id in group.members:
                group.members.leader_id = snapshot.leader_id
            group.state = GroupState.STABLE
            if len(group.members) > settings.max_size:
                group._prepare_rebalance(now_ms)
        return group

    def take_effects(self) -> list[Effect]:
        return self._outbox.take()

    # Joining

    def join(self, request: Join, token: Token, now_ms: int) -> None:
        member_id = request.member_id
        if self.state is GroupState.DEAD:
            self._refuse_join(token, ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id)
        elif not self._has_room_for(member_id):
            self._turn_away(member_id, now_ms)
            self._refuse_join(token, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        elif not self._is_compatible(request):
            self._refuse_join(token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif member_id == "":
            self._join_new(request, token, now_ms)
        elif member_id in self.pending_member_deadlines_ms and request.instance_id is None:
            self._add_member(member_id, request, token, now_ms)
        else:
            self._join_known(request, token, now_ms)

    def _has_room_for(self, member_id: str) -> bool:
        """True if there is room for the member. During a join phase only members that have joined count."""
        if self.state is GroupState.PREPARING_REBALANCE:
            member = self.members.get(member_id)
            has_joined = member is not None and member.join_token is not None
            return has_joined or self.members.joined_count < self.settings.max_size
        return member_id in self.members or len(self.members) < self.settings.max_size

    def _turn_away(self, member_id: str, now_ms: int) -> None:
        self.pending_member_deadlines_ms.pop(member_id, None)
        if member_id in self.members:
            self._remove_member(member_id)
            self._after_departures(now_ms, members_left=True)

    def _is_compatible(self, request: Join) -> bool:
        if not self.members:
            return request.protocol_type != "" and len(request.protocols) > 0
        return request.protocol_type == self.protocol_type and self.members.supports_any(request.protocols)

    def _join_new(self, request: Join, token: Token, now_ms: int) -> None:
        if self.members.static_member_id(request.instance_id) is not None:
            self._replace_static_member(request, token, now_ms)
        elif request.instance_id is None and request.requires_known_member_id:
            self.pending_member_deadlines_ms[request.new_member_id] = now_ms + request.session_timeout_ms
            self._refuse_join(token, ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
        else:
            self._add_member(request.new_member_id, request, token, now_ms)

    def _add_member(self, member_id: str, request: Join, token: Token, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        member = Member.joining(member_id, request, token)
        member.session_deadline_ms = now_ms + self.settings.new_member_join_timeout_ms
        self.members.add(member)
        self.pending_member_deadlines_ms.pop(member_id, None)
        self._newcomer_during_initial_wait = self._initial_wait_left_ms is not None
        self._rebalance_or_complete_join(now_ms)

    def _join_known(self, request: Join, token: Token, now_ms: int) -> None:
        error = self.members.identity_error(request.member_id, request.instance_id)
        if error is not None:
            self._refuse_join(token, error, request.member_id)
            return
        member = self.members[request.member_id]
        is_unchanged = member.protocols == request.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and is_unchanged:
            # The answer to the member's join was lost: send it again.
            self._outbox.answer(token, self._joined_result(member))
            member.restart_session(now_ms)
        elif self.state is GroupState.STABLE and is_unchanged and not self._is_leader(member.member_id):
            self._outbox.answer(token, self._joined_result(member))
            member.restart_session(now_ms)
        else:
            # A leader that joins again wants to assign again, whatever its reasons.
            self._update_member(member, request, token)
            self._rebalance_or_complete_join(now_ms)

    def _update_member(self, member: Member, request: Join, token: Token) -> None:
        self._outbox.release(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self.members.replace_protocols(member, request.protocols)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.join_token = token

    def _replace_static_member(self, request: Join, token: Token, now_ms: int) -> None:
        """A static member came back without its id: it gets a new one, and the old one is fenced."""
        assert request.instance_id is not None
        old_leader_id = self.members.leader_id
        old_member_id = self.members.static_member_id(request.instance_id)
        assert old_member_id is not None
        member = self.members[old_member_id]
        self._outbox.release(member, ErrorCode.FENCED_INSTANCE_ID)
        self._unsynced_member_ids.discard(old_member_id)
        old_metadata = member.metadata_for(self.protocol_name)
        self.members.rename_static(request.instance_id, request.new_member_id)
        self._update_member(member, request, token)
        member.is_new = False
        member.restart_session(now_ms)
        if self.state is not GroupState.STABLE or not self._fits_generation(member, old_metadata):
            # In CompletingRebalance the leader may already have assigned to the old id: join again.
            self._rebalance_or_complete_join(now_ms)
            return
        if request.can_skip_assignment:
            is_leader = self._is_leader(member.member_id)
            result = self._joined_result(member)._replace(skip_assignment=is_leader)
        else:
            # A client older than JoinGroup v9 would assign again if it were told that it leads. So the answer
            # names its previous member id as the leader.
            result = self._joined_result(member)._replace(leader_id=old_leader_id or "", members=())
        self._outbox.persist(
            self._snapshot({other.member_id: other.assignment for other in self.members}),
            StaticReturnWrite(token, member.member_id, result),
        )

    def _fits_generation(self, member: Member, old_metadata: bytes) -> bool:
        """True if a static member that came back subscribes to the same topics: its assignment still fits."""
        if self.members.elect_protocol() != self.protocol_name:
            return False
        if not self.is_consumer_group:
            return True
        new_topics = subscribed_topics(member.metadata_for(self.protocol_name))
        return new_topics is None or new_topics == subscribed_topics(old_metadata)

    # The join phase

    def _rebalance_or_complete_join(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_join_if_all_joined(now_ms)
        else:
            self._prepare_rebalance(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> None:
        was_empty = self.state is GroupState.EMPTY
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members:
                member.assignment = b""
                self._outbox.release_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self._end_sync_phase()
        self.state = GroupState.PREPARING_REBALANCE
        timeout_ms = self.members.rebalance_timeout_ms
        if was_empty:
            # Consumers that start together should meet in one rebalance instead of one each.
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._initial_wait_left_ms = max(timeout_ms - delay_ms, 0)
            self._newcomer_during_initial_wait = False
            self._join_deadline_ms = now_ms + delay_ms
            if delay_ms <= 0:
                self._complete_join(now_ms)
            return
        self._join_deadline_ms = now_ms + timeout_ms
        self._complete_join_if_all_joined(now_ms)

    def _complete_join_if_all_joined(self, now_ms: int) -> None:
        if self._initial_wait_left_ms is not None and self.members:
            return
        is_complete = self.members.all_joined() and not self.pending_member_deadlines_ms
        if is_complete or not self.members:
            self._complete_join(now_ms)

    def _on_join_deadline(self, now_ms: int) -> None:
        wait_left_ms = self._initial_wait_left_ms
        if wait_left_ms and self._newcomer_during_initial_wait:
            self._newcomer_during_initial_wait = False
            delay_ms = min(self.settings.initial_rebalance_delay_ms, wait_left_ms)
            self._initial_wait_left_ms = wait_left_ms - delay_ms
            self._join_deadline_ms = now_ms + delay_ms
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        self._initial_wait_left_ms = None
        for member in list(self.members):
            # A static member that is late keeps its place until its session ends.
            if member.join_token is None and member.instance_id is None:
                self._remove_member(member.member_id)
        if self.members and not self.members.elect_joined_leader():
            wait_ms = max(self.members.rebalance_timeout_ms, _MIN_POSTPONEMENT_MS)
            self._join_deadline_ms = now_ms + wait_ms
            return
        self._join_deadline_ms = None
        self.generation += 1
        if not self.members:
            self._become_empty()
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.protocol_name = self.members.elect_protocol()
        self._sync_deadline_ms = now_ms + self.members.rebalance_timeout_ms
        for member in self.members:
            self._unsynced_member_ids.add(member.member_id)
            member.is_new = False
            member.restart_session(now_ms)
            token, member.join_token = member.join_token, None
            if token is not None:
                self._outbox.answer(token, self._joined_result(member))

    def _become_empty(self) -> None:
        self.state = GroupState.EMPTY
        self.protocol_name = None
        self._outbox.persist(self._snapshot({}), None)

    # The sync phase

    def sync(self, request: Sync, token: Token, now_ms: int) -> None:
        error = self._sync_error(request)
        if error is not None:
            self._outbox.answer(token, SyncResult(error))
            return
        member = self.members[request.member_id]
        self._unsynced_member_ids.discard(member.member_id)
        if not self._unsynced_member_ids:
            self._sync_deadline_ms = None
        if self.state is GroupState.STABLE:
            self._outbox.answer(token, self._synced_result(member))
            member.restart_session(now_ms)
            return
        self._outbox.release_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_token = token
        # The first assignment of a generation counts. A repeated Sync of the leader waits for that one.
        is_first = not self._outbox.is_persisting_assignment(self.generation)
        if is_first and self._is_leader(member.member_id):
            assignments = {other.member_id: b"" for other in self.members}
            for member_id, assignment in request.assignments.items():
                if member_id in assignments:
                    assignments[member_id] = assignment
            self._outbox.persist(self._snapshot(assignments), AssignmentWrite(self.generation, assignments))

    def _sync_error(self, request: Sync) -> ErrorCode | None:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.identity_error(request.member_id, request.instance_id)
        if error is not None:
            return error
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != self.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return None

    def persisted(self, ticket: int, now_ms: int) -> None:
        write = self._outbox.finish(ticket)
        if isinstance(write, StaticReturnWrite):
            self._finish_static_return(write, write.result, now_ms)
        elif isinstance(write, AssignmentWrite) and self._awaits(write):
            self.state = GroupState.STABLE
            for member in self.members:
                member.assignment = write.assignments[member.member_id]
                token, member.sync_token = member.sync_token, None
                if token is not None:
                    self._outbox.answer(token, self._synced_result(member))
                    member.restart_session(now_ms)

    def persist_failed(self, ticket: int, error: ErrorCode, now_ms: int) -> None:
        write = self._outbox.finish(ticket)
        if isinstance(write, StaticReturnWrite):
            # The member will try again, and will be given another id then.
            self._finish_static_return(write, JoinResult(error, write.member_id), now_ms)
        elif isinstance(write, AssignmentWrite) and self._awaits(write):
            for member in self.members:
                self._outbox.release_sync(member, error)
            self._prepare_rebalance(now_ms)

    def _awaits(self, write: AssignmentWrite) -> bool:
        """False when the group has moved on while the assignment was being written."""
        return self.state is GroupState.COMPLETING_REBALANCE and self.generation == write.generation

    def _finish_static_return(self, write: StaticReturnWrite, result: JoinResult, now_ms: int) -> None:
        member = self.members.get(write.member_id)
        if member is None or member.join_token != write.token:
            return
        if self.state is not GroupState.STABLE or self.generation != write.result.generation:
            # A rebalance began meanwhile; the join counts for it and is answered when it completes.
            return
        member.join_token = None
        member.is_new = False
        member.restart_session(now_ms)
        self._outbox.answer(write.token, result)

    def _end_sync_phase(self) -> None:
        self._sync_deadline_ms = None
        self._unsynced_member_ids.clear()

    # Staying and leaving

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.identity_error(member_id, instance_id)
        if error is not None:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.members[member_id].show_life(now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def commit_error(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode | None:
        """Why this sender may not commit offsets, or None. An allowed commit renews a member's session."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return None
        error = self.members.identity_error(member_id, instance_id)
        if error is not None:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self.members[member_id].show_life(now_ms)
        return None

    def leave(self, leavers: Sequence[Leaver], now_ms: int) -> list[ErrorCode]:
        if self.state is GroupState.DEAD:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(leavers)
        size_before = len(self.members)
        errors = [self._leave_one(leaver) for leaver in leavers]
        if ErrorCode.NONE in errors:
            self._after_departures(now_ms, members_left=len(self.members) < size_before)
        return errors

    def _leave_one(self, leaver: Leaver) -> ErrorCode:
        member_id = leaver.member_id
        if member_id == "":
            # An administrator removes a static member by its name alone.
            static_member_id = self.members.static_member_id(leaver.instance_id)
            if static_member_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = static_member_id
        elif self.pending_member_deadlines_ms.pop(member_id, None) is not None:
            return ErrorCode.NONE
        else:
            error = self.members.identity_error(member_id, leaver.instance_id)
            if error is not None:
                return error
        self._remove_member(member_id)
        return ErrorCode.NONE

    def _remove_member(self, member_id: str) -> None:
        member = self.members.remove(member_id)
        self._unsynced_member_ids.discard(member_id)
        self._outbox.release(member, ErrorCode.UNKNOWN_MEMBER_ID)

    def _after_departures(self, now_ms: int, *, members_left: bool) -> None:
        """Start a rebalance after members were removed. If only pending member ids were, none is needed."""
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_join_if_all_joined(now_ms)
        elif members_left:
            self._prepare_rebalance(now_ms)

    def die(self, error: ErrorCode) -> None:
        """The group is deleted, or this broker no longer coordinates it."""
        self.state = GroupState.DEAD
        self.pending_member_deadlines_ms.clear()
        self._join_deadline_ms = None
        self._end_sync_phase()
        for member in self.members:
            self._outbox.release(member, error)

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `on_time` next has something to do; None for a group that waits for nothing."""
        if self.state is GroupState.DEAD:
            return None
        deadlines = [member.session_deadline_ms for member in self.members if member.can_expire]
        deadlines.extend(self.pending_member_deadlines_ms.values())
        deadlines.extend(
            deadline for deadline in (self._join_deadline_ms, self._sync_deadline_ms) if deadline is not None
        )
        return min(deadlines, default=None)

    def on_time(self, now_ms: int) -> None:
        if self.state is GroupState.DEAD:
            return
        self._expire_sessions(now_ms)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._on_join_deadline(now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            for member_id in list(self._unsynced_member_ids):
                self._remove_member(member_id)
            self._prepare_rebalance(now_ms)

    def _expire_sessions(self, now_ms: int) -> None:
        pending = self.pending_member_deadlines_ms
        lapsed_ids = [member_id for member_id, deadline in pending.items() if deadline <= now_ms]
        for member_id in lapsed_ids:
            del pending[member_id]
        silent = [member for member in self.members if member.can_expire]
        expired_ids = [member.member_id for member in silent if member.session_deadline_ms <= now_ms]
        for member_id in expired_ids:
            self._remove_member(member_id)
        if lapsed_ids or expired_ids:
            self._after_departures(now_ms, members_left=bool(expired_ids))

    # What others may know

    @property
    def is_vacant(self) -> bool:
        """True if the group has no members and no pending member ids."""
        return self.state is GroupState.EMPTY and not self.pending_member_deadlines_ms

    @property
    def is_untouched(self) -> bool:
        """True for a group that never had members: nothing is lost if it is dropped."""
        return self.generation == 0 and not self.members and not self.pending_member_deadlines_ms

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def subscribed_topics(self) -> set[str] | None:
        """The topics that consumers of this group subscribe to; None if a subscription cannot be read."""
        topics: set[str] = set()
        if not self.members or not self.is_consumer_group:
            return topics
        if self.protocol_name is None:
            return None
        for member in self.members:
            of_member = subscribed_topics(member.metadata_for(self.protocol_name))
            if of_member is None:
                return None
            topics |= of_member
        return topics

    # Answers and records

    def _is_leader(self, member_id: str) -> bool:
        return self.members.leader_id == member_id

    def _joined_result(self, member: Member) -> JoinResult:
        """The result of a member's join to this generation. Only the leader gets the list of members."""
        everybody: Iterable[Member] = self.members if self._is_leader(member.member_id) else ()
        return JoinResult(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.members.leader_id or "",
            members=tuple(other.as_joined(self.protocol_name) for other in everybody),
        )

    def _synced_result(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    def _refuse_join(self, token: Token, error: ErrorCode, member_id: str) -> None:
        self._outbox.answer(token, JoinResult(error, member_id))

    def _snapshot(self, assignments: dict[str, bytes]) -> GroupSnapshot:
        return GroupSnapshot(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader_id=self.members.leader_id,
            state_timestamp_ms=-1,
            members=tuple(
                member.snapshot(self.protocol_name, assignments[member.member_id]) for member in self.members
            ),
        )
