from __future__ import annotations

import re

import pytest

from klamm.client.consumer.subscription import Listeners, Subscription
from klamm.client.errors import ClientMisused
from klamm.client.network.metadata import PartitionMetadata, TopicMetadata
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode


def topic(name: str, partitions: int = 1, *, internal: bool = False) -> TopicMetadata:
    numbered = tuple(PartitionMetadata(index, 1, 0, (1,), (1,)) for index in range(partitions))
    return TopicMetadata(name, bytes(16), internal, ErrorCode.NONE, numbered)


KNOWN = {
    each.name: each
    for each in (topic("orders", 2), topic("orders-eu"), topic("gone", 0), topic("__offsets", internal=True))
}


@pytest.fixture
def subscription() -> Subscription:
    return Subscription(excludes_internal=True)


def test_names_stand_for_themselves_known_or_not(subscription: Subscription) -> None:
    subscription.subscribe(["orders", "later", "orders"], Listeners())
    assert subscription.topics(KNOWN) == {"orders", "later"}
    assert subscription.partitions(KNOWN) == [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    subscription.subscribe("one", Listeners())
    assert subscription.topics(KNOWN) == {"one"}


def test_a_pattern_matches_whole_names_of_topics_that_are_there(subscription: Subscription) -> None:
    subscription.subscribe(re.compile("orders"), Listeners())
    assert subscription.topics(KNOWN) == {"orders"}
    subscription.subscribe(re.compile(".*"), Listeners())
    assert subscription.topics(KNOWN) == {"orders", "orders-eu"}


def test_internal_topics_when_they_are_wanted() -> None:
    subscription = Subscription(excludes_internal=False)
    subscription.subscribe(re.compile("__.*"), Listeners())
    assert subscription.topics(KNOWN) == {"__offsets"}


def test_one_way_at_a_time(subscription: Subscription) -> None:
    subscription.subscribe("orders", Listeners())
    with pytest.raises(ClientMisused, match=r"cannot assign partitions.*unsubscribe"):
        subscription.assign([TopicPartition("orders", 0)])
    subscription.clear()
    subscription.assign([TopicPartition("orders", 0)])
    with pytest.raises(ClientMisused, match=r"cannot subscribe.*unsubscribe"):
        subscription.subscribe("orders", Listeners())
    subscription.assign([])
    subscription.subscribe("orders", Listeners())


@pytest.mark.parametrize("topics", [[], "", [""], [7], re.compile(b"x"), None])
def test_what_names_no_topic(subscription: Subscription, topics: object) -> None:
    with pytest.raises(ClientMisused):
        subscription.subscribe(topics, Listeners())  # type: ignore[arg-type]


def test_losses_are_told_like_revocations_unless_somebody_wants_to_know() -> None:
    def revoked(_: set[TopicPartition]) -> None: ...

    def lost(_: set[TopicPartition]) -> None: ...

    assert Listeners(on_revoked=revoked).for_loss() is revoked
    assert Listeners(on_revoked=revoked, on_lost=lost).for_loss() is lost
