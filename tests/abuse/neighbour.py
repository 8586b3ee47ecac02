"""A well-behaved client beside the abusive ones: what it does must work, in time, and nothing may be lost."""

from __future__ import annotations

import itertools
import threading
import time

from klamm.model.errors import ErrorCode
from klamm.testing.wire import WireConnection
from tests.abuse.calls import batch_of, create_topic, fetch, produce, read_all, values_of

LARGE_VALUE_BYTES = 200_000
"""Some of its requests are too long for the buffer that all connections share."""
LARGE_EVERY = 10
PACE_S = 0.005


class Neighbour:
    """Produces numbered records and reads each one back, again and again, in a thread."""

    def __init__(self, bootstrap: str, topic: str = "neighbour") -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._acknowledged: list[bytes] = []
        self._offsets: list[int] = []
        self._checked_count = 0
        """Records that were read again already."""
        self._stop = threading.Event()
        self._is_at_work = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.slowest_s = 0.0
        with WireConnection(bootstrap, client_id="neighbour") as connection:
            create_topic(connection, topic)

    def __enter__(self) -> Neighbour:
        self._stop.clear()
        self._is_at_work.clear()
        self.slowest_s = 0.0
        self._thread = threading.Thread(target=self._run, name="neighbour", daemon=True)
        self._thread.start()
        assert self._is_at_work.wait(60), "the neighbour does not get an answer"
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the neighbour waits for an answer"
        if self._failure is not None:
            raise AssertionError(f"the neighbour was disturbed: {self._failure!r}") from self._failure

    def _run(self) -> None:
        try:
            with WireConnection(self._bootstrap, client_id="neighbour") as connection:
                while not self._stop.wait(PACE_S):
                    started = time.monotonic()
                    self.produce_and_fetch(connection)
                    self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                    self._is_at_work.set()
        except BaseException as failure:
            self._failure = failure
            self._is_at_work.set()

    def produce_and_fetch(self, connection: WireConnection) -> None:
        number = len(self._acknowledged)
        value = b"%d " % number
        if number % LARGE_EVERY == 0:
            value = value.ljust(LARGE_VALUE_BYTES, b".")
        answer = produce(connection, self._topic, batch_of(value))
        assert answer.error_code == ErrorCode.NONE, f"{answer.error_code} {answer.error_message}"
        self._acknowledged.append(value)
        self._offsets.append(answer.base_offset)
        data = fetch(connection, self._topic, answer.base_offset)
        assert data.error_code == ErrorCode.NONE
        assert value in bytes(data.records)

    def check(self) -> None:
        """A new connection is served, and every record that was acknowledged since the last check is there,
        in order, once."""
        first = self._checked_count
        with WireConnection(self._bootstrap, client_id="neighbour") as connection:
            self.produce_and_fetch(connection)
            self._check_from(connection, first)
        self._checked_count = len(self._acknowledged)

    def check_all(self) -> None:
        """Every acknowledged record is there, in order, once."""
        with WireConnection(self._bootstrap, client_id="neighbour") as connection:
            self._check_from(connection, 0)
        assert all(earlier < later for earlier, later in itertools.pairwise(self._offsets))

    def _check_from(self, connection: WireConnection, first: int) -> None:
        offset = self._offsets[first] if first < len(self._offsets) else 0
        assert values_of(read_all(connection, self._topic, offset=offset)) == self._acknowledged[first:]
