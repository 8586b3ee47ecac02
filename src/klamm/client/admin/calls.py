"""How the admin asks: which broker, how often, for how long, and how results are collected by item.

Every call goes through `ask_about`. It asks about all items at once. Items with a retriable error (a leader,
a controller or a coordinator that moved, a connection that broke) are asked about again, after pauses, until
the time is over. An error that concerns the whole call, such as a wrong password, is raised as it is.

UNKNOWN_TOPIC_OR_PARTITION counts as final here, though Kafka's table calls it retriable: a user who asks
about a topic that does not exist wants to know at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from klamm.client.arguments import as_timeout
from klamm.client.errors import (
    BatchFailed,
    BrokerError,
    ClientError,
    ClientMisused,
    ConnectionFailed,
    TimedOut,
    UnknownTopic,
)
from klamm.client.network.network import Network, Versioned
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.errors import UnencodableMessage
from klamm.protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from klamm.protocol.schema import Message

LONGEST_SECONDS = (2**31 - 1) / 1000
"""The longest time-out: its milliseconds must fit into 32 bits of a request."""

Item = TypeVar("Item", bound=Any)
Value = TypeVar("Value")

_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


@dataclass(frozen=True, slots=True)
class Again:
    """The outcome of an item that is to be asked about again, even if its error is not retriable."""

    error: ClientError


@dataclass(frozen=True, slots=True)
class Final:
    """The outcome of an item that has failed for good, even if its error is retriable."""

    error: ClientError


Outcome: TypeAlias = Value | ClientError | Again | Final
Outcomes: TypeAlias = Mapping[Item, Outcome[Value]]


@contextmanager
def alone(item: object) -> Iterator[None]:
    """For calls about one item: raises the item's error instead of BatchFailed."""
    try:
        yield
    except BatchFailed as failed:
        raise failed.errors[item] from None


