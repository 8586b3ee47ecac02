"""Ctrl-C while the plain consumer runs the user's code."""

from __future__ import annotations

import pytest

import klamm
from klamm.client.results import TopicPartition
from klamm.testing import Broker
from klamm.testing.wire import WireConnection
from tests.abuse.calls import batch_of, produce
from tests.client.reading import PATIENCE_S, values
from tests.client.topics import make_topic, unique


def test_a_callback_that_is_interrupted_holds_up_no_later_poll(broker: Broker, wire: WireConnection) -> None:
    topic = make_topic(broker.bootstrap)
    produce(wire, topic, batch_of(b"0"))
    interrupts = [KeyboardInterrupt()]

    def assigned(partitions: set[TopicPartition]) -> None:
        if interrupts:
            raise interrupts.pop()

    with klamm.Consumer(broker.bootstrap, group=unique("group"), start="earliest") as consumer:
        consumer.subscribe([topic], on_assigned=assigned)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(timeout=PATIENCE_S)
        assert values(consumer.poll(timeout=PATIENCE_S)) == [b"0"]
