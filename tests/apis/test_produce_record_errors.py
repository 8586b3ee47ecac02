"""Produces of batches with very many records that are refused, to several partitions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import GeneratorType, SimpleNamespace
from typing import Any

import pytest

from klamm.apis import k00_produce
from klamm.apis.registry import CloseConnection, Request
from klamm.apis.steps import run
from klamm.model.errors import ErrorCode
from klamm.protocol.codec import encode_in_steps
from klamm.protocol.compiler import ELEMENTS_PER_STEP
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from klamm.records.builder import build_batch, number_records
from klamm.records.compression import Codec
from klamm.replication.opening import MAX_RECORD_ERRORS
from klamm.testing import Broker
from klamm.testing.wire import WireConnection
from tests.apis.outcomes import answer_of
from tests.replies import FakeReply

NOW_MS = 1_700_000_000_000
VERSION = 12
"""The newest that names topics; 13 uses ids."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with WireConnection(broker.bootstrap) as wire:
            setting = CreatableTopicConfig(name="cleanup.policy", value="compact")
            topic = CreatableTopic(name="t", num_partitions=4, replication_factor=1, configs=[setting])
            wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        yield broker


def batch_of(refused_count: int, fine_count: int = 0) -> bytes:
    pairs = [(None, b"")] * refused_count + [(b"key", b"")] * fine_count
    return bytes(build_batch(number_records(pairs, NOW_MS), codec=Codec.ZSTD))


def outcome_of(
    broker: Broker, *batches: bytes, version: int = VERSION, acks: int = -1, is_large: bool = False
) -> Any:
    """What the handler gives the connection in the end, for a produce of one batch to each partition."""
    data = [PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    message = ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )
    connection: Any = SimpleNamespace(shortcut=None)

    async def ask() -> Any:
        assert broker.node is not None
        request = Request(message, version, "client", connection, FakeReply(), is_large=is_large)
        outcome = k00_produce.handle(broker.node, request)
        if isinstance(outcome, GeneratorType):
            _, outcome = run(outcome, float("inf"))
        assert inspect.isawaitable(outcome)
        return await outcome

    return broker.run(ask())


async def answer(outcome: Any) -> Any:
    return await answer_of(outcome, FakeReply(), VERSION)


def test_one_answer_names_so_many_records_and_no_more(broker: Broker) -> None:
    most = MAX_RECORD_ERRORS
    outcome = outcome_of(broker, batch_of(most - 10), batch_of(20), batch_of(30), batch_of(0, fine_count=1))
    answers = broker.run(answer(outcome)).responses[0].partition_responses
    named = [[each.batch_index for each in answer.record_errors] for answer in answers]
    assert named == [list(range(most - 10)), list(range(10)), [], []]
    refused = [(answer.error_code, answer.error_message.split(":")[0]) for answer in answers[:3]]
    assert refused == [
        (ErrorCode.INVALID_RECORD, f"record 0 of the batch is refused, and so are {count - 1} others")
        for count in (most - 10, 20, 30)
    ]
    assert (answers[3].error_code, answers[3].error_message) == (ErrorCode.NONE, None)


def test_an_answer_that_names_records_is_made_in_steps(broker: Broker) -> None:
    outcome = outcome_of(broker, batch_of(MAX_RECORD_ERRORS))
    assert isinstance(outcome, GeneratorType)
    _, response = run(outcome, float("inf"))
    steps = encode_in_steps(response, VERSION, lambda byte_count: None)
    assert sum(1 for _ in steps) >= MAX_RECORD_ERRORS // ELEMENTS_PER_STEP


@pytest.mark.parametrize("is_large", [False, True])
def test_the_answer_to_a_large_request_is_made_in_steps(broker: Broker, is_large: bool) -> None:
    """Also if no record is refused: it may have 50,000 partitions, of which one had to be opened."""
    assert isinstance(outcome_of(broker, batch_of(0, 1), is_large=is_large), GeneratorType) == is_large


def test_versions_that_cannot_name_records_collect_none(broker: Broker) -> None:
    response = outcome_of(broker, batch_of(5), version=7)
    (answer,) = response.responses[0].partition_responses
    assert (answer.error_code, answer.record_errors) == (ErrorCode.INVALID_RECORD, [])


def test_without_an_answer_the_connection_is_closed(broker: Broker) -> None:
    with pytest.raises(
        CloseConnection, match="INVALID_RECORD, record 0 of the batch is refused, and so are 4"
    ):
        outcome_of(broker, batch_of(5), acks=0)
