"""What tests of ingest need around a tail: topics to send to, what arrived in them, and tails to run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow

import klamm
from klamm.ingest.progress import Progress
from klamm.ingest.session import TailSession
from klamm.ingest.tail import TailOptions
from tests.waiting import wait_until

PATIENCE_S = 20.0


def make_topic(bootstrap: str, topic: str, partitions: int = 3) -> str:
    with klamm.Admin(bootstrap) as admin:
        admin.create_topics([klamm.NewTopic(topic, partitions=partitions)])
    return topic


def end_offsets(bootstrap: str, topic: str) -> int:
    """How many records the topic has."""
    with klamm.Consumer(bootstrap) as consumer:
        partitions = [(topic, number) for number in consumer.partitions_for(topic)]
        return sum(consumer.end_offsets(partitions).values())


def wait_for_more(bootstrap: str, topic: str, count: int) -> None:
    """Wait until the topic has more than `count` records."""
    with klamm.Consumer(bootstrap) as consumer:
        partitions = [(topic, number) for number in consumer.partitions_for(topic)]
        wait_until(
            lambda: sum(consumer.end_offsets(partitions).values()) > count, f"over {count} records in {topic}"
        )


def records(bootstrap: str, topic: str) -> Any:
    """All that the topic has, as a table; the records of each partition in their order."""
    with klamm.Consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, number) for number in consumer.partitions_for(topic)])
        ends = consumer.end_offsets(consumer.assignment())
        batches = [consumer.poll_arrow(timeout=0.0)]
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            batches.append(consumer.poll_arrow(timeout=1.0))
    return pyarrow.Table.from_batches(batches).combine_chunks()


def values(bootstrap: str, topic: str) -> list[bytes]:
    return records(bootstrap, topic).column("value").to_pylist()


class Tails:
    """Tails of files below one folder into one topic."""

    def __init__(self, bootstrap: str, topic: str, folder: Path, **producer_options: object) -> None:
        self.bootstrap = bootstrap
        self.producer_options = producer_options
        self.topic = topic
        self.folder = folder
        self.said: list[str] = []

    def session(self, *patterns: str, **options: Any) -> TailSession:
        chosen = {"poll_interval_s": 0.01, "scan_interval_s": 0.05, **options}
        paths = [str(self.folder / pattern) for pattern in patterns or ("*.log",)]
        return TailSession(
            TailOptions(paths, **chosen),
            self.topic,
            self.bootstrap,
            state=self.folder / "state",
            producer_options=self.producer_options,
            report=self.said.append,
        )

    def once(self, *patterns: str, **options: Any) -> Progress:
        """Read to the end of the files."""
        with self.session(*patterns, once=True, **options) as session:
            return session.run(threading.Event())

    @contextmanager
    def following(self, *patterns: str, **options: Any) -> Iterator[TailSession]:
        """Follow files in a thread until the block ends; what goes wrong there is raised."""
        failures: list[BaseException] = []
        stop = threading.Event()
        with self.session(*patterns, **options) as session:

            def body() -> None:
                try:
                    session.run(stop)
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=body)
            thread.start()
            try:
                yield session
            finally:
                stop.set()
                thread.join(PATIENCE_S)
        assert not thread.is_alive()
        if failures:
            raise failures[0]

    def wait_for(self, count: int) -> None:
        wait_for_more(self.bootstrap, self.topic, count - 1)

    def values(self) -> list[bytes]:
        return values(self.bootstrap, self.topic)
