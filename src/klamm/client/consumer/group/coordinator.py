"""The group's member on the network: carries out what the membership asks for, and reads and writes offsets.

One task sends requests and heartbeats, one at a time and whatever the user does. What changes the consumer's
partitions is done by `ensure_active`, which the consumer calls inside its polls. Joining and heartbeats go
over a connection of their own, because a join is answered only when the whole group has joined; commits must
not wait behind that, and go over the general one.
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import Collection, Mapping
from contextvars import Context
from typing import Any, Protocol

from klamm.client.arguments import seconds_left
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
from klamm.client.consumer.group.assignors import Topics
from klamm.client.consumer.group.membership import MemberSettings, Membership, Phase
from klamm.client.consumer.group.offsets import (
    ASK_AGAIN,
    NO_MEMBER,
    CommittedFound,
    GroupOffsets,
    Identity,
    listed,
)
from klamm.client.errors import ClientClosed, ClientError, PollOverdue
from klamm.client.logs import client_logger
from klamm.client.network.backoff import Backoff
from klamm.client.network.metadata import MetadataChange
from klamm.client.network.network import Network, Versioned
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.config.client_config import ClientConfig
from klamm.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.schema import Message

LANE = "group"

JOIN_GRACE_SECONDS = 5.0
"""A join is answered when the slowest member has joined or its time is up, and then some: as Java has it."""

LEARN_TOPICS_SECONDS = 5.0
"""How long a leader waits to hear of topics only others subscribe to. Meanwhile it sends no heartbeats, and
the others wait for it; partitions that it hears of later bring another rebalance."""

LEAVE_SECONDS = 5.0
"""How long saying goodbye may take. If it fails, the session time-out ends the membership."""

_FIRST_LEAVE_OF_SEVERAL = 3


class GroupOwner(Protocol):
    """The consumer, as its membership sees it. The coroutines run inside `ensure_active` only."""

    def subscribed_topics(self) -> Collection[str]:
        """The topics it wants now; a pattern resolved against the metadata."""
        ...

    async def partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        """Finish with these, commit, and stop reading them."""
        ...

    async def partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        """Read these, too. Called once at the end of every rebalance, with nothing if nothing was added."""
        ...

    async def partitions_lost(self, partitions: set[TopicPartition]) -> None:
        """Stop reading these. They are others' already, and nothing can be committed."""
        ...

    def raise_trouble(self) -> None:
        """Raise what keeps the consumer from reading anything, if there is something."""
        ...


