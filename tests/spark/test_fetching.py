"""A range is fetched whole, whatever brokers answer in between."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from klamm.client.consumer.fetch_requests import FetchSettings
from klamm.client.results import OffsetAndTime, TopicPartition
from klamm.config.client_config import ClientConfig
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k01_fetch import FetchableTopicResponse, FetchResponse, PartitionData
from pyspark_klamm.fetching import Fetched, RangeFetcher
from pyspark_klamm.offsets import EARLIEST
from pyspark_klamm.planning import OffsetRange

WANTED = OffsetRange("orders", 0, 10, 20)
LEADER, REPLICA = 1, 2


def answer(**values: Any) -> FetchResponse:
    """What is said of the one partition: that its log goes on to offset 50, and brings no records."""
    said = {"partition_index": 0, "high_watermark": 50, "last_stable_offset": 50, **values}
    return FetchResponse(
        responses=[FetchableTopicResponse(topic="orders", partitions=[PartitionData(**said)])]
    )


QUOTA = FetchResponse(throttle_time_ms=1000)
"""What Kafka says to one that has read too much: nothing of any partition."""

OUT_OF_RANGE = answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)


@dataclass
class Brokers:
    """Stands in for a connection: gives the answers in their turn, and notes who was asked."""

    answers: list[FetchResponse]
    log: tuple[int, int] = (0, 50)
    asked: list[int] = field(default_factory=list)
    timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        settings = {"bootstrap.servers": "none:1", "retry.backoff.ms": "1", "retry.backoff.max.ms": "1"}
        self.fetch_settings = FetchSettings.of(ClientConfig("consumer", config=settings))
        self.network = self.metadata = self.lookup = self

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        return LEADER, 0

    def request_refresh(self) -> None:
        pass

    async def call(self, node: int, request: Any, **more: Any) -> FetchResponse:
        self.asked.append(node)
        return self.answers.pop(0)

    async def list_offsets(
        self, questions: dict[TopicPartition, int], seconds: float
    ) -> dict[TopicPartition, OffsetAndTime]:
        first, last = self.log
        return {
            place: OffsetAndTime(first if question == EARLIEST else last, -1, -1)
            for place, question in questions.items()
        }


def fetch(brokers: Brokers, patience_seconds: float = 5.0) -> Fetched:
    connection: Any = brokers
    fetcher = RangeFetcher(connection, WANTED, fails_on_loss=True, patience_seconds=patience_seconds)
    return asyncio.run(fetcher.fetch(WANTED.start))


def test_what_a_quota_holds_back_is_asked_for_again() -> None:
    brokers = Brokers([QUOTA, QUOTA, QUOTA, answer(), answer()])
    assert fetch(brokers) == Fetched(None, WANTED.end)
    assert not brokers.answers, "only answers about the partition say that nothing is there"


def test_an_offset_that_came_back_into_range_is_asked_for_again() -> None:
    brokers = Brokers([OUT_OF_RANGE, OUT_OF_RANGE, answer(), answer()])
    assert fetch(brokers) == Fetched(None, WANTED.end)


def test_a_replica_that_lacks_an_offset_is_left_for_the_leader() -> None:
    brokers = Brokers([answer(preferred_read_replica=REPLICA), OUT_OF_RANGE, answer(), answer()])
    assert fetch(brokers) == Fetched(None, WANTED.end)
    assert brokers.asked == [LEADER, REPLICA, LEADER, LEADER]
