"""There may be very many topics: their names are gathered in steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from klamm.apis import k74_list_config_resources
from klamm.apis.registry import Request
from klamm.apis.steps import AT_ONCE, run
from klamm.cluster.image import ClusterImage, TopicImage, image_of_topics
from klamm.config.rows import ResourceType
from klamm.model.ids import new_topic_id
from klamm.protocol.codec import decode, encode_in_steps
from klamm.protocol.messages.k74_list_config_resources import ListConfigResourcesRequest

TOPICS = [f"topic-{number}" for number in range(10 * AT_ONCE)]


def steps_of(image: ClusterImage) -> Any:
    broker: Any = SimpleNamespace(cluster=SimpleNamespace(image=image))
    message = ListConfigResourcesRequest(resource_types=[ResourceType.TOPIC])
    unused: Any = SimpleNamespace()
    return k74_list_config_resources.handle(broker, Request(message, 1, None, unused, unused))


def test_very_many_topics_are_listed_in_steps() -> None:
    image = image_of_topics("c", 1, {name: TopicImage(name, new_topic_id(), (), {}) for name in TOPICS})
    assert len(list(steps_of(image))) == len(TOPICS) / AT_ONCE
    _, response = run(steps_of(image), float("inf"))
    _, chunks = run(encode_in_steps(response, 1, lambda byte_count: None), float("inf"))
    answer = decode(type(response), 1, memoryview(b"".join(chunks)))[0]
    assert sorted(each.resource_name for each in answer.config_resources) == sorted(TOPICS)
