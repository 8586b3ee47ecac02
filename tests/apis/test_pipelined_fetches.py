"""A client may send the next fetch of its session before the one that waits is answered."""

from __future__ import annotations

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.testing import Broker
from klamm.testing.wire import WireConnection

VERSION = 12
AN_HOUR_MS = 3_600_000


def fetch(session_id: int, epoch: int, *partitions: int, max_wait_ms: int = AN_HOUR_MS) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1_000_000,
        topics=[
            FetchTopic(
                topic="t",
                partitions=[
                    FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1_000_000)
                    for each in partitions
                ],
            )
        ]
        if partitions
        else [],
    )


def test_each_request_has_the_one_before_answered() -> None:
    with Broker() as broker, WireConnection(broker.bootstrap) as wire:
        topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        session_id = wire.call(fetch(0, 0, 0, max_wait_ms=0), VERSION).session_id
        assert session_id
        wire.send(fetch(session_id, 1), VERSION)
        for epoch in range(2, 12):  # some of them take the short way, and one adds a partition
            wire.send(fetch(session_id, epoch, *([1] if epoch == 6 else [])), VERSION)
            answer = wire.receive()
            assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, session_id)
            assert [part.partition_index for each in answer.responses for part in each.partitions] == (
                [1] if epoch == 7 else []
            )
        wire.send(fetch(session_id, 99), VERSION)
        assert wire.receive().error_code == ErrorCode.NONE
        assert wire.receive().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
