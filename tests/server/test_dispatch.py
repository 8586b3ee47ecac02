from __future__ import annotations

from typing import Any

import pytest

from klamm.protocol.apis import ApiKey
from klamm.protocol.headers import encode_request_frame
from klamm.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.protocol.messages.k15_describe_groups import DescribeGroupsRequest
from klamm.protocol.schema import Message
from klamm.server.dispatch import MAX_BYTES_AT_ONCE, MAX_ELEMENTS_AT_ONCE, Dispatcher, LargeRequest


class Line:
    """Keeps the correlation id, and what the handler returns: the request."""

    def __init__(self) -> None:
        self.correlation_id = 0
        self.result: Any = None
        self.steps: Any = None

    def open(self, route: Any, correlation_id: int) -> Any:
        self.correlation_id = correlation_id
        return self

    def complete(self, result: Any) -> None:
        self.result = result

    def do_steps(self, steps: Any, *, is_large: bool) -> None:
        self.steps = steps


def handle(broker: Any, request: Any) -> Any:
    return request


def dispatcher() -> Dispatcher:
    return Dispatcher(None, {ApiKey.DESCRIBE_GROUPS: handle, ApiKey.SYNC_GROUP: handle})  # type: ignore[arg-type]


def frame_of(message: Message, version: int = 5) -> memoryview:
    assert message.__api_key__ is not None
    return memoryview(b"".join(encode_request_frame(message.__api_key__, version, 7, "me", message))[4:])


def test_a_request_of_usual_size_is_handled_at_once() -> None:
    message = DescribeGroupsRequest(groups=["x"] * MAX_ELEMENTS_AT_ONCE)
    line: Any = Line()
    dispatcher().start(frame_of(message), None, line)  # type: ignore[arg-type]
    assert (line.correlation_id, line.result.message, line.result.is_large) == (7, message, False)


@pytest.mark.parametrize(
    "message",
    [
        DescribeGroupsRequest(groups=["x"] * (MAX_ELEMENTS_AT_ONCE + 1)),
        SyncGroupRequest(
            assignments=[SyncGroupRequestAssignment(member_id="x", assignment=bytes(MAX_BYTES_AT_ONCE))]
        ),
    ],
    ids=["of many elements", "of many bytes"],
)
def test_a_large_request_is_handled_in_steps(message: Message) -> None:
    dispatch = dispatcher()
    frame = frame_of(message)
    line: Any = Line()
    with pytest.raises(LargeRequest):
        dispatch.start(frame, None, line)  # type: ignore[arg-type]
    dispatch.start_in_steps(frame, None, line)  # type: ignore[arg-type]
    count = 0
    while True:
        try:
            next(line.steps)
        except StopIteration as end:
            request = end.value
            break
        count += 1
    assert (line.correlation_id, request.message, request.is_large) == (7, message, True)
    assert count > 0
