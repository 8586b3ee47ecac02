"""What the tests of reading records share: topics with gaps, and a consumer for walks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

from klamm.client.admin.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.plain.producer import Producer
from klamm.operating.offsets import ends_of
from klamm.operating.ranges import parse_range, present
from klamm.operating.records.spans import Span, chosen_partitions, spans_of, within

_numbers = count()


def new_topic(name: str = "records") -> str:
    return f"{name}-{next(_numbers)}"


def consumers(bootstrap: str) -> Callable[..., Consumer]:
    return partial(Consumer, bootstrap)


async def spans(bootstrap: str, topic: str, range_: str = "start") -> dict[int, Span]:
    async with Admin(bootstrap) as admin:
        partitions = await chosen_partitions(admin, [topic])
        found = await spans_of(admin, partitions, parse_range(range_, present()))
        return within(found, await ends_of(admin, partitions))


async def make_topic(
    bootstrap: str, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=partitions, configs=configs or {})


def send(bootstrap: str, topic: str, values: Mapping[int, list[tuple[int, bytes]]]) -> None:
    """Send values with their times, by partition."""
    with Producer(bootstrap) as producer:
        for number, timed in values.items():
            for time, value in timed:
                producer.send(topic, value, b"k", partition=number, timestamp=time)
