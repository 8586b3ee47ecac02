"""Checks and converts arguments that several methods take: names, partitions, times and time-outs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from klamm.client.errors import ClientMisused
from klamm.client.results import TopicPartition

PartitionLike: TypeAlias = TopicPartition | tuple[str, int]
"""A partition as an argument."""

TimeLike: TypeAlias = int | datetime
"""A time as an argument: milliseconds since 1970 in UTC, or a datetime that knows its time zone."""

PartitionT = TypeVar("PartitionT", bound=tuple[str, int])
"""The same as a key of a mapping, whose keys may be of either kind."""

Item = TypeVar("Item", bound=Any)

LONGEST_NAME_BYTES = 2**15 - 1
"""The longest text in Kafka's protocol."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def several(items: Iterable[Item], what: str) -> list[Item]:
    """The items of an argument. Raises ClientMisused for a single text, which would be taken for its
    letters."""
    if isinstance(items, str | bytes):
        raise ClientMisused(f"{items!r} is one {what}", advice=f"Give a list of {what}s")
    if not isinstance(items, Iterable):
        raise ClientMisused(f"{items!r} is not a list of {what}s", advice="Give a list, even of one")
    return list(items)


def as_name(item: str, what: str) -> str:
    """The name of a topic, a group or the like."""
    if not isinstance(item, str):
        raise ClientMisused(f"{item!r} is not a name of a {what}", advice="Give a text")
    try:
        size = len(item.encode())
    except UnicodeEncodeError as error:
        raise ClientMisused(f"the name of a {what} cannot be encoded: {error.reason}") from None
    if size > LONGEST_NAME_BYTES:
        # Brokers would close the connection without an answer.
        raise ClientMisused(f"the name of a {what}, {item[:20]!r}..., has {size} bytes, which is too long")
    return item


def as_names(items: Iterable[str], what: str) -> list[str]:
    return [as_name(item, what) for item in several(items, what)]


def as_partition(item: PartitionLike) -> TopicPartition:
    if isinstance(item, tuple) and len(item) == 2:
        topic, partition = item
        if isinstance(topic, str) and isinstance(partition, int):
            return TopicPartition(topic, partition)
    raise ClientMisused(
        f"{item!r} is not a partition", advice="Give a TopicPartition, or a (topic, partition) tuple"
    )


def as_partitions(items: Iterable[PartitionLike]) -> list[TopicPartition]:
    # A single partition is a tuple, too. Its two items are not partitions, so `as_partition` raises for them.
    return [as_partition(item) for item in several(items, "partition")]


PartitionsLike: TypeAlias = PartitionLike | Iterable[PartitionLike]
"""One argument of a method that takes partitions one by one or all in one list."""


def given_partitions(arguments: tuple[Any, ...]) -> list[TopicPartition] | None:
    """The partitions of `method(first, second)` or of `method([first, second])`; None if none were given."""
    if not arguments:
        return None
    if len(arguments) == 1:
        is_partition = isinstance(arguments[0], tuple) and any(
            isinstance(part, str | int) for part in arguments[0]
        )
        if not is_partition:
            return as_partitions(arguments[0])
    return [as_partition(each) for each in arguments]


def as_count(number: int) -> int:
    """The argument `max_records`: a number from 1 on."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ClientMisused(
            f"max_records={number!r} is not a number of records", advice="Give one from 1 on, or leave it out"
        )
    return number


def as_timeout(seconds: float | None, name: str = "timeout") -> float | None:
    """A time-out in seconds; None means the default of the call. `name` is the name of the argument."""
    if seconds is None:
        return None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < math.inf:  # which NaN is not, either
        raise ClientMisused(
            f"{name}={seconds!r} is not a time to wait", advice="Give seconds, from 0 on, or leave it out"
        )
    return seconds


def seconds_left(deadline: float) -> float:
    """The seconds until `deadline` on the monotonic clock; 0 if it is over."""
    return max(deadline - monotonic(), 0.0)


def time_ms(time: TimeLike) -> int:
    """A time in milliseconds since 1970."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ClientMisused(
                f"{time!r} has no time zone", advice="Give it one: datetime.now(timezone.utc)"
            )
        return (time - _EPOCH) // _MILLISECOND
    if not isinstance(time, int) or isinstance(time, bool) or time < 0:
        raise ClientMisused(
            f"{time!r} is not a valid time",
            advice="Give milliseconds since 1970, or a datetime with a time zone",
        )
    return time


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, as most requests need them."""
    grouped: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        grouped[topic].append(partition)
    return dict(grouped)
