"""A member of a group that works in sessions, one worker per claim: tasks with asyncio, threads without."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from klamm.client.results import Record, TopicPartition
from tests.client.faces import AioFace, Bridge, Face
from tests.waiting import wait_until

LOOK_S = 0.01


class SessionMember:
    """Runs `sessions()` in a thread until it is closed, and writes down what its workers did.

    While `gate` is closed, workers stay with the record they have.
    """

    def __init__(self, face: Face, consumer: Any, **how: Any) -> None:
        self.claims: set[TopicPartition] = set()
        self.session_count = 0
        self.has_begun = False
        """Whether it is in `sessions()`, or just about to be."""
        self.started: list[Record] = []
        self.finished: list[Record] = []
        self.gate = threading.Event()
        self.gate.set()
        self._face = face
        self._consumer = consumer
        self._how = how
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="session-member")
        self._thread.start()

    def _run(self) -> None:
        try:
            if isinstance(self._face, AioFace):
                assert isinstance(self._consumer, Bridge)
                self._face.run(self._work_in_tasks(self._consumer.target))
            else:
                self._work_in_threads()
        except BaseException as failure:
            self._failure = failure

    # ---- asyncio

    async def _work_in_tasks(self, consumer: Any) -> None:
        sessions = consumer.sessions(**self._how)
        self.has_begun = True
        async for session in sessions:
            async with session, asyncio.TaskGroup() as tasks:
                self._begin(session)
                for claim in session.claims:
                    tasks.create_task(self._task(claim))

    async def _task(self, claim: Any) -> None:
        async for record in claim:
            self.started.append(record)
            while not self.gate.is_set():  # noqa: ASYNC110 - it is a thread's, as the test is none of this loop
                await asyncio.sleep(LOOK_S)
            self.finished.append(record)

    # ---- threads

    def _work_in_threads(self) -> None:
        sessions = self._consumer.sessions(**self._how)
        self.has_begun = True
        for session in sessions:
            with session, ThreadPoolExecutor(len(session.claims) or 1) as workers:
                self._begin(session)
                for claim in session.claims:
                    workers.submit(self._worker, claim)

    def _worker(self, claim: Any) -> None:
        is_cancelling = self._how.get("on_revoke") == "cancel"
        for record in claim:
            self.started.append(record)
            while not self.gate.wait(LOOK_S):
                # A thread cannot be cancelled, it has to look.
                if claim.ended and is_cancelling:
                    return
            self.finished.append(record)

    # ---- for the test

    def _begin(self, session: Any) -> None:
        self.claims = {claim.topic_partition for claim in session.claims}
        self.session_count += 1

    def checked(self, condition: object) -> object:
        if self._failure is not None:
            raise AssertionError(f"a member failed: {self._failure!r}") from self._failure
        return condition

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self.checked(len(self.finished) >= count), f"{count} records are worked off")

    def close(self) -> None:
        self.gate.set()
        self._consumer.close()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the sessions do not end when the consumer is closed"
        self.checked(True)
