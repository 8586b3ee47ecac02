"""A partition may remember very many producers: any client makes one with each batch."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from klamm.apis import k61_describe_producers
from klamm.apis.registry import Request
from klamm.protocol.codec import decode, encode_in_steps
from klamm.protocol.messages.k61_describe_producers import DescribeProducersRequest, TopicRequest
from klamm.storage.producers.state import ProducedBatch, ProducerEntry, ProducerStates

PRODUCERS = 200_000
LONGEST_STEP_S = 0.1


def test_very_many_producers_are_described_in_short_steps() -> None:
    entry = ProducerEntry(3, (ProducedBatch(0, 7, 7, 7, 1),), 5)
    log = SimpleNamespace(producers=ProducerStates(dict.fromkeys(range(PRODUCERS), entry)))
    broker: Any = SimpleNamespace(
        partitions=SimpleNamespace(led=lambda topic, index: SimpleNamespace(log=log))
    )
    message = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    connection: Any = SimpleNamespace()
    reply: Any = SimpleNamespace()

    def steps() -> Any:
        request: Any = Request(message, 0, None, connection, reply)
        response = yield from k61_describe_producers.handle(broker, request)
        chunks = yield from encode_in_steps(response, 0, lambda byte_count: None)
        return decode(type(response), 0, memoryview(b"".join(chunks)))[0]

    work, longest_s, began_s = steps(), 0.0, time.thread_time()
    while True:
        try:
            next(work)
        except StopIteration as end:
            answer = end.value
            break
        longest_s, began_s = max(longest_s, time.thread_time() - began_s), time.thread_time()
    assert longest_s < LONGEST_STEP_S, f"a step took {longest_s * 1000:.0f} ms"
    producers = answer.topics[0].partitions[0].active_producers
    assert len(producers) == PRODUCERS
    last = producers[-1]
    assert (last.producer_id, last.producer_epoch, last.last_sequence, last.last_timestamp) == (
        PRODUCERS - 1,
        3,
        7,
        5,
    )
