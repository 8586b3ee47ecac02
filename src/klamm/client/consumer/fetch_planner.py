"""Decides what to fetch from which broker, and takes in the answers. A core: no IO, callers pass the time.

- One fetch is under way per broker, in an incremental session; the next is planned as soon as it is answered,
  while the user works on what it brought.
- A fetch may wait at the broker for a while. What becomes fetchable meanwhile (after a seek, say) does not
  wait for it: an express fetch, without a session and on a connection of its own, asks for it at once.
- A partition is fetched from its leader, or from the replica that the leader named for our rack, for
  metadata.max.age.ms or until a fetch from that replica fails.
- Of every partition at most two fetches are buffered, and these are so small that all partitions together
  stay below prefetch.max.bytes: a slow partition never takes another one's room.
- A partition that moved to a new leader is not fetched until it is known that the new leader has the
  records that were read.
- Errors belong to partitions. An error that may pass is tried again later, any other is raised by a poll.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.client.consumer.fetch_requests import (
    FINAL_EPOCH,
    NO_SESSION,
    Asked,
    FetchPlan,
    FetchSession,
    FetchSessionRequest,
    FetchSettings,
    PartitionKey,
    fetch_request,
)
from klamm.client.consumer.partition_state import UNKNOWN, BufferedFetch, Need, PartitionState
from klamm.client.consumer.positions import EARLIEST, Positions
from klamm.client.errors import BrokerError, ClientError
from klamm.client.network.addresses import BrokerAddress
from klamm.client.network.metadata import MetadataCache
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.messages.k01_fetch import (
    FetchResponse,
    PartitionData,
)
from klamm.records.fetched import FetchedRecords, end_position

FIRST_VERSION_WITH_TOPIC_IDS = 13

BUSY_WAIT_MS = 20
"""How long a broker may hold a fetch that leaves out partitions whose buffers are full: as soon as these have
room again, they must not wait until the broker has records of the others."""

LEAST_PARTITION_BYTES = 32 * 1024
"""The least that a fetch asks for of one partition, however many partitions there are: a batch or two."""

MOST_FRAME_SHARES = 4
"""Fetched records are a slice of their answer and keep the whole answer in memory. If a partition's part is
less than a quarter of the answer, the part is copied, or a slow partition would hold more memory than is
counted."""

_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors of a partition that pass by themselves, or with fresh metadata."""

