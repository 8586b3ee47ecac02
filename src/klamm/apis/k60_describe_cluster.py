"""DescribeCluster (key 60), versions 0 to 2.

The cluster's id, its controller and its brokers, with the addresses of the listener that the request came
by. There are no controllers apart from brokers, so a request for their endpoints is refused. No broker is
ever fenced: one that is not alive is not listed.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.cluster.permissions import CLUSTER_OPERATIONS, NOT_ASKED
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKER_ENDPOINTS = 1
CONTROLLER_ENDPOINTS = 2


@api(ApiKey.DESCRIBE_CLUSTER)
def handle(broker: Broker, request: Request[DescribeClusterRequest]) -> DescribeClusterResponse:
    message = request.message
    if message.endpoint_type != BROKER_ENDPOINTS:
        is_known = message.endpoint_type == CONTROLLER_ENDPOINTS
        return DescribeClusterResponse(
            error_code=(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            ),
            error_message=f"endpoints of type {message.endpoint_type} are not served here; brokers (1) are",
        )
    image = broker.cluster.image
    asked_operations = message.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=each.id, host=endpoint.host, port=endpoint.port, rack=each.rack)
            for each, endpoint in image.brokers_at(request.listener_name)
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked_operations else NOT_ASKED,
    )
