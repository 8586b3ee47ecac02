"""The options of a query that reads: parsed and checked, with the defaults of Kafka's connector. A core.

Names are matched in any case, as Spark does. A name that is nearly one of ours is an error that suggests the
right one; other unknown names are ignored, because Spark and users pass options that are for somebody else.
Conflicting options, and options for batches in a stream or the reverse, are errors here, before any broker is
contacted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from klamm.model.ids import TopicPartition
from pyspark_klamm.client_options import PREFIX, client_settings
from pyspark_klamm.errors import OptionError
from pyspark_klamm.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    listed,
    parse_assignment,
    parse_bound,
    parse_offsets,
)

DEFAULT_GROUP_PREFIX = "spark-klamm"
DEFAULT_POLL_TIMEOUT_S = 120.0
"""How long a task waits for a record that should exist, as in Kafka's connector."""
DEFAULT_TRIGGER_DELAY_S = 15 * 60.0

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""The first of these that is given is used."""
STOP = "stoppingOffsets"
PER_TRIGGER = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
READ_OPTIONS = (
    *SUBSCRIPTIONS,
    *STARTS,
    *ENDS,
    STOP,
    *PER_TRIGGER,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "retryTopic",
)
WRITE_OPTIONS = ("topic", "includeHeaders")
WITHOUT_EFFECT = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "useDeprecatedOffsetFetching",
    "topic",
)
"""Options of Kafka's connector that are accepted and have no effect here."""

_TIME_TEXT = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?", re.IGNORECASE)
_UNIT_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CLOSE = 0.8
"""How similar a name must be to one of ours to count as misspelt."""


@dataclass(frozen=True)
class Subscription:
    """What to read: exactly one of the first three is set."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None
    retry_topic: str | None = None
    """A topic that is read beside `topics` as soon as it exists, see retried."""

    def selects(self, topic: str, is_internal: bool) -> bool:
        """True if a topic is read. Patterns match whole names, and never internal topics."""
        if self.pattern is not None:
            return not is_internal and re.fullmatch(self.pattern, topic) is not None
        return topic in self.named_topics

    @property
    def named_topics(self) -> frozenset[str]:
        if self.partitions is not None:
            return frozenset(each.topic for each in self.partitions)
        return frozenset(self.topics or ()) | frozenset(filter(None, [self.retry_topic]))


@dataclass(frozen=True)
class ReadOptions:
    """A query's options, as plain values that are pickled to Spark's workers."""

    client: Mapping[str, str]
    """The client's settings."""
    subscription: Subscription
    starting: Bound
    ending: Bound
    stopping: Mapping[TopicPartition, int] | None
    """Where a stream ends: no record at or after these offsets is read, and no partition without one."""
    latest_if_no_record: bool
    """If no record is at or after a starting time: start at the end (True), or fail."""
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_seconds: float
    include_headers: bool
    group_id: str | None
    group_id_prefix: str
    poll_timeout_seconds: float


