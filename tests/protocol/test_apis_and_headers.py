"""The table of APIs, and the headers that go before messages."""

from __future__ import annotations

import io

import pytest
from kio.schema.request_header.v2.header import RequestHeader as KioRequestHeaderV2
from kio.serial import entity_reader, entity_writer

from klamm.protocol.apis import API_VERSIONS, ApiKey, response_header_version
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.framing import SIZE_BYTES, FrameReader, frame_size
from klamm.protocol.headers import (
    encode_request_frame,
    encode_request_header,
    encode_response_frame,
    parse_request_header,
    parse_response_header,
)
from klamm.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from klamm.protocol.messages.k18_api_versions import ApiVersionsResponse


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.title)
def test_table_agrees_with_the_declarations(key: ApiKey) -> None:
    spec = API_VERSIONS[key]
    assert spec.request.__name__ == f"{key.title}Request"
    assert spec.response.__name__ == f"{key.title}Response"
    for message in (spec.request, spec.response):
        assert message.__api_key__ == key
        assert spec.max_version in message.__valid_versions__
        flexible = message.__flexible_versions__
        assert (flexible.first if flexible.first <= flexible.last else None) == spec.flexible_since


def test_advertised_is_not_always_accepted() -> None:
    produce = API_VERSIONS[ApiKey.PRODUCE]
    assert (produce.min_version, produce.max_version) == (0, 13)
    assert produce.accepted == (3, 13)
    assert API_VERSIONS[ApiKey.INIT_PRODUCER_ID].accepted == (0, 5)
    assert 6 in API_VERSIONS[ApiKey.INIT_PRODUCER_ID].request.__valid_versions__


def test_inter_broker_apis_are_not_for_clients() -> None:
    between_brokers = {key for key, spec in API_VERSIONS.items() if spec.is_inter_broker}
    assert between_brokers == {4, 5, 6, 7, 56, 58, 67, 73}


def test_header_versions() -> None:
    assert [response_header_version(ApiKey.PRODUCE, version) for version in (8, 9)] == [0, 1]
    assert [response_header_version(ApiKey.API_VERSIONS, version) for version in range(5)] == [0] * 5


@pytest.mark.parametrize(
    ("key", "version", "has_tags"),
    [
        (ApiKey.PRODUCE, 8, False),
        (ApiKey.PRODUCE, 9, True),
        (ApiKey.API_VERSIONS, 3, True),
        (ApiKey.OFFSET_DELETE, 0, False),
    ],
)
def test_requests_of_flexible_versions_have_tags_in_their_header(
    key: ApiKey, version: int, has_tags: bool
) -> None:
    assert len(encode_request_header(key, version, 1, None)) == (11 if has_tags else 10)


@pytest.mark.parametrize("client_id", [None, "", "client-ü"])
@pytest.mark.parametrize("version", [8, 9])
def test_request_header_round_trip(version: int, client_id: str | None) -> None:
    header = encode_request_header(ApiKey.PRODUCE, version, 77, client_id)
    assert parse_request_header(memoryview(header + b"body")) == (0, version, 77, client_id, len(header))


def test_request_header_agrees_with_kio() -> None:
    ours = encode_request_header(ApiKey.PRODUCE, 9, 77, "someone")
    theirs, size = entity_reader(KioRequestHeaderV2)(ours, 0)
    assert (theirs.request_api_key, theirs.request_api_version, theirs.correlation_id) == (0, 9, 77)
    assert (theirs.client_id, size) == ("someone", len(ours))
    with io.BytesIO() as output:
        entity_writer(KioRequestHeaderV2)(output, theirs)
        assert output.getvalue() == ours


def test_tagged_fields_of_headers_are_skipped() -> None:
    header = encode_request_header(ApiKey.PRODUCE, 9, 1, "c")[:-1] + b"\x01\x05\x02xx"
    assert parse_request_header(header + b"body")[-1] == len(header)
    assert parse_response_header(0, 9, b"\x00\x00\x00\x07\x01\x05\x02xxbody") == (7, 9)


def test_request_of_an_unknown_api() -> None:
    assert parse_request_header(b"\x03\xe7\x00\x01\x00\x00\x00\x02\xff\xff")[:4] == (999, 1, 2, None)


@pytest.mark.parametrize(
    "header",
    [
        *(encode_request_header(ApiKey.PRODUCE, 9, 1, "client")[:size] for size in range(17)),
        b"\x00\x00\x00\x09\x00\x00\x00\x01\xff\xfe",
        b"\x00\x00\x00\x09\x00\x00\x00\x01\x00\x01\xff\x00",
        b"\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff\x01\x05\x09xx",
    ],
)
def test_malformed_request_headers(header: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_request_header(header)


def test_malformed_response_headers() -> None:
    for header in (b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x80"):
        with pytest.raises(MalformedMessage):
            parse_response_header(ApiKey.PRODUCE, 9, header)


@pytest.mark.parametrize("version", [8, 9])
def test_response_frame(version: int) -> None:
    response = ProduceResponse(responses=[TopicProduceResponse(name="t")])
    (frame,) = encode_response_frame(ApiKey.PRODUCE, version, 5, response)
    assert frame_size(frame) == len(frame) - SIZE_BYTES
    header = b"\x00\x00\x00\x05" if version == 8 else b"\x00\x00\x00\x05\x00"
    assert frame[SIZE_BYTES:] == header + encode(response, version)
    assert parse_response_header(ApiKey.PRODUCE, version, frame[SIZE_BYTES:])[0] == 5


def test_api_versions_response_frame_has_the_old_header() -> None:
    (frame,) = encode_response_frame(ApiKey.API_VERSIONS, 3, 5, ApiVersionsResponse())
    assert frame[SIZE_BYTES:] == b"\x00\x00\x00\x05" + encode(ApiVersionsResponse(), 3)


def test_request_frame() -> None:
    partition = PartitionProduceData(records=b"batch")
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[partition])])
    chunks = encode_request_frame(ApiKey.PRODUCE, 9, 3, "c", request)
    assert b"batch" in chunks
    (frame,) = FrameReader().feed(b"".join(chunks))
    offset = parse_request_header(frame)[-1]
    assert decode(ProduceRequest, 9, frame, offset) == (request, len(frame))
