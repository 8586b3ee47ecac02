from __future__ import annotations

from klamm.client.network.addresses import BrokerAddress
from klamm.client.network.metadata import MetadataCache
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from tests.client.network.fake_broker import topic_of


def answer(*topics: MetadataResponseTopic, nodes: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    brokers = [
        MetadataResponseBroker(node_id=node, host="h", port=9000 + node, rack=f"r{node}") for node in nodes
    ]
    return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=2, topics=list(topics))


def cache_of(*topics: MetadataResponseTopic) -> MetadataCache:
    cache = MetadataCache()
    cache.apply(answer(*topics), 1.0)
    return cache


def test_what_a_first_answer_tells() -> None:
    cache = MetadataCache()
    change = cache.apply(answer(topic_of("a", [1, 2], epoch=3)), 7.0)
    assert (change.added, change.brokers, change.removed, change.recreated) == ({"a"}, True, set(), set())
    assert change.leaders == {TopicPartition("a", 0), TopicPartition("a", 1)}
    assert cache.brokers[2] == BrokerAddress(2, "h", 9002, "r2")
    assert (cache.cluster_id, cache.controller_id, cache.updated_at) == ("c", 2, 7.0)
    assert cache.leader("a", 1) == (2, 3)
    assert cache.leader("a", 2) is None
    assert cache.leader("b", 0) is None
    assert cache.name_of(b"t" * 16) == "a"
    assert cache.topics["a"].has_leader


def test_no_news() -> None:
    cache = cache_of(topic_of("a", [1]))
    assert not cache.apply(answer(topic_of("a", [1])), 2.0)
    assert cache.updated_at == 2.0


def test_a_moved_leader() -> None:
    cache = cache_of(topic_of("a", [1, 1], epoch=4))
    change = cache.apply(answer(topic_of("a", [1, 2], epoch=5)), 2.0)
    assert change.leaders == {TopicPartition("a", 0), TopicPartition("a", 1)}
    assert cache.leader("a", 1) == (2, 5)


def test_epochs_never_go_back_while_the_topic_is_the_same() -> None:
    cache = cache_of(topic_of("a", [2], epoch=5))
    assert not cache.apply(answer(topic_of("a", [1], epoch=4)), 2.0), "a broker that lags behind"
    assert cache.leader("a", 0) == (2, 5)
    cache.apply(answer(topic_of("a", [1], epoch=0, topic_id=b"n" * 16)), 3.0)
    assert cache.leader("a", 0) == (1, 0), "another topic of the same name starts anew"


def test_brokers_that_tell_no_epochs_are_believed() -> None:
    cache = cache_of(topic_of("a", [2], epoch=5))
    cache.apply(answer(topic_of("a", [1], epoch=-1)), 2.0)
    assert cache.leader("a", 0) == (1, -1)


def test_a_recreated_topic() -> None:
    cache = cache_of(topic_of("a", [1, 1]))
    change = cache.apply(answer(topic_of("a", [1, 1], topic_id=b"n" * 16)), 2.0)
    assert change.recreated == {"a"}
    assert change.leaders == {TopicPartition("a", 0), TopicPartition("a", 1)}
    assert cache.name_of(b"n" * 16) == "a"
    assert cache.name_of(b"t" * 16) is None


def test_new_partitions() -> None:
    cache = cache_of(topic_of("a", [1]))
    change = cache.apply(answer(topic_of("a", [1, 2])), 2.0)
    assert change.grown == {"a"}
    assert change.leaders == {TopicPartition("a", 1)}


def test_a_deleted_topic() -> None:
    cache = cache_of(topic_of("a", [1]))
    change = cache.apply(answer(topic_of("a", [], error=3, topic_id=bytes(16))), 2.0)
    assert change.removed == {"a"}
    assert not cache.topics["a"].exists
    assert cache.topics["a"].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    again = cache.apply(answer(topic_of("a", [1], topic_id=b"n" * 16)), 3.0)
    assert again.added == {"a"}


def test_an_error_that_will_pass_changes_nothing() -> None:
    cache = cache_of(topic_of("a", [1]))
    change = cache.apply(answer(topic_of("a", [], error=ErrorCode.LEADER_NOT_AVAILABLE)), 2.0)
    assert not change
    assert cache.leader("a", 0) == (1, 0)
    assert cache.topics["a"].error is ErrorCode.LEADER_NOT_AVAILABLE


def test_topics_that_were_not_asked_for_stay() -> None:
    cache = cache_of(topic_of("a", [1]), topic_of("b", [1], topic_id=b"b" * 16))
    assert not cache.apply(answer(topic_of("a", [1])), 2.0)
    assert cache.leader("b", 0) == (1, 0)
    change = cache.apply(answer(topic_of("a", [1])), 3.0, all_topics=True)
    assert change.removed == {"b"}
    assert cache.name_of(b"b" * 16) is None


def test_brokers_come_go_and_move() -> None:
    cache = cache_of()
    assert cache.apply(answer(nodes=(1, 2, 3)), 2.0).brokers
    assert not cache.apply(answer(nodes=(1, 2, 3)), 3.0).brokers
    moved = answer(nodes=(1, 2, 3))
    moved.brokers[0].port = 1
    assert cache.apply(moved, 4.0).brokers
    assert not cache.apply(answer(nodes=()), 5.0), "a broker that knows nobody is not believed"
    assert set(cache.brokers) == {1, 2, 3}


def test_the_leader_that_another_answer_names() -> None:
    cache = cache_of(topic_of("a", [1], epoch=4))
    partition = TopicPartition("a", 0)
    assert not cache.learn_leader(partition, 2, 4), "no newer epoch"
    assert not cache.learn_leader(partition, -1, 9)
    assert not cache.learn_leader(partition, 7, 9), "nobody knows where broker 7 is"
    assert not cache.learn_leader(TopicPartition("a", 5), 2, 9)
    assert cache.learn_leader(partition, 2, 5)
    assert cache.leader("a", 0) == (2, 5)
    assert cache.learn_leader(partition, 7, 6, BrokerAddress(7, "h7", 1))
    assert cache.leader("a", 0) == (7, 6)
    assert cache.brokers[7].host == "h7"


def test_partitions_come_in_any_order_but_without_gaps() -> None:
    shuffled = topic_of("a", [1, 2, 1])
    shuffled.partitions.reverse()
    cache = cache_of(shuffled)
    assert [each.index for each in cache.topics["a"].partitions] == [0, 1, 2]
    torn = topic_of("b", [1, 2, 1], topic_id=b"b" * 16)
    del torn.partitions[1]
    cache.apply(answer(torn), 2.0)
    assert not cache.topics["b"].exists


def test_forgotten_topics_leave_nothing_behind() -> None:
    cache = cache_of(topic_of("a", [1]))
    cache.forget_topics(["a", "never-known"])
    assert cache.topics == {}
    assert cache.name_of(b"t" * 16) is None
