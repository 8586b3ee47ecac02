"""The coordinator over a log in memory: durability, order, loading, expiry, administration."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from klamm.groups.coordinator import abs_java_hash
from klamm.groups.events import GroupState, Leaver
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from tests.groups.fakes import Coordination, FakeLog, settle

DAY_MS = 24 * 60 * 60 * 1000
T0 = TopicPartition("t", 0)
U0 = TopicPartition("u", 0)


def run_async(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 20))

    return run


async def started(**config: str) -> Coordination:
    it = Coordination(**config)
    await it.start()
    return it


async def commit(
    it: Coordination, place: TopicPartition, offset: int, group_id: str = "g", **changes: object
) -> dict[TopicPartition, ErrorCode]:
    """A commit without generation, as simple consumers do."""
    return await it.coordinator.commit(group_id, "", None, -1, {place: it.committed(offset, **changes)})


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("hello", 99162322),
        ("group", 98629247),
        ("polygenelubricants", 0),
        ("ä", 228),
        ("𝄞", 1772394),
    ],
)
def test_hash_is_that_of_java(text: str, value: int) -> None:
    assert abs_java_hash(text) == value


@pytest.mark.parametrize("length", [255, 256, 257, 512, 1000])
def test_hash_of_a_long_name(length: int) -> None:
    text = "".join(chr(33 + 7 * index % 5000) for index in range(length))
    value = 0
    for character in text:
        value = 31 * value + ord(character)
    signed = (value + 2**31) % 2**32 - 2**31
    assert abs_java_hash(text) == abs(signed)


@run_async
async def test_commit_and_fetch() -> None:
    it = await started()
    assert await commit(it, T0, 42) == {T0: ErrorCode.NONE}
    offsets = it.coordinator.offsets_of("g")
    assert offsets.get("t", 0) == it.committed(42)
    assert not it.coordinator.offsets_of("stranger")


@run_async
async def test_a_member_commits_with_its_generation_only() -> None:
    it = await started()
    member = await it.joined()
    offsets = {T0: it.committed(1)}
    with pytest.raises(KafkaError) as error:
        await commit(it, T0, 1)
    assert code_of(error) is ErrorCode.UNKNOWN_MEMBER_ID
    with pytest.raises(KafkaError) as error:
        await it.coordinator.commit("g", member.member_id, None, member.generation + 1, offsets)
    assert code_of(error) is ErrorCode.ILLEGAL_GENERATION
    await it.coordinator.commit("g", member.member_id, None, member.generation, offsets)
    assert it.coordinator.offsets_of("g").get("t", 0) is not None


@run_async
async def test_a_generation_of_an_unknown_group_is_refused_as_the_version_wants() -> None:
    it = await started()
    for code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_ID_NOT_FOUND):
        with pytest.raises(KafkaError) as error:
            await it.coordinator.commit("g", "m", None, 3, {T0: it.committed(1)}, unknown_group_error=code)
        assert code_of(error) is code


@run_async
async def test_long_metadata_is_refused_and_the_rest_committed() -> None:
    it = await started(offset_metadata_max_bytes="4")
    offsets = {T0: it.committed(1, metadata="12345"), U0: it.committed(2, metadata="1234")}
    codes = await it.coordinator.commit("g", "", None, -1, offsets)
    assert codes == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE, U0: ErrorCode.NONE}
    assert it.coordinator.offsets_of("g").get("t", 0) is None


@run_async
async def test_a_commit_is_seen_and_answered_only_when_it_is_in_the_log() -> None:
    it = await started()
    it.log.gate.clear()
    under_way = asyncio.ensure_future(commit(it, T0, 1))
    await settle()
    assert not under_way.done()
    assert not it.coordinator.offsets_of("g")
    it.log.gate.set()
    assert await under_way == {T0: ErrorCode.NONE}
    assert it.coordinator.offsets_of("g")


@run_async
async def test_commits_that_wait_travel_together_in_order() -> None:
    it = await started()
    it.log.gate.clear()
    commits = [asyncio.ensure_future(commit(it, T0, 0))]
    await settle()
    commits += [asyncio.ensure_future(commit(it, T0, offset)) for offset in range(1, 10)]
    await settle()
    it.log.gate.set()
    await asyncio.gather(*commits)
    assert [len(batch) for batch in it.log.batches] == [1, 9]
    committed = it.coordinator.offsets_of("g").get("t", 0)
    assert committed is not None and committed.offset == 9


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    ],
)
@run_async
async def test_a_commit_that_cannot_be_written_changes_nothing(cause: ErrorCode, told: ErrorCode) -> None:
    it = await started()
    it.log.refusal = KafkaError(cause)
    with pytest.raises(KafkaError) as error:
        await commit(it, T0, 1)
    assert code_of(error) is told
    assert not it.coordinator.offsets_of("g")
    it.log.refusal = None
    await commit(it, T0, 2)


@run_async
async def test_an_assignment_is_in_the_log_before_it_is_answered() -> None:
    it = await started()
    joined = await it.join()
    it.log.gate.clear()
    synced = it.sync("g", joined, {joined.member_id: b"x"})
    await settle()
    assert not synced.done()
    assert it.coordinator.heartbeat("g", joined.member_id, None, joined.generation) is ErrorCode.NONE
    it.log.gate.set()
    assert (await synced).assignment == b"x"


@run_async
async def test_members_need_a_named_group_and_sane_sessions() -> None:
    it = await started()
    for changes, code in [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        with pytest.raises(KafkaError) as error:
            it.join(**changes)  # type: ignore[arg-type]
        assert code_of(error) is code
    assert list(it.coordinator.list_groups()) == []
    assert await commit(it, T0, 1, group_id="") == {T0: ErrorCode.NONE}


@run_async
async def test_a_partition_that_is_loading_says_so() -> None:
    it = Coordination()
    it.log.load_gate.clear()
    await it.start()
    for ask in (it.join, lambda: it.coordinator.offsets_of("g"), lambda: list(it.coordinator.list_groups())):
        with pytest.raises(KafkaError) as error:
            ask()  # type: ignore[operator]
        assert code_of(error) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    it.log.load_gate.set()
    await it.coordinator.wait_until_loaded(range(it.log.partition_count))
    assert (await it.join()).error is ErrorCode.NONE


@run_async
async def test_groups_of_others_are_not_coordinated_here() -> None:
    it = Coordination()
    it.log.led.remove(abs_java_hash("g") % 3)
    await it.start()
    with pytest.raises(KafkaError) as error:
        it.join()
    assert code_of(error) is ErrorCode.NOT_COORDINATOR


@run_async
async def test_parked_requests_are_answered_when_leadership_goes() -> None:
    it = await started()
    member = await it.joined()
    parked_join = it.join()
    it.log.gate.clear()
    under_way = asyncio.ensure_future(commit(it, T0, 1, group_id="other"))
    await settle()
    it.log.led.clear()
    it.coordinator.update_leadership()
    assert (await parked_join).error is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError) as error:
        await under_way
    assert code_of(error) is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError) as error:
        it.coordinator.heartbeat("g", member.member_id, None, 1)
    assert code_of(error) is ErrorCode.NOT_COORDINATOR


async def fill(it: Coordination) -> None:
    """Groups of every kind, some of them gone again."""
    for offset in range(5):
        await commit(it, T0, offset, group_id="simple")
    member = await it.joined("stable", instance_id="static")
    await it.coordinator.commit(
        "stable", member.member_id, None, 1, {T0: it.committed(7), U0: it.committed(8)}
    )
    left = await it.joined("left")
    await it.coordinator.commit("left", left.member_id, None, 1, {T0: it.committed(9)})
    await it.coordinator.leave("left", [Leaver(left.member_id, None)])
    gone = await it.joined("gone")
    await it.coordinator.leave("gone", [Leaver(gone.member_id, None)])
    assert await it.coordinator.delete_group("gone") is ErrorCode.NONE
    await commit(it, U0, 3, group_id="v4", topic_id=bytes(15) + b"\x07")
    await commit(it, U0, 3, group_id="old", leader_epoch=-1, expire_timestamp_ms=it.time.time_ms + DAY_MS)


@pytest.mark.parametrize("is_compacted", [False, True])
@run_async
async def test_a_restart_comes_to_the_same_state(is_compacted: bool) -> None:
    it = await started()
    await fill(it)
    group_ids = ["simple", "stable", "left", "gone", "v4", "old"]
    before = [(it.coordinator.describe(each), list(it.coordinator.offsets_of(each))) for each in group_ids]
    if is_compacted:
        it.log.compact()
    await it.restart()
    after = [(it.coordinator.describe(each), list(it.coordinator.offsets_of(each))) for each in group_ids]
    assert before == after
    assert {listed.group_id for listed in it.coordinator.list_groups()} == set(group_ids) - {"gone"}


@run_async
async def test_sessions_start_anew_after_a_restart() -> None:
    it = await started()
    member = await it.joined()
    await it.time.advance(9_000)
    await it.restart()
    await it.time.advance(9_000)
    assert it.coordinator.heartbeat("g", member.member_id, None, 1) is ErrorCode.NONE
    await it.time.advance(10_000)
    description = it.coordinator.describe("g")
    assert description is not None and description.state is GroupState.EMPTY


@run_async
async def test_members_that_do_not_come_back_after_a_restart_expire() -> None:
    it = await started()
    await it.joined()
    await it.restart()
    await it.time.advance(10_000)
    description = it.coordinator.describe("g")
    assert description is not None and description.state is GroupState.EMPTY


@run_async
async def test_records_that_are_not_ours_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog()
    it = Coordination(log)
    for records in log.replicas.partitions:
        records.append((b"\x00\x03\x00\x01g", b"\x00\x00"))
        records.append((b"", b""))
        records.append((None, b"x"))
        records.append((b"\x00\x02\x00\x01g", b"\x00\x09"))
        records.append((b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00\x03\x00"))
    await it.start()
    assert list(it.coordinator.list_groups()) == []
    assert len(caplog.messages) >= 5 * log.partition_count
    await commit(it, T0, 1)


@run_async
async def test_an_idle_group_has_no_timer() -> None:
    it = await started()
    idle = len(it.time.pending)
    member = await it.joined()
    assert len(it.time.pending) == idle + 1
    for _ in range(100):
        it.coordinator.heartbeat("g", member.member_id, None, 1)
    assert len(it.time.pending) == idle + 1
    await it.coordinator.leave("g", [Leaver(member.member_id, None)])
    assert len(it.time.pending) == idle


@run_async
async def test_heartbeats_keep_a_member_and_silence_loses_it() -> None:
    it = await started()
    member = await it.joined()
    for _ in range(5):
        await it.time.advance(9_000)
        assert it.coordinator.heartbeat("g", member.member_id, None, 1) is ErrorCode.NONE
    await it.time.advance(10_000)
    assert it.coordinator.heartbeat("g", member.member_id, None, 1) is ErrorCode.UNKNOWN_MEMBER_ID


@run_async
async def test_an_id_that_is_never_used_leaves_nothing_behind() -> None:
    it = await started()
    idle = len(it.time.pending)
    refused = await it.join(requires_known_member_id=True)
    assert refused.error is ErrorCode.MEMBER_ID_REQUIRED
    assert refused.member_id.startswith("client-")
    await it.time.advance(10_000)
    assert list(it.coordinator.list_groups()) == []
    assert len(it.time.pending) == idle


@run_async
async def test_describe_shows_members_while_stable() -> None:
    it = await started()
    member = await it.joined()
    description = it.coordinator.describe("g")
    assert description is not None
    assert (description.state, description.protocol_name) == (GroupState.STABLE, "range")
    assert [(each.member_id, each.assignment) for each in description.members] == [(member.member_id, b"x")]
    it.join()
    description = it.coordinator.describe("g")
    assert description is not None
    assert (description.state, description.protocol_name) == (GroupState.PREPARING_REBALANCE, "")
    assert {each.metadata for each in description.members} == {b""}
    assert it.coordinator.describe("stranger") is None


@run_async
async def test_only_an_empty_group_can_be_deleted() -> None:
    it = await started()
    member = await it.joined()
    assert await it.coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    assert await it.coordinator.delete_group("stranger") is ErrorCode.GROUP_ID_NOT_FOUND
    await it.coordinator.commit("g", member.member_id, None, 1, {T0: it.committed(1)})
    await it.coordinator.leave("g", [Leaver(member.member_id, None)])
    assert await it.coordinator.delete_group("g") is ErrorCode.NONE
    assert not it.coordinator.offsets_of("g")
    assert it.coordinator.describe("g") is None
    assert (await it.join()).generation == 1


@run_async
async def test_a_deletion_takes_a_commit_that_was_under_way_along() -> None:
    it = await started()
    await commit(it, T0, 1)
    it.log.gate.clear()
    earlier = asyncio.ensure_future(commit(it, U0, 1))
    await settle()
    deletion = asyncio.ensure_future(it.coordinator.delete_group("g"))
    await settle()
    it.log.gate.set()
    assert await deletion is ErrorCode.NONE
    await earlier
    assert list(it.coordinator.list_groups()) == []
    await it.restart()
    assert list(it.coordinator.list_groups()) == []


@run_async
async def test_a_deletion_that_is_refused_leaves_the_group_as_it_was() -> None:
    it = await started()
    await commit(it, T0, 1)
    it.log.refusal = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert await it.coordinator.delete_group("g") is ErrorCode.NOT_COORDINATOR
    it.log.refusal = None
    assert it.coordinator.offsets_of("g").get("t", 0) is not None
    assert (await it.join()).error is ErrorCode.NONE


@run_async
async def test_nobody_joins_a_group_that_is_being_deleted() -> None:
    it = await started()
    await commit(it, T0, 1)
    it.log.gate.clear()
    deletion = asyncio.ensure_future(it.coordinator.delete_group("g"))
    await settle()
    assert (await it.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    it.log.gate.set()
    assert await deletion is ErrorCode.NONE
    assert (await it.join()).error is ErrorCode.NONE


@run_async
async def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    it = await started()
    member = await it.joined()
    offsets = {T0: it.committed(1), U0: it.committed(2)}
    await it.coordinator.commit("g", member.member_id, None, 1, offsets)
    codes = await it.coordinator.delete_offsets("g", [T0, U0])
    assert codes == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, U0: ErrorCode.NONE}
    assert it.coordinator.offsets_of("g").topics == ["t"]
    with pytest.raises(KafkaError) as error:
        await it.coordinator.delete_offsets("stranger", [T0])
    assert code_of(error) is ErrorCode.GROUP_ID_NOT_FOUND
    await it.joined("connect", protocol_type="connect")
    with pytest.raises(KafkaError) as error:
        await it.coordinator.delete_offsets("connect", [T0])
    assert code_of(error) is ErrorCode.NON_EMPTY_GROUP


@run_async
async def test_offsets_of_a_simple_group_expire_after_the_commit() -> None:
    it = await started()
    await commit(it, T0, 1)
    await it.time.advance(6 * DAY_MS)
    await commit(it, U0, 1)
    await it.time.advance(1 * DAY_MS + 600_000)
    assert it.coordinator.offsets_of("g").topics == ["u"]
    await it.time.advance(6 * DAY_MS)
    assert list(it.coordinator.list_groups()) == []


@run_async
async def test_offsets_of_a_group_expire_after_its_last_member_left() -> None:
    it = await started(group_max_session_timeout_ms=str(40 * DAY_MS // 2))
    member = await it.joined(session_timeout_ms=20 * DAY_MS)
    offsets = {T0: it.committed(1), U0: it.committed(1)}
    await it.coordinator.commit("g", member.member_id, None, 1, offsets)
    await it.time.advance(8 * DAY_MS)
    assert it.coordinator.offsets_of("g").topics == ["t"], "u is not subscribed to, t is"
    await it.coordinator.leave("g", [Leaver(member.member_id, None)])
    await it.restart()
    await it.time.advance(7 * DAY_MS - 600_000)
    assert it.coordinator.offsets_of("g").topics == ["t"]
    await it.time.advance(1_200_000)
    assert list(it.coordinator.list_groups()) == []
    await it.restart()
    assert list(it.coordinator.list_groups()) == []


@run_async
async def test_no_offset_expires_while_the_group_rebalances() -> None:
    it = await started(group_max_session_timeout_ms=str(20 * DAY_MS))
    patient: dict[str, object] = {"session_timeout_ms": 20 * DAY_MS, "rebalance_timeout_ms": 20 * DAY_MS}

    def state() -> GroupState:
        (listed,) = it.coordinator.list_groups()
        return listed.state

    leader = await it.joined(**patient)
    await it.coordinator.commit("g", leader.member_id, None, 1, {U0: it.committed(1)})
    newcomer = it.join(**patient)
    await it.time.advance(8 * DAY_MS)
    assert state() is GroupState.PREPARING_REBALANCE
    assert it.coordinator.offsets_of("g").topics == ["u"]
    leader = await it.join(member_id=leader.member_id, **patient)
    await it.time.advance(8 * DAY_MS)
    assert state() is GroupState.COMPLETING_REBALANCE
    assert it.coordinator.offsets_of("g").topics == ["u"]
    members = [leader.member_id, (await newcomer).member_id]
    await it.sync("g", leader, dict.fromkeys(members, b"x"))
    await it.time.advance(600_000)
    assert state() is GroupState.STABLE
    assert not it.coordinator.offsets_of("g"), "nobody subscribes to u"


@run_async
async def test_a_commit_may_choose_its_own_retention() -> None:
    it = await started()
    await commit(it, T0, 1, expire_timestamp_ms=it.time.time_ms + 60_000)
    await commit(it, U0, 1)
    await it.time.advance(600_000)
    assert it.coordinator.offsets_of("g").topics == ["u"]
