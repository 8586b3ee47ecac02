"""Where reading starts and goes on: one partition's trouble holds up no other, and a jump is told."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest

from klamm.client.consumer.group.offsets import CommittedFound, GroupOffsets
from klamm.client.consumer.offsets import OffsetLookup, OffsetsFound
from klamm.client.consumer.partition_state import Need
from klamm.client.consumer.position_finder import FetchCommitted, PositionFinder
from klamm.client.consumer.positions import Positions
from klamm.client.consumer.start import StartPolicy
from klamm.client.errors import BrokerError
from klamm.client.logs import client_logger
from klamm.client.network.backoff import Backoff
from klamm.client.results import CommittedOffset, OffsetAndTime, TopicPartition
from klamm.model.errors import ErrorCode
from klamm.testing import Broker
from tests.client.consumer.fake_cluster import FakeCluster, FakeConsumer
from tests.client.faces import Face
from tests.client.reading import collect, fill, values
from tests.client.topics import make_topic, unique

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
END = 12


class Ends:
    """A look-up that says that every log ends at END."""

    async def try_list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> OffsetsFound:
        return OffsetsFound({partition: OffsetAndTime(END, -1, 0) for partition in timestamps}, {})


def finder_of(positions: Positions, committed: FetchCommitted | None = None) -> PositionFinder:
    return PositionFinder(
        positions,
        cast("OffsetLookup", Ends()),
        StartPolicy("latest"),
        committed,
        backoff=Backoff(1.0, 1.0),
        patience_seconds=60.0,
        clock=lambda: 100.0,
        logger=client_logger("consumer", "c"),
    )


def positions_of(*partitions: TopicPartition) -> Positions:
    positions = Positions(threading.Lock())
    positions.assign(partitions)
    return positions


async def test_a_partition_whose_committed_offset_is_not_to_be_had_holds_up_no_other() -> None:
    """One that a transaction is about to commit, for example."""

    async def committed(partitions: Collection[TopicPartition]) -> CommittedFound:
        unstable = BrokerError.of(ErrorCode.UNSTABLE_OFFSET_COMMIT, "reading committed offsets")
        return CommittedFound({A1: CommittedOffset(5)}, {A0: unstable})

    positions = positions_of(A0, A1)
    await finder_of(positions, committed).run(Need.COMMITTED)
    assert positions.position(A1) == CommittedOffset(5)
    assert positions.position(A0) is None
    assert positions.needing(Need.COMMITTED, now=100.0) == [], "it is asked for again after a pause"
    assert len(positions.needing(Need.COMMITTED, now=110.0)) == 1


def test_a_coordinator_that_does_not_answer_holds_up_nobody_who_does_not_need_it(
    face: Face, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(broker.bootstrap, partitions=2)
    sent = fill(face, broker.bootstrap, topic, 5, partition=1)

    async def never(*arguments: Any) -> CommittedFound:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(GroupOffsets, "try_committed", never)
    with face.consumer(broker.bootstrap, group=unique("group"), enable_auto_commit=False) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        assert consumer.poll(timeout=0.1) == [], "it waits for the committed offsets of both"
        consumer.seek_to_beginning((topic, 1))
        assert values(collect(consumer, 5)) == sent


def test_a_fetch_that_is_out_of_range_says_from_where() -> None:
    cluster = FakeCluster(nodes=1)
    cluster.create("a", 1)
    consumer = FakeConsumer(cluster)
    consumer.assign(A0)
    cluster.logs[A0].append([b"0", b"1", b"2"])
    cluster.logs[A0].start = 2
    assert consumer.fetch(1) == 0
    state = consumer.positions.states[A0]
    assert (state.need, state.out_of_range_offset) == (Need.RESET, 0)


@pytest.mark.parametrize(("offset", "passed_over"), [(7, 5), (20, 0)])
async def test_a_jump_is_told_with_both_offsets(
    caplog: pytest.LogCaptureFixture, offset: int, passed_over: int
) -> None:
    positions = positions_of(A0)
    positions.restart(positions.get(A0), None, out_of_range_offset=offset)
    with caplog.at_level(logging.WARNING, "klamm.client"):
        await finder_of(positions).run(Need.RESET)
    assert positions.position(A0) == CommittedOffset(END)
    (told,) = caplog.messages
    assert f"a-0 has no offset {offset}: reading goes on at offset {END}" in told
    assert f"passes over {passed_over} records" in told


async def test_a_start_is_not_a_jump(caplog: pytest.LogCaptureFixture) -> None:
    positions = positions_of(A0)
    positions.reset(A0, None)
    with caplog.at_level(logging.INFO, "klamm.client"):
        await finder_of(positions).run(Need.RESET)
    assert not caplog.messages
