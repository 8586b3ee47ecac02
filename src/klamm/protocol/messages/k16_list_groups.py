"""ListGroups, key 16: the groups that a broker coordinates.

Versions 0-5, flexible from 3. Version 4 filters by state, 5 by type.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string


class ListGroupsRequest(Message, api_key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = field(array(string), versions="4+")
    types_filter: list[str] = field(array(string), versions="5+")


class ListedGroup(Struct):
    group_id: str = field(string)
    protocol_type: str = field(string)
    group_state: str = field(string, versions="4+", ignorable=True)
    group_type: str = field(string, versions="5+", ignorable=True)


class ListGroupsResponse(Message, api_key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    error_code: int = field(int16)
    groups: list[ListedGroup] = field(array(ListedGroup))
