"""Requests that name as much as fits into them, of every API in every version, and tags without end.

The broker answers or hangs up. Its loop is never away for long, its memory stays within bounds, and the
neighbour is served meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Callable, Iterator
from random import Random

import pytest

from klamm.apis.registry import load_handlers
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.decoder_source import MAX_REQUEST_ELEMENTS
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k15_describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from klamm.protocol.messages.k42_delete_groups import DeleteGroupsRequest
from klamm.protocol.primitives import MAX_TAGGED_FIELDS
from klamm.records.builder import build_batch, number_records
from klamm.records.compression import Codec
from klamm.server.dispatch import MAX_ELEMENTS_AT_ONCE
from klamm.testing.wire import WireConnection
from tests.abuse import watched_broker
from tests.abuse.broker_process import BrokerProcess, raise_descriptor_limit
from tests.abuse.calls import NAMES_PRODUCE_VERSION, create_topic, now_ms
from tests.abuse.conftest import Abused
from tests.abuse.crowded import arrays_of, crowded
from tests.abuse.plausible import GROUP, TOPIC
from tests.abuse.raw import frame_of, open_socket, read_frame, read_to_end, sized
from tests.abuse.stalls import LONGEST_STALL_MS, Stalls

PARTITIONS = 1_000
REQUEST_BYTES = 100_000
"""In `make test`: several times as many elements as are handled at once. `make test-long` takes more."""
LONG_REQUEST_BYTES = 1_000_000
LARGEST_REQUEST_BYTES = 40 * 1024 * 1024

PEAK_GROWTH_BYTES = 120 * 1024 * 1024
"""Most of it are the objects of 50,000 elements, and what malloc does not give back."""


@pytest.fixture(scope="module")
def broker_process(tmp_path_factory: pytest.TempPathFactory, stalls: Stalls) -> Iterator[BrokerProcess]:
    raise_descriptor_limit()
    directory = tmp_path_factory.mktemp("abused")
    # A name without end must not make a topic each.
    settings = {"auto.create.topics.enable": "false"}
    process = BrokerProcess(directory / "data", directory / "broker.log", settings)
    with process.started(sys.executable, watched_broker.__file__, str(stalls.file)):
        yield process


@pytest.fixture(scope="module")
def topic_id(broker_process: BrokerProcess) -> bytes:
    """A topic of many partitions, and a group with an offset for each: there is something to be told."""
    with WireConnection(broker_process.bootstrap, client_id="abuser") as connection:
        topic_id = create_topic(connection, TOPIC, partitions=PARTITIONS)
        commit_everywhere(connection, GROUP)
    return topic_id


def commit_everywhere(connection: WireConnection, group_id: str) -> None:
    found = connection.call(FindCoordinatorRequest(coordinator_keys=[group_id]))
    assert found.coordinators[0].error_code == 0
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="x" * 50)
        for index in range(PARTITIONS)
    ]
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
    answer = connection.call(OffsetCommitRequest(group_id=group_id, topics=topics), 9)
    assert {each.error_code for each in answer.topics[0].partitions} == {0}


@pytest.fixture
def watched(topic_id: bytes, abused: Abused, stalls: Stalls) -> Iterator[Abused]:
    stalls.longest_ms()
    abused.allowed_growth_bytes = PEAK_GROWTH_BYTES
    yield abused
    longest_ms = longest_stall_ms(abused, stalls)
    assert longest_ms < LONGEST_STALL_MS, f"the loop was away for {longest_ms:.0f} ms"


def ask(abused: Abused, frame: bytes) -> int:
    """The size of the answer; 0 when the broker hangs up."""
    with open_socket(abused.bootstrap) as sock:
        sock.sendall(frame)
        try:
            answer = read_frame(sock)
        except ConnectionError:
            return 0
    assert struct.unpack_from(">i", answer) == (1,)
    return len(answer)


def longest_stall_ms(abused: Abused, stalls: Stalls) -> float:
    """The longest since the last look. An answer may come before the stall that it took is written down:
    another one comes after that."""
    ask(abused, sized(metadata(0)))
    return stalls.longest_ms()


class Crowd:
    """Asks with as many elements as fit, for each array of a request."""

    def __init__(self, abused: Abused, topic_id: bytes, stalls: Stalls) -> None:
        self._abused = abused
        self._topic_id = topic_id
        self._stalls = stalls
        self._random = Random(7)

    def ask(self, key: ApiKey, version: int, max_bytes: int, is_distinct: bool) -> None:
        request_class = API_VERSIONS[key].request
        for path in arrays_of(request_class, version):
            request = crowded(
                request_class,
                version,
                path,
                max_bytes,
                topic_id=self._topic_id,
                is_distinct=is_distinct,
                random=self._random,
            )
            ask(self._abused, frame_of(request, version))
            where = f"{key.title} v{version}, {[field.name for field in path]}"
            longest_ms = longest_stall_ms(self._abused, self._stalls)
            assert longest_ms < LONGEST_STALL_MS, f"{where}: the loop was away for {longest_ms:.0f} ms"


@pytest.fixture
def crowd(watched: Abused, topic_id: bytes, stalls: Stalls) -> Crowd:
    return Crowd(watched, topic_id, stalls)


every_api = pytest.mark.parametrize("key", sorted(load_handlers()), ids=lambda key: key.title)
in_both_ways = pytest.mark.parametrize("is_distinct", [False, True], ids=["repeated", "distinct"])


@in_both_ways
@every_api
def test_as_many_elements_as_fit(crowd: Crowd, key: ApiKey, is_distinct: bool) -> None:
    """In the newest version; the test below takes all of them."""
    crowd.ask(key, API_VERSIONS[key].accepted.last, REQUEST_BYTES, is_distinct)


@pytest.mark.long
@in_both_ways
@every_api
def test_as_many_elements_as_fit_into_a_large_request(crowd: Crowd, key: ApiKey, is_distinct: bool) -> None:
    accepted = API_VERSIONS[key].accepted
    for version in range(accepted.first, accepted.last + 1):
        crowd.ask(key, version, LONG_REQUEST_BYTES, is_distinct)


def test_one_resource_named_again_and_again_is_described_once(watched: Abused) -> None:
    resource = DescribeConfigsResource(resource_type=2, resource_name=TOPIC, configuration_keys=None)
    once = ask(watched, frame_of(DescribeConfigsRequest(resources=[resource], include_synonyms=True)))
    often = ask(
        watched, frame_of(DescribeConfigsRequest(resources=[resource] * 40_000, include_synonyms=True))
    )
    assert 1000 < once == often


def test_one_group_named_again_and_again_is_told_once(watched: Abused) -> None:
    with watched.connect() as connection:
        commit_everywhere(connection, "told")
    group = OffsetFetchRequestGroup(group_id="told", topics=None)
    once = ask(watched, frame_of(OffsetFetchRequest(groups=[group])))
    assert PARTITIONS * 50 < once == ask(watched, frame_of(OffsetFetchRequest(groups=[group] * 40_000)))
    once = ask(watched, frame_of(DescribeGroupsRequest(groups=["told"])))
    assert 10 < once == ask(watched, frame_of(DescribeGroupsRequest(groups=["told"] * 40_000)))


def header(key: ApiKey, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 1, -1)


def metadata(count: int) -> bytes:
    return header(ApiKey.METADATA, 1) + struct.pack(">i", count) + b"\0\0" * count


def produce(count: int) -> bytes:
    head = struct.pack(">hhiih1si", -1, -1, 1000, 1, 1, b"x", count)
    return header(ApiKey.PRODUCE, 3) + head + struct.pack(">ii", 0, -1) * count


ON_DISK_ONLY = "y"


def fetch(count: int, session_epoch: int = -1, topic: str = "x") -> bytes:
    head = struct.pack(">iiiibiiih1si", -1, 0, 0, 1_000_000, 0, 0, session_epoch, 1, 1, topic.encode(), count)
    partitions = b"".join(struct.pack(">iqqi", index, 0, 0, 100) for index in range(count))
    return header(ApiKey.FETCH, 7) + head + partitions + struct.pack(">i", 0)


def fetch_with_session(count: int) -> bytes:
    return fetch(count, session_epoch=0)


MAKERS = {metadata: 2, produce: 8, fetch: 24, fetch_with_session: 24}
"""And how many bytes an element takes."""

every_kind = pytest.mark.parametrize("make", list(MAKERS), ids=lambda make: make.__name__)


@every_kind
def test_too_many_elements_are_refused_at_once(watched: Abused, make: object) -> None:
    assert callable(make)
    for count in (MAX_REQUEST_ELEMENTS + 1, LARGEST_REQUEST_BYTES // MAKERS[make]):
        with open_socket(watched.bootstrap) as sock:
            sock.sendall(sized(make(count)))
            assert read_to_end(sock) == b""


@every_kind
def test_as_many_as_are_allowed_are_answered(watched: Abused, make: object) -> None:
    assert callable(make)
    assert ask(watched, sized(make(MAX_REQUEST_ELEMENTS - 1)))


REFUSED_BATCHES = 30
REFUSED_RECORDS = 10_000
"""In each batch. Compressed, such a batch takes less than a byte for each record."""


def test_records_that_are_refused_by_the_thousand(watched: Abused) -> None:
    """The answer would be sixty times as large as the request, if it named each record."""
    with watched.connect() as connection:
        create_topic(
            connection, "compacted", partitions=REFUSED_BATCHES, configs={"cleanup.policy": "compact"}
        )
    batch = build_batch(number_records([(None, b"")] * REFUSED_RECORDS, now_ms()), codec=Codec.ZSTD)
    data = [PartitionProduceData(index=index, records=batch) for index in range(REFUSED_BATCHES)]
    topics = [TopicProduceData(name="compacted", partition_data=data)]
    frame = frame_of(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), NAMES_PRODUCE_VERSION)
    assert len(frame) < REFUSED_BATCHES * REFUSED_RECORDS
    assert 50 * REFUSED_RECORDS < ask(watched, frame) < 100 * REFUSED_RECORDS, "one batch's worth is named"


FIRST_BATCHES = 900
"""Fewer than the elements of other requests that are handled at once."""


def test_first_batches_of_many_partitions(watched: Abused) -> None:
    """Each makes the files of its partition."""
    batch = build_batch(number_records([(None, b"")], now_ms()))
    data = [PartitionProduceData(index=index, records=batch) for index in range(FIRST_BATCHES)]
    topics = [TopicProduceData(name="begun", partition_data=data)]
    with watched.connect() as connection:
        create_topic(connection, "begun", partitions=FIRST_BATCHES)
        answer = connection.call(
            ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), NAMES_PRODUCE_VERSION
        )
    (topic,) = answer.responses
    assert [each.base_offset for each in topic.partition_responses] == [0] * FIRST_BATCHES


def test_many_partitions_of_which_one_is_on_disk_only(watched: Abused, broker_process: BrokerProcess) -> None:
    """A thread reads then, and the partitions are found for it on the loop."""
    batch = build_batch(number_records([(None, b"x" * 1_000)], now_ms()))
    data = [PartitionProduceData(index=0, records=batch)]
    topics = [TopicProduceData(name=ON_DISK_ONLY, partition_data=data)]
    with watched.connect() as connection:
        create_topic(connection, ON_DISK_ONLY, partitions=1)
        answer = connection.call(
            ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), NAMES_PRODUCE_VERSION
        )
        assert answer.responses[0].partition_responses[0].error_code == 0
    (log_file,) = broker_process.data_dir.glob(f"{ON_DISK_ONLY}-0/*.log")
    with log_file.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert ask(watched, sized(fetch(MAX_REQUEST_ELEMENTS - 1, topic=ON_DISK_ONLY))) > len(batch)


LONG_NAMES = 100
LONG_NAME_BYTES = 32_000


@pytest.mark.parametrize("key", [ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FETCH, ApiKey.DELETE_GROUPS])
def test_groups_with_long_names(watched: Abused, key: ApiKey) -> None:
    """The names are hashed to find their groups; there are too few of them to count as a large request."""
    names = [f"{number:05}".ljust(LONG_NAME_BYTES, "x") for number in range(LONG_NAMES)]
    requests = {
        ApiKey.DESCRIBE_GROUPS: DescribeGroupsRequest(groups=names),
        ApiKey.OFFSET_FETCH: OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        ),
        ApiKey.DELETE_GROUPS: DeleteGroupsRequest(groups_names=names),
    }
    with watched.connect() as connection:
        connection.call(FindCoordinatorRequest(coordinator_keys=["g"]))  # makes __consumer_offsets
    assert ask(watched, frame_of(requests[key])) > LONG_NAMES * LONG_NAME_BYTES


ABUSERS = 50
PIPELINED = 2


@pytest.mark.parametrize(
    ("make", "count"),
    [(metadata, 2 * MAX_ELEMENTS_AT_ONCE), (fetch, MAX_ELEMENTS_AT_ONCE - 1)],
    ids=["large", "as large as is handled at once"],
)
def test_many_clients_ask_for_much_at_the_same_time(
    watched: Abused, make: Callable[[int], bytes], count: int
) -> None:
    request = sized(make(count))
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(open_socket(watched.bootstrap)) for _ in range(ABUSERS)]
        for sock in sockets:
            sock.sendall(request * PIPELINED)
        for sock in sockets:
            for _ in range(PIPELINED):
                assert struct.unpack_from(">i", read_frame(sock)) == (1,)


def varint(number: int) -> bytes:
    output = bytearray()
    while number > 0x7F:
        output.append(number & 0x7F | 0x80)
        number >>= 7
    output.append(number)
    return bytes(output)


def tags(count: int) -> bytes:
    return varint(count) + b"".join(varint(100 + tag) + b"\0" for tag in range(count))


def test_tags_nobody_knows_are_passed_over(watched: Abused) -> None:
    with open_socket(watched.bootstrap) as sock:
        nobodys = tags(MAX_TAGGED_FIELDS)
        sock.sendall(sized(header(ApiKey.METADATA, 12) + nobodys + b"\x01\0\0" + nobodys))
        assert struct.unpack_from(">i", read_frame(sock)) == (1,)


def test_tags_without_end_are_refused_at_once(watched: Abused) -> None:
    without_end = tags(1_000_000)
    for request in (
        header(ApiKey.METADATA, 12) + without_end,
        header(ApiKey.METADATA, 12) + b"\0\x01\0\0" + without_end,
        header(ApiKey.FETCH, 18) + b"\0" + bytes(21) + b"\x01\x01\x01" + without_end,
    ):
        with open_socket(watched.bootstrap) as sock:
            sock.sendall(sized(request))
            assert read_to_end(sock) == b""


MANY_TOPICS = 2_000


def test_topics_that_are_made_and_deleted_by_the_thousand(watched: Abused) -> None:
    names = [f"one-of-many-{number}" for number in range(MANY_TOPICS)]
    created = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names],
        timeout_ms=60_000,
    )
    deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=60_000)
    with watched.connect(timeout_s=120.0) as connection:
        assert {each.error_code for each in connection.call(created).topics} == {0}
        assert {each.error_code for each in connection.call(deleted).responses} == {0}
