"""Every API in every version: valid requests are answered, and damaged ones never hurt anybody."""

from __future__ import annotations

import random
import zlib

import pytest

from klamm.apis.registry import load_handlers
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.headers import parse_response_header
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.testing.wire import WireConnection
from tests.abuse.calls import (
    NAMES_PRODUCE_VERSION,
    batch_of,
    create_topic,
    produce_request,
    read_all,
    values_of,
)
from tests.abuse.conftest import Abused
from tests.abuse.plausible import TOPIC, plausible
from tests.abuse.raw import frame_of, open_socket, read_frame, send_and_leave, sized
from tests.protocol.samples import sample

MUTATIONS_PER_VERSION = 12
HEADER_BYTES = 8
"""Size, key and version are left alone, so that what is damaged is the request."""

every_version = pytest.mark.parametrize(
    ("key", "version"),
    [
        pytest.param(key, version, id=f"{key.title}-v{version}")
        for key in sorted(load_handlers())
        for version in range(API_VERSIONS[key].accepted.first, API_VERSIONS[key].accepted.last + 1)
    ],
)
every_key = pytest.mark.parametrize(
    "key",
    [key for key in sorted(load_handlers()) if not API_VERSIONS[key].is_inter_broker],
    ids=lambda key: key.title,
)


def fresh_topic(connection: WireConnection) -> bytes:
    """The topic that plausible requests are about, made anew: an earlier test may have deleted it."""
    connection.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=10_000))
    return create_topic(connection, TOPIC, partitions=2)


@every_key
def test_valid_requests_are_answered(abused: Abused, key: ApiKey) -> None:
    spec = API_VERSIONS[key]
    for version in range(spec.accepted.first, spec.accepted.last + 1):
        with abused.connect() as connection:
            topic_id = fresh_topic(connection)
        request = plausible(spec.request, version, topic_id, random.Random(version))
        with open_socket(abused.bootstrap) as sock:
            sock.sendall(frame_of(request, version, 4711))
            answer = memoryview(read_frame(sock))
        correlation_id, offset = parse_response_header(key, version, answer)
        assert correlation_id == 4711
        _, end = decode(spec.response, version, answer, offset)
        assert end == len(answer)


def mutate(frame: bytes, generator: random.Random) -> bytes:
    """Flip, insert, delete or overwrite a few bytes after the version, and let the size agree."""
    body = bytearray(frame[4:])
    for _ in range(generator.randint(1, 4)):
        position = generator.randrange(HEADER_BYTES - 4, max(len(body), HEADER_BYTES - 3))
        kind = generator.randrange(5)
        if kind == 0 and position < len(body):
            body[position] ^= 1 << generator.randrange(8)
        elif kind == 1:
            body[position:position] = generator.randbytes(generator.randint(1, 8))
        elif kind == 2:
            del body[position : position + generator.randint(1, 8)]
        elif kind == 3:
            body[position : position + 4] = generator.choice(
                (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4))
            )
        else:
            body[position : position + 1] = generator.choice((b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff"))
    return sized(bytes(body))


@every_key
def test_mutated_requests(abused: Abused, key: ApiKey) -> None:
    """The broker answers or hangs up; the seed is that of the API key and version."""
    spec = API_VERSIONS[key]
    with abused.connect() as connection:
        topic_id = fresh_topic(connection)
    for version in range(spec.accepted.first, spec.accepted.last + 1):
        generator = random.Random(zlib.crc32(f"{key.title} v{version}".encode()))
        whole = frame_of(plausible(spec.request, version, topic_id, generator), version)
        for _ in range(MUTATIONS_PER_VERSION):
            send_and_leave(abused.bootstrap, mutate(whole, generator))


def test_mutated_repetitions_of_a_produce(abused: Abused) -> None:
    """A producer that repeats itself is served by a shorter way; what it damages there counts as much."""
    spec = API_VERSIONS[ApiKey.PRODUCE]
    with abused.connect() as connection:
        create_topic(connection, "repeated")
        for version in range(spec.accepted.first, NAMES_PRODUCE_VERSION + 1):
            generator = random.Random(version)
            good = frame_of(produce_request("repeated", batch_of(b"good")), version)
            for _ in range(40):
                send_and_leave(abused.bootstrap, good * 3 + mutate(good, generator) + good)
        values = values_of(read_all(connection, "repeated"))
    assert set(values) == {b"good"}, "a damaged batch is in the log"


@every_key
def test_requests_that_make_no_sense(abused: Abused, key: ApiKey) -> None:
    """Well-formed, with random values in every field."""
    spec = API_VERSIONS[key]
    for version in range(spec.accepted.first, spec.accepted.last + 1):
        generator = random.Random(zlib.crc32(f"{key.title} v{version} nonsense".encode()))
        for _ in range(4):
            request = sample(spec.request, version, generator)
            send_and_leave(abused.bootstrap, frame_of(request, version))
