"""Encoders beyond bytes: record sets as chunks of their own, and refusal of what a version cannot carry."""

from __future__ import annotations

import subprocess
import sys

import pytest

from klamm.protocol.codec import decode, encode, encode_chunks
from klamm.protocol.errors import UnencodableMessage
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k01_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest


class FileRange:
    """Stands for a part of a file: it has a length, and its bytes are never asked for."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_record_sets_are_passed_on_untouched(version: int) -> None:
    ranges = [FileRange(300), FileRange(0), FileRange(70_000)]
    partitions = [PartitionData(partition_index=index, records=each) for index, each in enumerate(ranges)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    chunks = encode_chunks(response, version)
    assert [chunk for chunk in chunks if not isinstance(chunk, bytes)] == [ranges[0], ranges[2]]

    sent = b"".join(chunk if isinstance(chunk, bytes) else b"r" * len(chunk) for chunk in chunks)
    decoded, end = decode(FetchResponse, version, memoryview(sent))
    assert end == len(sent)
    assert [bytes(each.records or b"") for each in decoded.responses[0].partitions] == [
        b"r" * 300,
        b"",
        b"r" * 70_000,
    ]


def test_decoded_record_sets_are_slices_of_the_input() -> None:
    partition = PartitionProduceData(index=1, records=b"batch")
    request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[partition])])
    buffer = bytearray(encode(request, 9))
    records = decode(ProduceRequest, 9, memoryview(buffer))[0].topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview) and not records.readonly
    records[0:1] = b"B"
    assert b"Batch" in buffer


def test_fields_that_a_version_lacks() -> None:
    with pytest.raises(UnencodableMessage, match="FetchRequest v14 has no field replica_state"):
        encode(FetchRequest(replica_state=ReplicaState(replica_id=1)), 14)
    with pytest.raises(UnencodableMessage, match="FetchRequest v15 has no field replica_id"):
        encode(FetchRequest(replica_id=1), 15)
    with pytest.raises(UnencodableMessage, match="FindCoordinatorRequest v3 has no field coordinator_keys"):
        encode(FindCoordinatorRequest(key="g", coordinator_keys=["g"]), 3)
    assert decode(FetchRequest, 4, encode(FetchRequest(rack_id="ignorable"), 4))[0].rack_id == ""


def test_null_where_a_version_has_none() -> None:
    with pytest.raises(UnencodableMessage, match="MetadataRequest v0"):
        encode(MetadataRequest(topics=None), 0)
    with pytest.raises(UnencodableMessage, match="MetadataResponse v9"):
        encode(MetadataResponse(topics=[MetadataResponseTopic(name=None)]), 9)


def test_values_out_of_range() -> None:
    with pytest.raises(UnencodableMessage, match="ProduceRequest v9"):
        encode(ProduceRequest(acks=2**15), 9)
    with pytest.raises(UnencodableMessage, match="ProduceRequest v3"):
        encode(ProduceRequest(transactional_id="x" * 2**15), 3)
    with pytest.raises(UnencodableMessage, match="ProduceRequest has no version 14"):
        encode(ProduceRequest(), 14)


def test_long_compact_lengths() -> None:
    name = "n" * 20_000
    request = ProduceRequest(topic_data=[TopicProduceData(name=name) for _ in range(200)])
    assert decode(ProduceRequest, 9, encode(request, 9))[0] == request


def test_structs_behave_as_values() -> None:
    first, second = ProduceRequest(acks=1), ProduceRequest(acks=1)
    assert first == second and first != ProduceRequest(acks=0) and first != FetchRequest()
    assert repr(ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t")])) == (
        "ProduceRequest(acks=1, topic_data=[TopicProduceData(name='t')])"
    )
    assert first.topic_data is not second.topic_data, "defaults that can change are not shared"
    with pytest.raises(TypeError, match="ack"):
        ProduceRequest(ack=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        first.ack = 1  # type: ignore[attr-defined]


def test_importing_declarations_compiles_nothing() -> None:
    """The start of a broker pays for the versions that its clients speak, not for all."""
    program = (
        "from klamm.protocol.messages import k00_produce as k; import sys;"
        "assert not k.ProduceRequest.__decoders__ and '__init__' not in vars(k.ProduceRequest);"
        "assert 'asyncio' not in sys.modules and 'dataclasses' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
