"""Calls that must fail: with a typed error, and in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import klamm
from tests.client.faces import Face

CALL_MS = 1200
BOUND_S = 9.0
"""More than CALL_MS, because a busy machine may stand still for some seconds; less than the shortest of the
default time-outs, that of socket_connection_setup_timeout_ms (10 s)."""

SHORT = {
    "request_timeout_ms": CALL_MS // 2,
    "default_api_timeout_ms": CALL_MS,
    "socket_connection_setup_timeout_ms": CALL_MS // 2,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 100,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 100,
}
SHORT_PRODUCER = {**SHORT, "max_block_ms": CALL_MS, "delivery_timeout_ms": CALL_MS}


def failure_of(call: Callable[[], Any], within_s: float = BOUND_S) -> klamm.ClientError | None:
    """The typed error of a call, or None if it came to a good end. Anything else, or too late, is a fault."""
    started = time.monotonic()
    try:
        call()
    except klamm.ClientError as error:
        failure: klamm.ClientError | None = error
    else:
        failure = None
    took_s = time.monotonic() - started
    assert took_s < within_s, f"it took {took_s:.1f} s to end with {failure!r}"
    return failure


def produce_one(face: Face, bootstrap: str, topic: str = "topic", **options: Any) -> None:
    with face.producer(bootstrap, **{**SHORT_PRODUCER, **options}) as producer:
        producer.send(topic, b"value").result()


def consume_one(face: Face, bootstrap: str, topic: str = "topic", **options: Any) -> None:
    """Ask for offsets first: a poll may find nothing for as long as it likes, a call may not."""
    with face.consumer(bootstrap, start="earliest", **{**SHORT, **options}) as consumer:
        consumer.end_offsets([(topic, 0)])


def poll_for_ever(consumer: Any) -> None:
    while True:
        consumer.poll(timeout=0.1)


def iterate(consumer: Any) -> None:
    for _ in consumer:
        pass


def poll_group(face: Face, bootstrap: str, topic: str = "topic", **options: Any) -> None:
    consumer = face.consumer(
        bootstrap, group="group", topics=[topic], start="earliest", **{**SHORT, **options}
    )
    with consumer:
        poll_for_ever(consumer)


def administer(face: Face, bootstrap: str, **options: Any) -> None:
    with face.admin(bootstrap, **{**SHORT, **options}) as admin:
        admin.describe_cluster()


def all_at_once(*calls: Callable[[], Any], within_s: float = BOUND_S) -> list[klamm.ClientError | None]:
    """The failures of several clients, which wait at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(failure_of, call, within_s) for call in calls]]
