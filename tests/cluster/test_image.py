"""Deltas: applied one after another, joined, and found between two images, they come to the same image."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from klamm.cluster.image import (
    BrokerDelta,
    ClusterImage,
    ImageDelta,
    PartitionImage,
    TopicImage,
    difference,
    image_of_topics,
    joined,
    topic_delta,
)

from .scenario import broker

partitions = st.builds(
    lambda leader, epoch: PartitionImage((1, 2), (1, 2), leader, epoch, epoch),
    st.sampled_from([1, 2]),
    st.integers(0, 2),
)
settings = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]))


@st.composite
def images(draw):
    names = draw(st.sets(st.sampled_from(["t", "u", "v.w", "v_w"])))
    topics = {
        name: TopicImage(
            name,
            bytes([draw(st.integers(0, 1))]) * 8 + name.ljust(8).encode(),
            tuple(draw(st.lists(partitions, min_size=1, max_size=3))),
            draw(settings),
        )
        for name in sorted(names)
    }
    delta = ImageDelta(
        brokers={
            number: BrokerDelta(None, broker(number, rack))
            for number, rack in draw(st.dictionaries(st.integers(1, 3), st.sampled_from(["x", "y"]))).items()
        },
        broker_configs={name: {"k": "v"} for name in draw(st.sets(st.sampled_from(["", "1"])))},
        group_configs={name: {"k": "v"} for name in draw(st.sets(st.sampled_from(["g", "h"])))},
    )
    return image_of_topics("c", draw(st.integers(1, 3)), topics).with_delta(delta)


@given(st.lists(images(), min_size=2, max_size=4))
def test_deltas_lead_from_one_image_to_the_next(states):
    deltas = [difference(old, new) for old, new in pairwise(states)]
    image = states[0]
    for delta, expected in zip(deltas, states[1:], strict=True):
        image = image.with_delta(delta)
        assert_same(image, expected)
    at_once = joined(deltas)
    assert_same(states[0].with_delta(at_once), states[-1])
    for name, change in at_once.topics.items():
        exact = topic_delta(states[0].topics.get(name), states[-1].topics.get(name))
        assert (change.before, change.after) == (exact.before, exact.after)
        assert set(change.partitions) >= set(exact.partitions)


def assert_same(image: ClusterImage, expected: ClusterImage) -> None:
    similar = {flat: set(names) for flat, names in image.similar_topic_names.items()}
    assert similar == {flat: set(names) for flat, names in expected.similar_topic_names.items()}
    assert image.topics == expected.topics and image.brokers == expected.brokers
    assert image.topic_names_by_id == expected.topic_names_by_id
    assert image.broker_configs == expected.broker_configs
    assert image.group_configs == expected.group_configs
    assert image.controller_id == expected.controller_id


def test_no_difference_is_an_empty_delta():
    image = image_of_topics("c", 1, {})
    assert not difference(image, image)
    assert difference(image, image.with_delta(ImageDelta(controller_id=2)))


def test_one_changed_partition_is_named_alone_and_the_other_topics_are_shared():
    two = (PartitionImage((1,), (1,), 1, 0, 0),) * 2
    topics = {name: TopicImage(name, name.encode() * 16, two, {}) for name in ("a", "b")}
    image = image_of_topics("c", 1, topics)
    after = TopicImage("a", topics["a"].topic_id, (two[0], two[1]._replace(leader_epoch=1)), {})
    delta = ImageDelta({"a": topic_delta(topics["a"], after)})
    changed = image.with_delta(delta)
    assert delta.topics["a"].partitions == (1,)
    assert changed.topics["b"] is image.topics["b"]
    assert changed.topic_names_by_id is image.topic_names_by_id
    assert difference(image, changed) == delta
