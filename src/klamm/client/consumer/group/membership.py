"""One member's life in a classic group, as a state machine without IO.

    OUT ──subscribe──▶ PREPARING ──revoked──▶ JOINING ──joined──▶ (LEADING) ──▶ SYNCING ──synced──▶ ADOPTING
                          ▲                                                                           │
                          └────────── a rebalance is due ────────── STABLE ◀─────── assigned ─────────┘

What happens comes in as method calls, with the time where it matters. What is to be done is asked for:
`due(now)` gives the next request to send, one at a time, and `step()` the next thing that the consumer has to
do about its partitions, which it does inside a poll only. So a rebalance waits for the user, and heartbeats
do not.

Eager members give up everything before they join. Cooperative ones (every strategy in their list allows it)
keep what they have, learn what is taken from them, give that up and join again at once (KIP-429).

What always holds: `owned` are the partitions that the consumer reads, and no other member does, unless they
are lost. A generation below 0 means that the coordinator does not count us as a member. Errors that neither
a retry nor joining again can heal end up in `take_failure`, and the next poll starts afresh; being fenced is
for good.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from klamm.client.consumer.group.actions import (
    Assign,
    FindCoordinator,
    Heartbeat,
    Join,
    LearnTopics,
    Leave,
    Lose,
    Request,
    Revoke,
    Step,
    Sync,
)
from klamm.client.consumer.group.assignors import COOPERATIVE_ASSIGNORS, Topics
from klamm.client.consumer.group.subscriptions import (
    Leadership,
    Ownership,
    read_assignment,
    write_subscription,
)
from klamm.client.errors import BrokerError, ClientError, TimedOut
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.messages.consumer_protocol import PROTOCOL_TYPE
from klamm.protocol.messages.k11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from klamm.protocol.messages.k12_heartbeat import HeartbeatRequest
from klamm.protocol.messages.k14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

NO_GENERATION = -1
MOST_REASON_CHARACTERS = 255
"""As in KIP-800: a reason is for the broker's log."""

_COORDINATOR_ELSEWHERE = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_NOT_A_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_ABOUT_MEMBERS = _NOT_A_MEMBER | {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.FENCED_INSTANCE_ID}


class Phase(Enum):
    OUT = auto()
    PREPARING = auto()
    JOINING = auto()
    LEADING = auto()
    SYNCING = auto()
    ADOPTING = auto()
    STABLE = auto()


