"""DeleteGroups (key 42), versions 0 to 2.

A group without members is deleted with its offsets. A group with members is refused with NON_EMPTY_GROUP, an
unknown one with GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, distinct, in_steps
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k42_delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


@api(ApiKey.DELETE_GROUPS)
async def handle(broker: Broker, request: Request[DeleteGroupsRequest]) -> Steps[DeleteGroupsResponse]:
    pauses = Pauses()
    results = []
    for group_id in distinct(request.message.groups_names):
        await pauses.pause()
        results.append(DeletableGroupResult(group_id=group_id, error_code=await _delete(broker, group_id)))
    return in_steps(DeleteGroupsResponse(results=results))


async def _delete(broker: Broker, group_id: str) -> ErrorCode:
    try:
        return await broker.groups.delete_group(group_id)
    except KafkaError as error:
        return error.code
