"""The cluster: its id, its controller, its brokers, and the versions that each broker supports."""

from __future__ import annotations

from klamm.client.admin.calls import AdminCalls, Outcome
from klamm.client.admin.types import (
    BrokerDescription,
    BrokerVersions,
    ClusterDescription,
    VersionRange,
)
from klamm.client.errors import UnsupportedRequest
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.k60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse

_SOFTWARE = "klamm"


async def describe_cluster(calls: AdminCalls, timeout: float | None) -> ClusterDescription:
    what = "describing the cluster"

    async def ask() -> ClusterDescription:
        try:
            answer: DescribeClusterResponse = await calls.call_any(DescribeClusterRequest())
        except UnsupportedRequest:
            return await from_metadata(calls)
        if answer.error_code != ErrorCode.NONE:
            raise calls.failure(answer.error_code, what, answer.error_message)
        return ClusterDescription(
            answer.cluster_id,
            answer.controller_id if answer.controller_id >= 0 else None,
            tuple(
                BrokerDescription(one.broker_id, one.host, one.port, one.rack, one.is_fenced)
                for one in sorted(answer.brokers, key=lambda one: one.broker_id)
            ),
        )

    return await calls.network.retrying(what, calls.limit(timeout), ask)


async def from_metadata(calls: AdminCalls) -> ClusterDescription:
    """From brokers older than DescribeCluster (Kafka 2.8)."""
    answer = await calls.metadata([])
    return ClusterDescription(
        answer.cluster_id or "",
        answer.controller_id if answer.controller_id >= 0 else None,
        tuple(
            BrokerDescription(one.node_id, one.host, one.port, one.rack)
            for one in sorted(answer.brokers, key=lambda one: one.node_id)
        ),
    )


async def broker_versions(calls: AdminCalls, broker_id: int, timeout: float | None) -> BrokerVersions:
    what = f"asking broker {broker_id} for its versions"

    async def ask(brokers: list[int]) -> dict[int, Outcome[BrokerVersions]]:
        if broker_id not in await calls.brokers():
            return {broker_id: calls.failure(ErrorCode.BROKER_NOT_AVAILABLE, what)}
        request = ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version="0")
        answer: ApiVersionsResponse = await calls.call(broker_id, request)
        if answer.error_code != ErrorCode.NONE:
            return {broker_id: calls.failure(answer.error_code, what)}
        return {broker_id: _versions(broker_id, answer)}

    return await calls.ask_about_one(what, broker_id, ask, timeout)


def _versions(broker_id: int, answer: ApiVersionsResponse) -> BrokerVersions:
    return BrokerVersions(
        broker_id,
        {one.api_key: VersionRange(one.min_version, one.max_version) for one in answer.api_keys},
        {one.name: VersionRange(one.min_version, one.max_version) for one in answer.supported_features},
        {
            one.name: VersionRange(one.min_version_level, one.max_version_level)
            for one in answer.finalized_features
        },
    )
