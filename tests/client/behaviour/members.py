"""A member of a group at work: a consumer in a thread that polls until it is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from klamm.client.results import Record, TopicPartition
from tests.waiting import wait_until

POLL_S = 0.05


class Member:
    """Polls, remembers what it got, and does between two polls what it is asked to do."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.records: list[Record] = []
        self.assignment: set[TopicPartition] = set()
        self._stopping = threading.Event()
        self._errands: list[Callable[[Any], None]] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="member")
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.records += self.consumer.poll(timeout=POLL_S)
                self.assignment = set(self.consumer.assignment())
                while self._errands:
                    self._errands.pop(0)(self.consumer)
        except BaseException as failure:
            self._failure = failure

    def ask(self, errand: Callable[[Any], None]) -> None:
        """Have the member's own thread do something, since a consumer is one thread's."""
        done = threading.Event()

        def run(consumer: Any) -> None:
            errand(consumer)
            done.set()

        self._errands.append(run)
        wait_until(lambda: self._checked(done.is_set()), "the member did as asked")

    def _checked(self, condition: bool) -> bool:
        if self._failure is not None:
            raise AssertionError(f"a member failed: {self._failure!r}") from self._failure
        return condition

    def stop(self) -> None:
        """Stop polling; the consumer stays open."""
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a member hangs"
        self._checked(True)

    def close(self) -> None:
        self.stop()
        self.consumer.close()

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self._checked(len(self.records) >= count), f"{count} records came")

    def wait_for_assignment(self, size: int) -> None:
        wait_until(lambda: self._checked(len(self.assignment) == size), f"{size} partitions are assigned")


def share(members: Collection[Member], partitions: set[TopicPartition]) -> None:
    """Wait until the members own the partitions together, each one once."""

    def is_shared() -> bool:
        owned = [one for member in members for one in member.assignment]
        for member in members:
            member._checked(True)
        return (
            len(owned) == len(partitions) and set(owned) == partitions and all(m.assignment for m in members)
        )

    wait_until(is_shared, f"{len(members)} members share {len(partitions)} partitions")
