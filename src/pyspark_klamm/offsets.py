"""Offsets in the JSON form of Spark's options and checkpoints, and the bounds of queries. A core.

The JSON form is that of Spark's Kafka connector: {"topic": {"0": 23}}, where -2 stands for the earliest and
-1 for the latest offset. Keys are always sorted: Spark compares offsets by their text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from klamm.client.consumer.start import EARLIEST as EARLIEST
from klamm.client.consumer.start import LATEST as LATEST
from klamm.model.ids import TopicPartition
from pyspark_klamm.errors import OptionError

Offsets: TypeAlias = dict[TopicPartition, int]
"""For each partition the offset of the next record."""

JsonOffsets: TypeAlias = dict[str, dict[str, int]]

NO_RECORD = -1
"""A broker's answer if no record is at or after a time."""

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_MOST_NAMED = 10


def to_json(offsets: Mapping[TopicPartition, int]) -> JsonOffsets:
    """Offsets as plain dictionaries, sorted."""
    result: JsonOffsets = {}
    for partition in sorted(offsets):
        result.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return result


def from_json(value: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The inverse of `to_json`."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def parse_offsets(text: str, option: str, least: int = EARLIEST) -> Offsets:
    """Parse a user's offsets: {"topic": {"0": 23, "1": -2}}. Offsets below `least` are an error."""
    example = '{"orders": {"0": 23, "1": -2}}'
    result: Offsets = {}
    for topic, partitions in _object(text, option, example).items():
        if not isinstance(partitions, dict):
            raise _malformed(option, text, example)
        for partition, offset in partitions.items():
            if not _is_partition(partition) or type(offset) is not int or offset < least:
                raise _malformed(option, text, example)
            result[TopicPartition(topic, int(partition))] = offset
    return result


def parse_assignment(text: str, option: str) -> list[TopicPartition]:
    """Partitions by topic: {"orders": [0, 1]}."""
    example = '{"orders": [0, 1]}'
    result: set[TopicPartition] = set()
    for topic, partitions in _object(text, option, example).items():
        if not isinstance(partitions, list) or not all(
            type(each) is int and each >= 0 for each in partitions
        ):
            raise _malformed(option, text, example)
        result.update(TopicPartition(topic, each) for each in partitions)
    if not result:
        raise OptionError(f"{option}={text!r} does not name a partition: expected for example {example}")
    return sorted(result)


@dataclass(frozen=True)
class Bound:
    """Where reading starts or ends, as the user's options say: one of the four is set."""

    option: str
    """The option that it is from, for errors."""
    everywhere: int | None = None
    """EARLIEST or LATEST, in all partitions."""
    offsets: Mapping[TopicPartition, int] | None = None
    times_ms: Mapping[TopicPartition, int] | None = None
    time_ms: int | None = None

    @property
    def named(self) -> Collection[TopicPartition] | None:
        """The partitions that the user named one by one. They must be exactly those that are read."""
        named = self.offsets if self.offsets is not None else self.times_ms
        return None if named is None else named.keys()

    @property
    def is_latest(self) -> bool:
        """True if it is the end of a log, which moves as records arrive."""
        return self.everywhere == LATEST or (self.offsets is not None and LATEST in self.offsets.values())

    def questions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """What to ask brokers for: a time, EARLIEST or LATEST. A given offset is not asked for."""
        result: dict[TopicPartition, int] = {}
        for partition in partitions:
            if self.offsets is not None:
                question = self.offsets[partition]
                if question >= 0:
                    continue
            elif self.times_ms is not None:
                question = self.times_ms[partition]
            else:
                question = self.everywhere if self.time_ms is None else self.time_ms  # type: ignore[assignment]
            result[partition] = question
        return result

    def check_named(self, partitions: Collection[TopicPartition]) -> None:
        """Raise if the user named other partitions than those that are read."""
        named = self.named
        if named is None or set(named) == set(partitions):
            return
        missing, unknown = set(partitions) - set(named), set(named) - set(partitions)
        problems = []
        if missing:
            problems.append(f"it lacks {listed(missing)}")
        if unknown:
            problems.append(f"it names {listed(unknown)}, which the query does not read")
        hint = "" if self.offsets is None else "; -2 stands for earliest, -1 for latest"
        raise OptionError(
            f"{self.option} must name exactly the partitions that are read: {', '.join(problems)}{hint}"
        )


def parse_bound(text: str, option: str) -> Bound:
    """The options startingOffsets and endingOffsets: a word or JSON."""
    word = text.strip().lower()
    if word in _WORDS:
        return Bound(option, everywhere=_WORDS[word])
    if not word.startswith("{"):
        raise OptionError(f"{option}={text!r} is not valid: expected earliest, latest, or offsets as JSON")
    return Bound(option, offsets=parse_offsets(text, option))


def listed(partitions: Iterable[TopicPartition]) -> str:
    """The first few partitions, for messages."""
    names = [str(each) for each in sorted(partitions)]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _object(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise _malformed(option, text, example) from None
    if not isinstance(value, dict):
        raise _malformed(option, text, example)
    return value


def _is_partition(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _malformed(option: str, text: str, example: str) -> OptionError:
    return OptionError(f"{option}={text!r} is not valid: expected for example {example}")
