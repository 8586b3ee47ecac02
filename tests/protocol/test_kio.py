"""A second opinion: kio, generated from Kafka's own schemas, reads and writes the same bytes.

kio has no messages for the records of internal topics (OffsetCommitKey and the like): Kafka's client does not
ship those schemas. It refuses unknown tagged fields, so test_tagged_fields.py does without it.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import uuid
from enum import Enum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from klamm.protocol.apis import ApiKey
from klamm.protocol.codec import decode, encode
from klamm.protocol.compiler import VersionLayout
from klamm.protocol.schema import Message, Struct
from tests.protocol.catalogue import VERSIONS
from tests.protocol.strategies import messages

EXAMPLES_PER_VERSION = 2

NOT_IN_KIO = {
    **{
        f"{name}{kind}": "an inter-broker message that Kafka 4 has no more"
        for name in ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown")
        for kind in ("Request", "Response")
    },
    "OffsetCommitKey": "a record of an internal topic",
    "OffsetCommitValue": "a record of an internal topic",
    "GroupMetadataKey": "a record of an internal topic",
    "GroupMetadataValue": "a record of an internal topic",
}

SHARED_VERSIONS = [(message, version) for message, version in VERSIONS if message.__name__ not in NOT_IN_KIO]

_DATA_NAMES = {
    "ConsumerProtocolSubscription": "consumer_protocol_subscription",
    "ConsumerProtocolAssignment": "consumer_protocol_assignment",
}


def kio_schema(message: type[Message], version: int) -> Any:
    if message.__api_key__ is None:
        return load_entity_schema(_DATA_NAMES[message.__name__], version, EntityType.data)
    name = ApiKey(message.__api_key__).name.lower()
    if message.__name__.endswith("Request"):
        return load_entity_schema(name, version, EntityType.request)
    return load_entity_schema(name, version, EntityType.response)


@pytest.mark.parametrize(
    ("message", "version"),
    SHARED_VERSIONS,
    ids=[f"{message.__name__}-v{version}" for message, version in SHARED_VERSIONS],
)
@settings(max_examples=EXAMPLES_PER_VERSION, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kio_agrees(message: type[Message], version: int, data: st.DataObject) -> None:
    ours = data.draw(messages(message, version, with_meaning=True))
    encoded = encode(ours, version)

    schema = kio_schema(message, version)
    theirs, size = entity_reader(schema)(encoded, 0)
    assert size == len(encoded)
    assert_same(ours, theirs, VersionLayout(message, version))

    with io.BytesIO() as output:
        entity_writer(schema)(output, theirs)
        assert output.getvalue() == encoded
    assert decode(message, version, memoryview(encoded)) == (ours, len(encoded))


def assert_same(ours: Struct, theirs: Any, layout: VersionLayout) -> None:
    """Holds the fields of a struct, by name, against those that kio read."""
    struct = type(ours)
    names = [field.name for field in struct.__fields__ if layout.has(field)]
    their_fields = dataclasses.fields(theirs)
    assert [plain_name(field.name) for field in their_fields] == [plain_name(name) for name in names]
    for name, their_field in zip(names, their_fields, strict=True):
        assert_same_value(getattr(ours, name), getattr(theirs, their_field.name), layout)


def assert_same_value(ours: Any, theirs: Any, layout: VersionLayout) -> None:
    if isinstance(theirs, tuple):
        for our_item, their_item in zip(ours, theirs, strict=True):
            assert_same_value(our_item, their_item, layout)
    elif isinstance(ours, Struct):
        assert_same(ours, theirs, layout)
    elif dataclasses.is_dataclass(theirs) and not isinstance(theirs, type):
        assert ours is None and theirs == type(theirs)(), "an absent tagged struct is at its defaults in kio"
    else:
        assert ours == plain_value(theirs) or (ours, theirs) in ((bytes(16), None), (-1, None))


def plain_name(name: str) -> str:
    """kio leaves units out of the names of times, and adds _ to names of Python's own."""
    return name.removesuffix("_ms").removesuffix("_")


def plain_value(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - datetime.datetime.fromtimestamp(0, tz=value.tzinfo)) // datetime.timedelta(
            milliseconds=1
        )
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value.value if isinstance(value, Enum) else value
