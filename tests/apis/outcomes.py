"""Runs what a handler returned to its end, as a connection does."""

from __future__ import annotations

import inspect
from types import GeneratorType
from typing import Any

from klamm.apis.registry import LATER
from klamm.apis.steps import run
from klamm.protocol.codec import decode, encode_in_steps
from tests.replies import FakeReply


async def response_of(outcome: Any, reply: FakeReply) -> Any:
    """The response message, after all steps of the handler are done and all waiting is over."""
    while True:
        if isinstance(outcome, GeneratorType):
            _, outcome = run(outcome, float("inf"))
        elif inspect.isawaitable(outcome):
            outcome = await outcome
        elif outcome is LATER:
            outcome = await reply.answer
        else:
            return outcome


async def answer_of(outcome: Any, reply: FakeReply, version: int) -> Any:
    """The response as its client decodes it."""
    response = await response_of(outcome, reply)
    _, chunks = run(encode_in_steps(response, version, lambda byte_count: None), float("inf"))
    return decode(type(response), version, memoryview(b"".join(chunks)))[0]
