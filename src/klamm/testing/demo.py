"""`make demo`: a broker with live topics to point a client at.

Three topics get new records all the time, and one consumer group commits more slowly than they come, so that
there is lag to look at. The data lives in a temporary directory and goes away with the demo.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

from klamm.model.errors import ErrorCode
from klamm.node.broker import CannotStart
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.records.builder import build_batch
from klamm.records.reader import Record
from klamm.testing.broker import Broker
from klamm.testing.wire import WireConnection

PREFERRED_PORT = 9092
PARTITIONS = 3
TICK_S = 0.2
LAGGING_GROUP = "demo-billing"
LAGGING_TOPIC = "orders"
COMMIT_EVERY_TICKS = 25

_CITIES = ("Vienna", "Prague", "Graz", "Brno", "Linz")
_ITEMS = ("tea", "kettle", "lamp", "map", "boots")


def _order(number: int) -> tuple[str, dict[str, object]]:
    return f"customer-{random.randrange(200)}", {
        "order": number,
        "item": random.choice(_ITEMS),
        "quantity": random.randint(1, 5),
        "price": round(random.uniform(2, 90), 2),
    }


def _click(number: int) -> tuple[str, dict[str, object]]:
    return f"visitor-{random.randrange(500)}", {
        "page": random.choice(("/", "/tea", "/maps", "/basket", "/pay")),
        "milliseconds": random.randint(5, 400),
    }


def _reading(number: int) -> tuple[str, dict[str, object]]:
    return random.choice(_CITIES), {"celsius": round(random.gauss(12, 4), 1)}


TOPICS: dict[str, tuple[Callable[[int], tuple[str, dict[str, object]]], int]] = {
    "orders": (_order, 4),
    "clicks": (_click, 20),
    "temperatures": (_reading, 2),
}
"""Topic: (how to make a record, records a tick)."""


def main() -> int:
    broker = _start()
    if broker is None:
        return 1
    stop = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: stop.set())
    try:
        _feed(broker.bootstrap, stop, lambda: _print_welcome(broker.bootstrap))
    finally:
        broker.__exit__()
    print("\nThe demo is over; its data is gone.", flush=True)
    return 0


def _start() -> Broker | None:
    for port in (PREFERRED_PORT, 0):
        settings: dict[str, str | int] = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "offsets.topic.num.partitions": 50,
        }
        try:
            return Broker(settings).start()
        except CannotStart as error:
            if port == 0:
                print(f"klamm: {error}", file=sys.stderr)
            else:
                print(f"Port {PREFERRED_PORT} is taken, so the demo uses a free one.")
    return None


def _print_welcome(bootstrap: str) -> None:
    topics = ", ".join(TOPICS)
    print(
        f"""
Klamm is running.

  bootstrap   {bootstrap}
  topics      {topics}   (new records arrive all the time)
  group       {LAGGING_GROUP}   (reads {LAGGING_TOPIC}, and falls behind)

Point any Kafka client at it. For example, in Python:

  pip install confluent-kafka

  from confluent_kafka import Consumer
  consumer = Consumer({{"bootstrap.servers": "{bootstrap}", "group.id": "me",
                       "auto.offset.reset": "earliest"}})
  consumer.subscribe(["orders"])
  while True:
      message = consumer.poll(1.0)
      if message is not None:
          print(message.key(), message.value())

or with kcat:   kcat -b {bootstrap} -t orders -C

Ctrl-C ends the demo.
""",
        flush=True,
    )


def _feed(bootstrap: str, stop: threading.Event, on_ready: Callable[[], None]) -> None:
    """Create the topics, then produce until told to stop."""
    with WireConnection(bootstrap, client_id="demo") as connection:
        connection.call(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)
                    for name in TOPICS
                ],
                timeout_ms=10_000,
            )
        )
        metadata = connection.call(
            MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in TOPICS])
        )
        topic_ids = {topic.name: topic.topic_id for topic in metadata.topics}
        connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[LAGGING_GROUP]))
        tick = 0
        while not stop.wait(TICK_S if tick else 0):
            for name, (make, count) in TOPICS.items():
                _produce(connection, topic_ids[name], make, tick, count)
            if tick == 0:
                on_ready()
            if tick % COMMIT_EVERY_TICKS == COMMIT_EVERY_TICKS - 1:
                _commit_some(connection, topic_ids[LAGGING_TOPIC], tick // 2)
            tick += 1


def _produce(
    connection: WireConnection,
    topic_id: bytes,
    make: Callable[[int], tuple[str, dict[str, object]]],
    tick: int,
    count: int,
) -> None:
    now_ms = int(time.time() * 1000)
    records = []
    for index in range(count):
        key, value = make(tick * count + index)
        records.append(Record(index, now_ms, key.encode(), json.dumps(value).encode()))
    data = PartitionProduceData(index=tick % PARTITIONS, records=build_batch(records))
    response = connection.call(
        ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[data])],
        )
    )
    code = response.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.NONE, f"the demo could not produce: {ErrorCode(code).name}"


def _commit_some(connection: WireConnection, topic_id: bytes, offset: int) -> None:
    connection.call(
        OffsetCommitRequest(
            group_id=LAGGING_GROUP,
            generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequestTopic(
                    topic_id=topic_id,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
                        for index in range(PARTITIONS)
                    ],
                )
            ],
        )
    )


if __name__ == "__main__":
    sys.exit(main())
