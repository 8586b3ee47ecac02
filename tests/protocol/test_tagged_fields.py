"""Tagged fields: unknown ones are passed over, known ones are written in order and only when set."""

from __future__ import annotations

import pytest

from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.messages.k00_produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.protocol.messages.k01_fetch import FetchRequest, ReplicaState
from klamm.protocol.messages.k12_heartbeat import HeartbeatResponse
from klamm.protocol.messages.k18_api_versions import ApiVersionsResponse, FinalizedFeatureKey

HEARTBEAT = bytes(6)  # throttle_time_ms and error_code of HeartbeatResponse v4


def test_unknown_fields_are_skipped_where_none_is_known() -> None:
    encoded = HEARTBEAT + b"\x02" + b"\x07\x03abc" + b"\xac\x02\x00"
    assert decode(HeartbeatResponse, 4, encoded) == (HeartbeatResponse(), len(encoded))


def test_unknown_fields_are_skipped_behind_known_ones() -> None:
    replica_state = b"\x00\x00\x00\x03" + b"\xff" * 8 + b"\x00"
    tags = b"\x03" + b"\x00\x02\x02c" + b"\x01\x0d" + replica_state + b"\x09\x01x"
    encoded = encode(FetchRequest(), 15)[:-1] + tags
    known = FetchRequest(cluster_id="c", replica_state=ReplicaState(replica_id=3))
    assert decode(FetchRequest, 15, encoded) == (known, len(encoded))


def test_more_fields_than_a_byte_counts() -> None:
    tags = b"".join(bytes((tag, 0)) for tag in range(10, 127)) + b"".join(
        bytes((tag & 0x7F | 0x80, tag >> 7, 0)) for tag in range(128, 160)
    )
    encoded = HEARTBEAT + b"\x95\x01" + tags
    assert decode(HeartbeatResponse, 4, encoded) == (HeartbeatResponse(), len(encoded))


def test_fields_at_their_default_are_not_written() -> None:
    assert encode(ApiVersionsResponse(), 3)[-1:] == b"\x00"
    partition = PartitionProduceResponse(current_leader=None)
    silent = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[partition])])
    assert len(encode(silent, 10)) == len(encode(silent, 9))


def test_fields_are_written_in_the_order_of_their_tags() -> None:
    response = ApiVersionsResponse(
        zk_migration_ready=True,
        finalized_features=[FinalizedFeatureKey(name="f", max_version_level=2, min_version_level=1)],
        finalized_features_epoch=5,
    )
    tags = (
        b"\x03"
        + b"\x01\x08"
        + bytes(7)
        + b"\x05"
        + b"\x02\x08\x02\x02f\x00\x02\x00\x01\x00"
        + b"\x03\x01\x01"
    )
    assert encode(response, 3).endswith(tags)
    assert decode(ApiVersionsResponse, 3, encode(response, 3))[0] == response


def test_tagged_structs_and_arrays_come_back() -> None:
    partition = PartitionProduceResponse(
        error_code=6, current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
    )
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="t", partition_responses=[partition])],
        node_endpoints=[NodeEndpoint(node_id=2, host="h" * 200, port=9092)],
    )
    assert decode(ProduceResponse, 10, memoryview(encode(response, 10)))[0] == response


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        (b"\x02\x07\x00\x07\x00", "follows"),
        (b"\x02\x07\x00\x06\x00", "follows"),
        (b"\x01\x07\x05abc", "past the end"),
        (b"\x01\x07", "cut short"),
        (b"\x01\xff\xff\xff\xff\xff\x01\x00", "longer than 5 bytes"),
        (b"\xff\xff\xff\xff\x0f", "150 are allowed"),
    ],
)
def test_malformed_sections(tags: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        decode(HeartbeatResponse, 4, HEARTBEAT + tags)


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        (b"\x01\x03\x02\x01\x00", "zk_migration_ready is not of its stated size"),
        (b"\x01\x03\x00\x01", "zk_migration_ready is not of its stated size"),
        (b"\x02\x03\x01\x01\x03\x01\x01", "out of order"),
        (b"\x01\x03\x09\x01", "past the end"),
    ],
)
def test_malformed_known_fields(tags: bytes, reason: str) -> None:
    body = encode(ApiVersionsResponse(), 3)[:-1]
    with pytest.raises(MalformedMessage, match=reason):
        decode(ApiVersionsResponse, 3, body + tags)
