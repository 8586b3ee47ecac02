"""The controller's rules, without a store: what is changed, and what is refused with which code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.cluster.config_changes import alter_config
from klamm.cluster.controller import topics as controller
from klamm.cluster.controller.partitions import raise_leader_epochs
from klamm.cluster.controller.reassignment import reassign_partition
from klamm.cluster.controller.topics import NewPartitions, NewTopic
from klamm.cluster.image import ALL_BROKERS, ClusterImage, PartitionImage
from klamm.cluster.persistent_map import PersistentMap
from klamm.cluster.placement import place_replicas
from klamm.cluster.topic_names import check_topic_name, colliding_name, renamed, similar_names
from klamm.config.alterations import Alteration, AlterOperation
from klamm.config.loading import BrokerConfig
from klamm.config.rows import ResourceType
from klamm.coordination.store import MAX_VALUE_BYTES, Create, Delete, Set
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition, new_topic_id

from .scenario import broker


def image_of(*brokers):
    return ClusterImage("c", 1, {each.id: each for each in brokers or (broker(1),)})


THREE = image_of(broker(1), broker(2), broker(3))
CONFIG = BrokerConfig({"num.partitions": "2"})
EPOCH = 5


def create(image, *args, **kwargs):
    new = NewTopic(*args, **kwargs)
    return controller.create_topic(
        image, CONFIG, new, controller_epoch=EPOCH, topic_id=new_topic_id(), start=0
    )


def test_a_topic_gets_the_defaults_and_one_node_for_everything():
    change = create(image_of(), "orders")
    topic = change.image.topics["orders"]
    assert len(topic.partitions) == 2 and topic.replication_factor == 1
    assert topic.partitions[0] == PartitionImage((1,), (1,), 1, 0, 0)
    assert change.image.topic_names_by_id == {topic.topic_id: "orders"}
    assert [operation.path for operation in change.operations] == [
        "/brokers/topics/orders",
        "/config/topics/orders",
        "/brokers/topics/orders/partitions",
        "/brokers/topics/orders/partitions/0",
        "/brokers/topics/orders/partitions/0/state",
        "/brokers/topics/orders/partitions/1",
        "/brokers/topics/orders/partitions/1/state",
    ]
    assert all(isinstance(operation, Create) for operation in change.operations)
    assert b'"controller_epoch":5' in change.operations[4].value


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"name": "there"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"name": "a/b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "there_too"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"partition_count": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partition_count": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": -2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignment": [(0, [1])], "partition_count": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignment": [(0, [1])], "replication_factor": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignment": [(0, [1]), (0, [2])]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [(1, [1])]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [(0, [])]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [(0, [1, 1])]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [(0, [9])]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [(0, [1, 2]), (1, [1])]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"config": {"retention.sm": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"config": {"retention.ms": "x"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_topics_that_cannot_be_are_refused(arguments, code):
    image = create(create(THREE, "there").image, "there.too").image
    with pytest.raises(KafkaError) as caught:
        create(image, **{"name": "new", **arguments})
    assert caught.value.code is code
    assert caught.value.message


def test_replicas_go_where_the_client_says():
    change = create(THREE, "t", assignment=[(1, [3, 1]), (0, [2, 3])])
    partitions = change.image.topics["t"].partitions
    assert [(each.replicas, each.leader) for each in partitions] == [((2, 3), 2), ((3, 1), 3)]


def test_partitions_are_added_behind_the_old_ones():
    image = create(THREE, "t", assignment=[(0, [1, 2])]).image
    change = controller.create_partitions(image, NewPartitions("t", 3), controller_epoch=EPOCH, start=0)
    grown = change.image.topics["t"]
    assert grown.partitions[0] is image.topics["t"].partitions[0]
    assert [len(each.replicas) for each in grown.partitions] == [2, 2, 2]
    assert isinstance(change.operations[0], Set)
    assert [each.path for each in change.operations[1:]] == [
        "/brokers/topics/t/partitions/1",
        "/brokers/topics/t/partitions/1/state",
        "/brokers/topics/t/partitions/2",
        "/brokers/topics/t/partitions/2/state",
    ]
    manual = controller.create_partitions(
        image, NewPartitions("t", 2, [[3, 2]]), controller_epoch=EPOCH, start=0
    )
    assert manual.image.topics["t"].partitions[1].replicas == (3, 2)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewPartitions("none", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions("t", 2), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", 1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", -1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", 4, [[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(wanted, code):
    image = create(THREE, "t").image
    with pytest.raises(KafkaError) as caught:
        controller.create_partitions(image, wanted, controller_epoch=EPOCH, start=0)
    assert caught.value.code is code


def test_a_topic_whose_description_the_store_does_not_take_is_refused_by_name():
    """ZooKeeper takes a megabyte. Only a topic with very many replicas needs more."""
    ids = range(1_000_000_000, 1_000_000_200)
    image, half = image_of(*map(broker, ids)), list(ids[:100])

    def with_partitions(name, count):
        return create(image, name, assignment=[(index, half) for index in range(count)])

    created = with_partitions("large", 902)
    assert MAX_VALUE_BYTES - 2_000 < len(created.operations[0].value) <= MAX_VALUE_BYTES
    for refused in (
        lambda: with_partitions("large", 903),
        lambda: controller.create_partitions(
            created.image, NewPartitions("large", 903, [half]), controller_epoch=EPOCH, start=0
        ),
        lambda: reassign_partition(
            created.image, CONFIG, TopicPartition("large", 0), list(ids[100:]), controller_epoch=EPOCH
        ),
    ):
        with pytest.raises(KafkaError) as caught:
            refused()
        assert caught.value.code is ErrorCode.INVALID_PARTITIONS
        assert "the topic large is refused" in caught.value.message
        assert str(MAX_VALUE_BYTES) in caught.value.message


def test_deleting_undoes_creating_and_leaves_a_mark():
    created = create(image_of(), "t", config={"retention.ms": "5"})
    deleted = controller.delete_topic(created.image, "t")
    topic = created.image.topics["t"]
    assert deleted.image.deleted_topics == {topic.topic_id: ("t", topic.topic_id, 2, (1,))}
    assert replace(deleted.image, deleted_topics=PersistentMap()) == image_of()
    paths = {operation.path for operation in created.operations}
    assert {each.path for each in deleted.operations if isinstance(each, Delete)} == paths
    assert isinstance(deleted.operations[0], Create)
    assert deleted.operations[0].path.startswith("/admin/delete_topics/t:")
    with pytest.raises(KafkaError) as caught:
        controller.delete_topic(image_of(), "t")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_leader_epochs_rise_only_where_asked():
    image = create(create(image_of(), "a").image, "b").image
    change = raise_leader_epochs(image, CONFIG, [TopicPartition("a", 1)], controller_epoch=EPOCH)
    assert [each.leader_epoch for each in change.image.topics["a"].partitions] == [0, 1]
    assert change.image.topics["b"] is image.topics["b"]
    assert [(each.path, each.version) for each in change.operations] == [
        ("/brokers/topics/a/partitions/1/state", 0)
    ]


def alteration(name, value, operation=AlterOperation.SET):
    return [Alteration(name, operation, value)]


def test_broker_settings_hold_for_one_or_for_all():
    config = BrokerConfig()
    change = alter_config(
        image_of(),
        config,
        ResourceType.BROKER,
        ALL_BROKERS,
        alteration("message.max.bytes", "9"),
        controller_epoch=EPOCH,
    )
    assert change.operations[0].path == "/config/brokers/<default>"
    change = alter_config(
        change.image,
        config,
        ResourceType.BROKER,
        "1",
        alteration("message.max.bytes", "8"),
        controller_epoch=EPOCH,
    )
    assert change.operations[0].path == "/config/brokers/1"
    assert change.image.broker_configs == {
        ALL_BROKERS: {"message.max.bytes": "9"},
        "1": {"message.max.bytes": "8"},
    }
    removal = alteration("message.max.bytes", None, AlterOperation.DELETE)
    change = alter_config(change.image, config, ResourceType.BROKER, "1", removal, controller_epoch=EPOCH)
    assert isinstance(change.operations[0], Delete)
    assert list(change.image.broker_configs) == [ALL_BROKERS]


@pytest.mark.parametrize(
    ("resource_type", "name", "alterations", "code", "words"),
    [
        (2, "none", alteration("retention.ms", "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none"),
        (2, "t", alteration("retention.sm", "1"), ErrorCode.INVALID_CONFIG, "retention.ms"),
        (2, "t", alteration("retention.ms", "-9"), ErrorCode.INVALID_CONFIG, "from -1"),
        (2, "t", alteration("retention.ms", None), ErrorCode.INVALID_REQUEST, "needs a value"),
        (2, "t", alteration("retention.ms", "1") * 2, ErrorCode.INVALID_REQUEST, "twice"),
        (2, "t", alteration("retention.ms", "1", AlterOperation.APPEND), ErrorCode.INVALID_CONFIG, "a list"),
        (
            2,
            "t",
            alteration("min.compaction.lag.ms", "9") + alteration("max.compaction.lag.ms", "8"),
            40,
            "9",
        ),
        (2, "t", alteration("remote.storage.enable", "true"), ErrorCode.INVALID_CONFIG, "tiered storage"),
        (2, "t", alteration("leader.replication.throttled.replicas", "0"), 40, "partition:broker"),
        (2, "t", alteration("leader.replication.throttled.replicas", "0:1, 1:1"), ErrorCode.NONE, ""),
        (2, "t", alteration("follower.replication.throttled.replicas", "*"), ErrorCode.NONE, ""),
        (4, "1", alteration("log.dirs", "x"), ErrorCode.INVALID_REQUEST, "while the broker runs"),
        (4, "", alteration("node.id", "7"), ErrorCode.INVALID_REQUEST, "while the broker runs"),
        (4, "1", alteration("transaction.max.timeout.ms", "7"), 42, "while the broker runs"),
        (4, "1", alteration("no.such.key", "7"), ErrorCode.INVALID_REQUEST, "unknown"),
        (4, "1", alteration("num.io.threads", "0"), ErrorCode.INVALID_REQUEST, "from 1"),
        (4, "1", alteration("num.io.threads", "9"), ErrorCode.NONE, ""),
        (4, "", alteration("leader.replication.throttled.rate", "9"), ErrorCode.NONE, ""),
        (4, "1", alteration("num.io.threads", "9", AlterOperation.APPEND), 40, "a list"),
        (4, "1", alteration("ssl.keystore.location", "/k"), ErrorCode.INVALID_REQUEST, "TLS"),
        (4, "", alteration("ssl.keystore.location", "/k"), ErrorCode.INVALID_REQUEST, "one broker"),
        (4, "1", alteration("listener.name.a.ssl.keystore.location", "/k"), 42, "TLS"),
        (4, "9", alteration("message.max.bytes", "7"), ErrorCode.INVALID_REQUEST, "no broker '9'"),
        (4, "x", alteration("message.max.bytes", "7"), ErrorCode.INVALID_REQUEST, "no broker 'x'"),
        (4, "1", alteration("log.cleaner.min.compaction.lag.ms", str(2**63 - 1)), ErrorCode.NONE, ""),
        (8, "1", alteration("root", "INFO"), ErrorCode.INVALID_REQUEST, "type 8"),
        (32, "", alteration("consumer.session.timeout.ms", "50000"), ErrorCode.INVALID_REQUEST, "empty"),
        (32, "g", alteration("consumer.session.timeout.ms", "1"), ErrorCode.INVALID_CONFIG, "45000"),
    ],
)
def test_alterations_are_refused_with_a_reason(resource_type, name, alterations, code, words):
    image = create(image_of(), "t").image
    if code is ErrorCode.NONE:
        alter_config(image, BrokerConfig(), resource_type, name, alterations, controller_epoch=EPOCH)
        return
    with pytest.raises(KafkaError) as caught:
        alter_config(image, BrokerConfig(), resource_type, name, alterations, controller_epoch=EPOCH)
    assert caught.value.code == code
    assert words in str(caught.value)


class CountedName(str):
    """Counts how often any of these names is compared with another string."""

    comparisons = 0

    def __eq__(self, other):
        CountedName.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_that_no_key_is_altered_twice_is_seen_in_one_pass():
    names = [CountedName(f"left.by.another.version.{number}") for number in range(1000)]
    alterations = [Alteration(name, AlterOperation.DELETE, None) for name in names]
    alter_config(
        create(image_of(), "t").image,
        BrokerConfig(),
        ResourceType.TOPIC,
        "t",
        alterations,
        controller_epoch=EPOCH,
    )
    assert CountedName.comparisons < 10 * len(names)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "x" * 250, "a:b"])
def test_illegal_topic_names(name):
    with pytest.raises(KafkaError) as caught:
        check_topic_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "x" * 249, "...", "a.b_c-D9", "__consumer_offsets"])
def test_legal_topic_names(name):
    check_topic_name(name)


def test_names_collide_only_in_dots_and_underscores():
    assert colliding_name("a.b", similar_names(["x", "a_b"])) == "a_b"
    assert colliding_name("a_b", similar_names(["a.b"])) == "a.b"
    assert colliding_name("a.b", similar_names(["a.b", "a-b", "a.b.c"])) is None
    assert colliding_name("ab", similar_names(["a.b"])) is None


def test_names_that_collide_already_do_so_until_the_last_of_them_is_deleted():
    similar = similar_names(["a.b", "a_b", "ab"])
    assert renamed(similar, [], ["a_b"]) == similar == {"a_b": ("a.b", "a_b")}
    similar = renamed(similar, ["a.b"], [])
    assert colliding_name("a.b", similar) == "a_b"
    assert colliding_name("a.b", renamed(similar, ["a_b"], [])) is None


def test_a_deleted_topic_collides_with_no_new_one():
    image = create(image_of(), "a.b").image
    with pytest.raises(KafkaError):
        create(image, "a_b")
    create(controller.delete_topic(image, "a.b").image, "a_b")


class LookedUpOnly(PersistentMap):
    def __iter__(self):
        raise AssertionError("all topics are gone through for one name")

    keys = values = items = __iter__


def looked_up_only(image):
    return replace(
        image,
        topics=LookedUpOnly(image.topics.items()),
        topic_names_by_id=LookedUpOnly(image.topic_names_by_id.items()),
        similar_topic_names=LookedUpOnly(image.similar_topic_names.items()),
    )


@pytest.mark.parametrize(
    ("name", "code"), [("c.d", ErrorCode.INVALID_PARTITIONS), ("a.b", ErrorCode.INVALID_TOPIC_EXCEPTION)]
)
def test_a_refused_topic_is_not_compared_with_all_others(name, code):
    image = looked_up_only(create(image_of(), "a_b").image)
    with pytest.raises(KafkaError) as caught:
        create(image, name, partition_count=0)
    assert caught.value.code is code


def test_a_change_of_one_topic_does_not_go_over_the_others():
    image = create(create(image_of(), "a_b").image, "other").image
    assert create(looked_up_only(image), "new.topic").image.topics["new.topic"]
    assert "a_b" not in controller.delete_topic(looked_up_only(image), "a_b").image.topics
    raised = raise_leader_epochs(
        looked_up_only(image), CONFIG, [TopicPartition("a_b", 1)], controller_epoch=EPOCH
    )
    assert raised.delta.topics["a_b"].partitions == (1,)
    assert raised.image.topics["other"] is image.topics["other"]


@given(
    st.dictionaries(st.integers(0, 50), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(0, 1 << 20),
    st.data(),
)
def test_any_placement_is_valid_balanced_and_spread_over_racks(racks, partition_count, start, data):
    factor = data.draw(st.integers(1, len(racks)))
    placed = place_replicas(racks, partition_count, factor, start=start)
    assert len(placed) == partition_count
    led = {broker_id: 0 for broker_id in racks}
    for replicas in placed:
        assert len(replicas) == factor == len(set(replicas))
        assert set(replicas) <= set(racks)
        led[replicas[0]] += 1
        if None not in racks.values():
            distinct = len(set(racks.values()))
            assert len({racks[each] for each in replicas}) == min(factor, distinct)
    assert max(led.values()) - min(led.values()) <= 1


@given(
    st.sampled_from([(None,), ("a", "b"), ("a", "b", "c")]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)),
    st.data(),
)
def test_replicas_and_leaders_are_even_over_brokers_also_those_added_later(
    racks, brokers_of_rack, rounds, starts, data
):
    """With racks of equal size, and whole rounds of partitions: as many as there are brokers, or twice, …"""
    brokers = [broker(number, rack) for number, rack in enumerate(racks * brokers_of_rack)]
    factor = data.draw(st.integers(1, len(brokers)))
    count = rounds * len(brokers)
    new = NewTopic("t", count, factor)
    change = controller.create_topic(
        image_of(*brokers), CONFIG, new, controller_epoch=EPOCH, topic_id=new_topic_id(), start=starts[0]
    )
    assert_even(change.image, count * factor)
    more = NewPartitions("t", 2 * count)
    change = controller.create_partitions(change.image, more, controller_epoch=EPOCH, start=starts[1])
    assert_even(change.image, 2 * count * factor)


def assert_even(image, replica_count):
    partitions = image.topics["t"].partitions
    led = Counter(partition.leader for partition in partitions)
    held = Counter(broker_id for partition in partitions for broker_id in partition.replicas)
    assert led == dict.fromkeys(image.brokers, len(partitions) // len(image.brokers))
    assert held == dict.fromkeys(image.brokers, replica_count // len(image.brokers))
