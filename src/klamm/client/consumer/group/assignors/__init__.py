"""The assignors by the names that all clients know them by. A group's leader runs one; see `members`."""

from __future__ import annotations

from collections.abc import Mapping

from klamm.client.consumer.group.assignors.members import Assignment as Assignment
from klamm.client.consumer.group.assignors.members import Assignor as Assignor
from klamm.client.consumer.group.assignors.members import GroupMember as GroupMember
from klamm.client.consumer.group.assignors.members import Topics as Topics
from klamm.client.consumer.group.assignors.stateless_assignors import assign_range, assign_round_robin
from klamm.client.consumer.group.assignors.sticky_assignor import assign_cooperative_sticky, assign_sticky

RANGE = "range"
ROUND_ROBIN = "roundrobin"
STICKY = "sticky"
COOPERATIVE_STICKY = "cooperative-sticky"

ASSIGNORS: Mapping[str, Assignor] = {
    RANGE: assign_range,
    ROUND_ROBIN: assign_round_robin,
    STICKY: assign_sticky,
    COOPERATIVE_STICKY: assign_cooperative_sticky,
}

COOPERATIVE_ASSIGNORS = frozenset({COOPERATIVE_STICKY})
"""Those that let members keep their partitions during a rebalance (KIP-429)."""