def parse_read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Parse the options of a batch query or a stream. Raises OptionError."""
    given = _Given(options)
    given.check_names(READ_OPTIONS + WITHOUT_EFFECT)
    if is_stream:
        for name in ENDS:
            if name in given:
                raise OptionError(f"the option {name} is not for streaming queries, which have no end")
    elif STOP in given:
        raise OptionError(f"the option {STOP} is for streaming queries: a batch has endingOffsets")
    starting = _bound(given, STARTS) or Bound("startingOffsets", everywhere=LATEST if is_stream else EARLIEST)
    ending = _bound(given, ENDS) or Bound("endingOffsets", everywhere=LATEST)
    if not is_stream:
        _check_batch_bounds(starting, ending)
    result = ReadOptions(
        client=client_settings(options, "consumer"),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        stopping=parse_offsets(given.text(STOP), STOP, least=0) if STOP in given else None,
        latest_if_no_record=given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "latest",
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        min_partitions=given.positive("minPartitions"),
        max_records_per_partition=given.positive("maxRecordsPerPartition"),
        max_offsets_per_trigger=given.positive("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=given.positive("minOffsetsPerTrigger"),
        max_trigger_delay_seconds=given.seconds("maxTriggerDelay", DEFAULT_TRIGGER_DELAY_S),
        include_headers=given.boolean("includeHeaders", False),
        group_id=given.get(f"{PREFIX}group.id"),
        group_id_prefix=given.get("groupIdPrefix") or DEFAULT_GROUP_PREFIX,
        poll_timeout_seconds=(given.positive("kafkaConsumer.pollTimeoutMs") or 0) / 1000
        or DEFAULT_POLL_TIMEOUT_S,
    )
    least, most = result.min_offsets_per_trigger, result.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger={least} is not valid: it is above maxOffsetsPerTrigger={most}"
        )
    if result.subscription.retry_topic is not None and not (is_stream and result.include_headers):
        raise OptionError("the option retryTopic is for streaming queries with includeHeaders=true")
    return result


def includes_headers(options: Mapping[str, str]) -> bool:
    """True if there is a column `headers`, the only option that changes the schema."""
    return _Given(options).boolean("includeHeaders", False)


def parse_topic(options: Mapping[str, str]) -> str | None:
    """The topic to which a query writes all rows, if the option is given."""
    given = _Given(options)
    given.check_names(WRITE_OPTIONS)
    topic = given.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("the option topic is empty: give the name of the topic to write to")
    return None if topic is None else topic.strip()


def _subscription(given: _Given) -> Subscription:
    named = [name for name in SUBSCRIPTIONS if name in given]
    if len(named) != 1:
        problem = f"{', '.join(named)} are given" if named else "none is given"
        raise OptionError(f"exactly one of the options {', '.join(SUBSCRIPTIONS)} must be given: {problem}")
    name, text = named[0], given.text(named[0])
    if "retryTopic" in given and name != "subscribe":
        raise OptionError(f"the option retryTopic cannot be combined with {name}: use subscribe")
    if name == "assign":
        return Subscription(partitions=tuple(parse_assignment(text, name)))
    if name == "subscribePattern":
        try:
            re.compile(text.strip())
        except re.error as error:
            raise OptionError(f"{name}={text!r} is not a valid regular expression: {error}") from None
        if not text.strip():
            raise OptionError(f"{name} is empty: give a regular expression for the names of topics")
        return Subscription(pattern=text.strip())
    topics = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not topics:
        raise OptionError(f"{name}={text!r} does not name a topic: give names, separated by commas")
    retry_topic = given.get("retryTopic")
    if retry_topic in topics:
        raise OptionError(f"retryTopic={retry_topic!r} is not valid: it is one of the topics of subscribe")
    return Subscription(topics=topics, retry_topic=retry_topic)


def _bound(given: _Given, names: tuple[str, str, str]) -> Bound | None:
    by_time, by_times, by_offsets = names
    if by_time in given:
        return Bound(by_time, time_ms=given.number(by_time, least=0))
    if by_times in given:
        return Bound(by_times, times_ms=parse_offsets(given.text(by_times), by_times, least=0))
    if by_offsets in given:
        return parse_bound(given.text(by_offsets), by_offsets)
    return None


def _check_batch_bounds(starting: Bound, ending: Bound) -> None:
    _refuse_end_of_log(starting, LATEST, "a batch cannot start at the latest offset, after all records")
    _refuse_end_of_log(ending, EARLIEST, "a batch cannot end at the earliest offset, before all records")


def _refuse_end_of_log(bound: Bound, refused: int, reason: str) -> None:
    if bound.everywhere == refused:
        raise OptionError(f"{bound.option} is not valid: {reason}")
    wrong = [each for each, offset in (bound.offsets or {}).items() if offset == refused]
    if wrong:
        raise OptionError(f"{bound.option} is not valid for {listed(wrong)}: {reason}")


class _Given:
    """Options by name, in any case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def text(self, name: str) -> str:
        return self._values[name.lower()]

    def check_names(self, names: tuple[str, ...]) -> None:
        known = {name.lower(): name for name in names}
        for name in self._values:
            if name in known or name.startswith(PREFIX):
                continue
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
            if nearest:
                raise OptionError(f"unknown option {name!r}; did you mean {known[nearest[0]]!r}?")

    def boolean(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false")) == "true" if name in self else default

    def choice(self, name: str, words: tuple[str, ...]) -> str | None:
        if name not in self:
            return None
        word = self.text(name).strip().lower()
        if word not in words:
            raise OptionError(f"{name}={self.text(name)!r} is not valid: expected {' or '.join(words)}")
        return word

    def positive(self, name: str) -> int | None:
        return self.number(name, least=1) if name in self else None

    def number(self, name: str, least: int) -> int:
        text = self.text(name).strip()
        if not text.isascii() or not text.removeprefix("-").isdigit() or int(text) < least:
            raise OptionError(f"{name}={text!r} is not valid: expected a whole number of at least {least}")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        if name not in self:
            return default
        match = _TIME_TEXT.fullmatch(self.text(name).strip())
        if match is None:
            raise OptionError(
                f"{name}={self.text(name)!r} is not valid: expected a time such as 500ms, 30s, 15m, 2h or 1d"
            )
        return int(match[1]) * _UNIT_SECONDS[(match[2] or "ms").lower()]
