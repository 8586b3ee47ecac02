"""A follower that was away returns: how fast it copies what was written meanwhile.

Broker 3 follows six partitions that the other two lead. It is stopped, records of 1 KB in batches of 64 KB
are written, and it is started again. The time runs from the moment its files grow to the moment it is in
sync everywhere, so the start of the process does not count. The machine's figure is a copy of the same files,
those of the leaders, at a moment when a follower could return: read, sent over loopback as one stream, and
appended to one file. On a virtual machine both depend on memory that the host has not taken back, see
`HeldMemory`.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator

from bench import load, machine, processes, wire
from bench.cluster.brokers import IDS, LOOK_SECONDS, Cluster, topic, wait_for
from bench.cluster.leading import ACKS_ALL
from bench.peers import READY_TIMEOUT_SECONDS, BrokerFailed
from bench.raw_produce import batch_of
from bench.runner import Figures

BYTES = 1_200_000_000
QUICK_BYTES = 300_000_000
CASE = "catch-up of a follower that returns"
RETURNS = 3
ASSIGNMENT = [[1, 2, RETURNS], [2, 1, RETURNS]] * 3
RECORDS_A_BATCH = 60
FILL_DEPTH = 8
FILL_SECONDS = 120.0
SELDOM_SECONDS = 0.02
"""Between two looks whether the follower is in sync: each takes time from the brokers, none from the copy."""


@contextlib.contextmanager
def behind(cluster: Cluster, size: int) -> Iterator[tuple[str, processes.HeldMemory]]:
    """Broker 3 is stopped and lacks `size` bytes of a topic, which the others have in the page cache and on
    the disk. Whoever copies them releases the memory when the copying begins."""
    with topic(cluster, len(ASSIGNMENT), ASSIGNMENT) as name:
        cluster.stop_broker(RETURNS)
        try:
            wait_for(cluster, name, 1, lambda found: all(RETURNS not in state.isr for state in found))
            fill(cluster, name, size)
            os.sync()  # so that what was written before does not slow down the writes that are measured
            memory = processes.HeldMemory(size)
            try:
                yield name, memory
            finally:
                memory.release()
        finally:
            if RETURNS not in cluster.running:
                cluster.launch(RETURNS)
            cluster.wait_for_answer(RETURNS)


def measure(cluster: Cluster, size: int) -> Figures:
    with behind(cluster, size) as (name, memory):
        before = written_bytes(cluster, name, RETURNS)
        missing = written_bytes(cluster, name, 1) - before
        cluster.launch(RETURNS)
        launched = time.perf_counter()
        while written_bytes(cluster, name, RETURNS) == before:
            if time.perf_counter() - launched > READY_TIMEOUT_SECONDS:
                raise BrokerFailed(f"the broker of {cluster.name} that returned fetches nothing")
            time.sleep(LOOK_SECONDS)
        growing = time.perf_counter()
        memory.release()
        wait_for(
            cluster,
            name,
            1,
            lambda found: all(len(state.isr) == len(IDS) for state in found),
            look_seconds=SELDOM_SECONDS,
        )
        done = time.perf_counter()
    return {
        "MB/s": missing / (done - growing) / 1e6,
        "from the start of the process s": done - launched,
    }


def fill(cluster: Cluster, name: str, size: int) -> None:
    exchange = wire.produce_exchange(name, batch_of(RECORDS_A_BATCH, 1024), RECORDS_A_BATCH, ACKS_ALL)
    for partition, (leader, *_) in enumerate(ASSIGNMENT):
        request = bytearray(exchange.request)
        struct.pack_into(">i", request, exchange.partition_offset, partition)
        budget = load.Budget(FILL_SECONDS, size // len(ASSIGNMENT))
        with load.connect(cluster.ports[leader]) as connection:
            load.produce_pipelined(connection, exchange._replace(request=bytes(request)), FILL_DEPTH, budget)


def written_bytes(cluster: Cluster, name: str, broker_id: int) -> int:
    return sum(file.stat().st_size for file in cluster.data_dir(broker_id).glob(f"{name}-*/*.log"))


def measure_copy(cluster: Cluster, size: int) -> Figures:
    with behind(cluster, size) as (name, memory):
        files = [
            file
            for partition, (leader, *_) in enumerate(ASSIGNMENT)
            for file in sorted(cluster.data_dir(leader).glob(f"{name}-{partition}/*.log"))
        ]
        memory.release()
        return {"MB/s": machine.loopback_copy_of(files, cluster.directory / "copy")}
