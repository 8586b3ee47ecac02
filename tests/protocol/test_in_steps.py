"""Codecs in steps do what the others do, and yield meanwhile."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any

import pytest

from klamm.protocol.codec import decode, decode_in_steps, encode, encode_in_steps
from klamm.protocol.compiler import ELEMENTS_PER_STEP
from klamm.protocol.decoder_source import LONGEST_STRING_BYTES, MAX_REQUEST_ELEMENTS
from klamm.protocol.errors import MalformedMessage, TooManyElements
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k15_describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.k18_api_versions import ApiVersionsRequest
from klamm.protocol.messages.k42_delete_groups import DeletableGroupResult, DeleteGroupsResponse
from klamm.protocol.schema import Message
from tests.protocol.catalogue import every_version
from tests.protocol.samples import sample


def run(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    """The result, and how often the generator yielded."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def ignore(byte_count: int) -> None:
    pass


@every_version
def test_the_same_bytes_and_the_same_message(message: type[Message], version: int) -> None:
    original = sample(message, version, Random(7))
    encoded = encode(original, version)
    assert b"".join(run(encode_in_steps(original, version, ignore))[0]) == encoded
    assert run(decode_in_steps(message, version, memoryview(encoded)))[0] == (original, len(encoded))


def test_many_elements_are_many_steps() -> None:
    request = DescribeGroupsRequest(groups=["x"] * 10 * ELEMENTS_PER_STEP)
    encoded = encode(request, 5)
    decoded, steps = run(decode_in_steps(DescribeGroupsRequest, 5, encoded))
    assert decoded[0] == request
    assert steps >= 10
    assert run(encode_in_steps(request, 5, ignore))[1] >= 10


def test_elements_are_counted_in_steps_too() -> None:
    encoded = encode(DescribeGroupsRequest(groups=["x"] * (MAX_REQUEST_ELEMENTS + 1)), 5)
    with pytest.raises(TooManyElements):
        run(decode_in_steps(DescribeGroupsRequest, 5, encoded))
    with pytest.raises(MalformedMessage, match="cut short"):
        run(decode_in_steps(DescribeGroupsRequest, 5, b""))


def test_a_reader_may_allow_fewer_elements() -> None:
    encoded = encode(DescribeGroupsRequest(groups=["x"] * 11), 5)
    assert decode(DescribeGroupsRequest, 5, encoded, max_elements=11)
    with pytest.raises(TooManyElements):
        decode(DescribeGroupsRequest, 5, encoded, max_elements=10)


def test_tagged_fields_count_as_elements() -> None:
    """Each takes as long to pass over as an element takes to read, and an element may have many."""
    topic = encode(MetadataRequest(topics=[MetadataRequestTopic(name="x")]), 12)
    assert topic[-4:] == b"\0\1\0\0", "the tags of the topic, two flags, the tags of the request"
    tags = b"\x64" + b"".join(bytes((tag, 0)) for tag in range(20, 120))
    encoded = topic[:-4] + tags + topic[-3:]
    assert decode(MetadataRequest, 12, encoded, max_elements=101)
    with pytest.raises(TooManyElements):
        decode(MetadataRequest, 12, encoded, max_elements=100)


def test_strings_have_an_end() -> None:
    """A compact string could be as long as the frame; Kafka reads none longer than 32,767 bytes."""
    longest = ApiVersionsRequest(client_software_name="x" * LONGEST_STRING_BYTES, client_software_version="1")
    encoded = encode(longest, 3)
    assert decode(ApiVersionsRequest, 3, encoded)[0] == longest
    longest.client_software_name += "x"
    with pytest.raises(MalformedMessage, match="longer than 32767 bytes"):
        decode(ApiVersionsRequest, 3, encode(longest, 3))


def test_a_list_may_be_made_while_it_is_encoded() -> None:
    results = [DeletableGroupResult(group_id=str(number), error_code=0) for number in range(1000)]

    class Lazy:
        def __len__(self) -> int:
            return len(results)

        def __iter__(self) -> Any:
            return iter(results)

    lazy = DeleteGroupsResponse(results=Lazy())  # type: ignore[arg-type]
    counted: list[int] = []
    chunks, _ = run(encode_in_steps(lazy, 2, counted.append))
    assert len(chunks) > 1
    assert counted == [len(chunk) for chunk in chunks]
    assert b"".join(chunks) == encode(DeleteGroupsResponse(results=results), 2)
