"""There are no transactions yet. A client that asks for one is refused; it is never served without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest
from klamm.testing import Broker
from klamm.testing.wire import WireConnection

REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TRANSACTION_KEY = 1


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def versions_of(key: ApiKey) -> range:
    served = API_VERSIONS[key]
    return range(served.min_version, served.max_version + 1)


@pytest.mark.parametrize("transactional_id", ["payments", ""])
def test_no_producer_id_for_a_transactional_id(broker: Broker, transactional_id: str) -> None:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    with WireConnection(broker.bootstrap) as wire:
        for version in versions_of(ApiKey.INIT_PRODUCER_ID):
            answer = wire.call(request, version)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (REFUSED, -1, -1)


def test_a_producer_id_without_a_transactional_id(broker: Broker) -> None:
    with WireConnection(broker.bootstrap) as wire:
        answer = wire.call(InitProducerIdRequest(transactional_id=None))
    assert answer.error_code == 0 and answer.producer_id >= 0 and answer.producer_epoch == 0


def test_no_coordinator_for_a_transactional_id(broker: Broker) -> None:
    with WireConnection(broker.bootstrap) as wire:
        for version in versions_of(ApiKey.FIND_COORDINATOR):
            if version >= 4:
                request = FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=["payments"])
                (answer,) = wire.call(request, version).coordinators
            elif version >= 1:  # version 0 knows only the coordinators of groups
                answer = wire.call(FindCoordinatorRequest(key="payments", key_type=TRANSACTION_KEY), version)
            else:
                continue
            assert (answer.error_code, answer.node_id) == (REFUSED, -1), version
            assert "without a transactional.id" in answer.error_message


def test_a_producer_with_a_transactional_id_is_told_at_once(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "payments"})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(60)
    error = caught.value.args[0]
    assert error.code() == REFUSED and not error.retriable()
