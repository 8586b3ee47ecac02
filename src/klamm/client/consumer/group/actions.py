"""What a membership asks of the world around it: of the coordinator, and of the consumer that it belongs to.

Requests go out in the background, whatever the user does. Steps change what the consumer reads, so they wait
until the user is in a poll.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from klamm.model.ids import TopicPartition
from klamm.protocol.messages.k11_join_group import JoinGroupRequest
from klamm.protocol.messages.k12_heartbeat import HeartbeatRequest
from klamm.protocol.messages.k14_sync_group import SyncGroupRequest


class FindCoordinator(NamedTuple):
    """Look which broker coordinates the group; then `coordinator_found` or `request_failed`."""


class Join(NamedTuple):
    request: JoinGroupRequest


class LearnTopics(NamedTuple):
    """We lead: find out how many partitions these topics have; then `topics_learned`."""

    topics: frozenset[str]


class Sync(NamedTuple):
    request: SyncGroupRequest


class Heartbeat(NamedTuple):
    request: HeartbeatRequest


class Leave(NamedTuple):
    """Tell the coordinator that this member is gone. Nothing waits for the answer."""

    member_id: str
    reason: str


Request: TypeAlias = FindCoordinator | Join | LearnTopics | Sync | Heartbeat | Leave


class Revoke(NamedTuple):
    """Give these up: finish, commit, and stop reading them. Others may have them afterwards."""

    partitions: frozenset[TopicPartition]


class Lose(NamedTuple):
    """These are gone already, others may have them: a commit would be refused."""

    partitions: frozenset[TopicPartition]


class Assign(NamedTuple):
    """A rebalance is over: read these, too. May be empty. `generation` is the new one."""

    partitions: frozenset[TopicPartition]
    generation: int


Step: TypeAlias = Revoke | Lose | Assign