class AdminCalls:
    """Makes the requests of one admin. Runs on the loop of its network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._default_timeout = network.config.seconds("default.api.timeout.ms")
        self._knows_controller = False

    def limit(self, timeout: float | None) -> float:
        """How long a call may take, in seconds."""
        seconds = as_timeout(timeout)
        return self._default_timeout if seconds is None else min(seconds, LONGEST_SECONDS)

    # ---- asking about several items

    async def ask_about(
        self,
        what: str,
        items: Iterable[Item],
        ask: Callable[[list[Item]], Awaitable[Outcomes[Item, Value]]],
        timeout: float | None,
    ) -> dict[Item, Value]:
        """The results by item, or BatchFailed if any item failed for good."""
        open_items = _OpenItems(what, items, ask)
        if open_items.pending:
            seconds = self.limit(timeout)
            try:
                await self.network.retrying(what, seconds, open_items.attempt)
            except TimedOut as late:
                open_items.give_up(late)
        return open_items.outcome()

    async def ask_about_partly(
        self,
        what: str,
        items: Iterable[Item],
        ask: Callable[[list[Item]], Awaitable[Outcomes[Item, Value]]],
        timeout: float | None,
    ) -> tuple[dict[Item, Value], BatchFailed | None]:
        """The results of the items that succeeded, and the error for the others, for the caller to raise
        later."""
        try:
            return await self.ask_about(what, items, ask, timeout), None
        except BatchFailed as failed:
            return failed.results, failed

    async def ask_about_one(
        self,
        what: str,
        item: Item,
        ask: Callable[[list[Item]], Awaitable[Outcomes[Item, Value]]],
        timeout: float | None,
    ) -> Value:
        """The result of one item, or its error."""
        with alone(item):
            return (await self.ask_about(what, [item], ask, timeout))[item]

    # ---- asking the right broker

    async def call(
        self, node_id: int, request: Message | Versioned, *, max_version: int | None = None
    ) -> Any:
        """One attempt at one broker, within the time that is left of the whole call."""
        try:
            return await self.network.call(node_id, request, max_version=max_version)
        except UnencodableMessage as error:
            raise ClientMisused(f"the request cannot be encoded: {error}") from None

    async def call_any(self, request: Message | Versioned) -> Any:
        try:
            return await self.network.call_any(request)
        except UnencodableMessage as error:
            raise ClientMisused(f"the request cannot be encoded: {error}") from None

    async def metadata(self, topics: Iterable[str] | None) -> MetadataResponse:
        """The metadata of these topics from any broker; None means all topics. Creates no topic."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        response: MetadataResponse = await self.call_any(request)
        self.network.metadata.apply(response, asyncio.get_running_loop().time())
        self._knows_controller = True
        return response

    async def brokers(self) -> list[int]:
        """The node ids of all brokers, from new metadata."""
        return sorted(broker.node_id for broker in (await self.metadata([])).brokers)

    async def call_controller(self, request: Message | Versioned) -> Any:
        """One attempt at the controller. If it cannot be reached, the next call looks for the controller
        again."""
        if not self._knows_controller:
            await self.metadata([])
        controller = self.network.metadata.controller_id
        if controller not in self.network.metadata.brokers:
            return await self.call_any(request)
        try:
            return await self.call(controller, request)
        except (ConnectionFailed, TimedOut):
            self._knows_controller = False
            raise

    def failure(self, code: int, what: str, message: str | None = None) -> BrokerError:
        """The error for a code. After NOT_CONTROLLER the next call looks for the controller again."""
        if code == ErrorCode.NOT_CONTROLLER:
            self._knows_controller = False
        return BrokerError.of(code, what, message)

    async def ask_brokers(
        self, brokers: Sequence[int], ask: Callable[[int], Awaitable[Outcome[Value]]]
    ) -> Outcomes[int, Value]:
        """Ask each of these brokers; a broker that does not answer is asked again."""
        answers = await asyncio.gather(*(_tolerant(ask(broker)) for broker in brokers))
        return dict(zip(brokers, answers, strict=True))

    async def ask_leaders(
        self,
        partitions: Sequence[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Outcomes[TopicPartition, Value]]],
    ) -> Outcomes[TopicPartition, Value]:
        """Ask the leader of each partition; `ask` gets a broker and the partitions that it leads."""
        outcomes: dict[TopicPartition, Outcome[Value]] = {}
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        leaders = await self._leaders({partition.topic for partition in partitions})
        for partition in partitions:
            leader = leaders.get(partition) or leaders.get(TopicPartition(partition.topic, -1))
            if isinstance(leader, ClientError):
                outcomes[partition] = leader
            elif leader is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                outcomes[partition] = BrokerError.of(code, f"looking for the leader of {partition}")
            else:
                led[leader.leader_id].append(partition)
        answers = await asyncio.gather(*(_tolerant(ask(node, led[node])) for node in led))
        for node, answer in zip(led, answers, strict=True):
            for partition in led[node]:
                outcome = answer if isinstance(answer, Again) else _answered(answer.get(partition), partition)
                # The partition was in the metadata a moment ago. So its leader does not know it yet, or it is
                # being deleted.
                outcomes[partition] = Again(outcome) if isinstance(outcome, UnknownTopic) else outcome
        return outcomes

    async def _leaders(
        self, topics: set[str]
    ) -> dict[TopicPartition, MetadataResponsePartition | ClientError]:
        """The leaders of all partitions of these topics; a topic's own error is at its partition -1."""
        found: dict[TopicPartition, MetadataResponsePartition | ClientError] = {}
        for topic in (await self.metadata(sorted(topics))).topics:
            name = topic.name or ""
            if topic.error_code != ErrorCode.NONE:
                found[TopicPartition(name, -1)] = self.failure(
                    topic.error_code, f"looking for topic {name!r}"
                )
            for partition in topic.partitions:
                key = TopicPartition(name, partition.partition_index)
                found[key] = partition
                if partition.leader_id < 0:
                    code = ErrorCode.LEADER_NOT_AVAILABLE
                    found[key] = BrokerError.of(code, f"looking for the leader of {key}")
        return found

    async def ask_coordinators(
        self,
        groups: Sequence[str],
        ask: Callable[[int, list[str]], Awaitable[Outcomes[str, Value]]],
    ) -> Outcomes[str, Value]:
        """Ask the coordinator of each group; `ask` gets a broker and the groups that it coordinates."""
        outcomes: dict[str, Outcome[Value]] = {}
        coordinated: dict[int, list[str]] = defaultdict(list)
        for group, found in (await self.network.find_coordinators(groups)).items():
            if isinstance(found, BrokerError):
                outcomes[group] = found
            else:
                coordinated[found].append(group)
        answers = await asyncio.gather(*(_tolerant(ask(node, coordinated[node])) for node in coordinated))
        for node, answer in zip(coordinated, answers, strict=True):
            for group in coordinated[node]:
                outcome = answer if isinstance(answer, Again) else _answered(answer.get(group), group)
                if isinstance(outcome, Again) or getattr(outcome, "code", None) in _MOVED:
                    self.network.forget_coordinator(group)
                outcomes[group] = outcome
        return outcomes

    async def ask_coordinator(
        self,
        group: str,
        items: list[Item],
        ask: Callable[[int, list[Item]], Awaitable[Outcomes[Item, Value]]],
    ) -> Outcomes[Item, Value]:
        """Ask the coordinator of one group about items of that group."""

        async def ask_about_group(broker: int, _: list[str]) -> Outcomes[str, Outcomes[Item, Value]]:
            return {group: await ask(broker, items)}

        outcome = (await self.ask_coordinators([group], ask_about_group))[group]
        if isinstance(outcome, ClientError | Again | Final):
            return dict.fromkeys(items, outcome)
        if any(getattr(one, "code", None) in _MOVED for one in outcome.values()):
            self.network.forget_coordinator(group)
        return outcome


