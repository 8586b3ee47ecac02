"""Sessions and claims with asyncio: what ends when, what is finished, what is cancelled and by whom."""

from __future__ import annotations

import asyncio

import pytest

import klamm
from klamm.client.consumer.group.sessions import Claim
from klamm.client.errors import ClientMisused, PollOverdue
from tests.client.groups.conftest import NewTopic
from tests.client.groups.workers import Worker, at_work, committed, new_consumer, send
from tests.client.leaks import nothing_leaks
from tests.client.topics import unique
from tests.waiting import PATIENCE_S, until

STRATEGIES = ["range", "cooperative-sticky"]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_one_session_per_rebalance_and_every_record_once(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(4), unique("group")
    await send(klamm_bootstrap, topic, {number: numbered(50) for number in range(4)})
    first = Worker(new_consumer(klamm_bootstrap, group, topic))
    second = Worker(new_consumer(klamm_bootstrap, group, topic))
    async with at_work(first):
        await until(lambda: len(first.finished) == 200, "one member reads everything")
        assert len(first.sessions) == 1
        assert first.sessions[0].generation == 1
        async with at_work(second):
            await until(lambda: len(first.claimed) == 2 and len(second.claimed) == 2, "both have a share")
            assert len(first.sessions) == 2, "a rebalance is a turn of the loop"
            assert first.sessions[0].ended and not first.sessions[1].ended
            await send(klamm_bootstrap, topic, {number: numbered(5) for number in range(4)})
            await until(lambda: len(first.finished) + len(second.finished) == 220, "both read on")
        await until(lambda: len(first.claimed) == 4, "one has everything again")
    for number in range(4):
        assert sorted(first.offsets(number) + second.offsets(number)) == list(range(55))
    assert await committed(klamm_bootstrap, group, topic, 4) == dict.fromkeys(range(4), 55)


async def test_columns_of_a_claim(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    """They are finished when more is asked for; those of a worker that was cancelled come again."""
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(10)})
    got: list[list[int]] = []
    has_two = asyncio.Event()

    async def work(claim: Claim) -> None:
        while (batch := await claim.poll_arrow(max_records=4)).num_rows:
            got.append(batch.column("offset").to_pylist())
            if len(got) == 2:
                has_two.set()
                await asyncio.Event().wait()

    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        async for session in consumer.sessions():
            async with session:
                worker = asyncio.create_task(work(session.claims[0]))
                await has_two.wait()
                worker.cancel()
                await asyncio.wait([worker])
            break
        assert got == [[0, 1, 2, 3], [4, 5, 6, 7]]
        batch = await consumer.poll_arrow(timeout=10)
        assert batch.column("offset").to_pylist() == [4, 5, 6, 7, 8, 9]
        await consumer.close()
    assert await committed(klamm_bootstrap, group, topic) == {0: 4}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_draining_finishes_the_record_in_work_and_no_other(
    klamm_bootstrap: str, klamm_topic: NewTopic, strategy: str
) -> None:
    topic, group = klamm_topic(2), unique("group")
    await send(klamm_bootstrap, topic, {number: numbered(10) for number in range(2)})
    options = {"partition_assignment_strategy": [strategy]}
    first = Worker(new_consumer(klamm_bootstrap, group, topic, **options), on_revoke="drain")
    second = Worker(new_consumer(klamm_bootstrap, group, topic, **options))
    first.gate.clear()
    async with at_work(first):
        await until(lambda: len(first.started) == 2, "a record of each partition is in work")
        async with at_work(second):
            await until(lambda: first.sessions[0].ended, "the rebalance has come")
            assert not second.sessions, "nobody gets anything before the work is done"
            assert not first.finished
            first.gate.set()
            await until(lambda: len(first.claimed) == 1 and len(second.claimed) == 1, "each has one")
            await until(lambda: len(first.finished) + len(second.finished) == 20, "all are read")
            (kept,), (given,) = first.claimed, second.claimed
            assert second.offsets(given) == list(range(1, 10)), "the first was finished"
            assert first.offsets(given) == [0]
            assert first.offsets(kept) == list(range(10))
            assert not first.cancelled
    assert await committed(klamm_bootstrap, group, topic, 2) == {0: 10, 1: 10}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_cancelling_leaves_the_record_in_work_to_the_next_owner(
    klamm_bootstrap: str, klamm_topic: NewTopic, strategy: str
) -> None:
    topic, group = klamm_topic(2), unique("group")
    await send(klamm_bootstrap, topic, {number: numbered(10) for number in range(2)})
    options = {"partition_assignment_strategy": [strategy]}
    first = Worker(new_consumer(klamm_bootstrap, group, topic, **options), on_revoke="cancel")
    second = Worker(new_consumer(klamm_bootstrap, group, topic, **options))
    first.gate.clear()
    async with at_work(first):
        await until(lambda: len(first.started) == 2, "a record of each partition is in work")
        async with at_work(second):
            await until(lambda: len(first.cancelled) == 2, "both workers are cancelled")
            first.gate.set()
            await until(lambda: len(first.finished) + len(second.finished) == 20, "all are read")
            (kept,), (given,) = first.claimed, second.claimed
            assert second.offsets(given) == list(range(10))
            assert first.offsets(kept) == list(range(10)), "the one that stayed is handed out again"


