"""What AlterConfigs and IncrementalAlterConfigs share: each resource once, with an outcome of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from klamm.apis.steps import Pauses, count_names, lazily
from klamm.model.errors import ErrorCode, KafkaError


class Resource(Protocol):
    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[object]: ...


MOST_CONFIGS = 1_000
"""Settings of one resource in a request. No resource has half as many keys."""

ResourceT = TypeVar("ResourceT", bound=Resource)
AnswerT = TypeVar("AnswerT")


async def alter_each(
    resources: Sequence[ResourceT],
    alter: Callable[[ResourceT], Awaitable[None]],
    answer_type: Callable[..., AnswerT],
) -> list[AnswerT]:
    """Alter the resources one after the other; a failure concerns its resource only. Returns the answers,
    which have the same fields in both APIs, to be encoded in steps."""
    times_named = await count_names(resources, lambda each: (each.resource_type, each.resource_name))
    outcomes: list[tuple[ResourceT, KafkaError | None]] = []
    pauses = Pauses()
    for resource in resources:
        await pauses.pause()
        try:
            if times_named[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names this resource more than once")
            if len(resource.configs) > MOST_CONFIGS:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{len(resource.configs)} settings of one resource: {MOST_CONFIGS} is the most",
                )
            await alter(resource)
        except KafkaError as error:
            outcomes.append((resource, error.as_result()))
        else:
            outcomes.append((resource, None))

    def answer(outcome: tuple[ResourceT, KafkaError | None]) -> AnswerT:
        resource, error = outcome
        return answer_type(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return lazily(outcomes, answer)