class GroupCoordinator:
    """Group membership and committed offsets of one consumer. Needs no membership for the latter."""

    def __init__(self, network: Network, config: ClientConfig, owner: GroupOwner) -> None:
        self.group_id = config.str_("group.id")
        self.rebalance_due_event = asyncio.Event()
        """Set while something waits for the user to poll."""
        self._network = network
        self._owner = owner
        self._logger = client_logger("group", network.client_id)
        self._request_seconds = config.seconds("request.timeout.ms")
        self._session_seconds = config.seconds("session.timeout.ms")
        self._rebalance_seconds = config.seconds("max.poll.interval.ms")
        self._offsets = GroupOffsets(
            network,
            self.group_id,
            require_stable=config.str_("isolation.level") == "read_committed",
            on_refused=self._commit_refused,
        )
        backoff = Backoff(config.seconds("retry.backoff.ms"), config.seconds("retry.backoff.max.ms"))
        self._membership = Membership(
            MemberSettings(
                self.group_id,
                config.list_("partition.assignment.strategy"),
                config.int_("session.timeout.ms"),
                config.int_("max.poll.interval.ms"),
                config.seconds("heartbeat.interval.ms"),
                config.optional_str("group.instance.id"),
                config.str_("client.rack") or None,
                config.seconds("default.api.timeout.ms"),
            ),
            lambda failures: backoff.pause(failures, random.random()),
        )
        self._node_id = -1
        self._changed = asyncio.Event()
        """Set when the membership may have changed; a poll waits for it in `ensure_active`."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stepping: asyncio.Task[None] | None = None
        self._polls_under_way = 0
        self._departures = 0
        """How often the membership was ended. A poll that was joining at that time must not join again."""
        self._extra_topics: frozenset[str] = frozenset()
        network.on_metadata(self._metadata_came)

    # ---- what the consumer asks

    @property
    def rebalance_due(self) -> bool:
        """True if a poll has to call `ensure_active` before it may hand out records."""
        return not self._membership.may_read_on

    @property
    def member_id(self) -> str:
        return self._membership.member_id

    @property
    def generation(self) -> int:
        return self._membership.generation

    @property
    def strategy(self) -> str | None:
        """The assignor that the group has agreed on, once it has."""
        return self._membership.strategy

    @property
    def is_leader(self) -> bool:
        return self._membership.leadership is not None

    def polled(self, now: float) -> None:
        """The user polls, so the member is alive. `now` is the loop's time."""
        self._membership.polled(now)

    async def ensure_active(self, timeout: float | None, *, until_stable: bool = False) -> None:
        """Inside a poll: join or join again if that is due, and return when the group is stable.

        Returns also when `timeout` seconds are over; the next poll takes up what is under way. A cooperative
        member that keeps partitions does not wait for the others to join, but reads on meanwhile, unless it
        is to wait `until_stable`.

        Raises errors of the group's coordinator that do not pass, TimedOut when the coordinator has not
        served this member for default.api.timeout.ms, and what the user's callbacks raise.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        departures = self._departures
        self._polls_under_way += 1
        try:
            while departures == self._departures:
                self._membership.polled(loop.time())
                self._membership.subscribe(frozenset(self._owner.subscribed_topics()))
                self._tell_overdue()
                await self._take_steps()
                failure = self._membership.take_failure()
                self._update()
                if failure is not None:
                    raise failure
                if self._membership.is_at_rest or (self._membership.may_read_on and not until_stable):
                    return
                if self._membership.needs_poll:
                    continue  # it came while the steps before it were taken
                self._owner.raise_trouble()
                # When brokers cannot be reached at all, the owner says that.
                outage = self._membership.take_outage()
                if outage is not None and self._network.last_error is None:
                    raise outage
                self._changed.clear()
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._changed.wait()
                except TimeoutError:
                    return
        finally:
            self._polls_under_way -= 1
            self._membership.polled(loop.time())

    def look_again(self) -> None:
        """Wake the poll that waits in `ensure_active`, which then calls `raise_trouble` of the owner."""
        self._changed.set()

    async def leave(self, timeout: float) -> None:
        """End the membership, if there is one. What was owned is given up without a word to the owner. The
        coordinator is told, if it answers within `timeout` seconds and LEAVE_SECONDS."""
        self._departures += 1
        await self._end_task()
        request = self._membership.leave("the consumer is closed or unsubscribed")
        self._update()
        if request is not None:
            await self._say_goodbye(request, min(timeout, LEAVE_SECONDS))

    async def close(self, deadline: float) -> None:
        """Leave, and end all tasks, until the monotonic clock says `deadline`."""
        await self.leave(seconds_left(deadline))
        if self._stepping is not None:
            self._stepping.cancel()
            # It may be in a callback of the user's, which may refuse to be cancelled.
            await asyncio.wait([self._stepping], timeout=seconds_left(deadline))

    # ---- offsets

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], timeout: float) -> None:
        """Commit; after a retriable error try again, for up to `timeout` seconds.

        The request of a member carries its member id and generation, so the coordinator refuses it
        (GroupError) if the member was removed from the group.
        """
        await self._offsets.commit(offsets, self._identity(), timeout)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed; partitions without an offset are not in it."""
        return await self._offsets.committed(partitions, timeout)

    async def try_committed(self, partitions: Collection[TopicPartition]) -> CommittedFound:
        """One attempt at the same: what is found, and why the rest is not."""
        return await self._offsets.try_committed(partitions, self._request_seconds)

    def _identity(self) -> Identity:
        membership = self._membership
        if membership.phase is Phase.OUT:
            return NO_MEMBER
        return Identity(membership.generation, membership.member_id, membership.settings.instance_id)

    def _commit_refused(self, code: int, sent_as: Identity) -> None:
        if code in ASK_AGAIN:
            self._membership.coordinator_lost()
        elif sent_as != NO_MEMBER:
            self._membership.commit_refused(code, sent_as.generation, sent_as.member_id)
        self._update()

    # ---- steps, inside a poll

    async def _take_steps(self) -> None:
        # In a task of its own, so that a poll which is cancelled leaves no step half done. The next poll
        # waits for it.
        if self._stepping is None:
            step = self._membership.step()
            if step is None:
                return
            self._stepping = asyncio.create_task(self._all_steps(step), name=f"klamm-steps-{self.group_id}")
        task = self._stepping
        try:
            await asyncio.shield(task)
        finally:
            if task.done() and self._stepping is task:
                self._stepping = None

    async def _all_steps(self, first: Step) -> None:
        step: Step | None = first
        while step is not None:
            try:
                await self._take(step)
            finally:
                self._membership.step_done(step)
            step = self._membership.step()
        self._look_at_topics()

    async def _take(self, step: Step) -> None:
        partitions = set(step.partitions)
        match step:
            case Revoke():
                self._logger.info("gives up %s of group %r", listed(partitions), self.group_id)
                await self._owner.partitions_revoked(partitions)
            case Lose():
                self._logger.warning("lost %s of group %r", listed(partitions), self.group_id)
                self._network.counters.partitions_lost += len(partitions)
                await self._owner.partitions_lost(partitions)
            case Assign():
                self._logger.info(
                    "generation %d of group %r: added %s", step.generation, self.group_id, listed(partitions)
                )
                self._network.counters.rebalances += 1
                await self._owner.partitions_assigned(partitions)

    def _tell_overdue(self) -> None:
        seconds, self._membership.overdue_seconds = self._membership.overdue_seconds, None
        if seconds is not None:
            text = (
                f"the consumer left group {self.group_id!r}: it did not poll for {seconds:.1f} s. Poll more "
                "often, work on fewer records between polls (max_poll_records), or raise max_poll_interval_ms"
            )
            self._logger.warning(text)
            warnings.warn(text, PollOverdue, stacklevel=2)

    # ---- requests, in the background

    def _update(self) -> None:
        """The membership may have changed: wake polls and the task that sends requests."""
        if self._membership.needs_poll:
            self.rebalance_due_event.set()
        else:
            self.rebalance_due_event.clear()
        self._changed.set()
        self._wake.set()
        if self._task is None and self._membership.phase is not Phase.OUT:
            # A context of its own: we may be in a call with a deadline, which is none of the task's.
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=f"klamm-group-{self.group_id}", context=Context())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if self._polls_under_way:
                self._membership.polled(loop.time())
            request = self._membership.due(loop.time())
            if request is None:
                try:
                    async with asyncio.timeout_at(self._membership.wake_at()):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            try:
                await self._carry_out(request)
            except ClientClosed:
                return
            except ClientError as error:
                self._logger.info("group %r: %s", self.group_id, error)
                self._network.forget_coordinator(self.group_id)
                self._membership.request_failed(loop.time(), error)
            except Exception as error:  # a bug in Klamm: tell the user, who must not wait for ever
                self._logger.exception("handling a request of group %r failed", self.group_id)
                failure = ClientError(
                    f"handling a request of group {self.group_id!r} failed: {error!r}",
                    advice="This is a bug in Klamm; the log has the traceback",
                )
                self._membership.request_failed(loop.time(), failure)
            self._update()

    async def _carry_out(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        membership = self._membership
        match request:
            case FindCoordinator():
                self._network.forget_coordinator(self.group_id)
                self._node_id = await self._network.coordinator(self.group_id, self._request_seconds)
                membership.coordinator_found()
            case Join(message):
                membership.joined(await self._call(message, self._join_seconds()), loop.time())
                self._watch_topics()
            case LearnTopics(names):
                await self._learn(names)
                membership.topics_learned(self._topics(names), loop.time())
            case Sync(message):
                membership.synced(await self._call(message, self._join_seconds()), loop.time())
            case Heartbeat(message):
                answer = await self._call(message, min(self._request_seconds, self._session_seconds))
                self._network.counters.heartbeats += 1
                membership.heartbeat_answered(answer.error_code, loop.time())
            case Leave():
                await self._say_goodbye(request)

    async def _call(self, request: Message, timeout: float) -> Any:
        return await self._network.call(self._node_id, request, lane=LANE, timeout=timeout)

    def _join_seconds(self) -> float:
        return max(self._request_seconds, self._rebalance_seconds + JOIN_GRACE_SECONDS)

    async def _say_goodbye(self, request: Leave, seconds: float = LEAVE_SECONDS) -> None:
        identity = MemberIdentity(member_id=request.member_id, reason=request.reason)

        def build(version: int) -> LeaveGroupRequest:
            if version < _FIRST_LEAVE_OF_SEVERAL:
                return LeaveGroupRequest(group_id=self.group_id, member_id=request.member_id)
            return LeaveGroupRequest(group_id=self.group_id, members=[identity])

        try:
            async with asyncio.timeout(seconds):
                node_id = await self._network.coordinator(self.group_id, seconds)
                # Not over the lane of the joins: one may be waiting for an answer there.
                await self._network.call(node_id, Versioned(LeaveGroupRequest, build), timeout=seconds)
        except (ClientError, TimeoutError) as error:
            self._logger.warning(
                "the coordinator was not told that this member leaves group %r, and counts it as one for "
                "%g s more (session_timeout_ms): %s",
                self.group_id,
                self._session_seconds,
                error if isinstance(error, ClientError) else "there was no time left",
            )

    async def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # ---- topics

    async def _learn(self, names: frozenset[str]) -> None:
        known = self._network.metadata.topics
        if all(name in known for name in names):
            return
        try:
            async with asyncio.timeout(LEARN_TOPICS_SECONDS):
                await self._network.request_refresh()
        except (TimeoutError, ClientError) as error:
            self._logger.info("not all topics of group %r are known: %s", self.group_id, error)

    def _watch_topics(self) -> None:
        """A leader wants to hear of all topics of the group, also of those that only others subscribe to."""
        leadership = self._membership.leadership
        own = frozenset(self._owner.subscribed_topics())
        wanted = frozenset() if leadership is None else leadership.topics - own
        if wanted != self._extra_topics:
            self._network.drop_topics(self._extra_topics - wanted - own)
            self._network.want_topics(wanted)
            self._extra_topics = wanted

    def _topics(self, names: Collection[str]) -> Topics:
        """How many partitions topics have, and in which racks, as far as is known."""
        metadata = self._network.metadata
        racks = {node_id: broker.rack for node_id, broker in metadata.brokers.items() if broker.rack}
        return {
            name: [
                frozenset(racks[node_id] for node_id in each.replicas if node_id in racks)
                for each in topic.partitions
            ]
            for name in names
            if (topic := metadata.topics.get(name)) is not None and topic.exists
        }

    def _look_at_topics(self) -> None:
        if self._membership.leadership is not None:
            self._membership.topics_changed(self._topics(self._membership.leadership.topics))

    def _metadata_came(self, change: MetadataChange) -> None:
        if self._membership.phase is not Phase.OUT:
            self._membership.subscribe(frozenset(self._owner.subscribed_topics()))
            self._look_at_topics()
            self._update()
