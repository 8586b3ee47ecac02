"""ListGroups (key 16), versions 0 to 5.

The groups this broker coordinates. Version 4 filters by state, 5 by type; all groups here are "classic".
Filters are compared without regard to case, and one that matches nothing is not an error.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, lazily, pieces_of
from klamm.groups import shard
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

_GROUP_TYPE = "classic"


@api(ApiKey.LIST_GROUPS)
def handle(broker: Broker, request: Request[ListGroupsRequest]) -> Steps[ListGroupsResponse]:
    states = {state.lower() for state in request.message.states_filter}
    types = {each.lower() for each in request.message.types_filter}
    listed: list[shard.ListedGroup] = []
    try:
        for piece in pieces_of(broker.groups.list_groups()):
            if not types or _GROUP_TYPE in types:
                listed += [group for group in piece if not states or group.state.lower() in states]
            yield
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(error_code=ErrorCode.NONE, groups=lazily(listed, _group))


def _group(group: shard.ListedGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type,
        group_state=group.state.value,
        group_type=_GROUP_TYPE,
    )
