"""Writes to one partition, batch by batch: each batch once, in order, under a given producer id and epoch.

Unlike `klamm.Producer`, which chooses its producer id itself, this lets the next process shut out what a
killed one may still have on the way: a broker that has a batch of a later epoch refuses those of earlier
epochs. A batch that is sent again, as its answer was lost, is recognised by its sequence number.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from klamm.client.errors import BrokerError, ClientError
from klamm.client.network.network import Network
from klamm.client.plain.runner import LoopThread
from klamm.config.client_config import ClientConfig
from klamm.model.errors import ErrorCode
from klamm.pipelines.project import Project
from klamm.pipelines.retry.log import Headers, Identity
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest
from klamm.records.batch import MAX_SEQUENCE
from klamm.records.builder import assemble_batch
from klamm.records.encoding import encode_records

LAST_VERSION_WITH_NAMES = 12
"""Later versions of Produce name topics by their ids."""

ALL_IN_SYNC_REPLICAS = -1
NO_TRANSACTION_MS = 60_000

_WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
_SHUT_OUT = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


class ShutOut(ClientError):
    """Another process writes under a later epoch."""


class Outgoing(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


class OrderedWriter:
    """Writes to one partition. One thread uses an object."""

    def __init__(self, project: Project, topic: str, partition: int) -> None:
        config = ClientConfig("producer", project.bootstrap, project.client_settings("producer"))
        self._topic = topic
        self._partition = partition
        self._timeout_s = config.seconds("delivery.timeout.ms")
        self._identity: Identity | None = None
        self._sequence = 0
        self._thread = LoopThread("klamm-redrive")
        self._network = self._thread.run(_started(config))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ClientError):
            self._thread.run(self._network.close())
        self._thread.close()

    def new_identity(self) -> Identity:
        """An identity that nobody has used."""
        return self._thread.run(
            self._network.retrying("getting a producer id", self._timeout_s, self._ask_producer_id)
        )

    def begin(self, identity: Identity) -> None:
        """Write under this identity from now on."""
        self._identity = identity
        self._sequence = 0

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write the records as one batch. Returns when all in-sync replicas have it.

        Raises RecordTooLarge or RecordRefused if it is not written, and ShutOut if another process has taken
        over. After another error it may be written or not.
        """
        assert self._identity is not None and records
        now_ms = int(time.time() * 1000)
        payload = encode_records(
            [record.key for record in records],
            [record.value for record in records],
            [now_ms] * len(records),
            [tuple(record.headers) for record in records],
        )
        batch = assemble_batch(
            payload,
            records_count=len(records),
            base_offset=0,
            last_offset_delta=len(records) - 1,
            leader_epoch=-1,
            attributes=0,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=self._sequence,
        )
        what = f"writing to {self._topic}"
        self._thread.run(self._network.retrying(what, self._timeout_s, lambda: self._produce(bytes(batch))))
        self._sequence = (self._sequence + len(records)) & MAX_SEQUENCE

    # ---- on the loop

    async def _produce(self, batch: bytes) -> None:
        network = self._network
        leader = network.metadata.leader(self._topic, self._partition)
        if leader is None:
            await network.topic(self._topic, self._timeout_s)
            await network.request_refresh()
            leader = network.metadata.leader(self._topic, self._partition)
        what = f"writing to {self._topic}-{self._partition}"
        if leader is None:
            raise BrokerError.of(ErrorCode.LEADER_NOT_AVAILABLE, what)
        data = PartitionProduceData(index=self._partition, records=batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=ALL_IN_SYNC_REPLICAS,
            timeout_ms=int(network.config.seconds("request.timeout.ms") * 1000),
            topic_data=[TopicProduceData(name=self._topic, partition_data=[data])],
        )
        try:
            answer = await network.call(leader[0], request, max_version=LAST_VERSION_WITH_NAMES)
        except ClientError:
            network.request_refresh()  # the leader may be another broker now
            raise
        said = answer.responses[0].partition_responses[0]
        if said.error_code in _WRITTEN:
            return
        if said.error_code in _SHUT_OUT:
            raise ShutOut(
                f"{what} failed: another redrive has begun since",
                advice="Let that one end, then redrive what is left",
            )
        network.request_refresh()
        raise BrokerError.of(said.error_code, what, said.error_message)

    async def _ask_producer_id(self) -> Identity:
        answer = await self._network.call_any(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_MS)
        )
        if answer.error_code:
            raise BrokerError.of(answer.error_code, "getting a producer id")
        return Identity(int(answer.producer_id), int(answer.producer_epoch))


async def _started(config: ClientConfig) -> Network:
    network = Network(config)
    await network.start()
    return network
