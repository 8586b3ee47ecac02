"""The APIs between brokers, with requests that name as much as fits into them.

They are served on the listener for brokers only, so a broker of a cluster is asked there. Requests with
epochs that are over are refused; those with the right epochs are obeyed. Either way the broker's loop is
never away for long, its memory stays within bounds, and the neighbour is served meanwhile.

One broker is the controller: it answers what brokers ask of the controller. Another one was told of a later
controller, which is this test: it obeys what that one says.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest

from klamm.apis.forwarding import FORWARDED
from klamm.apis.k73_assign_replicas_to_dirs import LOST, UNASSIGNED
from klamm.cluster import layout
from klamm.cluster.announcing import EPOCH_OF_DELETED, FULL, INCREMENTAL
from klamm.coordination.engines import new_store
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.messages.k03_metadata import MetadataRequest
from klamm.protocol.messages.k04_leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from klamm.protocol.messages.k05_stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from klamm.protocol.messages.k06_update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.messages.k07_controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.k46_list_partition_reassignments import ListPartitionReassignmentsRequest
from klamm.protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionState,
    AlterPartitionTopic,
    BrokerState,
)
from klamm.protocol.messages.k58_envelope import EnvelopeRequest
from klamm.protocol.messages.k73_assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
)
from klamm.protocol.schema import Message
from klamm.testing.wire import WireConnection
from tests.abuse import watched_broker
from tests.abuse.broker_process import BrokerProcess, raise_descriptor_limit
from tests.abuse.calls import create_topic
from tests.abuse.conftest import Abused
from tests.abuse.crowded import arrays_of, crowded
from tests.abuse.neighbour import Neighbour
from tests.abuse.plausible import TOPIC, plausible
from tests.abuse.raw import frame_of, open_socket, read_to_end
from tests.abuse.stalls import LONGEST_STALL_MS, Stalls
from tests.long import cases

BROKER_ID = 1
LISTENER = "BROKERS"
PARTITIONS = 1_000
REQUEST_BYTES = 100_000
LONG_REQUEST_BYTES = 1_000_000
PEAK_GROWTH_BYTES = 120 * 1024 * 1024

TO_CONTROLLER = [
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_PARTITION,
    ApiKey.ENVELOPE,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
]
OF_CONTROLLER = [ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA]


def test_every_api_between_brokers_is_abused_here() -> None:
    between = {key for key, spec in API_VERSIONS.items() if spec.is_inter_broker}
    assert between == {*TO_CONTROLLER, *OF_CONTROLLER}


class ClusterBroker(BrokerProcess):
    """`klamm broker`, alone in its cluster, with a listener for brokers."""

    @property
    def coordination(self) -> str:
        return f"sqlite://{self.data_dir.with_name('metadata.sqlite')}"

    def _arguments(self) -> list[str]:
        listeners = f"PLAINTEXT://127.0.0.1:0,{LISTENER}://127.0.0.1:0"
        return [
            *("broker", "--id", str(BROKER_ID), "--coordination", self.coordination),
            *("--listeners", listeners, "--set", f"inter.broker.listener.name={LISTENER}"),
        ]


class Place(NamedTuple):
    """Where a broker is to be asked, and in which epochs."""

    address: str
    broker_epoch: int
    controller_epoch: int


async def read_place(coordination: str) -> Place:
    store = new_store(coordination)
    await store.open()
    try:
        path = layout.broker_path(BROKER_ID)
        broker = layout.decode_registration(path, await store.get(path)).broker
        epoch = layout.decode(layout.CONTROLLER_EPOCH, await store.get(layout.CONTROLLER_EPOCH))
    finally:
        await store.close()
    endpoint = broker.endpoints[LISTENER]
    return Place(f"{endpoint.host}:{endpoint.port}", broker.epoch, int(epoch))


class Size(NamedTuple):
    max_bytes: int
    is_distinct: bool

    def __str__(self) -> str:
        return f"{self.max_bytes // 1000} KB {'distinct' if self.is_distinct else 'repeated'}"


class Topic(NamedTuple):
    topic_id: bytes
    partition_count: int


class Peer:
    """Another broker of the cluster, as the broker under abuse sees it."""

    def __init__(self, process: ClusterBroker, stalls: Stalls) -> None:
        self.place = asyncio.run(read_place(process.coordination))
        self._bootstrap = process.bootstrap
        self._stalls = stalls
        self._random = Random(7)
        self.topics: dict[str, Topic] = {}
        self.leader_epoch = 0

    @property
    def right_numbers(self) -> dict[str, int]:
        """With these a request is obeyed. What it says of partitions is what this broker leads them."""
        mine = ("broker_id", "controller_id", "id", "leader", "replicas", "isr", "new_isr")
        return {
            "broker_epoch": self.place.broker_epoch,
            "controller_epoch": self.place.controller_epoch,
            **dict.fromkeys(mine, BROKER_ID),
        }

    def call(self, request: Message, version: int | None = None, where: str = "") -> Any:
        """The answer; fails if the loop of the broker was away for too long meanwhile."""
        self._stalls.longest_ms()
        with WireConnection(self.place.address, client_id="peer", timeout_s=60.0) as connection:
            answer = connection.call(request, version)
        # An answer may come before the stall that it took is written down: another one comes after that.
        with WireConnection(self._bootstrap) as connection:
            connection.call(MetadataRequest(topics=[]))
        longest_ms = self._stalls.longest_ms()
        assert longest_ms < LONGEST_STALL_MS, f"{where}: the loop was away for {longest_ms:.0f} ms"
        return answer

    def crowds(
        self, key: ApiKey, version: int, size: Size, numbers: Mapping[str, int]
    ) -> Iterator[tuple[str, Message]]:
        """A request for each array of the API, or the only one if there is none."""
        message = API_VERSIONS[key].request
        topic_id = self.topics[TOPIC].topic_id
        paths = arrays_of(message, version)
        if not paths:
            yield "no array", plausible(message, version, topic_id, self._random, numbers)
        for path in paths:
            request = crowded(
                message,
                version,
                path,
                size.max_bytes,
                topic_id=topic_id,
                is_distinct=size.is_distinct,
                random=self._random,
                numbers=numbers,
            )
            yield ".".join(field.name for field in path), request

    # ---- what a controller says, and a leader asks

    def update_metadata(self, topics: Mapping[str, Topic], type_: int) -> UpdateMetadataRequest:
        host, _, port = self.place.address.rpartition(":")
        endpoint = UpdateMetadataEndpoint(host=host, port=int(port), listener=LISTENER)
        epoch = self.place.broker_epoch
        return UpdateMetadataRequest(
            controller_id=BROKER_ID,
            type=type_,
            controller_epoch=self.place.controller_epoch,
            broker_epoch=epoch,
            live_brokers=[UpdateMetadataBroker(id=BROKER_ID, endpoints=[endpoint], broker_epoch=epoch)],
            topic_states=[
                UpdateMetadataTopicState(
                    topic_name=name,
                    topic_id=topic.topic_id,
                    configs=[],
                    partition_states=[
                        UpdateMetadataPartitionState(
                            partition_index=index,
                            leader=BROKER_ID,
                            leader_epoch=self.leader_epoch,
                            zk_version=self.leader_epoch,
                            isr=[BROKER_ID],
                            replicas=[BROKER_ID],
                        )
                        for index in range(topic.partition_count)
                    ],
                )
                for name, topic in topics.items()
            ],
        )

    def leader_and_isr(self, topics: Mapping[str, Topic], type_: int) -> LeaderAndIsrRequest:
        return LeaderAndIsrRequest(
            controller_id=BROKER_ID,
            type=type_,
            controller_epoch=self.place.controller_epoch,
            broker_epoch=self.place.broker_epoch,
            topic_states=[
                LeaderAndIsrTopicState(
                    topic_name=name,
                    topic_id=topic.topic_id,
                    partition_states=[
                        LeaderAndIsrPartitionState(
                            partition_index=index,
                            leader=BROKER_ID,
                            leader_epoch=self.leader_epoch,
                            partition_epoch=self.leader_epoch,
                            isr=[BROKER_ID],
                            replicas=[BROKER_ID],
                        )
                        for index in range(topic.partition_count)
                    ],
                )
                for name, topic in topics.items()
            ],
        )

    def stop_replica(self, topics: Mapping[str, Topic]) -> StopReplicaRequest:
        return StopReplicaRequest(
            controller_id=BROKER_ID,
            controller_epoch=self.place.controller_epoch,
            broker_epoch=self.place.broker_epoch,
            topic_states=[
                StopReplicaTopicState(
                    topic_name=name,
                    topic_id=topic.topic_id,
                    partition_states=[
                        StopReplicaPartitionState(
                            partition_index=index, leader_epoch=EPOCH_OF_DELETED, delete_partition=True
                        )
                        for index in range(topic.partition_count)
                    ],
                )
                for name, topic in topics.items()
            ],
        )

    def alter_partition(self, topic_id: bytes, epochs: Mapping[int, int]) -> AlterPartitionRequest:
        """`epochs` are the partition epochs."""
        own = BrokerState(broker_id=BROKER_ID, broker_epoch=self.place.broker_epoch)
        partitions = [
            AlterPartitionState(
                partition_index=index, leader_epoch=0, partition_epoch=epoch, new_isr_with_epochs=[own]
            )
            for index, epoch in epochs.items()
        ]
        return AlterPartitionRequest(
            broker_id=BROKER_ID,
            broker_epoch=self.place.broker_epoch,
            topics=[AlterPartitionTopic(topic_id=topic_id, partitions=partitions)],
        )


EXISTING = "existing"


@pytest.fixture(scope="module", params=["controller", "told"])
def broker_process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, stalls: Stalls
) -> Iterator[BrokerProcess]:
    raise_descriptor_limit()
    directory = tmp_path_factory.mktemp(request.param)
    process = ClusterBroker(directory / "data", directory / "broker.log", {"default.replication.factor": 1})
    with process.started(sys.executable, watched_broker.__file__, str(stalls.file)):
        yield process


@pytest.fixture(scope="module")
def peer(broker_process: ClusterBroker, neighbour: Neighbour, stalls: Stalls) -> Peer:
    peer = Peer(broker_process, stalls)
    with WireConnection(broker_process.bootstrap, timeout_s=60) as connection:
        for name in (TOPIC, EXISTING):
            create_topic(connection, name, partitions=PARTITIONS)
        for topic in connection.call(MetadataRequest(topics=None)).topics:
            peer.topics[topic.name] = Topic(topic.topic_id, len(topic.partitions))
    return peer


@pytest.fixture(scope="module")
def controller(peer: Peer) -> Peer:
    """In the place of a controller that was elected after the broker under abuse had been the controller."""
    peer.place = peer.place._replace(controller_epoch=peer.place.controller_epoch + 1)
    assert peer.call(peer.update_metadata(peer.topics, FULL)).error_code == ErrorCode.NONE
    assert peer.call(peer.leader_and_isr(peer.topics, FULL)).error_code == ErrorCode.NONE
    return peer


on_the_controller = pytest.mark.parametrize("broker_process", ["controller"], indirect=True)
on_a_broker_that_is_told = pytest.mark.parametrize("broker_process", ["told"], indirect=True)


SIZES = [Size(size, way) for size in (REQUEST_BYTES, LONG_REQUEST_BYTES) for way in (False, True)]
in_both_ways = pytest.mark.parametrize(
    "size", cases(SIZES, lambda size: size.max_bytes == REQUEST_BYTES), ids=str
)
repeated_at_least = pytest.mark.parametrize("size", cases(SIZES, SIZES[0].__eq__), ids=str)

REPEATED_ELEMENTS = 20_000
MOST_PARTITIONS = 10_000
"""Of a topic that is made by one request."""
in_all_sizes = pytest.mark.parametrize("count", cases([PARTITIONS, MOST_PARTITIONS], PARTITIONS.__eq__))


def apis(keys: Sequence[ApiKey]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("key", keys, ids=lambda key: key.title)


@pytest.fixture
def abused(abused: Abused) -> Abused:
    abused.allowed_growth_bytes = PEAK_GROWTH_BYTES
    return abused


def call_crowded(
    peer: Peer,
    key: ApiKey,
    size: Size,
    numbers: Mapping[str, int],
    expected: ErrorCode,
) -> None:
    accepted = API_VERSIONS[key].accepted
    for version in range(accepted.first, accepted.last + 1):
        for where, request in peer.crowds(key, version, size, numbers):
            assert peer.call(request, version, where).error_code == expected, where


@on_the_controller
@repeated_at_least
@apis([key for key in (*TO_CONTROLLER, *OF_CONTROLLER) if key is not ApiKey.ENVELOPE])
def test_requests_in_epochs_that_are_over(abused: Abused, peer: Peer, key: ApiKey, size: Size) -> None:
    call_crowded(peer, key, size, {}, ErrorCode.STALE_BROKER_EPOCH)


@on_the_controller
@in_both_ways
@apis([ApiKey.ALTER_PARTITION, ApiKey.ALLOCATE_PRODUCER_IDS, ApiKey.ASSIGN_REPLICAS_TO_DIRS])
def test_requests_to_the_controller(abused: Abused, peer: Peer, key: ApiKey, size: Size) -> None:
    call_crowded(peer, key, size, peer.right_numbers, ErrorCode.NONE)


@on_a_broker_that_is_told
@in_both_ways
@apis(OF_CONTROLLER)
def test_requests_of_the_controller(abused: Abused, controller: Peer, key: ApiKey, size: Size) -> None:
    call_crowded(controller, key, size, controller.right_numbers, ErrorCode.NONE)


# ---- about partitions that exist


@on_a_broker_that_is_told
@pytest.mark.parametrize("type_", [INCREMENTAL, FULL], ids=["incremental", "full"])
def test_partitions_that_exist_get_new_epochs(abused: Abused, controller: Peer, type_: int) -> None:
    named = controller.topics if type_ == FULL else {EXISTING: controller.topics[EXISTING]}
    for _ in range(2):
        controller.leader_epoch += 1
        assert controller.call(controller.update_metadata(named, type_)).error_code == ErrorCode.NONE
        answer = controller.call(controller.leader_and_isr(named, type_))
        assert answer.error_code == ErrorCode.NONE
        codes = {each.error_code for topic in answer.topics for each in topic.partition_errors}
        assert codes == {ErrorCode.NONE}


@on_a_broker_that_is_told
@in_all_sizes
def test_replicas_are_made_and_deleted(abused: Abused, controller: Peer, count: int) -> None:
    made = {f"made-{count}": Topic(Random(count).randbytes(16), count)}
    controller.call(controller.update_metadata(made, INCREMENTAL))
    answer = controller.call(controller.leader_and_isr(made, INCREMENTAL))
    assert {each.error_code for each in answer.topics[0].partition_errors} == {ErrorCode.NONE}
    answer = controller.call(controller.stop_replica(made))
    assert answer.error_code == ErrorCode.NONE
    assert answer.partition_errors == []


@on_the_controller
@in_all_sizes
def test_isrs_of_partitions_that_exist(abused: Abused, peer: Peer, count: int) -> None:
    with abused.connect() as connection:
        topic_id = create_topic(connection, f"isrs-{count}", partitions=count)
    epochs = dict.fromkeys(range(count), 0)
    for _ in range(3):
        answer = peer.call(peer.alter_partition(topic_id, epochs))
        (topic,) = answer.topics
        assert {each.error_code for each in topic.partitions} == {ErrorCode.NONE}
        later = {each.partition_index: each.partition_epoch for each in topic.partitions}
        assert all(later[index] == epoch + 1 for index, epoch in epochs.items())
        epochs = later


@on_the_controller
@in_all_sizes
def test_replicas_that_go_offline_and_come_back(abused: Abused, peer: Peer, count: int) -> None:
    with abused.connect() as connection:
        topic_id = create_topic(connection, f"offline-{count}", partitions=count)
    partitions = [AssignedPartition(partition_index=index) for index in range(count)]
    partitions *= REPEATED_ELEMENTS // count
    for directory in (LOST, UNASSIGNED):
        topic = AssignedTopic(topic_id=topic_id, partitions=partitions)
        request = AssignReplicasToDirsRequest(
            broker_id=BROKER_ID,
            broker_epoch=peer.place.broker_epoch,
            directories=[AssignedDirectory(id=directory, topics=[topic])],
        )
        answer = peer.call(request)
        assert answer.error_code == ErrorCode.NONE
        assert len(answer.directories[0].topics[0].partitions) == len(partitions)


# ---- requests of clients that were sent on


NOT_FORWARDED = [ApiKey.METADATA, ApiKey.DESCRIBE_CONFIGS, ApiKey.DELETE_GROUPS]


def envelope(frame: bytes, client_host: bytes = b"127.0.0.1") -> EnvelopeRequest:
    """`frame` is a whole request, with its length."""
    return EnvelopeRequest(request_data=frame[4:], client_host_address=client_host)


@on_the_controller
@repeated_at_least
@apis([*sorted(FORWARDED), *NOT_FORWARDED])
def test_large_requests_in_envelopes(abused: Abused, peer: Peer, key: ApiKey, size: Size) -> None:
    version = API_VERSIONS[key].accepted.last
    expected = ErrorCode.INVALID_REQUEST if key in NOT_FORWARDED else ErrorCode.NONE
    for where, request in peer.crowds(key, version, size, {}):
        answer = peer.call(envelope(frame_of(request, version)), where=where)
        assert answer.error_code == expected, where
        assert (answer.response_data is not None) == (expected == ErrorCode.NONE)


@on_the_controller
def test_a_client_whose_address_is_no_text(abused: Abused, peer: Peer) -> None:
    frame = frame_of(plausible(ListPartitionReassignmentsRequest, 0, bytes(16), Random(7)))
    assert peer.call(envelope(frame, b"\xff" * 16)).error_code == ErrorCode.NONE


@on_the_controller
def test_envelopes_without_a_request(abused: Abused, peer: Peer) -> None:
    for content in (b"", b"bytes", struct.pack(">hhih", ApiKey.CREATE_TOPICS, 7, 1, -1), bytes(100_000)):
        with open_socket(peer.place.address) as sock:
            sock.sendall(frame_of(envelope(bytes(4) + content)))
            sock.shutdown(socket.SHUT_WR)
            read_to_end(sock)


@on_the_controller
def test_a_broker_that_shuts_down(abused: Abused, peer: Peer) -> None:
    """The last test of this broker: it is given no new partitions to lead from here on."""
    request = ControlledShutdownRequest(broker_id=BROKER_ID, broker_epoch=peer.place.broker_epoch)
    assert peer.call(request).error_code == ErrorCode.NONE