class _OpenItems(Generic[Item, Value]):
    """The items of one call: which have their result, which their error, and which are still open."""

    def __init__(
        self,
        what: str,
        items: Iterable[Item],
        ask: Callable[[list[Item]], Awaitable[Outcomes[Item, Value]]],
    ) -> None:
        self.pending: list[Item] = list(dict.fromkeys(items))
        self._order = list(self.pending)
        self._what = what
        self._ask = ask
        self._results: dict[Item, Value] = {}
        self._errors: dict[Item, ClientError] = {}
        self._last: dict[Item, ClientError] = {}

    async def attempt(self) -> None:
        """Ask about the open items. Raises a retriable error if any item stays open."""
        outcomes = await self._ask(self.pending)
        still_open = []
        for item in self.pending:
            outcome = _answered(outcomes.get(item), item)
            if isinstance(outcome, Again) or (isinstance(outcome, ClientError) and _will_pass(outcome)):
                self._last[item] = outcome.error if isinstance(outcome, Again) else outcome
                still_open.append(item)
            elif isinstance(outcome, ClientError | Final):
                self._errors[item] = outcome.error if isinstance(outcome, Final) else outcome
            else:
                self._results[item] = outcome
        self.pending = still_open
        if still_open:
            raise _StillOpen(str(self._last[still_open[0]]))

    def give_up(self, late: TimedOut) -> None:
        """The time is over: the open items fail. If no broker ever answered, raises one error for all
        items."""
        if not self._results and not self._errors and not self._last:
            raise late
        for item in self.pending:
            cause = self._last.get(item, late.cause)
            self._errors[item] = TimedOut(f"{self._what} ({item})", late.seconds, cause=cause)

    def outcome(self) -> dict[Item, Value]:
        results = {item: self._results[item] for item in self._order if item in self._results}
        if self._errors:
            errors = {item: self._errors[item] for item in self._order if item in self._errors}
            raise BatchFailed(self._what, results, errors)
        return results


class _StillOpen(ClientError):
    """Some items are to be asked about again."""

    retriable = True


async def _tolerant(answer: Awaitable[Value]) -> Value | Again:
    """An answer, or `Again` after a retriable error. Other errors concern the whole call, and are raised."""
    try:
        return await answer
    except ClientError as error:
        if not error.retriable:
            raise
        return Again(error)


def _answered(outcome: Outcome[Value] | None, item: object) -> Outcome[Value]:
    if outcome is None:
        return BrokerError.of(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"asking about {item}", "the answer does not name it"
        )
    return outcome


def _will_pass(error: ClientError) -> bool:
    return error.retriable and not isinstance(error, UnknownTopic)