async def test_waiting_workers_are_not_cancelled(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(2), unique("group")
    ended = []

    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        async for session in consumer.sessions(on_revoke="cancel"):

            async def wait(claim: object) -> None:
                async for _ in claim:  # type: ignore[attr-defined]
                    raise AssertionError("there is nothing to read")
                ended.append(claim)

            async with session, asyncio.TaskGroup() as tasks:
                for claim in session.claims:
                    tasks.create_task(wait(claim))
                await asyncio.sleep(0)
                consumer.subscribe([topic])  # ends the session as a rebalance does
            assert len(ended) == 2, "their loops ended, and what was behind them ran"
            break


async def test_who_drains_for_too_long_is_cancelled(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(3)})
    first = Worker(new_consumer(klamm_bootstrap, group, topic), drain_timeout=0.2)
    second = Worker(new_consumer(klamm_bootstrap, group, topic))
    first.gate.clear()
    async with at_work(first):
        await until(lambda: len(first.started) == 1, "a record is in work")
        async with at_work(second):
            await until(lambda: len(first.cancelled) == 1, "its worker is cancelled")
            first.gate.set()
            await until(lambda: len(first.finished) + len(second.finished) == 3, "all are read")


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_partitions_that_stay_come_back_without_a_fetch(
    klamm_bootstrap: str, klamm_topic: NewTopic, strategy: str
) -> None:
    topic, group = klamm_topic(2), unique("group")
    await send(klamm_bootstrap, topic, {number: numbered(100) for number in range(2)})
    consumer = new_consumer(klamm_bootstrap, group, topic, partition_assignment_strategy=[strategy])
    first = Worker(consumer, on_revoke="cancel")
    first.gate.clear()
    async with at_work(first):
        await until(lambda: len(first.started) == 2, "a record of each partition is in work")
        before = consumer.counters()["bytes_received"]
        consumer.subscribe([topic, "another-" + topic])  # a rebalance in which nothing moves
        await until(lambda: len(first.sessions) == 2 and len(first.started) == 4, "the next session reads")
        assert [record.offset for record in first.started] == [0, 0, 0, 0]
        first.gate.set()
        await until(lambda: len(first.finished) == 200, "all are read")
        assert consumer.counters()["bytes_received"] == before, "nothing was fetched twice"


# ---- errors and other ways to end


