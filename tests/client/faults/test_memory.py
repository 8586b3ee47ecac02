"""A slow broker is fed by a fast loop: a producer's memory stays under its bound, in both faces."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.client.faces import AioFace, Face
from tests.client.faults.proxy import FaultProxy
from tests.client.faults.stands import ProcessStand
from tests.client.faults.test_faults import every_face, face_named
from tests.client.topics import make_topic

BUFFER_BYTES = 4 * 1024 * 1024
VALUE = bytes(1000)
LINE_BYTES_PER_SECOND = 200_000
SECONDS = 3.0

ALLOWED_GROWTH_BYTES = 3 * BUFFER_BYTES
"""What waits is held as records and, once it is encoded, as a batch; then there is what Python itself keeps,
and what is on its way through the proxy, which lives in this process."""


@pytest.fixture
def slow_stand(tmp_path: Path) -> Any:
    with FaultProxy() as proxy:
        stand = ProcessStand(proxy, tmp_path)
        yield stand
        proxy.request_bytes_per_second = None
        stand.close()


@every_face
def test_memory_stays_under_its_bound(slow_stand: ProcessStand, face_name: str) -> None:
    topic = make_topic(slow_stand.direct, partitions=3)
    with face_named(face_name) as face:
        producer = face.producer(
            slow_stand.proxy.bootstrap,
            buffer_memory=BUFFER_BYTES,
            max_block_ms=100,
            delivery_timeout_ms=60_000,
        )
        producer.partitions_for(topic, 60.0)  # longer than max_block_ms: the machine may be busy
        producer.send(topic, b"first").result()
        slow_stand.proxy.request_bytes_per_second = LINE_BYTES_PER_SECOND
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            sent, refused = feed(face, producer, topic)
            growth = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        assert refused > 0, "the loop was not faster than the broker"
        assert sent * len(VALUE) > BUFFER_BYTES / 2, "the buffer was never full"
        assert growth < ALLOWED_GROWTH_BYTES, f"memory grew by {growth >> 10} KB"
        # All that was taken arrives.
        slow_stand.proxy.request_bytes_per_second = None
        producer.flush()
        counted = producer.counters()
        assert counted["records_sent"] == sent + 1 and counted["send_errors"] == 0
        producer.close()


def feed(face: Face, producer: Any, topic: str) -> tuple[int, int]:
    """Send as fast as it goes for a while: how many were taken, and how many refused."""
    if isinstance(face, AioFace):
        return face.run(feed_async(producer.target, topic))
    sent = refused = 0
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            producer.send(topic, VALUE)
            sent += 1
        except klamm.BufferFull:
            refused += 1
    return sent, refused


async def feed_async(producer: Any, topic: str) -> tuple[int, int]:
    sent = refused = 0
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            producer.send(topic, VALUE)
            sent += 1
        except klamm.BufferFull:
            refused += 1
            await asyncio.sleep(0)
    return sent, refused
