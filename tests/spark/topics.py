"""What a topic holds, read with Klamm's client and without Spark."""

from __future__ import annotations

import klamm
from klamm.client.results import Record

POLL_TIMEOUT_SECONDS = 10.0


def records_of(bootstrap: str, topic: str) -> list[Record]:
    """All records of a topic, partition by partition, in their order."""
    found: list[Record] = []
    with klamm.Consumer(bootstrap, start="earliest") as consumer:
        partitions = [(topic, number) for number in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += consumer.poll(timeout=POLL_TIMEOUT_SECONDS)
    return sorted(found, key=lambda record: (record.partition, record.offset))