async def test_a_worker_that_fails_ends_the_loop_and_commits_nothing_unfinished(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(2), unique("group")
    await send(klamm_bootstrap, topic, {number: numbered(5) for number in range(2)})

    async def work(claim: object) -> None:
        async for record in claim:  # type: ignore[attr-defined]
            if record.partition == 0 and record.offset == 3:
                raise ValueError("cannot be worked on")

    with pytest.raises(ExceptionGroup) as raised:
        async with new_consumer(klamm_bootstrap, group, topic) as consumer:
            async for session in consumer.sessions():
                async with session, asyncio.TaskGroup() as tasks:
                    for claim in session.claims:
                        tasks.create_task(work(claim))
    assert [str(error) for error in raised.value.exceptions] == ["cannot be worked on"]
    assert (await committed(klamm_bootstrap, group, topic, 2))[0] == 3


async def test_a_worker_may_leave_its_loop_and_say_what_is_done(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(2), unique("group")
    await send(klamm_bootstrap, topic, {number: numbered(5) for number in range(2)})
    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        async for session in consumer.sessions():
            async with session:
                for claim in session.claims:
                    async for record in claim:
                        if record.offset == 2:
                            if claim.partition == 1:
                                claim.done(record)
                            break
            break
        assert consumer._engine.session is None
    assert await committed(klamm_bootstrap, group, topic, 2) == {0: 2, 1: 3}


async def test_a_session_left_early_waits_for_the_next_rebalance(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(1), unique("group")
    turns = 0

    async def run(consumer: klamm.aio.Consumer) -> None:
        nonlocal turns
        async for session in consumer.sessions():
            async with session:
                turns += 1

    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        task = asyncio.create_task(run(consumer))
        await until(lambda: turns == 1, "the first session")
        await asyncio.sleep(0.3)  # what must not happen has no moment to wait for
        assert turns == 1
        consumer.subscribe([topic, "another"])
        await until(lambda: turns == 2, "a rebalance brings the next")
        await consumer.close()
        await asyncio.wait_for(task, 10)


async def test_closing_the_consumer_ends_the_loop(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(2), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    with nothing_leaks(asyncio.get_running_loop() and None):
        worker = Worker(new_consumer(klamm_bootstrap, group, topic))
        async with at_work(worker):
            await until(lambda: len(worker.finished) == 5, "all are read")
    assert await committed(klamm_bootstrap, group, topic, 2) == {0: 5, 1: 0}


async def test_closing_waits_for_the_record_in_work(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    worker = Worker(new_consumer(klamm_bootstrap, group, topic))
    worker.gate.clear()
    async with at_work(worker):
        await until(lambda: len(worker.started) == 1, "a record is in work")
        closing = asyncio.create_task(worker.consumer.close())
        await until(lambda: worker.sessions[0].ended, "the session ends")
        assert not closing.done()
        worker.gate.set()
        await closing
    assert worker.offsets(0) == [0]
    assert await committed(klamm_bootstrap, group, topic) == {0: 1}


async def test_a_worker_may_close_the_consumer_itself(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    seen = []
    async with asyncio.timeout(10):
        consumer = new_consumer(klamm_bootstrap, group, topic)
        async for session in consumer.sessions():
            async with session, asyncio.TaskGroup() as tasks:

                async def work(claim: object) -> None:
                    async for record in claim:  # type: ignore[attr-defined]
                        seen.append(record.offset)
                        if record.offset == 2:
                            await consumer.close()

                for claim in session.claims:
                    tasks.create_task(work(claim))
    assert seen == [0, 1, 2]
    assert await committed(klamm_bootstrap, group, topic) == {0: 2}, "the record in work was not finished"


# ---- whose cancellation it is


async def test_cancelling_the_task_that_iterates_in_the_session_itself_is_swallowed(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    went_on = False
    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        async for session in consumer.sessions(on_revoke="cancel"):
            async with session:
                async for _ in session.claims[0]:
                    consumer.subscribe([topic, "another"])
                    await asyncio.sleep(10)
                    raise AssertionError("the work was not cancelled")
            went_on = True
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
            break
    assert went_on


async def test_workers_under_gather_are_cancelled_without_cancelling_the_user(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(2), unique("group")
    await send(klamm_bootstrap, topic, {number: numbered(5) for number in range(2)})
    went_on = False

    async def work(claim: object) -> None:
        async for _ in claim:  # type: ignore[attr-defined]
            await asyncio.sleep(10)

    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        async for session in consumer.sessions(on_revoke="cancel"):
            async with session:
                asyncio.get_running_loop().call_later(0.1, consumer.subscribe, [topic, "another"])
                await asyncio.gather(*(work(claim) for claim in session.claims))
            went_on = True
            break
    assert went_on


@pytest.mark.parametrize("on_revoke", ["drain", "cancel"])
async def test_a_cancellation_of_the_users_goes_on(
    klamm_bootstrap: str, klamm_topic: NewTopic, on_revoke: str
) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    worker = Worker(new_consumer(klamm_bootstrap, group, topic), on_revoke=on_revoke)
    worker.gate.clear()
    async with worker.consumer:
        task = asyncio.create_task(worker.run())
        await until(lambda: len(worker.started) == 1, "a record is in work")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(worker.cancelled) == 1
    assert await committed(klamm_bootstrap, group, topic) == {0: 0}


async def test_a_cancellation_of_the_users_together_with_ours_goes_on(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    worker = Worker(new_consumer(klamm_bootstrap, group, topic), on_revoke="cancel")
    worker.gate.clear()
    async with worker.consumer:
        task = asyncio.create_task(worker.run())
        await until(lambda: len(worker.started) == 1, "a record is in work")
        session = worker.sessions[0]
        session._end()
        session._cancel_workers()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancellation_that_nobody_asked_us_for_goes_on(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(1), unique("group")
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        session = await anext(consumer.sessions(on_revoke="cancel"))
        with pytest.raises(asyncio.CancelledError):
            async with session:
                await cancelled


async def test_an_error_beside_our_cancellation_is_raised(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        with pytest.raises(ValueError, match="cleaning up failed"):
            async for session in consumer.sessions(on_revoke="cancel"):
                async with session:
                    async for _ in session.claims[0]:
                        consumer.subscribe([topic, "another"])
                        try:
                            await asyncio.sleep(10)
                        except asyncio.CancelledError:
                            raise ValueError("cleaning up failed") from None
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_workers_that_no_task_group_holds_are_waited_for(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    finished = []
    gate = asyncio.Event()

    async def work(claim: object) -> None:
        async for record in claim:  # type: ignore[attr-defined]
            await gate.wait()
            finished.append(record.offset)
        await asyncio.sleep(3600)  # what comes after the loop is not waited for

    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        async for session in consumer.sessions():
            async with session:
                (claim,) = session.claims
                task = asyncio.create_task(work(claim))
                await until(lambda claim=claim: claim._reader.is_busy, "a record is in work")
                asyncio.get_running_loop().call_later(0.1, gate.set)
            break
        assert finished == [0]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await committed(klamm_bootstrap, group, topic) == {0: 1}


# ---- batches, commits by hand, polls


async def test_records_in_batches(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(10)})
    sizes = []
    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        async for session in consumer.sessions():
            async with session:
                (claim,) = session.claims
                while records := await claim.poll(4, timeout=1.0):
                    sizes.append(len(records))
                    if records[-1].offset == 9:
                        claim.done(records[0])
                        break
            break
    assert sizes == [4, 4, 2]
    assert await committed(klamm_bootstrap, group, topic) == {0: 9}, "of the last batch one was done"


async def test_a_claim_that_ended_gives_an_empty_batch(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        async for session in consumer.sessions():
            async with session:
                (claim,) = session.claims
                assert await claim.poll(timeout=0) == []
                assert await claim.poll(timeout=0.01) == []
                asyncio.get_running_loop().call_later(0.1, consumer.subscribe, [topic, "another"])
                assert await claim.poll() == []
                assert claim.ended
            break


async def test_commits_by_hand(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    async with new_consumer(klamm_bootstrap, group, topic, enable_auto_commit=False) as consumer:
        async for session in consumer.sessions():
            async with session:
                (claim,) = session.claims
                async for record in claim:
                    if record.offset == 2:
                        await session.commit()
                        assert await committed(klamm_bootstrap, group, topic) == {0: 2}
                        claim.done(record)
                        await claim.commit()
                        assert await committed(klamm_bootstrap, group, topic) == {0: 3}
                    if record.offset == 4:
                        break
            break
    assert await committed(klamm_bootstrap, group, topic) == {0: 3}, "nothing is committed by itself"


async def test_automatic_commits_go_out_while_a_session_lasts(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(5)})
    consumer = new_consumer(klamm_bootstrap, group, topic, auto_commit_interval_ms=20)
    async with consumer:
        async for session in consumer.sessions():
            async with session:
                async for record in session.claims[0]:
                    if record.offset == 3:
                        # The first commit may have left before the first record was finished.
                        async with asyncio.timeout(PATIENCE_S):
                            while not 0 < (await committed(klamm_bootstrap, group, topic)).get(0, 0) <= 3:
                                pass  # each look is a request
                        break
            break


async def test_polling_goes_on_where_sessions_ended(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(10)})
    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        async for session in consumer.sessions():
            async with session:
                async for record in session.claims[0]:
                    if record.offset == 3:
                        break
            break
        records = await consumer.poll(timeout=10)
        assert [record.offset for record in records] == list(range(3, 10))


async def test_a_worker_stuck_with_one_record_leaves_the_group(
    klamm_bootstrap: str, klamm_topic: NewTopic
) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: numbered(3)})
    consumer = new_consumer(klamm_bootstrap, group, topic, max_poll_interval_ms=500)
    worker = Worker(consumer, drain_timeout=0.1)
    worker.gate.clear()
    with pytest.warns(PollOverdue, match="did not poll for"):
        async with at_work(worker):
            await until(lambda: len(worker.cancelled) == 1, "its work is cancelled")
            worker.gate.set()
            await until(lambda: len(worker.finished) == 3, "it joins again and reads all")
    assert consumer.counters()["partitions_lost"] == 1


async def test_a_session_without_work_stays_a_member(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    worker = Worker(new_consumer(klamm_bootstrap, group, topic, max_poll_interval_ms=400))
    async with at_work(worker):
        await until(lambda: len(worker.sessions) == 1, "it is a member")
        heartbeats = worker.consumer.counters()["heartbeats"]
        await until(lambda: worker.consumer.counters()["heartbeats"] > heartbeats + 10, "a second passes")
        assert len(worker.sessions) == 1
        await send(klamm_bootstrap, topic, {0: numbered(1)})
        await until(lambda: len(worker.finished) == 1, "it reads")


# ---- wrong use


async def test_wrong_use_is_refused(klamm_bootstrap: str, klamm_topic: NewTopic) -> None:
    topic, group = klamm_topic(1), unique("group")
    async with new_consumer(klamm_bootstrap, group, topic, max_poll_interval_ms=1000) as consumer:
        with pytest.raises(ClientMisused, match="on_revoke='stop'"):
            consumer.sessions(on_revoke="stop")
        with pytest.raises(ClientMisused, match="drain_timeout=1"):
            consumer.sessions(drain_timeout=1)
        async for session in consumer.sessions():
            with pytest.raises(ClientMisused, match="before its session is entered"):
                await anext(session.claims[0])
            async with session:
                with pytest.raises(ClientMisused, match="inside a session"):
                    await consumer.poll(timeout=0)
            with pytest.raises(ClientMisused, match="entered once"):
                async with session:
                    pass
            break
    with pytest.raises(klamm.ClientClosed):
        consumer.sessions()
    async with klamm.aio.Consumer(klamm_bootstrap, topics=[topic]) as alone:
        with pytest.raises(ClientMisused, match=r"sessions\(\) needs a group"):
            await anext(alone.sessions())
    async with klamm.aio.Consumer(klamm_bootstrap, group=group) as idle:
        with pytest.raises(ClientMisused, match=r"sessions\(\) needs a subscription"):
            await anext(idle.sessions())
