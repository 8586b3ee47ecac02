"""Makes the topics and the log files that pipelines are measured with."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import klamm
from bench.peers import Broker

PARTITION_COUNT = 6
CHUNK_ROWS = 10_000
CHUNKS_UNDER_WAY = 8
DISTINCT_LINES = 20_000
ORDER_CHUNK_ROWS = 1_000
BAD_EVERY = 100
"""One order in so many breaks the rule of the pipelines."""
DELIVERY_SECONDS = 60.0


def bootstrap(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def fill(broker: Broker, topic: str, rows: int, size: int) -> None:
    """Random values of one size, without keys, evenly over the partitions."""
    import pyarrow

    data = os.urandom(CHUNK_ROWS * size)
    values = pyarrow.array([data[at : at + size] for at in range(0, len(data), size)], pyarrow.binary())
    chunks = [
        pyarrow.record_batch(
            {"value": values, "partition": pyarrow.array([number] * CHUNK_ROWS, pyarrow.int32())}
        )
        for number in range(PARTITION_COUNT)
    ]
    with klamm.Producer(bootstrap(broker)) as producer:
        deliveries = []
        for number in range(rows // CHUNK_ROWS):
            chunk = chunks[number % PARTITION_COUNT]
            deliveries.append(producer.send_arrow(chunk, topic, value="value", partition="partition"))
            if len(deliveries) > CHUNKS_UNDER_WAY:
                deliveries.pop(0).result(DELIVERY_SECONDS)
        for delivery in deliveries:
            delivery.result(DELIVERY_SECONDS)


def fill_orders(broker: Broker, topic: str, rows: int, partitions: int = PARTITION_COUNT) -> int:
    """Orders as JSON, about 140 bytes each, of which one in BAD_EVERY has a negative amount. Evenly over
    the partitions of the topic. Returns how many bytes they have."""
    import pyarrow

    chance = random.Random(7)
    orders = [_order(chance, number) for number in range(ORDER_CHUNK_ROWS)]
    size = sum(map(len, orders)) * (rows // ORDER_CHUNK_ROWS)
    with klamm.Producer(bootstrap(broker)) as producer:
        deliveries = []
        for number in range(rows // ORDER_CHUNK_ROWS):
            chunk = pyarrow.record_batch(
                {
                    "value": pyarrow.array(orders, pyarrow.binary()),
                    "partition": pyarrow.array([number % partitions] * ORDER_CHUNK_ROWS, pyarrow.int32()),
                }
            )
            deliveries.append(producer.send_arrow(chunk, topic, value="value", partition="partition"))
        for delivery in deliveries:
            delivery.result(DELIVERY_SECONDS)
    return size


def _order(chance: random.Random, number: int) -> bytes:
    amount = -1.0 if number % BAD_EVERY == 0 else chance.randrange(100, 9999) / 100
    order = {
        "order_id": f"o-{number:06d}",
        "customer": f"customer-{chance.randrange(1000):03d}",
        "item": chance.choice(("tea", "lamp", "map", "boots", "kettle")),
        "quantity": chance.randrange(1, 6),
        "amount": amount,
        "at": f"2026-11-16T04:{chance.randrange(60):02d}:{chance.randrange(60):02d}.554Z",
    }
    return json.dumps(order).encode()


def record_count(broker: Broker, topic: str) -> int:
    places = [(topic, number) for number in range(PARTITION_COUNT)]
    with klamm.Consumer(bootstrap=bootstrap(broker)) as consumer:
        return sum(consumer.end_offsets(places).values())


def write_log(path: Path, size: int) -> int:
    """Write the log of a web server, of about this size in bytes; returns how many lines it has."""
    chance = random.Random(5)
    lines = [_line(chance) for _ in range(DISTINCT_LINES)]
    block = b"".join(lines)
    repeats = max(1, size // len(block))
    with path.open("wb") as file:
        for _ in range(repeats):
            file.write(block)
    return repeats * DISTINCT_LINES


def _line(chance: random.Random) -> bytes:
    address = ".".join(str(chance.randrange(256)) for _ in range(4))
    second, ms = chance.randrange(60), chance.randrange(1000)
    path = "/".join(chance.choice(("shop", "cart", "api", "static", "search", "item")) for _ in range(3))
    text = (
        f"{address} - - [16/Nov/2026:04:{second:02d}:{second:02d}.{ms:03d} +0000] "
        f'"GET /{path}/{chance.randrange(10**9)} HTTP/1.1" {chance.choice((200, 200, 200, 304, 404))} '
        f'{chance.randrange(100_000)} "https://shop.example/{path}" '
        f'"Mozilla/5.0 (X11; Linux x86_64; rv:{chance.randrange(90, 130)}.0) Gecko/20100101" {ms / 1000}\n'
    )
    return text.encode()
