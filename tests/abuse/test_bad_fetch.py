"""Fetches that ask for what is not there, or have lost track of their session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k01_fetch import FetchResponse
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from klamm.protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from klamm.testing.wire import WireConnection
from tests.abuse.calls import NAMES_FETCH_VERSION, batch_of, create_topic, fetch, fetch_request, produce
from tests.abuse.conftest import Abused


@pytest.fixture
def connection(abused: Abused) -> Iterator[WireConnection]:
    with abused.connect() as made:
        yield made


@pytest.fixture
def topic(connection: WireConnection, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own with three records."""
    name = "fetch-" + request.node.name.replace("[", "-").replace("]", "")
    create_topic(connection, name)
    produce(connection, name, batch_of(b"a", b"b", b"c"))
    return name


@pytest.fixture
def topic_id(connection: WireConnection, request: pytest.FixtureRequest) -> bytes:
    return create_topic(connection, "fetch-by-id-" + request.node.name.replace("[", "-").replace("]", ""))


@pytest.mark.parametrize("offset", [-1, -(2**63), 4, 2**62, 2**63 - 1])
def test_offsets_out_of_range(connection: WireConnection, topic: str, offset: int) -> None:
    data = fetch(connection, topic, offset, max_wait_ms=60_000)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert not data.records


def test_the_end_is_no_error(connection: WireConnection, topic: str) -> None:
    data = fetch(connection, topic, 3)
    assert (data.error_code, data.high_watermark) == (ErrorCode.NONE, 3)
    assert data.records is not None and len(data.records) == 0


@pytest.mark.parametrize("partition", [1, -1, 2**31 - 1])
def test_partitions_nobody_has(connection: WireConnection, topic: str, partition: int) -> None:
    assert fetch(connection, topic, 0, partition=partition).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(connection, "no-" + topic, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topic_ids_nobody_has(connection: WireConnection) -> None:
    for topic_id in (bytes(16), b"\x42" * 16):
        assert fetch(connection, topic_id, 0).error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("epoch", "code"), [(1, ErrorCode.UNKNOWN_LEADER_EPOCH), (2**31 - 1, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_leader_epochs_of_the_future(
    connection: WireConnection, topic: str, epoch: int, code: ErrorCode
) -> None:
    assert fetch(connection, topic, 0, leader_epoch=epoch).error_code == code
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=epoch)
    listing = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    assert connection.call(listing).topics[0].partitions[0].error_code == code
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=0)
    ending = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])])
    assert connection.call(ending).topics[0].partitions[0].error_code == code


@pytest.mark.parametrize("epoch", [-2, -(2**31)])
def test_leader_epochs_of_the_past(connection: WireConnection, topic: str, epoch: int) -> None:
    assert fetch(connection, topic, 0, leader_epoch=epoch).error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("max_bytes", [0, -1, -(2**31), 1])
def test_limits_too_small_for_anything(connection: WireConnection, topic: str, max_bytes: int) -> None:
    """A consumer must get on, whatever its limit: the first batch comes whole."""
    assert len(fetch(connection, topic, 0, max_bytes=max_bytes).records or b"") > 1


def test_more_than_an_answer_may_hold_is_not_waited_for(connection: WireConnection, topic: str) -> None:
    request = fetch_request(topic, 0, max_wait_ms=60_000, min_bytes=2**31 - 1, max_bytes=50)
    assert connection.call(request, NAMES_FETCH_VERSION).responses[0].partitions[0].records


# ---- sessions


def call(
    connection: WireConnection,
    topic: str | bytes,
    session_id: int,
    session_epoch: int,
    version: int | None = None,
    offset: int = 0,
) -> FetchResponse:
    request = fetch_request(topic, offset, session_id=session_id, session_epoch=session_epoch)
    if version is None:
        version = NAMES_FETCH_VERSION if isinstance(topic, str) else 18
    response: FetchResponse = connection.call(request, version)
    return response


def test_sessions_nobody_has(connection: WireConnection, topic: str) -> None:
    for session_id, epoch in ((1, 1), (2**31 - 1, 5), (-1, 1)):
        response = call(connection, topic, session_id, epoch)
        assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert response.responses == []


def test_epochs_out_of_turn(connection: WireConnection, topic: str) -> None:
    session_id = call(connection, topic, 0, 0).session_id
    assert session_id != 0
    for epoch in (2, 5, 2**31 - 1):
        assert call(connection, topic, session_id, epoch).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert call(connection, topic, session_id, 1).error_code == ErrorCode.NONE
    assert call(connection, topic, session_id, 1).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert call(connection, topic, session_id, 2).error_code == ErrorCode.NONE


def test_names_and_ids_do_not_mix(connection: WireConnection, topic: str, topic_id: bytes) -> None:
    by_name = call(connection, topic, 0, 0).session_id
    by_id = call(connection, topic_id, 0, 0).session_id
    assert call(connection, topic_id, by_name, 1).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert call(connection, topic, by_id, 1).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_closed_session_is_gone(connection: WireConnection, topic: str) -> None:
    session_id = call(connection, topic, 0, 0).session_id
    assert call(connection, topic, session_id, -1).error_code == ErrorCode.NONE
    assert call(connection, topic, session_id, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_sessions_without_end(abused: Abused, topic: str) -> None:
    """A client takes all the sessions there are. The others fetch without one, until it leaves."""
    with abused.connect() as greedy:
        for _ in range(1500):
            greedy.send(fetch_request(topic, 0, session_id=0, session_epoch=0), NAMES_FETCH_VERSION)
        ids = [greedy.receive().session_id for _ in range(1500)]
        assert len([session_id for session_id in ids if session_id]) <= 1000
        with abused.connect() as modest:
            response = call(modest, topic, 0, 0)
            assert response.error_code == ErrorCode.NONE
            assert response.responses[0].partitions[0].records
    with abused.connect() as later:
        assert call(later, topic, 0, 0).session_id != 0
