"""Asks every broker, again and again, who leads and how far the high watermark is.

What must hold: all brokers name the same leader for a leader epoch; the leader epoch that a broker names
never goes back, and neither does the high watermark that leaders tell (ListOffsets latest).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.testing.wire import WireConnection

INTERVAL_S = 0.2
ANSWER_S = 1.0
LATEST = -1
NO_LEADER = -1


class Observer:
    def __init__(self, addresses: Mapping[int, str], topic: str, partitions: int) -> None:
        self._addresses = addresses
        self._topic = topic
        self._partitions = partitions
        self._leaders: dict[tuple[int, int], tuple[int, int]] = {}
        """(partition, leader epoch) → (leader, broker that said so)"""
        self._epochs: dict[tuple[int, int], int] = {}
        """(broker, partition) → the last leader epoch that the broker named"""
        self._newest: dict[int, int] = {}
        """partition → the highest leader epoch that any broker named"""
        self._high_watermarks: dict[int, tuple[int, int]] = {}
        """partition → (high watermark, leader that told it)"""
        self._anomalies: list[str] = []
        self.answer_count = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def finish(self) -> list[str]:
        """The anomalies."""
        self.stop()
        self._thread.join(30)
        return self._anomalies

    def _work(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            for broker_id, address in self._addresses.items():
                try:
                    with WireConnection(address, timeout_s=ANSWER_S) as connection:
                        self._ask(broker_id, connection)
                except OSError:
                    continue  # it is down, paused or busy

    def _ask(self, broker_id: int, connection: WireConnection) -> None:
        topic = MetadataRequestTopic(name=self._topic)
        answer = connection.call(MetadataRequest(topics=[topic], allow_auto_topic_creation=False)).topics[0]
        for each in answer.partitions:
            self.on_leader(broker_id, each.partition_index, each.leader_id, each.leader_epoch)
        # With the newest epoch: a leader that was replaced without knowing must not answer.
        asked = [
            ListOffsetsPartition(
                partition_index=index, current_leader_epoch=self._newest.get(index, -1), timestamp=LATEST
            )
            for index in range(self._partitions)
        ]
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=self._topic, partitions=asked)],
            timeout_ms=1_000,
        )
        for each in connection.call(request).topics[0].partitions:
            if each.error_code == ErrorCode.NONE:
                self.on_high_watermark(broker_id, each.partition_index, each.offset)
        self.answer_count += 1

    def on_leader(self, broker_id: int, partition: int, leader: int, epoch: int) -> None:
        before = self._epochs.get((broker_id, partition), -1)
        if epoch < before:
            self._anomalies.append(
                f"epoch went back: broker {broker_id} named epoch {epoch} of partition {partition} "
                f"after {before}"
            )
        self._epochs[broker_id, partition] = epoch
        self._newest[partition] = max(epoch, self._newest.get(partition, -1))
        if leader == NO_LEADER:
            return
        known, teller = self._leaders.setdefault((partition, epoch), (leader, broker_id))
        if known != leader:
            self._anomalies.append(
                f"two leaders: partition {partition} is led in epoch {epoch} by {known}, says broker "
                f"{teller}, and by {leader}, says broker {broker_id}"
            )

    def on_high_watermark(self, broker_id: int, partition: int, offset: int) -> None:
        before, teller = self._high_watermarks.get(partition, (-1, broker_id))
        if offset < before:
            self._anomalies.append(
                f"high watermark went back: broker {broker_id} told {offset} for partition {partition}, "
                f"broker {teller} had told {before}"
            )
        self._high_watermarks[partition] = (offset, broker_id)
