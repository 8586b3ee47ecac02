"""Brokers that left the cluster a moment ago, which Metadata still lists (docs/adr/0022).

A broker that is killed leaves the cluster within a tenth of a second here. Apache Kafka lists such a broker
for nine seconds more, until its session ends. Clients of librdkafka rely on that: when one answer names the
next leader of a partition and no longer lists the former one, they lose the partition for a second. A core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from klamm.cluster.image import BrokerImage, Endpoint

LISTED_SECONDS = 3.0
"""Three times the interval at which librdkafka looks for partitions without a leader."""


class DepartedBrokers:
    def __init__(self) -> None:
        self._left: dict[int, tuple[BrokerImage, float]] = {}
        """By id: the broker, and when it left."""

    def on_change(
        self, before: Mapping[int, BrokerImage], after: Mapping[int, BrokerImage], now: float
    ) -> None:
        """The living brokers were `before`, and are `after`. One that shut down led nothing any more."""
        for broker_id, broker in before.items():
            if broker_id not in after and not broker.is_shutting_down:
                self._left[broker_id] = (broker, now)
        for broker_id in after:
            self._left.pop(broker_id, None)

    def at(self, listener_name: str, now: float) -> Iterator[tuple[BrokerImage, Endpoint]]:
        """The departed brokers that had a listener of this name, each with its address there."""
        for broker_id, (broker, left_at) in list(self._left.items()):
            if now - left_at >= LISTED_SECONDS:
                del self._left[broker_id]
            elif (endpoint := broker.endpoints.get(listener_name)) is not None:
                yield broker, endpoint
