from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.apis import k01_fetch
from klamm.apis.registry import LATER, Request
from klamm.apis.steps import run
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from klamm.replication import fetch_sessions
from klamm.replication.fetch_sessions import FetchSessions
from tests.replication.partitions import open_partition
from tests.replies import FakeReply


class LargeFetches:
    """Sends requests for two empty partitions, which are handled as large ones."""

    def __init__(self, directory: Path) -> None:
        partitions = [open_partition(directory, "orders", index) for index in range(2)]
        self.sessions = FetchSessions(2, itertools.count(1).__next__)
        self._broker = SimpleNamespace(
            config=SimpleNamespace(int_=lambda key: 1_000_000),
            fetch_sessions=self.sessions,
            partitions=SimpleNamespace(get=lambda topic, index: partitions[index]),
        )

    def send(self, reply: FakeReply) -> Any:
        asked = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in range(2)
        ]
        message = FetchRequest(
            max_wait_ms=60_000,
            min_bytes=1,
            max_bytes=1_000_000,
            session_epoch=-1,
            topics=[FetchTopic(topic="orders", partitions=asked)],
        )
        connection: Any = SimpleNamespace()
        request: Request[FetchRequest] = Request(message, 12, "client", connection, reply, is_large=True)
        is_finished, result = run(k01_fetch.handle(self._broker, request), float("inf"))  # type: ignore[arg-type]
        assert is_finished
        return result


async def test_as_many_partitions_as_are_allowed_are_parked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 3)
    fetches = LargeFetches(tmp_path)
    first, again = FakeReply(), FakeReply()
    assert fetches.send(first) is LATER
    answered = fetches.send(FakeReply())
    assert isinstance(answered, FetchResponse), "it is answered at once, though there is nothing yet"
    first.drop()
    assert fetches.send(again) is LATER, "a parked fetch that is over no longer counts"
    again.drop()
