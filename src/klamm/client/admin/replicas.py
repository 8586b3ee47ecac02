"""The replicas of partitions: elect leaders among them, and move them to other brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.client.admin.calls import AdminCalls, Final, Outcome
from klamm.client.admin.types import PartitionReassignment
from klamm.client.arguments import by_topic
from klamm.client.errors import BatchFailed, ClientError
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k43_elect_leaders import ElectLeadersRequest, ElectLeadersTopic
from klamm.protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.k46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

_PREFERRED, _UNCLEAN = 0, 1

_REPLICAS_ARE_MISSING = frozenset(
    {ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
)
"""Retriable in Kafka's table. But a broker may take hours to return: the user wants to know at once."""


# ---- leaders


async def elect_leaders(
    calls: AdminCalls, partitions: Sequence[TopicPartition] | None, unclean: bool, timeout: float | None
) -> dict[TopicPartition, bool]:
    what = "electing leaders"

    async def ask(pending: list[TopicPartition] | None) -> dict[TopicPartition, Outcome[bool]]:
        request = ElectLeadersRequest(
            election_type=_UNCLEAN if unclean else _PREFERRED,
            topic_partitions=None
            if pending is None
            else [
                ElectLeadersTopic(topic=name, partitions=numbers)
                for name, numbers in by_topic(pending).items()
            ],
            timeout_ms=round(calls.limit(timeout) * 1000),
        )
        response = await calls.call_controller(request)
        if response.error_code != ErrorCode.NONE:
            raise calls.failure(response.error_code, what)
        return {
            (partition := TopicPartition(topic.topic, one.partition_id)): _elected(
                calls, partition, one.error_code, one.error_message
            )
            for topic in response.replica_election_results
            for one in topic.partition_result
        }

    if partitions is not None:
        return await calls.ask_about(what, partitions, ask, timeout)
    outcomes = await calls.network.retrying(what, calls.limit(timeout), lambda: ask(None))
    results = {partition: one for partition, one in outcomes.items() if isinstance(one, bool)}
    errors = {
        partition: one if isinstance(one, ClientError) else one.error
        for partition, one in outcomes.items()
        if not isinstance(one, bool)
    }
    if errors:
        raise BatchFailed(what, results, errors)
    return results


def _elected(calls: AdminCalls, partition: TopicPartition, code: int, message: str | None) -> Outcome[bool]:
    if code in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
        return code == ErrorCode.NONE
    error = calls.failure(code, f"electing a leader of {partition}", message)
    return Final(error) if code in _REPLICAS_ARE_MISSING else error


# ---- reassignments


async def alter_partition_reassignments(
    calls: AdminCalls,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    allow_replication_factor_change: bool,
    timeout: float | None,
) -> None:
    what = "reassigning partitions"
    answers_lost = False

    def reassignable(topic: str, number: int) -> ReassignablePartition:
        brokers = targets[TopicPartition(topic, number)]
        return ReassignablePartition(
            partition_index=number, replicas=None if brokers is None else list(brokers)
        )

    async def ask(pending: list[TopicPartition]) -> dict[TopicPartition, Outcome[bool]]:
        nonlocal answers_lost
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=round(calls.limit(timeout) * 1000),
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[
                ReassignableTopic(name=name, partitions=[reassignable(name, number) for number in numbers])
                for name, numbers in by_topic(pending).items()
            ],
        )
        try:
            response = await calls.call_controller(request)
        except ClientError:
            answers_lost = True
            raise
        if response.error_code != ErrorCode.NONE:
            raise calls.failure(response.error_code, what, response.error_message)
        outcomes: dict[TopicPartition, Outcome[bool]] = {}
        for topic in response.responses:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                # An earlier attempt, whose answer was lost, may have cancelled it.
                is_cancelled = answers_lost and one.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                outcomes[partition] = True
                if one.error_code != ErrorCode.NONE and not is_cancelled:
                    doing = "cancelling" if targets[partition] is None else "beginning"
                    outcomes[partition] = calls.failure(
                        one.error_code, f"{doing} the reassignment of {partition}", one.error_message
                    )
        return outcomes

    await calls.ask_about(what, targets, ask, timeout)


async def list_partition_reassignments(
    calls: AdminCalls, partitions: Sequence[TopicPartition] | None, timeout: float | None
) -> dict[TopicPartition, PartitionReassignment]:
    what = "listing reassignments"
    request = ListPartitionReassignmentsRequest(
        timeout_ms=round(calls.limit(timeout) * 1000),
        topics=None
        if partitions is None
        else [
            ListPartitionReassignmentsTopics(name=name, partition_indexes=numbers)
            for name, numbers in by_topic(partitions).items()
        ],
    )

    async def ask() -> dict[TopicPartition, PartitionReassignment]:
        response = await calls.call_controller(request)
        if response.error_code != ErrorCode.NONE:
            raise calls.failure(response.error_code, what, response.error_message)
        return {
            TopicPartition(topic.name, one.partition_index): PartitionReassignment(
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in response.topics
            for one in topic.partitions
        }

    return await calls.network.retrying(what, calls.limit(timeout), ask)
