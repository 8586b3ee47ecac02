"""Brokers as far as a fetch planner can tell: logs, leaders, and fetch sessions, without a socket.

Requests and answers are messages, not bytes. What the client knows of the cluster goes through the real
MetadataCache. The rules of sessions are those of KIP-227, written down once more, as plainly as possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from klamm.client.consumer.fetch_planner import FetchPlanner
from klamm.client.consumer.fetch_requests import FetchSettings
from klamm.client.consumer.hand_out import HandOut
from klamm.client.consumer.partition_state import Need
from klamm.client.consumer.positions import Positions
from klamm.client.network.backoff import Backoff
from klamm.client.network.metadata import MetadataCache
from klamm.client.results import Record, TopicPartition
from klamm.model.errors import ErrorCode
from klamm.model.ids import new_topic_id
from klamm.protocol.messages.k01_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from klamm.protocol.messages.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.records.builder import build_batch
from klamm.records.reader import StoredRecord

NEWEST_VERSION = 17
TIMESTAMP = 1_700_000_000_000

Key = tuple[str | bytes, int]


class FakeLog:
    """One partition: whole batches, and who leads it."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.epoch = 0
        self.epoch_ends: dict[int, int] = {}
        self.replicas = (leader,)
        self.batches: list[tuple[int, int, bytes]] = []
        self.records: dict[int, bytes] = {}
        self.start = 0
        self.end = 0
        self.preferred_replica = -1
        self.error = ErrorCode.NONE
        self.aborted: list[AbortedTransaction] = []

    def append(self, values: list[bytes], *, gap: int = 0) -> None:
        """A batch; compaction took `gap` offsets before it."""
        base = self.end + gap
        records = [StoredRecord(base + index, TIMESTAMP, None, value) for index, value in enumerate(values)]
        data = bytes(build_batch(records, base_offset=base, leader_epoch=self.epoch))
        self.batches.append((base, records[-1].offset, data))
        self.records.update((record.offset, record.value or b"") for record in records)
        self.end = records[-1].offset + 1

    def append_control(self, gap: int = 0) -> None:
        """The marker of a transaction: an offset without a record."""
        base = self.end + gap
        marker = StoredRecord(base, TIMESTAMP, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")
        data = build_batch(
            [marker], base_offset=base, leader_epoch=self.epoch, is_control=True, is_transactional=True
        )
        self.batches.append((base, base, bytes(data)))
        self.end = base + 1

    def delete_before(self, offset: int) -> None:
        self.start = max(self.start, min(offset, self.end))
        self.batches = [batch for batch in self.batches if batch[1] >= self.start]

    def cut(self, offset: int) -> None:
        """What an unclean election does: the end of the log is gone."""
        self.batches = [batch for batch in self.batches if batch[1] < offset]
        self.records = {each: value for each, value in self.records.items() if each < offset}
        self.end = offset
        self.epoch_ends = {epoch: min(end, offset) for epoch, end in self.epoch_ends.items()}

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is not above the one asked for, and where it ended."""
        ends = {**self.epoch_ends, self.epoch: self.end}
        found = max((each for each in ends if each <= epoch), default=None)
        return (-1, -1) if found is None or epoch > self.epoch else (found, ends[found])

    def read(self, offset: int, max_bytes: int, at_least_one: bool) -> bytes:
        found = b""
        for _, last, data in self.batches:
            if last < offset:
                continue
            is_first = not found and at_least_one
            if len(found) + len(data) > max_bytes and not is_first:
                break
            found += data
        return found

    def from_offset(self, offset: int) -> list[tuple[int, bytes]]:
        """What a reader at `offset` has still to get."""
        return sorted(item for item in self.records.items() if item[0] >= max(offset, self.start))


class FakeSession:
    def __init__(self, uses_topic_ids: bool) -> None:
        self.uses_topic_ids = uses_topic_ids
        self.next_epoch = 1
        self.partitions: dict[Key, FetchPartition] = {}
        self.told: dict[Key, int] = {}


class FakeCluster:
    """Some brokers with topics of some partitions. `grants_sessions` can be taken back at any time."""

    def __init__(self, nodes: int = 2) -> None:
        self.nodes = list(range(1, nodes + 1))
        self.ids: dict[str, bytes] = {}
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.sessions: dict[tuple[int, int], FakeSession] = {}
        self.grants_sessions = True
        self.knows_topic_ids = True
        self.metadata = MetadataCache()
        self.requests: list[tuple[int, FetchRequest]] = []
        self._session_ids = count(100)

    def create(self, topic: str, partitions: int) -> None:
        self.ids[topic] = bytes(new_topic_id())
        for index in range(partitions):
            self.logs[TopicPartition(topic, index)] = FakeLog(self.nodes[index % len(self.nodes)])
        self.refresh()

    def refresh(self) -> None:
        """Tell the client's metadata how things are."""
        self.metadata.apply(self.describe({}), 0.0)

    def describe(self, ports: Mapping[int, int]) -> MetadataResponse:
        """How things are, with brokers at these ports if they have any."""
        topics = []
        for topic, topic_id in self.ids.items():
            partitions = [
                MetadataResponsePartition(
                    error_code=0,
                    partition_index=partition.partition,
                    leader_id=log.leader,
                    leader_epoch=log.epoch,
                    replica_nodes=list(log.replicas),
                    isr_nodes=list(log.replicas),
                )
                for partition, log in self.logs.items()
                if partition.topic == topic
            ]
            given_id = topic_id if self.knows_topic_ids else bytes(16)
            topics.append(
                MetadataResponseTopic(error_code=0, name=topic, topic_id=given_id, partitions=partitions)
            )
        brokers = [
            MetadataResponseBroker(node_id=node, host="127.0.0.1", port=ports.get(node, node))
            for node in self.nodes
        ]
        return MetadataResponse(brokers=brokers, topics=topics)

    def move(self, partition: TopicPartition, node: int) -> None:
        log = self.logs[partition]
        log.epoch_ends[log.epoch] = log.end
        log.leader = node
        log.epoch += 1

    # ---- Fetch

    def fetch(self, node: int, request: FetchRequest, version: int) -> FetchResponse:
        self.requests.append((node, request))
        uses_topic_ids = version >= 13
        asked = {
            (topic.topic_id if uses_topic_ids else topic.topic, partition.partition): partition
            for topic in request.topics
            for partition in topic.partitions
        }
        if request.session_epoch in (-1, 0):
            self.sessions.pop((node, request.session_id), None)
            session_id = 0
            if request.session_epoch == 0 and self.grants_sessions:
                session_id = next(self._session_ids)
                session = self.sessions[node, session_id] = FakeSession(uses_topic_ids)
                session.partitions = asked
            return self._answer(node, session_id, asked, request.max_bytes, None)
        found = self.sessions.get((node, request.session_id))
        if found is None:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if found.uses_topic_ids != uses_topic_ids:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if request.session_epoch != found.next_epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        found.next_epoch += 1
        found.partitions.update(asked)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                found.partitions.pop((topic.topic_id if uses_topic_ids else topic.topic, index), None)
        return self._answer(node, request.session_id, found.partitions, request.max_bytes, found)

    def _answer(
        self,
        node: int,
        session_id: int,
        asked: dict[Key, FetchPartition],
        max_bytes: int,
        since: FakeSession | None,
    ) -> FetchResponse:
        topics: dict[str | bytes, list[PartitionData]] = {}
        left = max_bytes
        for (name, index), partition in asked.items():
            data = self._read(node, name, index, partition, left, at_least_one=left == max_bytes)
            left -= len(data.records or b"")
            is_news = data.error_code or data.records or data.preferred_read_replica >= 0
            if since is not None and not is_news and since.told.get((name, index)) == data.high_watermark:
                continue
            if since is not None:
                since.told[name, index] = data.high_watermark
            topics.setdefault(name, []).append(data)
        return FetchResponse(
            session_id=session_id,
            responses=[
                FetchableTopicResponse(topic_id=name, partitions=partitions)
                if isinstance(name, bytes)
                else FetchableTopicResponse(topic=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )

    def _read(
        self, node: int, name: str | bytes, index: int, asked: FetchPartition, left: int, at_least_one: bool
    ) -> PartitionData:
        topic = name if isinstance(name, str) else {id_: topic for topic, id_ in self.ids.items()}.get(name)
        if topic is None:
            return PartitionData(
                partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_ID, high_watermark=-1
            )
        log = self.logs.get(TopicPartition(topic, index))
        error = self._error(node, log, asked)
        if error != ErrorCode.NONE or log is None:
            return PartitionData(partition_index=index, error_code=error, high_watermark=-1)
        data = PartitionData(
            partition_index=index,
            error_code=0,
            high_watermark=log.end,
            last_stable_offset=log.end,
            log_start_offset=log.start,
            aborted_transactions=log.aborted or None,
            records=b"",
        )
        if node == log.leader and log.preferred_replica >= 0:
            data.preferred_read_replica = log.preferred_replica
        else:
            data.records = log.read(asked.fetch_offset, min(left, asked.partition_max_bytes), at_least_one)
        return data

    def _error(self, node: int, log: FakeLog | None, asked: FetchPartition) -> ErrorCode:
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if log.error != ErrorCode.NONE:
            return log.error
        if node not in (log.leader, *log.replicas):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if -1 < asked.current_leader_epoch < log.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if asked.current_leader_epoch > log.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not log.start <= asked.fetch_offset <= log.end:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return ErrorCode.NONE


class NoLock:
    """Tests have one thread. Taking it twice is an error all the same, as it would be with a real one."""

    def __init__(self) -> None:
        self.is_held = False

    def acquire(self) -> bool:
        assert not self.is_held, "the lock is held already"
        self.is_held = True
        return True

    def release(self) -> None:
        assert self.is_held, "the lock is not held"
        self.is_held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


SETTINGS = FetchSettings(
    max_wait_ms=500,
    min_bytes=1,
    max_bytes=50_000_000,
    partition_max_bytes=1_000_000,
    prefetch_max_bytes=64_000_000,
    is_read_committed=False,
    check_crcs=True,
    rack="",
    may_guess_offsets=True,
    preferred_replica_seconds=300.0,
    backoff=Backoff(0.1, 1.0),
)


class FakeConsumer:
    """The cores of a consumer, put together, with somebody who answers look-ups at once."""

    def __init__(self, cluster: FakeCluster, **settings: object) -> None:
        self.cluster = cluster
        self.positions = Positions(NoLock())
        self.records = HandOut(self.positions)
        self.planner = FetchPlanner(SETTINGS._replace(**settings), self.positions, cluster.metadata)  # type: ignore[arg-type]
        self.now = 0.0
        self.version = NEWEST_VERSION

    def assign(self, *partitions: tuple[str, int]) -> None:
        self.positions.assign(TopicPartition(*partition) for partition in partitions)
        self.look_up()

    def look_up(self) -> None:
        """Start at the beginning of what has no position; take a new leader's word from the log."""
        for need in (Need.COMMITTED, Need.RESET):
            for state, version in self.positions.needing(need, self.now):
                self.positions.start_at(state, version, self.cluster.logs[state.partition].start)
        for state, version in self.positions.needing(Need.VALIDATION, self.now):
            self.positions.validated(state, version)

    def fetch(self, node: int, *, is_express: bool = False) -> int:
        """One fetch from a broker, if there is anything to fetch: how many bytes it brought; -1 for none."""
        self.planner.survey(self.now)
        plan = self.planner.plan(node, self.now, self.version, is_express=is_express)
        if plan is None:
            return -1
        response = self.cluster.fetch(node, plan.request, plan.version)
        return self.planner.answered(plan, response, self.now, 0.5).size

    def fetch_all(self) -> None:
        """Fetch until nobody has anything new."""
        for _ in range(1000):
            self.look_up()
            sizes = [self.fetch(node) for node in self.cluster.nodes]
            if max(sizes) <= 0 and not self.planner.survey(self.now).needs:
                return
        raise AssertionError("fetching has no end")

    def poll(self, limit: int = 500) -> list[Record]:
        self.records.begin_poll()
        return self.records.take(limit)