class MemberSettings(NamedTuple):
    group_id: str
    strategies: tuple[str, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    heartbeat_seconds: float
    instance_id: str | None = None
    rack: str | None = None
    patience_seconds: float = inf
    """How long the coordinator may fail to serve the member before a poll that waits for it says so."""

    @property
    def is_cooperative(self) -> bool:
        """As Java decides it: only when every strategy in the list can do it."""
        return COOPERATIVE_ASSIGNORS.issuperset(self.strategies)


class Membership:
    """`backoff` gives the pause after so many failures in a row."""

    def __init__(self, settings: MemberSettings, backoff: Callable[[int], float]) -> None:
        self.settings = settings
        self.phase = Phase.OUT
        self.member_id = ""
        self.generation = NO_GENERATION
        self.strategy: str | None = None
        self.owned: frozenset[TopicPartition] = frozenset()
        self.leadership: Leadership | None = None
        self.overdue_seconds: float | None = None
        """For how long nobody had polled when the member left because of that. The coordinator warns the user
        and sets it to None again."""
        self._backoff = backoff
        self._topics: frozenset[str] = frozenset()
        self._joined_topics: frozenset[str] = frozenset()
        self._last: Ownership | None = None
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._sync: SyncGroupRequest | None = None
        self._reason = ""
        self._is_lost = False
        self._gave_up_some = False
        self._failure: ClientError | None = None
        self._is_fenced = False
        self._under_way: Request | None = None
        self._has_coordinator = False
        self._failures = 0
        self._unserved_since: float | None = None
        """Since when the coordinator cannot be found, is silent, or answers with errors that may pass."""
        self._unserved_until = 0.0
        self._outage: ClientError | None = None
        self._retry_at = 0.0
        self._asked_at = 0.0
        self._heartbeat_at = 0.0
        self._polled_at = 0.0

    # ---- what the user does

    def subscribe(self, topics: frozenset[str]) -> None:
        """The topics that the member subscribes to from now on."""
        self._topics = topics
        if self.phase is Phase.OUT:
            self._prepare("the consumer subscribed")
        self._look_at_subscription()

    def polled(self, now: float) -> None:
        self._polled_at = now

    def leave(self, reason: str) -> Leave | None:
        """End the membership. A static member says nothing: it may come back. What is owned is given up."""
        request = self._farewell(reason)
        self._reset(forget_member_id=True)
        self.phase = Phase.OUT
        self.owned = frozenset()
        self._is_lost = False
        self._last = None
        self._under_way = None
        self._served()
        if not self._is_fenced:
            self._failure = None
        return request

    # ---- what is to be done

    @property
    def is_at_rest(self) -> bool:
        """True if a poll has nothing to do for the group: the member is stable, or there is no membership."""
        return self.phase in (Phase.STABLE, Phase.OUT) and self._failure is None

    @property
    def may_read_on(self) -> bool:
        """True if a poll may hand out records: no error waits to be raised, and the member is stable, or it
        is cooperative, owns partitions and waits in a rebalance for other members."""
        if self.phase is Phase.STABLE:
            return self._failure is None
        is_waiting = self.phase in (Phase.JOINING, Phase.LEADING, Phase.SYNCING)
        return is_waiting and self.settings.is_cooperative and bool(self.owned) and self._failure is None

    @property
    def needs_poll(self) -> bool:
        """Whether something waits for the user to poll."""
        return self.phase in (Phase.PREPARING, Phase.ADOPTING) or self._failure is not None

    def take_failure(self) -> ClientError | None:
        failure = self._failure
        if not self._is_fenced:
            self._failure = None
        return failure

    def take_outage(self) -> ClientError | None:
        """The error to raise in a waiting poll if the coordinator has not served this member for
        `patience_seconds`; returned once per such period. Retriable errors do not count as service, and a
        long rebalance does not count as an outage."""
        outage, self._outage = self._outage, None
        return outage

    def step(self) -> Step | None:
        """What the consumer has to do now, followed by `step_done`; None if nothing. Only inside a poll."""
        # A member that was fenced loses its partitions before it fails: another member reads them already.
        if self._failure is not None and not (self._is_fenced and self.owned):
            return None
        if self.phase is Phase.PREPARING:
            if self._is_lost and self.owned:
                return Lose(self.owned)
            self._is_lost = False
            if given_up := self._to_give_up():
                return Revoke(given_up)
            self.phase = Phase.JOINING
        elif self.phase is Phase.ADOPTING:
            if taken := self.owned - self._assigned:
                return Revoke(taken)
            return Assign(self._assigned - self.owned, self.generation)
        return None

    def step_done(self, step: Step) -> None:
        if isinstance(step, Assign):
            # A rebalance that came while the consumer took them over finds them owned.
            self.owned |= step.partitions
            if step.generation == self.generation:
                self._last = Ownership(self.owned, self.generation)
            if self.phase is Phase.ADOPTING:
                self.phase = Phase.STABLE
                if self._gave_up_some:
                    self._prepare("partitions were given up, for others to take")
                self._look_at_subscription()
            return
        self.owned -= step.partitions
        if isinstance(step, Revoke) and self.phase is Phase.ADOPTING:
            self._gave_up_some = True

    def due(self, now: float) -> Request | None:
        """The next request, to be answered before another is due; None if there is none yet."""
        if self._under_way is not None or self._is_fenced:
            return None
        self._under_way = self._next_request(now)
        self._asked_at = now
        if isinstance(self._under_way, Leave):
            request, self._under_way = self._under_way, None
            return request
        return self._under_way

    def wake_at(self) -> float | None:
        """When `due` should be asked again, if nothing happens before; None if time alone changes nothing."""
        if self._under_way is not None or self._is_fenced:
            return None
        if self.phase in (Phase.JOINING, Phase.LEADING, Phase.SYNCING):
            return self._retry_at
        if self.generation < 0:
            return None
        return min(max(self._heartbeat_at, self._retry_at), self._expires_at())

    # ---- what comes of it

    def coordinator_found(self) -> None:
        self._under_way = None
        self._has_coordinator = True

    def coordinator_lost(self) -> None:
        self._has_coordinator = False

    def request_failed(self, now: float, error: ClientError) -> None:
        """No answer came: the connection failed, or the coordinator cannot be found."""
        if not error.retriable:
            self._fail(error)
        else:
            # Other requests may wait for the group, and that is not the coordinator's fault.
            is_search = isinstance(self._under_way, FindCoordinator)
            self._was_not_served(self._asked_at if is_search else now, now, error)
        self._has_coordinator = False
        self._again(now)

    def topics_learned(self, topics: Topics, now: float) -> None:
        assert self.leadership is not None, "only a leader learns topics"
        self._under_way = None
        self._to_sync(self.leadership.share_out(topics))
        self._retry_at = now

    def topics_changed(self, topics: Topics) -> None:
        """Metadata came. `topics` holds at least those of `leadership.topics`."""
        if self.phase is Phase.STABLE and self.leadership is not None and self.leadership.is_outdated(topics):
            self._prepare("the topics of the group changed")

    def joined(self, answer: JoinGroupResponse, now: float) -> None:
        self._under_way = None
        code = _known(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._reason = "the coordinator gave the member its id"
        elif code is not ErrorCode.NONE:
            self._join_failed(code, now)
        elif answer.protocol_type not in (None, PROTOCOL_TYPE) or answer.protocol_name is None:
            self._fail_with(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "joining")
        else:
            self._failures = 0
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.strategy = answer.protocol_name
            self._heartbeat_at = now + self.settings.heartbeat_seconds
            self.leadership = None
            if answer.leader == answer.member_id:
                self.leadership = Leadership(
                    answer.protocol_name, answer.members, keeps_all=answer.skip_assignment
                )
                self.phase = Phase.LEADING
            else:
                self._to_sync([])

    def synced(self, answer: SyncGroupResponse, now: float) -> None:
        self._under_way = None
        code = _known(answer.error_code)
        if code is not ErrorCode.NONE:
            self._sync_failed(code, now)
            return
        if answer.protocol_name not in (None, self.strategy):
            self._fail_with(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "receiving the assignment")
            return
        try:
            self._assigned = read_assignment(bytes(answer.assignment))
        except MalformedMessage as problem:
            # Another member's fault. Joining again may find another leader, but not at once.
            self._again(now)
            self._prepare(f"the assignment cannot be read: {problem}")
            return
        self._failures = 0
        self._served()
        self._heartbeat_at = now + self.settings.heartbeat_seconds
        self._gave_up_some = False
        self.phase = Phase.ADOPTING
        self._look_at_subscription()

    def heartbeat_answered(self, error_code: int, now: float) -> None:
        request, self._under_way = self._under_way, None
        assert isinstance(request, Heartbeat), "only a heartbeat is answered so"
        code = _known(error_code)
        if code is ErrorCode.NONE:
            self._failures = 0
            self._served()
        elif self._is_about_us(request.request.generation_id, request.request.member_id):
            if code.retriable:
                self._may_pass(code, "the heartbeat", now)
            else:
                self._refused(code, "the heartbeat")

    def commit_refused(self, error_code: int, generation: int, member_id: str) -> None:
        """A commit of this member was refused. Most reasons say nothing about the membership."""
        code = _known(error_code)
        if code in _ABOUT_MEMBERS and self._is_about_us(generation, member_id):
            self._refused(code, "a commit")

    # ---- inside

    def _next_request(self, now: float) -> Request | None:
        if self.phase is Phase.OUT or now < self._retry_at:
            return None
        if self.phase in (Phase.STABLE, Phase.ADOPTING, Phase.PREPARING):
            if self.generation < 0:
                return None
            if now >= self._expires_at():
                return self._overdue(now)
            if now < self._heartbeat_at:
                return None
        if not self._has_coordinator:
            return FindCoordinator()
        if self.phase is Phase.JOINING:
            self._joined_topics = self._topics
            return Join(self._join_request())
        if self.phase is Phase.LEADING:
            assert self.leadership is not None
            return LearnTopics(self.leadership.topics)
        if self.phase is Phase.SYNCING:
            assert self._sync is not None
            return Sync(self._sync)
        self._heartbeat_at = now + self.settings.heartbeat_seconds
        return Heartbeat(
            HeartbeatRequest(
                group_id=self.settings.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.settings.instance_id,
            )
        )

    def _join_request(self) -> JoinGroupRequest:
        owned = Ownership(self.owned, self.generation)
        return JoinGroupRequest(
            group_id=self.settings.group_id,
            session_timeout_ms=self.settings.session_timeout_ms,
            rebalance_timeout_ms=self.settings.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(
                    name=strategy,
                    metadata=write_subscription(
                        strategy, self._joined_topics, owned, self._last, self.settings.rack
                    ),
                )
                for strategy in self.settings.strategies
            ],
            reason=self._reason[:MOST_REASON_CHARACTERS],
        )

    def _to_sync(self, assignments: list[SyncGroupRequestAssignment]) -> None:
        self._sync = SyncGroupRequest(
            group_id=self.settings.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self.strategy,
            assignments=assignments,
        )
        self.phase = Phase.SYNCING

    def _to_give_up(self) -> frozenset[TopicPartition]:
        if not self.settings.is_cooperative:
            return self.owned
        return frozenset(each for each in self.owned if each.topic not in self._topics)

    def _prepare(self, reason: str) -> None:
        """Join, or join again, as soon as the user polls."""
        self.phase = Phase.PREPARING
        self._reason = reason

    def _look_at_subscription(self) -> None:
        if self.phase in (Phase.STABLE, Phase.ADOPTING) and self._topics != self._joined_topics:
            self._prepare("the subscription changed")

    def _reset(self, *, forget_member_id: bool) -> None:
        self.generation = NO_GENERATION
        self.leadership = None
        self._is_lost = True
        if forget_member_id:
            self.member_id = ""

    def _again(self, now: float) -> None:
        """Try what is due once more, after a pause."""
        self._under_way = None
        self._failures += 1
        self._retry_at = now + self._backoff(self._failures)
        if self.phase in (Phase.LEADING, Phase.SYNCING):
            self.phase = Phase.JOINING  # the coordinator may have gone on without us

    def _expires_at(self) -> float:
        return self._polled_at + self.settings.rebalance_timeout_ms / 1000

    def _overdue(self, now: float) -> Leave | None:
        self.overdue_seconds = now - self._polled_at
        request = self._farewell("the consumer did not poll for longer than max.poll.interval.ms")
        self._reset(forget_member_id=True)
        self._prepare("the consumer polls again")
        return request

    def _farewell(self, reason: str) -> Leave | None:
        is_known = self.member_id != "" and self.settings.instance_id is None
        return Leave(self.member_id, reason[:MOST_REASON_CHARACTERS]) if is_known else None

    # ---- errors

    def _is_about_us(self, generation: int, member_id: str) -> bool:
        """True if an answer is for the current generation and member id. It may be for earlier ones if the
        member has joined again since it sent the request."""
        return (generation, member_id) == (self.generation, self.member_id)

    def _join_failed(self, code: ErrorCode, now: float) -> None:
        if code in _NOT_A_MEMBER:
            if not self.member_id:
                self._again(now)  # nothing that we said was wrong, so do not say it again at once
            self._out_of_step(code, "joining")
            if not self.owned:
                # There is nothing to lose, so nothing for the user to do first.
                self._is_lost = False
                self.phase = Phase.JOINING
        elif code.retriable or code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._may_pass(code, "joining", now)
        else:
            self._fail_with(code, "joining")

    def _sync_failed(self, code: ErrorCode, now: float) -> None:
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._reason = "the group is rebalancing already"
            self.phase = Phase.JOINING
        elif code in _NOT_A_MEMBER:
            self._out_of_step(code, "receiving the assignment")
        elif code.retriable:
            self._may_pass(code, "receiving the assignment", now)
        else:
            self._fail_with(code, "receiving the assignment")

    def _refused(self, code: ErrorCode, what: str) -> None:
        """A heartbeat or a commit was refused, in most cases because the coordinator's state of this member
        differs from ours."""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self._fail_with(code, what)
        elif self.phase not in (Phase.STABLE, Phase.ADOPTING, Phase.PREPARING):
            pass  # we are joining as it is, and shall be told
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            if self.phase is not Phase.PREPARING:
                self._prepare("the group is rebalancing already")
        elif code in _NOT_A_MEMBER:
            self._out_of_step(code, what)
        else:
            self._fail_with(code, what)

    def _out_of_step(self, code: ErrorCode, what: str) -> None:
        """The group went on without us."""
        self._reset(forget_member_id=code is ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare(f"{what} was answered with {code.name}")

    def _may_pass(self, code: ErrorCode, what: str, now: float) -> None:
        """The coordinator answered with an error that may pass: try again, and elsewhere if it says so."""
        if code in _COORDINATOR_ELSEWHERE:
            self._has_coordinator = False
        if code is not ErrorCode.REBALANCE_IN_PROGRESS:
            error = BrokerError.of(code, f"{what} in group {self.settings.group_id!r}")
            self._was_not_served(now, now, error)
        self._again(now)

    def _was_not_served(self, began: float, now: float, error: ClientError) -> None:
        patience = self.settings.patience_seconds
        # After a long time without a failure the coordinator has served us in between: a join was waiting.
        # The pause before this attempt does not count as such a time.
        ready = max(self._unserved_until, self._retry_at)
        if self._unserved_since is None or began - ready >= patience:
            self._unserved_since = began
        self._unserved_until = now
        if (seconds := now - self._unserved_since) >= patience:
            self._unserved_since = now
            what = f"waiting to be served by the coordinator of group {self.settings.group_id!r}"
            self._outage = TimedOut(what, seconds, cause=error)

    def _served(self) -> None:
        self._unserved_since = None
        self._outage = None

    def _fail_with(self, code: ErrorCode, what: str) -> None:
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self._is_fenced = True
        self._fail(BrokerError.of(code, f"{what} in group {self.settings.group_id!r}"))

    def _fail(self, error: ClientError) -> None:
        self._failure = error
        if self._is_fenced:
            self._reset(forget_member_id=True)
        if self.phase is not Phase.OUT:
            self._prepare("trying again after an error")


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
