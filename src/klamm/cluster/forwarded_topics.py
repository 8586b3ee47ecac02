"""Topics that a broker needs and has made by the controller: as a CreateTopics request, and its answer."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.cluster.controller.topics import NewTopic
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.messages.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


def request_to_create(new_topics: Sequence[NewTopic]) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=new.name,
                num_partitions=new.partition_count,
                replication_factor=new.replication_factor,
                assignments=[
                    CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                    for index, replicas in new.assignment
                ],
                configs=[CreatableTopicConfig(name=name, value=value) for name, value in new.config.items()],
            )
            for new in new_topics
        ]
    )


def results_of_creation(response: CreateTopicsResponse) -> dict[str, KafkaError]:
    """The errors by topic name."""
    return {
        topic.name: KafkaError(ErrorCode(topic.error_code), topic.error_message or "")
        for topic in response.topics
        if topic.error_code != ErrorCode.NONE
    }
