"""Runs what a handler returned to its end, as a connection does."""

from __future__ import annotations

import inspect
from types import GeneratorType
from typing import Any

from klamm.apis.steps import run
from klamm.protocol.codec import decode, encode_in_steps


async def answer_of(outcome: Any, version: int) -> Any:
    """The response as its client decodes it, after all steps are done and all waiting is over."""
    while True:
        if isinstance(outcome, GeneratorType):
            _, outcome = run(outcome, float("inf"))
        elif inspect.isawaitable(outcome):
            outcome = await outcome
        else:
            break
    _, chunks = run(encode_in_steps(outcome, version, lambda byte_count: None), float("inf"))
    return decode(type(outcome), version, memoryview(b"".join(chunks)))[0]