_ABOUT_SESSIONS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors of a whole fetch that the next, full fetch does not have. After any other error the next fetch
waits."""


class Survey(NamedTuple):
    """What the fetcher has to do now."""

    nodes: set[int]
    """Brokers that have something to be fetched and no fetch under way."""
    express_nodes: set[int]
    """Brokers that have something to be fetched while a fetch of other partitions waits there."""
    lacks_leaders: bool
    """True if the leader of a partition is not known: ask for metadata."""
    needs: set[Need]
    """What has to be looked up before some partitions can be fetched."""
    wake_at: float | None
    """When something can be tried again."""


class FetchOutcome(NamedTuple):
    """The result of taking in an answer, besides the changed positions."""

    size: int
    """Bytes of records that were buffered."""
    needs_metadata: bool
    errors: int


class FetchPlanner:
    """Plans fetches for the partitions of `positions`. Methods take the lock of that."""

    def __init__(self, settings: FetchSettings, positions: Positions, metadata: MetadataCache) -> None:
        self._settings = settings
        self._positions = positions
        self._metadata = metadata
        self._fetch_sessions: dict[int, FetchSession] = {}
        self._under_way: dict[tuple[int, bool], FetchPlan] = {}
        """The plans by broker and whether they are express fetches."""
        self._answers = 0

    # ---- planning

    def survey(self, now: float) -> Survey:
        """Find out which brokers to fetch from. Also applies changes of the metadata to the partitions."""
        nodes: set[int] = set()
        express_nodes: set[int] = set()
        lacks_leaders = False
        needs: set[Need] = set()
        wake_at: float | None = None
        with self._positions.lock:
            self._positions.room_below_bytes = self._partition_bytes()
            for state in self._positions.states.values():
                node_id = self._node_for(state, now)
                if state.error is not None:
                    continue
                if state.retry_at > now:
                    wake_at = state.retry_at if wake_at is None else min(wake_at, state.retry_at)
                elif state.need is not Need.NOTHING:
                    needs.add(state.need)
                elif node_id is None:
                    lacks_leaders = True
                elif self._can_fetch(state, now) and self._has_room(state):
                    if (node_id, False) not in self._under_way:
                        nodes.add(node_id)
                    elif (node_id, True) not in self._under_way and self._may_hurry(state, node_id):
                        express_nodes.add(node_id)
            if self._room_bytes() <= 0 and self._positions.ready:
                nodes.clear()
                express_nodes.clear()
        return Survey(nodes, express_nodes, lacks_leaders, needs, wake_at)

    def plan(
        self, node_id: int, now: float, newest_version: int, *, is_express: bool = False
    ) -> FetchPlan | None:
        """The next request to a broker; None when there is nothing to ask it for."""
        assert (node_id, is_express) not in self._under_way, f"a fetch from broker {node_id} is under way"
        with self._positions.lock:
            partition_bytes = self._positions.room_below_bytes = self._partition_bytes()
            room_bytes = self._room_bytes()
            if room_bytes <= 0:
                if self._positions.ready:
                    return None
                room_bytes = LEAST_PARTITION_BYTES  # paused partitions fill the buffer; fetch the others
            chosen, leaves_out = self._choose(node_id, now)
            if is_express:
                chosen = [state for state in chosen if self._may_hurry(state, node_id)]
            if not chosen:
                return None
            uses_topic_ids = newest_version >= FIRST_VERSION_WITH_TOPIC_IDS and all(
                state.topic_id != ZERO_TOPIC_ID for state in chosen
            )
            wait_ms = self._wait_ms(is_express, leaves_out)
            version = newest_version
            if not uses_topic_ids:
                version = min(version, FIRST_VERSION_WITH_TOPIC_IDS - 1)
            plan = self._build(node_id, is_express, version, chosen, wait_ms, room_bytes, partition_bytes)
            for state in chosen:
                state.fetching = plan
        self._under_way[node_id, is_express] = plan
        return plan

    def _wait_ms(self, is_express: bool, leaves_out: bool) -> int:
        """How long the broker may wait for records."""
        if is_express:
            return 0
        return min(self._settings.max_wait_ms, BUSY_WAIT_MS) if leaves_out else self._settings.max_wait_ms

    def _may_hurry(self, state: PartitionState, node_id: int) -> bool:
        """True if an express fetch makes sense: a fetch waits at the broker for long, and it is not the one
        that waited there when the last express fetch found nothing."""
        waiting = self._under_way.get((node_id, False))
        return (
            waiting is not None
            and waiting.request.max_wait_ms > BUSY_WAIT_MS
            and state.hurried_beside is not waiting
        )

    def _choose(self, node_id: int, now: float) -> tuple[list[PartitionState], bool]:
        """The partitions to fetch from a broker, the longest waiting first; and True if others are left out
        because their buffers are full."""
        chosen = []
        leaves_out = False
        for state in self._positions.states.values():
            if self._node_for(state, now) == node_id and self._can_fetch(state, now):
                if self._has_room(state):
                    chosen.append(state)
                else:
                    leaves_out = True
        chosen.sort(key=_served_at)
        return chosen, leaves_out

    def _build(
        self,
        node_id: int,
        is_express: bool,
        version: int,
        chosen: list[PartitionState],
        wait_ms: int,
        room_bytes: int,
        partition_bytes: int,
    ) -> FetchPlan:
        settings = self._settings
        uses_topic_ids = version >= FIRST_VERSION_WITH_TOPIC_IDS
        wanted: dict[PartitionKey, Asked] = {}
        parts: dict[PartitionKey, tuple[PartitionState, int, int]] = {}
        for state in chosen:
            name: str | bytes = state.topic_id if uses_topic_ids else state.partition.topic
            key = (name, state.partition.partition)
            wanted[key] = Asked(state.fetch_offset, state.leader_epoch, partition_bytes)
            parts[key] = (state, state.version, state.fetch_offset)
        if is_express:
            session = FetchSessionRequest(NO_SESSION, FINAL_EPOCH, wanted, [])
        else:
            session = self._fetch_sessions.setdefault(node_id, FetchSession()).request(wanted, uses_topic_ids)
        max_bytes = min(settings.max_bytes, room_bytes)
        request = fetch_request(settings, session, max_wait_ms=wait_ms, max_bytes=max_bytes)
        reserved_bytes = min(max_bytes, partition_bytes * len(chosen))
        return FetchPlan(node_id, is_express, version, request, parts, reserved_bytes)

    def _node_for(self, state: PartitionState, now: float) -> int | None:
        """The broker to fetch a partition from; None if its leader is not known."""
        metadata = self._metadata
        topic = metadata.topics.get(state.partition.topic)
        if topic is None:
            return None
        if topic is state.led_by[0] and state.preferred_replica == UNKNOWN:
            return state.led_by[1]
        if topic.topic_id != state.topic_id and topic.topic_id != ZERO_TOPIC_ID:
            self._identify(state, topic.topic_id)
        leader = metadata.leader(*state.partition)
        if leader is None:
            return None
        node_id, epoch = leader
        if epoch != state.leader_epoch:
            self._follow(state, epoch)
        state.led_by = (topic, node_id)
        replica = state.preferred_replica
        if replica != UNKNOWN:
            if now < state.preferred_until and replica in metadata.brokers:
                return replica
            state.preferred_replica = UNKNOWN
        return node_id

    def _identify(self, state: PartitionState, topic_id: bytes) -> None:
        """A topic's id became known or changed. If it changed, the topic was deleted and created again: no
        record of it has been read yet, and the position in the old topic is meaningless."""
        if state.topic_id != ZERO_TOPIC_ID:
            self._positions.restart(state, EARLIEST)
            state.leader_epoch = UNKNOWN
        state.topic_id = topic_id

    def _follow(self, state: PartitionState, epoch: int) -> None:
        """A partition has a new leader: have it checked that the leader has all records that were read."""
        if state.leader_epoch != UNKNOWN and state.need is Need.NOTHING and state.fetch_epoch != UNKNOWN:
            state.need = Need.VALIDATION
        state.leader_epoch = epoch
        state.preferred_replica = UNKNOWN
        state.retry_at = 0.0

    def _can_fetch(self, state: PartitionState, now: float) -> bool:
        return (
            state.need is Need.NOTHING
            and not state.is_paused
            and state.fetching is None
            and state.error is None
            and state.retry_at <= now
            and state not in self._positions.unreadable
        )

    def _has_room(self, state: PartitionState) -> bool:
        if state.is_drained_first:
            return not state.buffered_bytes and state not in self._positions.leases
        return state.buffered_bytes < self._positions.room_below_bytes

    def _partition_bytes(self) -> int:
        """How many bytes of one partition to fetch at once: half of its share, for two fetches may be
        buffered."""
        most = self._settings.partition_max_bytes
        share = self._settings.prefetch_max_bytes // (2 * max(1, len(self._positions.states)))
        return min(most, max(share, LEAST_PARTITION_BYTES))

    def _room_bytes(self) -> int:
        """How many bytes may still be fetched. Only with very many partitions is this less than their
        shares."""
        reserved = sum(plan.reserved_bytes for plan in self._under_way.values())
        return self._settings.prefetch_max_bytes - self._positions.buffered_bytes - reserved

    # ---- answers

    def answered(self, plan: FetchPlan, response: FetchResponse, now: float, chance: float) -> FetchOutcome:
        """Take an answer in."""
        self._answers += 1
        if not self._is_valid(plan, response):
            if response.error_code not in _ABOUT_SESSIONS:
                self._pause(plan, now, chance)
            self._land(plan)
            return FetchOutcome(0, response.error_code in _PASSING, 1)
        endpoints = {
            each.node_id: BrokerAddress(each.node_id, each.host, each.port, each.rack)
            for each in response.node_endpoints
        }
        needs_metadata = False
        errors = size = 0
        for topic in response.responses:
            name: str | bytes = (
                topic.topic_id if plan.version >= FIRST_VERSION_WITH_TOPIC_IDS else topic.topic
            )
            for data in topic.partitions:
                part = plan.parts.get((name, data.partition_index))
                if part is None:
                    continue  # nothing that we asked for
                if data.error_code != ErrorCode.NONE:
                    errors += 1
                    needs_metadata |= self._take_error(plan, part, data, endpoints, now, chance)
                else:
                    size += self._take_data(plan, part, data, now)
        self._land(plan)
        return FetchOutcome(size, needs_metadata, errors)

    def _is_valid(self, plan: FetchPlan, response: FetchResponse) -> bool:
        """True if the partitions of an answer may be taken in: neither it nor its session is in error."""
        if plan.is_express:
            waiting = self._under_way.get((plan.node_id, False))
            if not any(data.records for topic in response.responses for data in topic.partitions):
                for state, _, _ in plan.parts.values():
                    state.hurried_beside = waiting
            return response.error_code == ErrorCode.NONE
        return self._fetch_sessions[plan.node_id].answered(response.error_code, response.session_id)

    def failed(self, plan: FetchPlan, now: float, chance: float) -> None:
        """No answer came: the broker is gone, or closed the connection."""
        self._lose_session(plan)
        self._pause(plan, now, chance)
        self._land(plan)

    def _pause(self, plan: FetchPlan, now: float, chance: float) -> None:
        """Do not fetch the partitions of a plan again before the retry back-off is over."""
        with self._positions.lock:
            for state, version, _ in plan.parts.values():
                if self._positions.is_current(state, version):
                    if state.preferred_replica == plan.node_id:
                        state.preferred_replica = UNKNOWN
                    else:
                        self._back_off(state, now, chance)

    def unreachable(self, node_id: int, error: ClientError, now: float, chance: float) -> None:
        """A broker cannot be reached: the partitions to fetch from it wait, or fail if `error` is final."""
        with self._positions.lock:
            for state in self._positions.states.values():
                if self._node_for(state, now) != node_id or not self._can_fetch(state, now):
                    continue
                if state.preferred_replica == node_id:
                    state.preferred_replica = UNKNOWN
                elif error.retriable:
                    self._back_off(state, now, chance)
                else:
                    self._back_off(state, now, chance)
                    self._positions.set_error(state, error)

    def abandoned(self, plan: FetchPlan) -> None:
        """The request was not sent after all."""
        self._lose_session(plan)
        self._land(plan)

    def _lose_session(self, plan: FetchPlan) -> None:
        if not plan.is_express:
            self._fetch_sessions[plan.node_id].failed()

    def _land(self, plan: FetchPlan) -> None:
        self._under_way.pop((plan.node_id, plan.is_express), None)
        with self._positions.lock:
            for state, _, _ in plan.parts.values():
                if state.fetching is plan:
                    state.fetching = None

    def _take_data(
        self, plan: FetchPlan, part: tuple[PartitionState, int, int], data: PartitionData, now: float
    ) -> int:
        """Buffer the records of one partition; returns their size in bytes."""
        state, version, offset = part
        fetch: BufferedFetch | None = None
        end_offset, end_epoch, is_broken = offset, UNKNOWN, False
        if data.records:
            fetched = self._fetched(state, offset, data)
            try:
                end_offset, end_epoch = end_position(fetched)
            except KafkaError:
                is_broken = True  # decoding will come to the broken place and raise
            fetch = BufferedFetch(fetched, end_offset, end_epoch)
        with self._positions.lock:
            if not self._positions.is_current(state, version):
                return 0
            state.failures = 0
            state.high_watermark = data.high_watermark
            state.last_stable_offset = data.last_stable_offset
            state.log_start_offset = data.log_start_offset
            if data.diverging_epoch is not None and data.diverging_epoch.end_offset >= 0:
                state.need = Need.VALIDATION
                return 0
            if data.preferred_read_replica >= 0 and data.preferred_read_replica != plan.node_id:
                state.preferred_replica = data.preferred_read_replica
                state.preferred_until = now + self._settings.preferred_replica_seconds
            if fetch is None or (end_offset <= offset and not is_broken):
                return 0
            state.served_at = self._answers
            state.is_drained_first = is_broken
            state.fetch_offset = end_offset
            state.fetch_epoch = end_epoch
            self._positions.append(state, fetch)
        return fetch.size

    def _fetched(self, state: PartitionState, offset: int, data: PartitionData) -> FetchedRecords:
        aborted = None
        if self._settings.is_read_committed:
            aborted = tuple((each.producer_id, each.first_offset) for each in data.aborted_transactions or ())
        topic, partition = state.partition
        assert data.records is not None
        records = memoryview(data.records)
        if MOST_FRAME_SHARES * len(records) < len(records.obj):  # type: ignore[arg-type]
            records = memoryview(bytes(records))
        return FetchedRecords(topic, partition, records, offset, aborted, self._settings.check_crcs)

    def _take_error(
        self,
        plan: FetchPlan,
        part: tuple[PartitionState, int, int],
        data: PartitionData,
        endpoints: dict[int, BrokerAddress],
        now: float,
        chance: float,
    ) -> bool:
        """Handle a partition's error. Returns True if fresh metadata is needed."""
        state, version, offset = part
        error = BrokerError.of(
            data.error_code, f"fetching {state.partition} from offset {offset} on broker {plan.node_id}"
        )
        with self._positions.lock:
            if not self._positions.is_current(state, version):
                return False
            leader = self._metadata.leader(*state.partition)
            is_at_leader = leader is not None and leader[0] == plan.node_id
            state.preferred_replica = UNKNOWN
            if not is_at_leader and error.code not in _PASSING:
                return False  # the replica lags behind or fails; ask the leader
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return self._out_of_range(state, error)
            if error.code not in _PASSING:
                self._positions.set_error(state, error)
                self._back_off(state, now, chance)
                return False
            if self._learn_leader(state.partition, data, endpoints):
                return False
            self._back_off(state, now, chance)
            return True

    def _out_of_range(self, state: PartitionState, error: BrokerError) -> bool:
        if state.buffered_bytes or state in self._positions.leases:
            # Hand out what is buffered, and let the user finish it: a reset would end the lease, and with it
            # the records that are not given yet. Then fetch again.
            state.is_drained_first = True
        elif self._settings.may_guess_offsets:
            self._positions.restart(state, None, out_of_range_offset=state.fetch_offset)
        else:
            self._positions.set_error(state, error)
        return False

    def _learn_leader(
        self, partition: TopicPartition, data: PartitionData, endpoints: dict[int, BrokerAddress]
    ) -> bool:
        leader = data.current_leader
        if leader is None:
            return False
        endpoint = endpoints.get(leader.leader_id)
        return self._metadata.learn_leader(partition, leader.leader_id, leader.leader_epoch, endpoint)

    def _back_off(self, state: PartitionState, now: float, chance: float) -> None:
        state.failures += 1
        state.retry_at = now + self._settings.backoff.pause(state.failures, chance)


def _served_at(state: PartitionState) -> int:
    return state.served_at
