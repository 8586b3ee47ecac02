"""A member of a group that says over a bare connection what it must, and nothing more."""

from __future__ import annotations

from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    encode_assignment,
    encode_subscription,
)
from klamm.protocol.messages.consumer_protocol import (
    TopicPartition as TopicPartitions,
)
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.k12_heartbeat import HeartbeatRequest
from klamm.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.testing.wire import WireConnection
from tests.waiting import wait_until


class WireMember:
    """The only member of a group, holding one partition. Joined when it is made."""

    def __init__(
        self, bootstrap: str, group: str, partition: TopicPartition, instance_id: str | None = None
    ) -> None:
        self.connection = WireConnection(bootstrap, client_id="wire-member")
        self._group = group
        wait_until(self._has_coordinator, f"group {group} has a coordinator")
        subscription = encode_subscription(ConsumerProtocolSubscription(topics=[partition.topic]))
        joined = self._join("", subscription, instance_id)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = self._join(joined.member_id, subscription, instance_id)
        assert joined.error_code == ErrorCode.NONE, ErrorCode(joined.error_code).name
        self.member_id = joined.member_id
        self._generation = joined.generation_id
        held = [TopicPartitions(topic=partition.topic, partitions=[partition.partition])]
        assignment = encode_assignment(ConsumerProtocolAssignment(assigned_partitions=held))
        synced = self.connection.call(
            SyncGroupRequest(
                group_id=group,
                generation_id=self._generation,
                member_id=self.member_id,
                group_instance_id=instance_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[SyncGroupRequestAssignment(member_id=self.member_id, assignment=assignment)],
            )
        )
        assert synced.error_code == ErrorCode.NONE, ErrorCode(synced.error_code).name

    def heartbeat(self) -> ErrorCode:
        """What the coordinator says to a sign of life."""
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self._generation, member_id=self.member_id
        )
        return ErrorCode(self.connection.call(request).error_code)

    def close(self) -> None:
        self.connection.close()

    def _has_coordinator(self) -> bool:
        request = FindCoordinatorRequest(coordinator_keys=[self._group])
        return self.connection.call(request).coordinators[0].error_code == ErrorCode.NONE

    def _join(self, member_id: str, subscription: bytes, instance_id: str | None):  # type: ignore[no-untyped-def]
        return self.connection.call(
            JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id=member_id,
                group_instance_id=instance_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
            )
        )
